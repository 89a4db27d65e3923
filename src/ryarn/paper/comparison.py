"""Ours beside the paper's: each number that its text gives, the same one here, the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ryarn.paper.numbers import STATED, Stated
from ryarn.report.answers import Answers, Run, group
from ryarn.report.comparison import compare_pair

if TYPE_CHECKING:
    from ryarn.stats import Difference, Estimate

HEADER = ("OOD average of", "ours [95%]", "the paper's", "ours - the paper's", "covered", "where")
NOTE = (
    "Covered: our interval holds the paper's number. The paper's own has an interval, too, which "
    "is not known, and other rows or another training seed than ours may be behind it."
)
UNSTATED = "The paper's text gives no number for these rows; its tables are not part of it."
REHEARSED = "The base has random weights: the differences show that this table works, no more."
_DASH = "\u2013"


@dataclass(frozen=True, slots=True)
class Beside:
    """One of the paper's numbers and ours, as shares.

    Attributes:
        stated: The paper's.
        mean: Ours; None where a method or bin is missing.
        low: Lower end of its 95% interval; None where there is none.
        high: Upper end.
    """

    stated: Stated
    mean: float | None
    low: float | None
    high: float | None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in points."""
        return None if self.mean is None else 100 * self.mean - self.stated.value

    @property
    def covered(self) -> bool | None:
        """Whether our interval holds the paper's number; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.stated.value / 100 <= self.high


@dataclass(frozen=True, slots=True)
class PaperTable:
    """What stands beside the paper.

    Attributes:
        rows: Key of `ryarn.paper.numbers.STATED`.
        lines: One for each number that the text gives.
        notes: What to say below them.
    """

    rows: str
    lines: list[Beside]
    notes: list[str]

    @property
    def cells(self) -> list[list[str]]:
        """The lines as text, under `HEADER`."""
        return [_cells(line) for line in self.lines]

    def to_json(self) -> dict[str, Any]:
        """Everything, for report.json."""
        lines = [
            {**asdict(line), "difference": line.difference, "covered": line.covered}
            for line in self.lines
        ]
        return {"rows": self.rows, "lines": lines, "notes": self.notes}


def beside(runs: Sequence[Run], rows: str) -> PaperTable:
    """Set the runs of a grid beside the paper.

    Args:
        runs: All runs of the one task.
        rows: Which rows of the paper they reproduce, key of `ryarn.paper.numbers.STATED`.
    """
    groups = group(runs)
    answers = {label: Answers.of(members) for label, members in groups.items()}
    longest = max(int(run.manifest["train_length"]) for run in runs)
    ood = sorted({score.bin for run in runs for score in run.scores if score.bin > longest})
    lines = [_line(stated, answers, ood) for stated in STATED[rows]]
    notes = [NOTE] if lines else [UNSTATED]
    notes += [
        f"{line.stated.place}: \u201c{line.stated.quote}\u201d"
        + (f" ({line.stated.remark})" if line.stated.remark else "")
        for line in lines
    ]
    if any(str(_base(run)).startswith("tiny:") for run in runs):
        notes.append(REHEARSED)
    return PaperTable(rows, lines, list(dict.fromkeys(notes)))


def _base(run: Run) -> object:
    return (run.manifest.get("model") or {}).get("name")


def _line(stated: Stated, answers: dict[str, Answers], ood: Sequence[int]) -> Beside:
    labels = [label for label in (stated.first, stated.second) if label is not None]
    if not ood or any(label not in answers for label in labels):
        return Beside(stated, None, None, None)
    if any(answers[label].average(ood).mean is None for label in labels):
        return Beside(stated, None, None, None)
    ours: Estimate | Difference
    if stated.second is None:
        ours = answers[stated.first].average(ood)
    else:
        ours = compare_pair(answers, (stated.first, stated.second), None, ood).difference
    return Beside(stated, ours.mean, ours.low, ours.high)


def _cells(line: Beside) -> list[str]:
    stated, gap = line.stated, line.difference
    # An average is a level, a difference has a sign.
    form = ".1f" if stated.second is None else "+.1f"
    name = stated.first if stated.second is None else f"{stated.first} \u2212 {stated.second}"
    ours = _DASH if line.mean is None else format(100 * line.mean, form)
    if line.low is not None and line.high is not None:
        ours += f" [{format(100 * line.low, form)}, {format(100 * line.high, form)}]"
    return [
        name,
        ours,
        format(stated.value, form),
        _DASH if gap is None else f"{gap:+.1f}",
        {True: "yes", False: "no", None: _DASH}[line.covered],
        stated.place,
    ]
