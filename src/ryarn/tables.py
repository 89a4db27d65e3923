"""A report as text: Markdown, tidy rows for CSV, and tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ryarn.stats import FLIPS, Difference, Estimate

if TYPE_CHECKING:
    from rich.table import Table

    from ryarn.results import Comparison, Method, Report

DASH = "\u2013"
"""What stands where there is no number."""

HOW = (
    "A score is the mean over a bin's rows, in percent. Intervals are 95%: Wilson's score interval "
    "for scores of 0 or 1, with the effective number of rows where several rows come from one "
    "source (a story that appears in several runs or bins, say); for graded scores the t interval "
    "clustered by source. An interval covers the choice of rows, not the choice of training seeds. "
    "No interval is given for fewer than two rows.",
    "The OOD average is the mean of the means of all bins longer than the training rows, each bin "
    "weighing the same.",
    "Differences are on the rows that both methods answered (with several seeds, on each row's "
    "mean over them), in points. Tests are two-sided: exact McNemar for 0/1 scores with one row a "
    f"source, else sign flips by source ({FLIPS:,} random ones where there are too many to try "
    "all). p is corrected by Holm's method: the OOD averages are one family, the single bins "
    "another.",
    "Skipped: the prompt and the answer's token budget did not fit into the model's window; never "
    "truncated, never scored. Unparsed: scored, but the rule found no answer. Cut: the answer "
    "spent its token budget.",
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


COUNT_HEADER = ["method", "bin", "", "runs", "rows", "scored", "skipped", "unparsed", "cut"]


def count_rows(report: Report) -> list[list[str]]:
    """What became of the rows, a line for each method and bin."""
    return [
        [
            method.label,
            bin_label(c.bin),
            kind(report, c.bin),
            *map(str, (len(method.runs), c.rows, c.score.n, c.skipped, c.unparsed, c.cut)),
        ]
        for method in report.methods
        for c in method.cells
    ]


COMPARISON_HEADER = [
    "method", "against", "where", "difference [95%]", "p", "p (Holm)", "rows", "sources", "test",
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
            str(c.difference.n),
            str(c.difference.sources),
            c.difference.test or DASH,
        ]
        for c in comparisons
    ]


def settings_rows(report: Report) -> list[list[str]]:
    """A line for each setting, a column for each run; settings that no run has are left out."""
    runs = [(method.label, run) for method in report.methods for run in method.runs]
    table = [["run", *(run.folder for _, run in runs)], ["method", *(label for label, _ in runs)]]
    if report.ood_bins:
        averages = (run.ood for _, run in runs)
        table.append(["OOD average", *(DASH if a is None else f"{100 * a:.1f}" for a in averages)])
    names = {
        "model": "model",
        "dtype": "dtype",
        "seed": "seed",
        "train_factor": "factor s (training)",
        "eval_factor": "factor s' (inference)",
        "original_length": "original length L_pre",
        "train_length": "training length",
        "method": "method's numbers",
        "window": "window",
        "max_new_tokens": "max_new_tokens",
        "backend": "backend",
        "rows": "rows",
        "adapter": "adapter (SHA-256)",
        "versions": "versions",
    }
    for key, name in names.items():
        values = [run.manifest.get(key) for _, run in runs]
        if any(value is not None for value in values):
            table.append([name, *map(_plain, values)])
    return table


def other_rules(report: Report) -> list[str]:
    """Names of the rules beside the official one."""
    cells = [cell for method in report.methods for cell in method.cells]
    return list(dict.fromkeys(rule for cell in cells for rule in cell.others))


def markdown(report: Report) -> str:
    """The whole report as Markdown; the figure is the file report.png beside it."""
    parts = [
        f"# {report.task}: score by length",
        "![Score against length, one line a method](report.png)",
        f"Score: `{report.rule}`, percent [95% interval]. {lengths(report)}",
        _markdown_table(score_header(report), [score_row(report, m) for m in report.methods]),
        *(f"- {note}" for note in report.notes),
    ]
    for name, comparisons in (("OOD average", report.averages), ("bin by bin", report.by_bin)):
        if comparisons:
            table = _markdown_table(COMPARISON_HEADER, comparison_rows(report, comparisons))
            parts += [f"## Differences on the same rows, {name}", table]
    parts += ["## Rows", _markdown_table(COUNT_HEADER, count_rows(report))]
    for rule in other_rules(report):
        header = score_header(report)[: 1 + len(report.bins)]
        rows = [score_row(report, method, rule) for method in report.methods]
        parts += [f"## Beside it: `{rule}`", _markdown_table(header, rows)]
    header, *rows = settings_rows(report)
    parts += ["## Settings", _markdown_table(header, rows)]
    parts += ["## How the numbers are made", *(f"- {line}" for line in HOW)]
    return "\n\n".join(parts).replace("\n\n- ", "\n- ") + "\n"


def lengths(report: Report) -> str:
    """One sentence on what was in and out of distribution."""
    text = f"Training rows have at most {report.train_length:,} tokens; longer bins are OOD."
    if report.original_length:
        text += f" The model was pretrained on {report.original_length:,} tokens (L_pre)."
    return text


def tidy(report: Report) -> list[dict[str, Any]]:
    """A flat record for each method, bin and rule, scores in [0, 1]; the average has bin "ood"."""
    records = []
    for method in report.methods:
        for cell in method.cells:
            counts: dict[str, Any] = {
                "rows": cell.rows,
                "skipped": cell.skipped,
                "unparsed": cell.unparsed,
                "cut": cell.cut,
            }
            place: dict[str, Any] = {"bin": cell.bin, "ood": cell.bin in report.ood_bins}
            for rule, score in {report.rule: cell.score, **cell.others}.items():
                records.append(_record(report, method, rule, score) | place | counts)
        if report.ood_bins:
            place = {"bin": "ood", "ood": True}
            blank: dict[str, Any] = dict.fromkeys(("rows", "skipped", "unparsed", "cut"), "")
            records.append(_record(report, method, report.rule, method.ood) | place | blank)
    return records


def terminal(report: Report) -> list[Table]:
    """Tables for a rich console: scores, then differences of OOD averages (else of the bins)."""
    from rich.table import Table

    # Fits 80 columns with four bins: the interval stands below its mean, names are not broken.
    scores = Table(title=f"{report.task}: {report.rule}, percent [95% interval]")
    for place_, name in enumerate(score_header(report)):
        scores.add_column(name.replace(" ", "\n", 1), no_wrap=place_ == 0)
    for method in report.methods:
        scores.add_row(*(cell.replace(" [", "\n[", 1) for cell in score_row(report, method)))
    if not report.comparisons:
        return [scores]
    differences = Table(title="Differences on the same rows, points [95% interval]")
    for name in ("first - second", "where", "difference", "p", "p (Holm)"):
        differences.add_column(name, no_wrap=name == "first - second")
    for row in comparison_rows(report, report.averages or report.by_bin):
        first, second, where, difference, *p_values = row[:6]
        pair = f"{first}\n- {second}"
        differences.add_row(pair, where, difference.replace(" [", "\n[", 1), *p_values)
    return [scores, differences]


def one_run(report: Report) -> Table:
    """A single run for a rich console: a line for each bin, with what became of its rows."""
    from rich.table import Table

    [method] = report.methods
    table = Table(title=f"{report.task}, {method.label}: percent [95% interval]")
    table.add_column("bin", justify="right")
    for name in ("", report.rule):
        table.add_column(name)
    for name in ("rows", "skipped", "unparsed", "cut"):
        table.add_column(name, justify="right")
    for cell in method.cells:
        counts = (cell.rows, cell.skipped, cell.unparsed, cell.cut)
        where = (bin_label(cell.bin), kind(report, cell.bin))
        table.add_row(*where, percent(cell.score), *map(str, counts))
    return table


def _record(report: Report, method: Method, rule: str, score: Estimate) -> dict[str, Any]:
    return {
        "task": report.task,
        "method": method.label,
        "rule": rule,
        "official": rule == report.rule,
        "bin": "",
        "ood": "",
        "score": score.mean,
        "low": score.low,
        "high": score.high,
        "n": score.n,
        "sources": score.sources,
    }


def _markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def _plain(value: Any) -> str:
    """A manifest value in one line; an inner mapping without its empty entries."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    if isinstance(value, float):
        return f"{value:g}"
    return DASH if value is None else str(value)
