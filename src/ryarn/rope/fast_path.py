"""Models whose rotary path another library has replaced by one that asks no rotary module."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from torch import nn

from ryarn.errors import UserError

LIBRARIES = ("unsloth",)
"""Their fast path reads rows of a table of cos and sin, so hooks on rotary modules never run. What
they leave as transformers has it is let through: the self-test sees whether it works."""


def refuse_fast_path(decoder: nn.Module, rotaries: Sequence[nn.Module]) -> None:
    """Refuse a decoder that drawn positions would not reach.

    Args:
        decoder: The module that takes the tokens.
        rotaries: Its rotary modules.

    Raises:
        UserError: Its own forward, or a rotary module, is that of such a library.
    """
    for module in (*rotaries, decoder):
        forward = inspect.unwrap(type(module).forward)
        for owner in (type(module).__module__, forward.__module__):
            library = owner.partition(".")[0]
            if library in LIBRARIES:
                raise UserError(
                    f"{type(module).__name__} runs code of {owner}, which takes cos and sin from a "
                    "table of its own, so neither YaRN nor drawn positions would reach attention: "
                    f"load the model with transformers, in a process that never loaded one with "
                    f"{library}"
                )
