"""A decoder as transformers would build it from a config: the truth about what a config means.

Modules read the config once, when they are built, and not the rotary modules alone: DeepSeek's
attention takes its softmax scale from the YaRN factor. So what a changed config changes is seen by
building the decoder before and after, without weights, and laid into the live model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ryarn.errors import UserError

_NOT_CONFIGURED = ("training", "gradient_checkpointing")


def build_blank(decoder: nn.Module) -> nn.Module:
    """Build the decoder's class from its config as it is now: no weights, real buffers.

    Raises:
        UserError: It can't be built from its config.
    """
    from accelerate import init_empty_weights

    kind: Any = type(decoder)
    config: Any = decoder.config
    with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False):
        try:
            blank = kind(config)
        except Exception as error:
            raise UserError(
                f"{kind.__name__} can't be built from its own config, so what YaRN would change in "
                f"it is unknown ({type(error).__name__}: {error})"
            ) from error
    assert isinstance(blank, nn.Module)
    return blank


@dataclass(frozen=True)
class Change:
    """One attribute or buffer of a module that a config change changes.

    Attributes:
        path: The module's place in the decoder.
        name: The attribute.
        value: What it becomes.
    """

    path: str
    name: str
    value: Any


def changes(before: nn.Module, after: nn.Module) -> list[Change]:
    """What differs between two blanks: plain attributes, and buffers that are not saved.

    Raises:
        UserError: A weight differs in shape.
    """
    found = []
    weights = {name: value.shape for name, value in before.state_dict().items()}
    for name, value in after.state_dict().items():
        if weights.get(name) != value.shape:
            raise UserError(
                f"{type(after).__name__}: its weight {name} has the size of the window, so the "
                "window can't be extended by RoPE alone"
            )
    modules = dict(before.named_modules())
    for path, module in after.named_modules():
        old = modules[path]
        found += [
            Change(path, name, value)
            for name, value in _plain(module)
            if vars(old).get(name) != value
        ]
        buffers = dict(old.named_buffers(recurse=False))
        for name, buffer in module.named_buffers(recurse=False):
            # A saved buffer comes with the weights, whatever the config says.
            if name in module.state_dict(keep_vars=True):
                continue
            if buffers[name].shape != buffer.shape or not torch.equal(buffers[name], buffer):
                found.append(Change(path, name, buffer))
    return found


def _plain(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name.startswith("_") or name in _NOT_CONFIGURED:
            continue
        if isinstance(value, int | float | str) or (
            isinstance(value, dict)
            and all(isinstance(v, int | float | str) for v in value.values())
        ):
            yield name, value


def apply(decoder: nn.Module, found: list[Change], device: torch.device) -> Callable[[], None]:
    """Lay changes into a live decoder.

    Returns:
        A function that takes them back, bit for bit; a model that moved meanwhile keeps its device.
    """
    undo = [_set(decoder.get_submodule(change.path), change, device) for change in found]

    def restore() -> None:
        for give_back in reversed(undo):
            give_back()

    return restore


def _set(module: nn.Module, change: Change, device: torch.device) -> Callable[[], None]:
    name, before = change.name, getattr(module, change.name)
    if not isinstance(change.value, torch.Tensor):
        setattr(module, name, change.value)
        return lambda: setattr(module, name, before)
    # float32 whatever the model's dtype: a bfloat16 frequency is off by whole turns at long range.
    module.register_buffer(name, change.value.to(device), persistent=False)

    def give_back() -> None:
        now = getattr(module, name).device
        module.register_buffer(name, before.to(now) if not before.is_meta else before, False)

    return give_back
