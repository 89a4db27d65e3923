"""What a grid takes of an accelerator: memory part by part, and hours, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ryarn.compare.estimate import Survey
from ryarn.compare.grid import Cell
from ryarn.cost.hours import H100, gpu_hours
from ryarn.cost.memory import GIB, answering_memory, training_memory
from ryarn.cost.sizes import Sizes
from ryarn.paper.expected import hub_source

LARGE = 1e9
"""Parameters from which on a model is for an accelerator, and time on this machine means little."""
FACTS = 600
"""Tokens of a row whose length is told as 0: a story alone, with the prompt around it."""


def sizes_of(cells: Sequence[Cell], survey: Survey) -> Sizes | None:
    """The model's sizes, if all cells have one model and it is large; else None."""
    names = {cell.recipe.model.name for cell in cells}
    skeleton = survey.skeleton(cells[0].recipe)
    sizes = Sizes.of(skeleton) if len(names) == 1 and skeleton is not None else None
    return sizes if sizes is not None and sizes.parameters >= LARGE else None


def hours_each(cells: Sequence[Cell], survey: Survey, sizes: Sizes) -> Mapping[str, float]:
    """Cell name to its hours on the accelerator."""
    hours = {}
    for cell in cells:
        trained, answered = map(_told, survey.rows(cell.recipe))
        hours[cell.name] = gpu_hours(sizes, cell.recipe, trained, answered)
    return hours


def _told(rows: Counter[int]) -> Counter[int]:
    found = Counter[int]()
    for length, count in rows.items():
        found[length or FACTS] += count
    return found


def resource_notes(cells: Sequence[Cell], survey: Survey, sizes: Sizes) -> list[str]:
    """Memory of the cells that take most of it, a sentence a stage."""
    notes = []
    trained = [cell.recipe for cell in cells if cell.trains]
    if trained:
        recipe = max(trained, key=lambda r: r.train.batch_size * r.train.max_length)
        need = training_memory(sizes, recipe, recipe.train.max_length)
        checkpointing = recipe.train.gradient_checkpointing
        notes.append(
            f"memory of training: {_gib(need.total(checkpointing))} = weights {_gib(need.weights)}"
            f" + LoRA and AdamW {_gib(need.adapter)} + activations of "
            f"{recipe.train.batch_size * recipe.train.max_length:,} tokens "
            f"{_gib(need.checkpointed if checkpointing else need.kept)} + logits "
            f"{_gib(need.logits)}; activations are {_gib(need.checkpointed)} with "
            f"gradient_checkpointing, {_gib(need.kept)} without"
        )
    needs = []
    for cell in cells:
        recipe = cell.recipe
        longest = max(survey.rows(recipe)[1], default=0) + recipe.evaluate.max_new_tokens
        longest = min(longest, recipe.evaluate.window or longest)
        needs.append(answering_memory(sizes, recipe, longest))
    most = max(needs, key=lambda need: need.total)
    notes.append(
        f"memory of evaluation: {_gib(most.total)} = weights and LoRA {_gib(most.weights)} + KV "
        f"cache {_gib(most.cache)} + prefill {_gib(most.prefill)}, for {most.rows} x "
        f"{most.tokens:,} tokens"
    )
    return notes


def hours_note(hours: Mapping[str, float], left: Sequence[Cell]) -> str:
    """The hours of all that is left, and what they assume."""
    total = sum(hours[cell.name] for cell in left)
    return (
        f"GPU-hours: about {total:.3g} on {H100}, every answer as long as evaluate.max_new_tokens "
        "allows"
    )


def source_note(cells: Sequence[Cell]) -> str | None:
    """Which rows were not read; None if all were."""
    data = [d for cell in cells for d in (cell.recipe.train.data, cell.recipe.evaluate.data)]
    names = list(dict.fromkeys(filter(None, map(hub_source, data))))
    if not names:
        return None
    return (
        f"rows of {', '.join(names)} are those that the recipe asks for and the paper counts: a "
        "dry run does not read them from the hub; ryarn data does, and counts them"
    )


def _gib(count: float) -> str:
    """E.g. "14.2 GiB"."""
    return f"{count / GIB:.3g} GiB"
