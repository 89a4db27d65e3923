"""Trainings that cells share: neither s' nor the evaluation has a part in what is trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from ryarn.checkpoints import last_checkpoint
from ryarn.compare.cells import is_trained
from ryarn.compare.grid import Cell
from ryarn.disk import writing
from ryarn.recipe import WITHOUT_EFFECT, Recipe, recipe_method
from ryarn.runs import ADAPTER, CHECKPOINTS, LOG, RUN, read_json, write_json

SHARED = "trained_in"
"""Key of `run.json`: the run folder that an adapter was taken over from."""


def training(recipe: Recipe) -> str:
    """All that an adapter's weights depend on, as text: equal texts are one training."""
    parts = recipe.model_dump(mode="json", include={"model", "method", "train", "seed"})
    del parts["method"]["eval_factor"]
    for key in WITHOUT_EFFECT:
        del parts["train"][key]
    return json.dumps(parts, sort_keys=True)


class Trainings:
    """Which cells have the same training, and where it is finished.

    Args:
        cells: All that there can be, in folders that are theirs.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        same: dict[str, list[Cell]] = {}
        for cell in cells:
            if cell.trains:
                same.setdefault(training(cell.recipe), []).append(cell)
        self._others = {
            cell.recipe.output: [other.recipe for other in group if other is not cell]
            for group in same.values()
            for cell in group
        }

    def finished(self, cell: Cell) -> Path | None:
        """Another cell's run folder with this cell's adapter; None if it has it, or nobody has."""
        if not cell.trains or is_trained(cell.recipe):
            return None
        there = filter(_can_give, self._others[cell.recipe.output])
        return next((recipe.output for recipe in there), None)

    def under_way(self, cell: Cell, running: Collection[Path]) -> bool:
        """Whether another cell is at this cell's training, so that waiting for it saves one.

        Args:
            cell: The cell.
            running: Run folders of the cells in hand.
        """
        if not cell.trains or is_trained(cell.recipe) or self.finished(cell) is not None:
            return False
        return any(recipe.output in running for recipe in self._others[cell.recipe.output])


def _can_give(recipe: Recipe) -> bool:
    """Whether all is there that `adopt` takes."""
    return is_trained(recipe) and all((recipe.output / name).is_file() for name in (LOG, RUN))


def spared(planned: Iterable[Cell], every: Iterable[Cell]) -> set[Path]:
    """Run folders of the cells that will have their adapter from another cell.

    Args:
        planned: Cells in their order.
        every: All that there can be, as other settings may have been trained before.
    """
    left = [cell for cell in planned if cell.trains and not is_trained(cell.recipe)]
    seen = {training(c.recipe) for c in every if c.trains and is_trained(c.recipe)}
    found = set()
    # One that has begun goes on, and gives its adapter to the others.
    for cell in sorted(left, key=lambda cell: not _begun(cell)):
        key = training(cell.recipe)
        if key in seen:
            found.add(cell.recipe.output)
        seen.add(key)
    return found


def _begun(cell: Cell) -> bool:
    return last_checkpoint(cell.recipe.output / CHECKPOINTS) is not None


def adopt(recipe: Recipe, donor: Path) -> None:
    """Take over the adapter of a run with the same training, under the s' of this one.

    Args:
        recipe: Of the run that has no adapter yet.
        donor: Run folder of one that has.

    Raises:
        OSError: The disk refuses; starting again starts over.
    """
    from ryarn.adapter_readme import write_readme
    from ryarn.contract import Contract

    adapter = recipe.output / ADAPTER
    partial = adapter.with_name(f"{ADAPTER}.partial")
    with writing(adapter, "then start the same command again"):
        shutil.rmtree(partial, ignore_errors=True)
        # A tokenizer with several chat templates has a folder of them beside its files.
        for path in filter(Path.is_file, (donor / ADAPTER).rglob("*")):
            copied = partial / path.relative_to(donor / ADAPTER)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copied)
        eval_factor = recipe_method(recipe.method).eval_factor
        replace(Contract.load(partial), eval_factor=eval_factor).save(partial)
        write_readme(partial, adapter)
        shutil.copy(donor / LOG, recipe.output / LOG)
        write_json(recipe.output / RUN, {SHARED: str(donor), **read_json(donor / RUN)})
        partial.rename(adapter)
