"""The border to transformers: `extend` puts a method on a model and takes it off again."""

from __future__ import annotations

from weakref import WeakSet

from torch import nn

from ryarn.errors import SelfTestError, UserError
from ryarn.method import Method
from ryarn.rope.inspect import RopeMap, inspect_rope
from ryarn.rope.remap import DrawStats, Remapper
from ryarn.rope.scale import switch_yarn
from ryarn.rope.verify import check_frequencies, verify

_EXTENDED: WeakSet[nn.Module] = WeakSet()
"""Decoders that carry an extension: a second one on top would draw twice."""


class Extension:
    """A method on a model: YaRN switched on, positions drawn in training mode, all of it removable.

    Made by `extend`. In training mode (`model.train()`) each document's tokens get drawn positions;
    in evaluation mode, and in generation, the model is plain YaRN.

    Attributes:
        method: What was put on.
        rope_map: What RoPE the model has.
    """

    def __init__(self, model: nn.Module, method: Method, seed: int) -> None:
        self.method = method
        self.rope_map: RopeMap = inspect_rope(model)
        if self.rope_map.decoder in _EXTENDED:
            raise UserError("this model is already extended: call remove() on its extension first")
        reason = method.why_not(self.rope_map.native_factor)
        if reason is not None:
            raise UserError(reason)
        self._restore = None
        if method.train_factor is not None:
            self._restore = switch_yarn(self.rope_map, method.train_factor)
        self._remapper = Remapper(self.rope_map, method, seed)
        _EXTENDED.add(self.rope_map.decoder)

    def set_progress(self, step: int, total_steps: int) -> None:
        """Say which optimizer step comes next; `ExtensionCallback` does it in a trainer.

        Args:
            step: Optimizer step, from 0.
            total_steps: How many the whole training has.
        """
        self._remapper.set_progress(step, total_steps)

    @property
    def stats(self) -> DrawStats:
        """What was drawn since the last `set_progress`."""
        return self._remapper.stats

    def verify(self) -> None:
        """Run the self-test on the live model; see `ryarn.rope.verify`.

        Raises:
            SelfTestError: A check failed; the message names the module.
        """
        verify(self.rope_map, self._remapper, self.method.train_factor)

    def remove(self) -> None:
        """Take hooks and scaling off: the model that came in, bit for bit."""
        self._remapper.remove()
        _EXTENDED.discard(self.rope_map.decoder)
        if self._restore is not None:
            self._restore()
            self._restore = None


def extend(model: nn.Module, method: Method, *, seed: int = 0) -> Extension:
    """Put a method on a loaded model for training.

    Args:
        model: A transformers causal language model, before or after PEFT wraps it.
        method: See `ryarn.make_method`.
        seed: The draws are a function of this seed, the optimizer step and the document.

    Returns:
        The handle: give the trainer `callbacks=[ExtensionCallback(extension)]`.

    Raises:
        UserError: The model has no RoPE, one that can't be extended, or the method does not apply.
    """
    return Extension(model, method, seed)


__all__ = [
    "DrawStats",
    "Extension",
    "RopeMap",
    "SelfTestError",
    "check_frequencies",
    "extend",
    "inspect_rope",
    "switch_yarn",
    "verify",
]
