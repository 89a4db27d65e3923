"""A few rows with every method's answer, to read beside the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ryarn.evaluate import COMPLETIONS, EXAMPLES, FAILED, SKIPPED, official
from ryarn.records import read_jsonl
from ryarn.report.answers import Run
from ryarn.runs import EVALUATION

MAX_EXAMPLES = 8
PROMPT_END = 600
"""Characters of a prompt's end that the page shows."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One example with every method's answer (of its first run)."""

    id: str
    bin: int
    prompt_end: str
    target: str
    answers: dict[str, str]
    scores: dict[str, float | None]


def samples(groups: Mapping[str, Sequence[Run]], bins: Sequence[int]) -> list[Sample]:
    """The first row of each bin; bins are thinned evenly when there are many."""
    picked = np.unique(np.linspace(0, len(bins) - 1, min(MAX_EXAMPLES, len(bins))).round())
    wanted = {bins[int(i)] for i in picked}
    first = {label: runs[0] for label, runs in groups.items()}
    chosen: dict[str, dict[str, Any]] = {}
    for row in read_jsonl(next(iter(first.values())).folder / EVALUATION / EXAMPLES):
        if row["bin"] in wanted:
            wanted.remove(row["bin"])
            chosen[row["id"]] = row
        if not wanted:
            break
    answers: dict[str, dict[str, str]] = {key: {} for key in chosen}
    scores: dict[str, dict[str, float | None]] = {key: {} for key in chosen}
    for label, run in first.items():
        for row in read_jsonl(run.folder / EVALUATION / COMPLETIONS):
            if row["id"] in chosen:
                finish, text = row["finish"], row["text"]
                none = finish in (SKIPPED, FAILED)
                answers[row["id"]][label] = f"{finish}: {row['reason']}" if none else text
        for score in run.scores:
            if score.id in chosen:
                scores[score.id][label] = official(score) if score.scores else None
    return [
        Sample(
            id=key,
            bin=row["bin"],
            prompt_end=_end(row["prompt"][-1]["content"]),
            target=row["target"],
            answers=answers[key],
            scores=scores[key],
        )
        for key, row in sorted(chosen.items(), key=lambda item: item[1]["bin"])
    ]


def _end(text: str) -> str:
    return text if len(text) <= PROMPT_END else f"… {text[-PROMPT_END:]}"
