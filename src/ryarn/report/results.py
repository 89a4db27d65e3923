"""A report as data: one task's methods with their scores by length, and their comparisons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ryarn.errors import UserError
from ryarn.evaluate import FAILED, SKIPPED
from ryarn.report.answers import Answers, Run, group
from ryarn.report.comparison import Comparison, compare
from ryarn.report.samples import Sample, samples
from ryarn.report.trained import Trained
from ryarn.stats import Estimate
from ryarn.thinking import THINKING

DEFAULT_REFERENCE = "randomized-yarn"


@dataclass(frozen=True, slots=True)
class Cell:
    """One method in one bin.

    Attributes:
        bin: The bin.
        score: Official score.
        others: The task's further rules, by name.
        rows: Rows of the bin, over all runs.
        skipped: Rows that did not fit into the window; they have no score.
        unparsed: Scored rows in which no answer was found.
        cut: Rows whose answer spent the token budget.
        thinking: Rows whose answer ended inside a thinking block; they are not among `cut`.
        failed: Rows that the backend got no answer to; they have no score.
    """

    bin: int
    score: Estimate
    others: dict[str, Estimate]
    rows: int
    skipped: int
    unparsed: int
    cut: int
    thinking: int
    failed: int


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run's own numbers beside its settings."""

    folder: str
    manifest: dict[str, Any]
    mean: dict[int, float | None]
    ood: float | None
    trained: Trained | None


@dataclass(frozen=True, slots=True)
class Method:
    """All runs of one label, pooled.

    Attributes:
        label: What the report calls it.
        seeds: Its training seeds; empty for a method without training.
        cells: A cell for each bin.
        ood: The OOD average; without a mean when an OOD bin has no scored row.
        runs: Each run by itself.
    """

    label: str
    seeds: tuple[int, ...]
    cells: list[Cell]
    ood: Estimate
    runs: list[RunLine]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the formats show of one task; bins beyond `train_length` are OOD."""

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

    @property
    def labels(self) -> list[str]:
        """What the methods are called, in order."""
        return [method.label for method in self.methods]


def build_reports(tasks: Mapping[str, Sequence[Run]], reference: str | None) -> list[Report]:
    """A report for each task; one that lacks the reference compares nothing and says so."""
    return [_report(task, group(runs), reference) for task, runs in tasks.items()]


def build_report(runs: Sequence[Run], reference: str | None = None) -> Report:
    """Pool, average and test the runs of one task; see `ryarn.stats` for the rules.

    Raises:
        UserError: As `check_reference`.
    """
    check_reference(runs, reference)
    return build_reports({str(runs[0].manifest["task"]): runs}, reference)[0]


def check_reference(runs: Sequence[Run], reference: str | None) -> None:
    """See that there is a method to compare with; None leaves the choice.

    Raises:
        UserError: No method has the label `reference`.
    """
    known = group(runs)
    if reference is not None and reference not in known:
        raise UserError(f"reference {reference!r}: no such method; there are {', '.join(known)}")


def _report(task: str, groups: dict[str, list[Run]], reference: str | None) -> Report:
    runs = [run for members in groups.values() for run in members]
    train_length = max(int(run.manifest["train_length"]) for run in runs)
    bins = sorted({score.bin for score in runs[0].scores})
    ood = [b for b in bins if b > train_length]
    answers = {label: Answers.of(members) for label, members in groups.items()}
    methods = [_method(label, groups[label], answers[label], bins, ood) for label in groups]
    asked = reference is not None
    if reference is None:
        reference = DEFAULT_REFERENCE if DEFAULT_REFERENCE in groups else list(groups)[-1]
    pairs = [
        (label, reference) if asked else (reference, label)
        for label in groups
        if label != reference and reference in groups
    ]
    lengths = [run.manifest.get("original_length") for run in runs]
    report = Report(
        task=task,
        rule=next((next(iter(s.scores)) for run in runs for s in run.scores if s.scores), ""),
        data=str(runs[0].manifest["data"]),
        train_length=train_length,
        original_length=next((length for length in lengths if length), None),
        bins=bins,
        methods=methods,
        reference=reference,
        comparisons=compare(answers, pairs, bins, ood),
        notes=[],
        samples=samples(groups, bins),
    )
    report.notes.extend(_notes(report))
    return report


def _method(
    label: str, runs: Sequence[Run], answers: Answers, bins: Sequence[int], ood: Sequence[int]
) -> Method:
    rules = {rule for run in runs for s in run.scores for rule in list(s.scores)[1:]}
    others = {rule: Answers.of(runs, rule) for rule in sorted(rules)}
    lines = []
    for run in runs:
        own = Answers.of([run])
        means = {b: own.estimate([b]).mean for b in bins}
        mean = own.average(ood).mean
        lines.append(RunLine(str(run.folder), run.manifest, means, mean, run.trained))
    cells = [_cell(b, runs, answers, others) for b in bins]
    return Method(label, answers.seeds, cells, answers.average(ood), lines)


def _cell(bin_: int, runs: Sequence[Run], answers: Answers, others: Mapping[str, Answers]) -> Cell:
    rows = [score for run in runs for score in run.scores if score.bin == bin_]
    scored = [score for score in rows if score.scores]
    return Cell(
        bin=bin_,
        score=answers.estimate([bin_]),
        others={rule: other.estimate([bin_]) for rule, other in others.items()},
        rows=len(rows),
        skipped=sum(score.finish == SKIPPED for score in rows),
        unparsed=sum(not score.parsed for score in scored),
        cut=sum(score.finish == "length" for score in rows),
        thinking=sum(score.finish == THINKING for score in rows),
        failed=sum(score.finish == FAILED for score in rows),
    )


def _notes(report: Report) -> list[str]:
    notes = [*_seed_notes(report)]
    for method in report.methods:
        notes += _row_notes(method)
        if report.ood_bins and method.ood.mean is None:
            notes.append(f"{method.label}: no OOD average, as an OOD bin has no scored row.")
    manifests = [run.manifest for method in report.methods for run in method.runs]
    lengths = sorted({int(manifest["train_length"]) for manifest in manifests})
    if len(lengths) > 1:
        listed = ", ".join(map(str, lengths))
        notes.append(f"Training lengths differ ({listed}): OOD is beyond the longest of them.")
    if len({json.dumps(manifest.get("versions"), sort_keys=True) for manifest in manifests}) > 1:
        notes.append("The runs were evaluated with different package versions; see the settings.")
    if not report.ood_bins:
        notes.append("No bin is longer than the training rows: nothing here is OOD.")
    if report.reference not in report.labels:
        notes.append(f"{report.reference} has no finished run here: nothing is compared with it.")
    return notes


def _row_notes(method: Method) -> list[str]:
    """Which rows have no score, or no answer."""
    from ryarn.report.tables import bin_label

    notes = []
    over = f" (over {len(method.runs)} runs)" if len(method.runs) > 1 else ""
    for cell in method.cells:
        where = f"of {cell.rows} rows at {bin_label(cell.bin)}{over}"
        for count, what in (
            (cell.skipped, "did not fit into its window; they are counted, not scored."),
            (
                cell.failed,
                "failed; they are counted, not scored, and the same ryarn evaluate asks for them "
                "again.",
            ),
            (
                cell.thinking,
                "ended inside a thinking block, before any answer; they are scored as they are.",
            ),
        ):
            if count:
                notes.append(f"{method.label}: {count} {where} {what}")
    return notes


def _seed_notes(report: Report) -> list[str]:
    """Which seeds are missing, and what does not cover the training."""
    every = sorted({seed for method in report.methods for seed in method.seeds})
    notes = []
    for method in (method for method in report.methods if method.seeds):
        missing = [str(seed) for seed in every if seed not in method.seeds]
        # A method that was run once is told of below; that its seeds are few is no failure.
        if missing and len(method.seeds) > 1:
            notes.append(
                f"{method.label}: no finished run with seed {', '.join(missing)}; its numbers are "
                f"over {len(method.seeds)} of {len(every)} seeds, and differences are over the "
                "seeds that both methods have."
            )
    single = [method.label for method in report.methods if len(method.seeds) == 1]
    if single:
        notes.append(
            f"One training seed: {'; '.join(single)}. Their intervals, and the intervals and p of "
            "their differences, cover the choice of rows only, not the training: another seed may "
            "come out differently."
        )
    return notes
