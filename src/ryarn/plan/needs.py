"""Memory of a recipe where it may run: on this machine's CPU, and on an accelerator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ryarn.backends.config import HfConfig
from ryarn.cost.memory import (
    FULL,
    GIB,
    HALF,
    Answering,
    Batch,
    Held,
    Training,
    answering_memory,
    training_memory,
)
from ryarn.cost.sizes import Sizes
from ryarn.errors import UserError
from ryarn.plan.rows import Row, longest_batch
from ryarn.recipe import Recipe

_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": GIB, "TIB": 2**40}
CPU, ACCELERATOR = "CPU", "accelerator"


@dataclass(frozen=True)
class Need:
    """What one device has to hold.

    Attributes:
        device: `CPU` or `ACCELERATOR`.
        dtype: float32 or bfloat16.
        training: None where nothing is trained.
        batch: What training holds at once.
        answering: None where a server answers.
    """

    device: str
    dtype: str
    training: Training | None
    batch: Batch | None
    answering: Answering | None

    def peak(self, recipe: Recipe) -> int:
        """Bytes of the stage that needs more."""
        checkpointing = recipe.train.gradient_checkpointing
        training = self.training.total(checkpointing) if self.training else 0
        return max(training, self.answering.total if self.answering else 0)


def devices(recipe: Recipe, config: Any) -> list[tuple[str, Held]]:
    """Where a recipe may run and how numbers are held there: here, and on an accelerator.

    Args:
        recipe: Says the dtype.
        config: The model's, which says in which dtype its weights were saved.
    """
    import torch

    from ryarn.models import SMOLLM2, TINY, resolve_dtype

    fast = Held(FULL if recipe.model.dtype == "float32" else HALF)
    if torch.cuda.is_available():
        return [(ACCELERATOR, fast)]
    dtype, name = resolve_dtype(recipe.model.dtype), recipe.model.name
    # What a GGUF file packs, or another dtype, is unpacked into memory of its own.
    packed = name.endswith(".gguf") or name == SMOLLM2 or name.startswith(TINY)
    mapped = not packed and getattr(config, "dtype", None) == dtype
    here = Held(HALF if dtype == torch.bfloat16 else FULL, mask=FULL, mapped=mapped)
    return [(CPU, here), (ACCELERATOR, fast)]


def need(
    sizes: Sizes,
    recipe: Recipe,
    place: tuple[str, Held],
    trained: Sequence[Row],
    asked: Iterable[Row],
) -> Need:
    """Memory on one device.

    Args:
        sizes: The model's.
        recipe: What is run.
        place: One of `devices`.
        trained: Training rows that fit; none where nothing is trained.
        asked: Evaluation rows that fit; none where a server answers.
    """
    device, held = place
    training = batch = answering = None
    if trained:
        batch = longest_batch(trained, recipe.train.batch_size)
        if not batch.scored:
            # The answers are not known: as long as those of the evaluation.
            labels = min(batch.longest, recipe.evaluate.max_new_tokens)
            batch = Batch(batch.rows, batch.longest, batch.padded, labels)
        training = training_memory(sizes, recipe, batch.longest, held, batch)
    prompts = sorted((row.prompt for row in asked), reverse=True)
    if prompts and isinstance(recipe.evaluate.backend, HfConfig):
        together = prompts[: max(1, recipe.evaluate.batch_tokens // prompts[0])]
        longest = prompts[0] + recipe.evaluate.max_new_tokens
        first = Batch(len(together), longest, len(set(together)) > 1, 1)
        answering = answering_memory(sizes, recipe, longest, held, first)
    dtype = "float32" if held.value == FULL else "bfloat16"
    return Need(device, dtype, training, batch, answering)


def parse_memory(text: str) -> int:
    """Bytes of a size such as 24GB or 80GiB.

    Raises:
        UserError: It is none.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or float(found[1]) <= 0:
        raise UserError(f"--memory {text!r}: give a size such as 24GB or 80GiB")
    return int(float(found[1]) * unit)


def room_for(recipe: Recipe, needed: Need, limit: int) -> str:
    """What makes a recipe fit, as settings behind it; the first that does, or that nothing does."""
    training, answering = needed.training, needed.answering
    if answering is not None and answering.total > limit:
        one = answering.weights + (answering.cache + answering.prefill) // answering.rows
        if answering.rows > 1 and one <= limit:
            return "set evaluate.batch_tokens=1, which answers one row at a time"
        return "evaluate shorter rows, or a smaller model"
    config = recipe.train
    if training is not None and not config.gradient_checkpointing and training.total(True) <= limit:
        return "set train.gradient_checkpointing=true"
    size = config.batch_size
    if training is not None and size > 1:
        fixed = training.weights + training.adapter
        if fixed + (training.checkpointed + training.logits) // size <= limit:
            total = size * config.gradient_accumulation
            return (
                f"set train.gradient_checkpointing=true train.batch_size=1 "
                f"train.gradient_accumulation={total}, which trains the same steps"
            )
    return "train shorter rows, or a smaller model"
