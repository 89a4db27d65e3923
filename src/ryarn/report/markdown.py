"""A report as Markdown; the figure is the file report.png beside it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ryarn.paper.comparison import HEADER, PaperTable
from ryarn.report import tables, trained
from ryarn.report.settings import settings

if TYPE_CHECKING:
    from ryarn.report.results import Report


def title(reports: Sequence[Report]) -> str:
    """What a report is about, in one line."""
    return f"{', '.join(report.task for report in reports)}: score by length"


def markdown(
    reports: Sequence[Report], about: Sequence[str], stated: PaperTable | None = None
) -> str:
    """The whole report.

    Args:
        reports: One a task.
        about: Sentences on what was compared, for the top.
        stated: The paper's numbers beside ours.
    """
    several = len(reports) > 1
    parts = [
        f"# {plain(title(reports))}",
        *(f"- {plain(line)}" for line in about),
        _summary(reports),
        plain(tables.summary_note(reports)),
        "![Score against length, one line a method](report.png)",
        *_paper(stated),
    ]
    for report in reports:
        parts += [f"# {plain(report.task)}"] if several else []
        parts += _task(report)
    parts += ["## How the numbers are made", *(f"- {line}" for line in tables.HOW)]
    return "\n\n".join(parts).replace("\n\n- ", "\n- ") + "\n"


def _paper(stated: PaperTable | None) -> list[str]:
    if stated is None:
        return []
    lines = [table(HEADER, stated.cells)] if stated.lines else []
    notes = (f"- {plain(note)}" for note in stated.notes)
    return [f"## Beside the paper: {plain(stated.rows)}", *lines, *notes]


def plain(text: str) -> str:
    """Text of one line in which no HTML, code, link, image or table cell can begin or end."""
    line = html.escape(" ".join(text.split()), quote=False)
    return line.replace("|", "&#124;").replace("`", "&#96;").replace("](", "]&#40;")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; nothing in a cell can break it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(plain, line)) + " |" for line in lines)


def _summary(reports: Sequence[Report]) -> str:
    header = ["method"]
    for report in reports:
        prefix = f"{report.task} " if len(reports) > 1 else ""
        header += [prefix + f"{e.text} {e.small}".strip() for e in tables.summary_header(report)]
    rows = []
    for label in tables.all_labels(reports):
        name = tables.summary_label(reports, label)
        row = [f"{name.text} ({name.small})"]
        for entry in (e for report in reports for e in tables.summary_line(report, label)):
            text = f"**{entry.text}**" if entry.best else entry.text
            row.append(f"{text} {entry.small}".strip())
        rows.append(row)
    return table(header, rows)


def _task(report: Report) -> list[str]:
    scores = [tables.score_row(report, method) for method in report.methods]
    parts = [
        "## Scores with 95% intervals",
        f"Score: `{plain(report.rule)}`, percent [95% interval]. {plain(tables.lengths(report))}",
        table(tables.score_header(report), scores),
        *(f"- {plain(note)}" for note in report.notes),
    ]
    for name, comparisons in (("OOD average", report.averages), ("bin by bin", report.by_bin)):
        if comparisons:
            rows = tables.comparison_rows(report, comparisons)
            parts += [
                f"## Differences on the same rows, {name}",
                table(tables.COMPARISON_HEADER, rows),
            ]
    header, *rows = tables.seed_table(report) or [[]]
    parts += ["## Each seed by itself", table(header, rows)] if rows else []
    learned = trained.trained_rows(report)
    if learned:
        parts += ["## What training reached", trained.HOW, table(trained.HEADER, learned)]
    parts += ["## Rows", table(tables.COUNT_HEADER, tables.count_rows(report))]
    for rule in tables.other_rules(report):
        header = tables.score_header(report)[: 1 + len(report.bins)]
        rows = [tables.score_row(report, method, rule) for method in report.methods]
        parts += [f"## Beside it: `{plain(rule)}`", table(header, rows)]
    shared, (header, *rows) = settings(report)
    parts += ["## Settings", table(["the same for all", ""], shared), table(header, rows)]
    return parts
