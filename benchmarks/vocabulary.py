"""The largest tensor with a vocabulary axis in a training step: logits, or a tile of them."""

from __future__ import annotations

import contextlib
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import TrainerCallback

from benchmarks.setting import LABELLED, make_rows, make_trainer
from ryarn.recipe import Recipe, recipe_method
from ryarn.train import Rows, _make_trainer


@dataclass(frozen=True)
class Largest:
    """The largest tensor with a vocabulary axis that a step made.

    Attributes:
        tokens: Tokens of the step's batch.
        labelled: Those that carry a label.
        vocabulary: Tokens of the vocabulary.
        rows: The tensor's other axes, multiplied.
        width: Its vocabulary axis: the vocabulary, or a slice of it.
    """

    tokens: int
    labelled: int
    vocabulary: int
    rows: int
    width: int

    @property
    def share(self) -> float:
        """Its size against tokens x vocabulary."""
        return self.rows * self.width / (self.tokens * self.vocabulary)


class _Watch(TorchDispatchMode):
    """Notes every tensor with an axis as wide as the output head, or as a slice of it.

    The head's own weight does not count.
    """

    def __init__(self, head: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._head = head
        self._widths = {head.shape[0]}
        self.rows = self.width = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if torch.is_tensor(leaf)]
        weights = [tensor for tensor in tensors if self._is_weight(tensor)]
        # TRL multiplies by a slice of the head at a time; its logits are as wide as the slice.
        mine, hidden = self._head.untyped_storage().data_ptr(), self._head.shape[1]
        self._widths |= {
            weight.numel() // hidden
            for weight in weights
            if weight.untyped_storage().data_ptr() == mine
        }
        for tensor in tensors:
            for width in self._widths & set(tensor.shape):
                rows = tensor.numel() // width
                if not self._is_weight(tensor) and rows * width > self.rows * self.width:
                    self.rows, self.width = rows, width
        return out

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has the axes of the head: it, a slice, transposed, a gradient."""
        return tensor.ndim == 2 and self._head.shape[1] in tensor.shape


class _WatchSteps(TrainerCallback):
    """Watches each step of a trainer from its first forward to its optimizer."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch.__enter__()  # type: ignore[no-untyped-call]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def in_ryarn(model: Any, tokenizer: Any, length: int, batch: int) -> Largest:
    """One step of the trainer that `ryarn train` makes.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        length: Tokens of a row.
        batch: Rows of the step.
    """
    rows = make_rows(batch, length, model.config.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        recipe = _recipe(length, batch, Path(folder))
        method = recipe_method(recipe.method)
        encoded = Rows([{"id": str(i), **row} for i, row in enumerate(rows)], 0, "")
        trainer = _make_trainer(recipe, method, model, tokenizer, encoded, None)
        watch = _Watch(model.get_output_embeddings().weight)
        trainer.add_callback(_WatchSteps(watch))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            trainer.train()
    return _largest(watch, model, length, batch)


def in_trl(model: Any, length: int) -> Largest:
    """One step of TRL's own trainer with LoRA, a row of so many tokens, for contrast."""
    from trl import SFTTrainer

    watch = _Watch(model.get_output_embeddings().weight)
    rows = make_rows(1, length, model.config.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(SFTTrainer, model, rows, folder)
        trainer.add_callback(_WatchSteps(watch))
        trainer.train()
    return _largest(watch, model, length, 1)


def in_plain_forward(model: Any, length: int, batch: int) -> Largest:
    """One step of transformers' own loss: `model(input_ids, labels=labels)`, for contrast."""
    rows = make_rows(batch, length, model.config.vocab_size)
    ids, labels = (torch.tensor([row[key] for row in rows]) for key in ("input_ids", "labels"))
    watch = _Watch(model.get_output_embeddings().weight)
    with watch:
        model(input_ids=ids, labels=labels, use_cache=False).loss.backward()
    model.zero_grad()
    return _largest(watch, model, length, batch)


def _largest(watch: _Watch, model: Any, length: int, batch: int) -> Largest:
    vocabulary = model.config.vocab_size
    return Largest(length * batch, LABELLED * batch, vocabulary, watch.rows, watch.width)


def _recipe(length: int, batch: int, folder: Path) -> Recipe:
    data = {"task": "jsonl", "path": "rows.jsonl"}
    return Recipe.model_validate(
        {
            "model": {"name": "random"},
            "method": {"name": "randomized-yarn", "spans": [4 * length]},
            "train": {"data": data, "max_length": length, "max_steps": 1, "batch_size": batch},
            "evaluate": {"data": data},
            "output": folder,
        }
    )
