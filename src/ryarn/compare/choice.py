"""Which setting of a method wins: the best mean over the OOD bins of held-out rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ryarn.compare.cells import is_done
from ryarn.compare.grid import Cell, GridRecipe
from ryarn.errors import UserError
from ryarn.evaluate import SCORES, official
from ryarn.records import Score, read_jsonl
from ryarn.runs import EVALUATION, write_json

CHOSEN = "chosen.json"


@dataclass(frozen=True)
class Choice:
    """What was tried for one method on one task.

    Attributes:
        scores: Setting's number, from 1, to its OOD mean; None where there is none.
        reasons: Setting's number to why it has none.
    """

    scores: Mapping[int, float | None]
    reasons: Mapping[int, str]

    @property
    def winner(self) -> int | None:
        """The setting with the best mean, the first of equals; None if none has a mean."""
        there = {number: score for number, score in self.scores.items() if score is not None}
        return max(there, key=lambda number: (there[number], -number), default=None)


def choose(candidates: Sequence[Cell], failed: Mapping[str, str]) -> Choice:
    """Compare the settled candidates of one method on one task.

    Args:
        candidates: They, in the order of their settings.
        failed: Cell name to why it failed.
    """
    scores: dict[int, float | None] = {}
    reasons: dict[int, str] = {}
    for cell in candidates:
        number = cell.setting or 0
        scores[number] = None
        if not is_done(cell):
            reasons[number] = failed.get(cell.name, "was not run")
            continue
        try:
            scores[number] = ood_mean(cell)
        except UserError as error:
            reasons[number] = str(error)
    return Choice(scores, reasons)


def ood_mean(cell: Cell, *, all_bins: bool = False) -> float:
    """Mean over the bins longer than the training rows, each bin with the same weight.

    Args:
        cell: An evaluated cell.
        all_bins: Take the others, too.

    Raises:
        UserError: There is no such bin, or one without a scored row.
    """
    path = cell.recipe.output / EVALUATION / SCORES
    longest = cell.recipe.train.max_length
    bins: dict[int, list[float]] = {}
    for score in (Score(**row) for row in read_jsonl(path)):
        if all_bins or score.bin > longest:
            bins.setdefault(score.bin, []).extend([official(score)] if score.scores else [])
    if not bins:
        raise UserError(f"no held-out row is in a bin beyond train.max_length = {longest}")
    empty = [bin_ for bin_, values in bins.items() if not values]
    if empty:
        raise UserError(f"no row of bin {min(empty)} fitted the window")
    return statistics.fmean(statistics.fmean(values) for values in bins.values())


def write_choices(grid: GridRecipe, choices: Mapping[tuple[str, str], Choice], path: Path) -> None:
    """Write all settings, their scores and which won, whole or not at all."""
    assert grid.choose is not None
    tables: list[dict[str, Any]] = []
    for (task, label), choice in choices.items():
        tried = [
            {
                "number": number,
                "changes": part.model_dump(mode="json", exclude_unset=True),
                "ood_mean": choice.scores[number],
                "reason": choice.reasons.get(number),
            }
            for number, part in enumerate(grid.choose.settings[label], start=1)
        ]
        tables.append({"task": task, "method": label, "chosen": choice.winner, "settings": tried})
    write_json(path, {"seed": grid.choose.seed, "rows": "held-out", "choices": tables})
