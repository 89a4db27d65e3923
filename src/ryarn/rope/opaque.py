"""The draw as an operator of its own, which torch.compile calls and does not look into.

Hashing tokens and drawing subsets is NumPy's work. Traced as Python it would break the graph at
each line, and compile anew at each step, whose number it reads. Two passes over the very same batch
within one compiled graph are one draw to the compiler.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from weakref import WeakValueDictionary

import torch

Draw = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor]
"""Positions of a batch of token ids, [B, T], its padding mask and its ordinary position ids."""


class Drawing:
    """A draw that a graph can name by a number.

    Args:
        draw: What is called with the batch; it may read whatever it likes.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.number = next(_NUMBERS)
        _DRAWINGS[self.number] = self

    def __call__(
        self, tokens: torch.Tensor, mask: torch.Tensor | None, position_ids: torch.Tensor | None
    ) -> torch.Tensor:
        """Draw, compiled or not: [B, T] int64 on the device of the tokens."""
        # A compiled forward pass runs without gradients; whether it is for a backward pass is known
        # where it is traced.
        training = torch.is_grad_enabled()
        positions: torch.Tensor = _draw(tokens, mask, position_ids, self.number, training)
        return positions


_NUMBERS = itertools.count()
_DRAWINGS: WeakValueDictionary[int, Drawing] = WeakValueDictionary()


@torch.library.custom_op("ryarn::draw", mutates_args=())
def _draw(
    tokens: torch.Tensor,
    mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    number: int,
    training: bool,
) -> torch.Tensor:
    with torch.set_grad_enabled(training):
        return _DRAWINGS[number].draw(tokens, mask, position_ids).to(tokens.device)


@_draw.register_fake
def _(
    tokens: torch.Tensor,
    mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    number: int,
    training: bool,
) -> torch.Tensor:
    return torch.empty_like(tokens, dtype=torch.int64)
