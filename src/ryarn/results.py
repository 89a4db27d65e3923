"""A report as data: runs pooled by method, OOD averages, and paired comparisons."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ryarn.errors import UserError
from ryarn.evaluate import COMPLETIONS, EXAMPLES, official
from ryarn.records import Score, read_jsonl
from ryarn.runs import EVALUATION
from ryarn.stats import Difference, Estimate, estimate, holm, paired

DEFAULT_REFERENCE = "randomized-yarn"
NOT_SETTINGS = ("label", "seed", "adapter", "versions")
"""Manifest keys in which runs of one method may differ and still be pooled."""
MAX_EXAMPLES = 8
PROMPT_END = 600
"""Characters of a prompt's end that the page shows."""


@dataclass(frozen=True, slots=True)
class Run:
    """One evaluated run folder."""

    folder: Path
    manifest: dict[str, Any]
    scores: list[Score]

    @property
    def settings(self) -> str:
        """What makes two runs the same experiment, as one comparable string."""
        kept = {k: v for k, v in self.manifest.items() if k not in NOT_SETTINGS}
        return json.dumps(kept, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Cell:
    """One method in one bin.

    Attributes:
        bin: The bin.
        score: Official score.
        others: The task's further rules, by name.
        rows: Rows of the bin, over all runs.
        skipped: Rows that did not fit into the window.
        unparsed: Scored rows in which no answer was found.
        cut: Rows whose answer spent the token budget.
    """

    bin: int
    score: Estimate
    others: dict[str, Estimate]
    rows: int
    skipped: int
    unparsed: int
    cut: int


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run's own numbers beside its settings."""

    folder: str
    manifest: dict[str, Any]
    mean: dict[int, float | None]
    ood: float | None


@dataclass(frozen=True, slots=True)
class Method:
    """All runs of one label, pooled. `ood` has no mean when an OOD bin has no scored row."""

    label: str
    cells: list[Cell]
    ood: Estimate
    runs: list[RunLine]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method against another on the same rows.

    Attributes:
        first: Label of the method that the difference is in favour of.
        second: Label of the other.
        bin: The bin; None for the OOD average.
        bins: The bins that took part.
        difference: First minus second.
        p_holm: Corrected p-value; the OOD averages are one family, all single bins another.
    """

    first: str
    second: str
    bin: int | None
    bins: tuple[int, ...]
    difference: Difference
    p_holm: float | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One example with every method's answer (of its first run)."""

    id: str
    bin: int
    prompt_end: str
    target: str
    answers: dict[str, str]
    scores: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the formats show; bins beyond `train_length` are OOD."""

    task: str
    rule: str
    data: str
    train_length: int
    original_length: int | None
    bins: list[int]
    methods: list[Method]
    reference: str
    comparisons: list[Comparison]
    notes: list[str]
    samples: list[Sample]

    @property
    def averages(self) -> list[Comparison]:
        """Comparisons of OOD averages."""
        return [c for c in self.comparisons if c.bin is None]

    @property
    def by_bin(self) -> list[Comparison]:
        """Comparisons within one bin."""
        return [c for c in self.comparisons if c.bin is not None]

    @property
    def ood_bins(self) -> list[int]:
        """Bins longer than the fine-tuning rows."""
        return [b for b in self.bins if b > self.train_length]


def build_report(runs: Sequence[Run], reference: str | None = None) -> Report:
    """Pool, average and test; see `ryarn.stats` for the rules.

    Raises:
        UserError: No method has the label `reference`.
    """
    groups = _group(runs)
    train_length = max(int(run.manifest["train_length"]) for run in runs)
    bins = sorted({score.bin for score in runs[0].scores})
    ood = [b for b in bins if b > train_length]
    methods = [_method(label, members, bins, ood) for label, members in groups.items()]
    asked = reference is not None
    if reference is None:
        reference = DEFAULT_REFERENCE if DEFAULT_REFERENCE in groups else list(groups)[-1]
    if reference not in groups:
        raise UserError(f"reference {reference!r}: no such method; there are {', '.join(groups)}")
    pairs = [
        (label, reference) if asked else (reference, label)
        for label in groups
        if label != reference
    ]
    lengths = [run.manifest.get("original_length") for run in runs]
    return Report(
        task=str(runs[0].manifest["task"]),
        rule=next((next(iter(s.scores)) for run in runs for s in run.scores if s.scores), ""),
        data=str(runs[0].manifest["data"]),
        train_length=train_length,
        original_length=next((length for length in lengths if length), None),
        bins=bins,
        methods=methods,
        reference=reference,
        comparisons=_compare(groups, pairs, bins, ood),
        notes=_notes(runs, methods, ood),
        samples=_samples(groups, bins),
    )


def _group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Label to runs; a label used for different settings is made several by the folder's name."""
    settings: dict[str, list[str]] = {}
    for run in runs:
        known = settings.setdefault(str(run.manifest["label"]), [])
        if run.settings not in known:
            known.append(run.settings)
    groups: dict[str, list[Run]] = {}
    named: dict[str, str] = {}
    for run in runs:
        label = str(run.manifest["label"])
        if len(settings[label]) > 1:
            label = named.setdefault(run.settings, f"{label} ({run.folder.resolve().name})")
        groups.setdefault(label, []).append(run)
    return groups


def _method(label: str, runs: Sequence[Run], bins: Sequence[int], ood: Sequence[int]) -> Method:
    pooled = [score for run in runs for score in run.scores]
    lines = [
        RunLine(
            str(run.folder),
            run.manifest,
            {b: _estimate(s for s in run.scores if s.bin == b).mean for b in bins},
            _ood(run.scores, ood).mean,
        )
        for run in runs
    ]
    return Method(label, [_cell(b, pooled) for b in bins], _ood(pooled, ood), lines)


def _cell(bin_: int, scores: Sequence[Score]) -> Cell:
    rows = [score for score in scores if score.bin == bin_]
    scored = [score for score in rows if score.scores]
    others = list(scored[0].scores)[1:] if scored else []
    return Cell(
        bin=bin_,
        score=_estimate(rows),
        others={
            name: estimate([s.scores[name] for s in scored], [s.source for s in scored])
            for name in others
        },
        rows=len(rows),
        skipped=len(rows) - len(scored),
        unparsed=sum(not score.parsed for score in scored),
        cut=sum(score.finish == "length" for score in rows),
    )


def _estimate(scores: Iterable[Score], by_bin: bool = False) -> Estimate:
    scored = [score for score in scores if score.scores]
    values = [official(score) for score in scored]
    bins = [score.bin for score in scored] if by_bin else None
    return estimate(values, [score.source for score in scored], bins)


def _ood(scores: Sequence[Score], ood: Sequence[int]) -> Estimate:
    """Mean of the OOD bins' means; none when a bin has no score: fewer bins would flatter."""
    if {score.bin for score in scores if score.scores} >= set(ood):
        return _estimate((score for score in scores if score.bin in ood), by_bin=True)
    return estimate([], [])


def _by_id(runs: Sequence[Run]) -> dict[str, tuple[Score, float]]:
    """Example id to its row and its mean score over the runs (seeds) that scored it."""
    values: dict[str, list[float]] = {}
    rows: dict[str, Score] = {}
    for score in (score for run in runs for score in run.scores if score.scores):
        values.setdefault(score.id, []).append(official(score))
        rows[score.id] = score
    return {key: (rows[key], float(np.mean(values[key]))) for key in rows}


def _compare(
    groups: dict[str, list[Run]],
    pairs: Sequence[tuple[str, str]],
    bins: Sequence[int],
    ood: Sequence[int],
) -> list[Comparison]:
    by_label = {label: _by_id(runs) for label, runs in groups.items()}
    average, single = [], []
    for first, second in pairs:
        one, two = by_label[first], by_label[second]
        if ood:
            average.append(_comparison((first, second), one, two, None, ood))
        single += [_comparison((first, second), one, two, b, [b]) for b in bins]
    return [*_corrected(average), *_corrected(single)]


def _comparison(
    labels: tuple[str, str],
    one: dict[str, tuple[Score, float]],
    two: dict[str, tuple[Score, float]],
    bin_: int | None,
    wanted: Sequence[int],
) -> Comparison:
    both = [key for key, (row, _) in one.items() if key in two and row.bin in wanted]
    rows = [one[key][0] for key in both]
    difference = paired(
        [one[key][1] for key in both],
        [two[key][1] for key in both],
        [row.source for row in rows],
        # A fresh generator each: a p-value doesn't change when another run joins the report.
        np.random.default_rng(0),
        [row.bin for row in rows],
    )
    return Comparison(*labels, bin_, tuple(sorted({r.bin for r in rows})), difference, None)


def _corrected(family: Sequence[Comparison]) -> list[Comparison]:
    adjusted = holm([c.difference.p for c in family])
    return [
        Comparison(c.first, c.second, c.bin, c.bins, c.difference, p)
        for c, p in zip(family, adjusted, strict=True)
    ]


def _notes(runs: Sequence[Run], methods: Sequence[Method], ood: Sequence[int]) -> list[str]:
    from ryarn.tables import bin_label

    notes = []
    for method in methods:
        for cell in (cell for cell in method.cells if cell.skipped):
            notes.append(
                f"{method.label}: {cell.skipped} of {cell.rows} rows at {bin_label(cell.bin)} did "
                "not fit into its window; they are counted, not scored."
            )
        if ood and method.ood.mean is None:
            notes.append(f"{method.label}: no OOD average, as an OOD bin has no scored row.")
    lengths = sorted({int(run.manifest["train_length"]) for run in runs})
    if len(lengths) > 1:
        listed = ", ".join(map(str, lengths))
        notes.append(f"Training lengths differ ({listed}): OOD is beyond the longest of them.")
    if len({json.dumps(run.manifest.get("versions"), sort_keys=True) for run in runs}) > 1:
        notes.append("The runs were evaluated with different package versions; see the settings.")
    if not ood:
        notes.append("No bin is longer than the training rows: nothing here is OOD.")
    return notes


def _samples(groups: dict[str, list[Run]], bins: Sequence[int]) -> list[Sample]:
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
                skipped = row["finish"] == "skipped"
                answers[row["id"]][label] = f"skipped: {row['reason']}" if skipped else row["text"]
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
