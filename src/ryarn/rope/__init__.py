"""The border to transformers: `extend` puts a method on a model and takes it off again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from torch import nn

from ryarn.errors import SelfTestError, UserError
from ryarn.method import Method
from ryarn.positions import SentenceChunks
from ryarn.processes import check_wrapping
from ryarn.rope.inspect import RopeMap, inspect_rope
from ryarn.rope.remap import DrawStats, Remapper
from ryarn.rope.scale import describe_rope, plan_yarn, switch_yarn
from ryarn.rope.verify import check_frequencies, verify
from ryarn.sentences import Sentences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_EXTENDED: WeakSet[nn.Module] = WeakSet()
"""Decoders that carry an extension: a second one on top would draw twice."""


class Extension:
    """A method on a model: YaRN switched on, positions drawn in training mode, all of it removable.

    Made by `extend`. In training mode (`model.train()`) each document's tokens get drawn positions;
    in evaluation mode, and in generation, the model is plain YaRN.

    Attributes:
        method: What was put on.
        rope_map: What RoPE the model has.
        description: What becomes of each RoPE: type, factor, attention factor, what was kept.
    """

    def __init__(self, model: nn.Module, method: Method, seed: int) -> None:
        self.method = method
        self.rope_map: RopeMap = inspect_rope(model)
        if self.rope_map.decoder in _EXTENDED:
            raise UserError("this model is already extended: call remove() on its extension first")
        self.description = describe_method(self.rope_map, method)
        self._restore = None
        if method.train_factor is not None:
            self._restore = switch_yarn(
                self.rope_map, method.train_factor, replace=method.replace_scaling
            )
        self._remapper = Remapper(self.rope_map, method, seed)
        _EXTENDED.add(self.rope_map.decoder)

    def set_progress(self, step: int, total_steps: int) -> None:
        """Say which optimizer step comes next; `ExtensionCallback` does it in a trainer.

        Args:
            step: Optimizer step, from 0.
            total_steps: How many the whole training has.
        """
        self._remapper.set_progress(step, total_steps)

    def pair_rows(self) -> None:
        """Draw for pairs: each batch is [chosen ..., rejected ...], as preference trainers have it.

        The answers to one prompt then have the same positions, so that their text alone tells them
        apart. `ExtensionCallback` does it for TRL's `DPOTrainer`.
        """
        self._remapper.paired = True

    def read_sentences(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Let the sampler know where sentences end; `ExtensionCallback` does it in a trainer.

        Args:
            tokenizer: The model's. Methods that don't ask for sentences don't read it.
        """
        if isinstance(self.method.sampler, SentenceChunks):
            self._remapper.sentences = Sentences(tokenizer)

    @property
    def stats(self) -> DrawStats:
        """What was drawn since the last `set_progress`."""
        return self._remapper.stats

    def verify(self, model: nn.Module | None = None) -> None:
        """Run the self-test on the live model; see `ryarn.rope.verify`.

        Args:
            model: The model as it is trained, where its weights are sharded (FSDP): they are
                gathered when that one is called, not the decoder inside.

        Raises:
            SelfTestError: A check failed; the message names the module.
            UserError: The model's long range has no RoPE, or not RoPE alone.
        """
        from torch.distributed.tensor import DTensor

        check_wrapping(self.rope_map.decoder if model is None else model)
        weights = self.rope_map.decoder.parameters()
        sharded = any(isinstance(weight, DTensor) for weight in weights)
        rope_map = replace(self.rope_map, entry=model if sharded else None)
        verify(rope_map, self._remapper, self.method.train_factor)

    def remove(self) -> None:
        """Take hooks and scaling off: the model that came in, bit for bit."""
        self._remapper.remove()
        _EXTENDED.discard(self.rope_map.decoder)
        if self._restore is not None:
            self._restore()
            self._restore = None


def describe_method(rope_map: RopeMap, method: Method) -> str:
    """What a method makes of a model's RoPE in training; the model may be one without weights.

    Raises:
        UserError: The method does not apply to the model, in training or at inference.
    """
    reason = method.why_not(rope_map.native_factor)
    if reason is not None:
        raise UserError(reason)
    factors = {"train": method.train_factor, "eval": method.eval_factor}
    plans = {
        when: plan_yarn(rope_map, factor, replace=method.replace_scaling)
        for when, factor in factors.items()
        if factor is not None
    }
    return plans["train"].description if "train" in plans else describe_rope(rope_map)


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
    "describe_method",
    "describe_rope",
    "extend",
    "inspect_rope",
    "plan_yarn",
    "switch_yarn",
    "verify",
]
