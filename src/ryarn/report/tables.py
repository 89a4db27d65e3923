"""A report as tables: how numbers are written, and the rows that every format shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ryarn.stats import FLIPS, Difference, Estimate

if TYPE_CHECKING:
    from rich.table import Table

    from ryarn.report.comparison import Comparison
    from ryarn.report.results import Cell, Method, Report

DASH = "\u2013"
"""What stands where there is no number."""

HOW = (
    "A score is the mean over a bin's rows (and over the training seeds), in percent. Intervals "
    "are 95%. With one run: Wilson's score interval for scores of 0 or 1, with the effective "
    "number of rows where several rows come from one source (a story that appears in several "
    "bins, say); for graded scores the t interval clustered by source. It covers the choice of "
    "rows, not that of the training seed. No interval is given for fewer than two rows.",
    "With several training seeds every row is answered under every seed: rows and seeds are "
    "crossed. The variance is clustered by source and by seed (by source + by seed - by both; "
    "Cameron, Gelbach and Miller 2011), never smaller than either alone, with the degrees of "
    "freedom of the fewer, minus one. Such an interval covers other rows and other seeds.",
    "The OOD average is the mean of the means of all bins longer than the training rows, each bin "
    "weighing the same.",
    "Differences are on the rows that both methods answered, in points. Where both have the same "
    "two or more seeds they are paired by seed, too, and tested by t with the variance above; a "
    "method without training has no seeds and stands against each seed of the other. Else the test "
    "is over the rows alone, on each row's mean over the seeds: exact McNemar for 0/1 scores with "
    f"one row a source, else sign flips by source ({FLIPS:,} random ones where there are too many "
    "to try all). All tests are two-sided.",
    "p is corrected by Holm's method within each task: the OOD averages of all methods are one "
    "family, all single bins another.",
    "Smallest: the smallest true difference that a test with this spread shows at p < 0.05 "
    "(uncorrected) in 80 of 100 repetitions; Connor's formula for McNemar's test, else the "
    "noncentral t distribution. A difference below it may be there and remain unseen.",
    "Skipped: the prompt and the answer's token budget did not fit into the model's window; never "
    "truncated, never scored. Unparsed: scored, but the rule found no answer. Cut: the answer "
    "spent its token budget. Thinking: it ended inside a thinking block, which is not counted as "
    "cut; it is scored as it is. Failed: a server gave no answer; never scored.",
)


def bin_label(length: int) -> str:
    """A length as an axis says it: 512, 1K (1,000 or 1,024), 0K, 1.5K, 1M."""
    if 0 < length < 1000:
        return str(length)
    kilo = length / (1000 if length % 1000 == 0 else 1024)
    if kilo >= 1000 and length % (1000 * 1000) == 0:
        return f"{length // 1_000_000}M"
    if kilo >= 1024:
        return f"{round(kilo / 1024, 1):g}M"
    return f"{round(kilo, 1):g}K"


def percent(estimate: Estimate) -> str:
    """`84.0 [71.5, 91.7]`, the mean alone where there is no interval, a dash without rows."""
    return _with_interval(estimate, ".1f")


def points(difference: Difference) -> str:
    """`+12.0 [3.1, 20.9]`: a difference in percentage points."""
    return _with_interval(difference, "+.1f")


def _with_interval(value: Estimate | Difference, form: str) -> str:
    if value.mean is None:
        return DASH
    text = format(100 * value.mean, form)
    if value.low is None or value.high is None:
        return text
    return f"{text} [{format(100 * value.low, form)}, {format(100 * value.high, form)}]"


def p_value(p: float | None) -> str:
    """Three digits, `<0.001`, or a dash."""
    if p is None:
        return DASH
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def place(report: Report, comparison: Comparison) -> str:
    """Where a comparison was made; the bins are listed when they are not all OOD bins."""
    if comparison.bin is not None:
        return bin_label(comparison.bin)
    if list(comparison.bins) == report.ood_bins:
        return "OOD average"
    return f"OOD average of {', '.join(map(bin_label, comparison.bins)) or 'no bin'}"


def kind(report: Report, bin_: int) -> str:
    """`ID` or `OOD`, for fine-tuning length."""
    return "OOD" if bin_ in report.ood_bins else "ID"


def score_header(report: Report) -> list[str]:
    """Column names of the table of scores: bins within the training length first."""
    bins = [f"{kind(report, b)} {bin_label(b)}" for b in report.bins]
    return ["method", *bins, *(["OOD average"] if report.ood_bins else [])]


def score_row(report: Report, method: Method, rule: str | None = None) -> list[str]:
    """One method's scores under the official rule, or under another one (no OOD average then)."""
    if rule is not None:
        cells = [c.others.get(rule, Estimate(None, None, None, 0, 0)) for c in method.cells]
        return [method.label, *map(percent, cells)]
    average = [percent(method.ood)] if report.ood_bins else []
    return [method.label, *(percent(cell.score) for cell in method.cells), *average]


COUNT_HEADER = [
    *("method", "bin", "", "runs", "rows", "scored", "skipped", "unparsed", "cut", "thinking"),
    "failed",
]


def count_rows(report: Report) -> list[list[str]]:
    """What became of the rows, a line for each method and bin; counted over all runs."""
    return [
        [
            method.label,
            bin_label(c.bin),
            kind(report, c.bin),
            *map(str, (len(method.runs), c.rows, c.rows - c.skipped - c.failed)),
            *map(str, (c.skipped, c.unparsed, c.cut, c.thinking, c.failed)),
        ]
        for method in report.methods
        for c in method.cells
    ]


COMPARISON_HEADER = [
    "method", "against", "where", "difference [95%]", "p", "p (Holm)", "smallest", "rows",
    "sources", "seeds", "test",
]  # fmt: skip


def comparison_rows(report: Report, comparisons: Iterable[Comparison]) -> list[list[str]]:
    """Paired differences, a line each."""
    return [
        [
            c.first,
            c.second,
            place(report, c),
            points(c.difference),
            p_value(c.difference.p),
            p_value(c.p_holm),
            smallest(c.difference),
            str(c.difference.n),
            str(c.difference.sources),
            seeds(c),
            c.difference.test or DASH,
        ]
        for c in comparisons
    ]


def seeds(comparison: Comparison) -> str:
    """How many training seeds a test covers, or that it covers none."""
    if comparison.rows_only:
        return "rows only"
    return str(comparison.difference.seeds) if comparison.difference.seeds > 1 else DASH


def smallest(difference: Difference) -> str:
    """The smallest difference that could be shown, in points."""
    if difference.smallest is None:
        return DASH
    return f"{100 * difference.smallest:.1f}" if difference.smallest <= 1 else "over 100"


def seed_table(report: Report) -> list[list[str]]:
    """OOD average of each run, a line for each method that has several; the header comes first."""
    several = [method for method in report.methods if len(method.runs) > 1]
    if not several or not report.ood_bins:
        return []
    every = sorted({int(run.manifest["seed"]) for m in several for run in m.runs})
    table = [["OOD average with seed", *map(str, every)]]
    for method in several:
        own = {int(run.manifest["seed"]): run.ood for run in method.runs}
        found = [own.get(seed) for seed in every]
        table.append([method.label, *(DASH if x is None else f"{100 * x:.1f}" for x in found)])
    return table


def other_rules(report: Report) -> list[str]:
    """Names of the rules beside the official one."""
    cells = [cell for method in report.methods for cell in method.cells]
    return list(dict.fromkeys(rule for cell in cells for rule in cell.others))


def lengths(report: Report) -> str:
    """One sentence on what was in and out of distribution."""
    text = f"Training rows have at most {report.train_length:,} tokens; longer bins are OOD."
    if report.original_length:
        text += f" The model was pretrained on {report.original_length:,} tokens (L_pre)."
    return text


@dataclass(frozen=True, slots=True)
class Entry:
    """A place in the one table of a report.

    Attributes:
        text: The number or word.
        small: What is written small beside it: an interval, or n where it is not the usual one.
        best: Whether it is the task's best OOD average.
    """

    text: str
    small: str = ""
    best: bool = False


def summary_header(report: Report) -> list[Entry]:
    """Columns of a task in the one table: bins, with their usual n, OOD average and p."""
    bins = [Entry(bin_label(b), f"n={usual_n(report, b)}") for b in report.bins]
    average = [Entry("OOD", "average")] if report.ood_bins else []
    against = [Entry("p", "(Holm)")] if report.averages else []
    return [*bins, *average, *against]


def summary_line(report: Report, label: str) -> list[Entry]:
    """A method's entries under `summary_header`; dashes where the task has no run of it."""
    method = next((method for method in report.methods if method.label == label), None)
    if method is None:
        return [Entry(DASH)] * len(summary_header(report))
    line = [_mean(report, cell) for cell in method.cells]
    if report.ood_bins:
        mean, _, interval = percent(method.ood).partition(" ")
        means = [m.ood.mean for m in report.methods if m.ood.mean is not None]
        best = method.ood.mean is not None and method.ood.mean >= max(means) - 1e-12
        line.append(Entry(mean, interval, best))
    if report.averages:
        line.append(_against(report, label))
    return line


def summary_label(reports: Sequence[Report], label: str) -> Entry:
    """A method's name with its number of seeds, one for each task where they differ."""
    counts = [len(m.seeds) for report in reports for m in report.methods if m.label == label]
    if not any(counts):
        return Entry(label, "no training")
    several = dict.fromkeys(counts) if len(set(counts)) == 1 else counts
    return Entry(label, f"{' / '.join(map(str, several))} seed{'s' if max(counts) > 1 else ''}")


def _mean(report: Report, cell: Cell) -> Entry:
    if cell.score.mean is None:
        return Entry(DASH)
    odd = f"n={cell.score.n}" if cell.score.n != usual_n(report, cell.bin) else ""
    return Entry(f"{100 * cell.score.mean:.1f}", odd)


def _against(report: Report, label: str) -> Entry:
    if label == report.reference:
        return Entry("ref.")
    found = next(c for c in report.averages if label in (c.first, c.second))
    return Entry(p_value(found.p_holm), "rows only" if found.rows_only else "")


def usual_n(report: Report, bin_: int) -> int:
    """The number of scored rows that most methods have in a bin."""
    counts = [cell.score.n for m in report.methods for cell in m.cells if cell.bin == bin_]
    return Counter(counts).most_common(1)[0][0]


def summary_note(reports: Sequence[Report]) -> str:
    """What the numbers of the one table are."""
    text = "Percent, mean over n rows and all seeds [95% interval]; bold: best OOD average."
    if any(report.averages for report in reports):
        references = dict.fromkeys(report.reference for report in reports)
        text += (
            f" p: OOD average against {' or '.join(references)} (ref.) on the same rows, "
            "Holm-corrected over the methods of a task."
        )
    if any(c.rows_only for report in reports for c in report.averages):
        text += " Rows only: p does not cover the training; for that two seeds of both are needed."
    return text


def all_labels(reports: Sequence[Report]) -> list[str]:
    """The methods of all tasks, in order; one that a task lacks stands after its neighbour."""
    labels: list[str] = []
    for report in reports:
        place_ = 0
        for label in report.labels:
            if label not in labels:
                labels.insert(place_, label)
            place_ = labels.index(label) + 1
    return labels


def grid_terminal(reports: Sequence[Report]) -> Table:
    """The one table for a rich console, a block for each task; fits 80 columns with six bins."""
    from rich.table import Table
    from rich.text import Text

    width = 1 + max(len(summary_header(report)) for report in reports)
    table = Table(
        box=None,
        show_header=False,
        padding=(0, 1, 0, 0),
        caption=summary_note(reports),
        caption_justify="left",
    )
    table.add_column(overflow="fold", min_width=16)
    for _ in range(width - 1):
        table.add_column(justify="right", no_wrap=True)
    for report in reports:
        header = [Entry(report.task, report.rule), *summary_header(report)]
        rows = [
            [summary_label([report], label), *summary_line(report, label)]
            for label in all_labels(reports)
        ]
        for number, line in enumerate((header, *rows)):
            head = "" if number else "bold"
            texts = [Text(e.text, style="bold" if e.best else head) for e in line]
            for text, entry in zip(texts, line, strict=True):
                if entry.small:
                    text.append(f"\n{entry.small}", style="dim")
            table.add_row(*texts, *[""] * (width - len(line)))
        table.add_row()
    return table


def terminal(report: Report) -> list[Table]:
    """Tables for a rich console: scores, then differences of OOD averages (else of the bins)."""
    from rich.table import Table

    if not report.comparisons:
        return [grid_terminal([report])]
    differences = Table(title="Differences on the same rows, points [95% interval]")
    for name in ("first - second", "where", "difference", "p", "p (Holm)"):
        differences.add_column(name, no_wrap=name != "first - second")
    for row in comparison_rows(report, report.averages or report.by_bin):
        first, second, where, difference, *p_values = row[:6]
        pair = f"{first}\n- {second}"
        differences.add_row(pair, where, difference.replace(" [", "\n[", 1), *p_values)
    return [grid_terminal([report]), differences]


def one_run(report: Report) -> Table:
    """A single run for a rich console: a line for each bin, with what became of its rows."""
    from rich.table import Table

    [method] = report.methods
    table = Table(title=f"{report.task}, {method.label}: percent [95% interval]")
    table.add_column("bin", justify="right")
    for name in ("", report.rule):
        table.add_column(name)
    # Columns that most models and backends need not read.
    rare = [name for name in ("thinking", "failed") if any(getattr(c, name) for c in method.cells)]
    for name in ("rows", "skipped", "unparsed", "cut", *rare):
        table.add_column(name, justify="right")
    for cell in method.cells:
        counts = [cell.rows, cell.skipped, cell.unparsed, cell.cut]
        counts += [getattr(cell, name) for name in rare]
        where = (bin_label(cell.bin), kind(report, cell.bin))
        table.add_row(*where, percent(cell.score), *map(str, counts))
    return table
