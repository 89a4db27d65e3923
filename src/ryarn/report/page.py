"""A report as one HTML page that needs no other file, no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from ryarn.paper.comparison import HEADER, PaperTable
from ryarn.report import tables, trained
from ryarn.report.markdown import title
from ryarn.report.settings import settings

if TYPE_CHECKING:
    from ryarn.report.results import Report
    from ryarn.report.samples import Sample

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; margin: 0; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem 1.2rem 4rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .6rem 0; }
h2 { font-size: 1.3rem; margin: 3rem 0 .5rem; padding-top: .6rem; border-top: 2px solid #1c1c1c; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
.scroll { overflow-x: auto; }
.scroll svg { display: block; width: 100%; min-width: 38rem; max-width: 60rem; height: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .32rem .6rem .32rem 0; border-bottom: 1px solid #e4e4e4;
  vertical-align: top; white-space: nowrap; }
th { font-weight: 600; } thead th { border-bottom: 2px solid #999; }
.ood { background: #eef5fa; } .ood, .id { padding-left: .5rem; }
.small { color: #666; font-size: .78rem; font-weight: 400; display: block; }
.summary { font-size: .84rem; } .summary .wide { background: #dcebf5; }
.summary th, .summary td { padding: .3rem .35rem; } .summary .small { font-size: .72rem; }
.summary tbody th { white-space: normal; min-width: 8.5rem; }
.summary th:first-child:not(.task) { padding-left: 0; }
.summary .task { border-left: 1px solid #999; }
.settings td { white-space: normal; min-width: 7rem; max-width: 20rem; overflow-wrap: anywhere; }
.settings th { position: sticky; left: 0; background: #fff; }
.about { color: #444; max-width: 54rem; } li { margin: .25rem 0; }
summary { cursor: pointer; padding: .3rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .6rem;
  font-size: .82rem; margin: .3rem 0; }
.answers td { white-space: normal; overflow-wrap: anywhere; }
"""


def page(
    reports: Sequence[Report],
    figure: str,
    about: Sequence[str],
    stated: PaperTable | None = None,
) -> str:
    """The report as HTML.

    Args:
        reports: One a task; all text is escaped.
        figure: The figure as an `<svg>` element.
        about: Sentences on what was compared, for the top.
        stated: The paper's numbers beside ours.
    """
    name = title(reports)
    figure = figure.replace("<svg", f'<svg role="img" aria-label="{escape(name)}"', 1)
    sections = [
        f"<h1>{escape(name)}</h1>",
        _list(about),
        _summary(reports),
        f'<p class="about">{escape(tables.summary_note(reports))}</p>',
        f'<div class="scroll">{figure}</div>',
        *_paper(stated),
    ]
    for report in reports:
        sections += _task(report)
    sections += ["<h2>How the numbers are made</h2>", _list(tables.HOW)]
    body = "\n".join(section for section in sections if section)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _paper(stated: PaperTable | None) -> list[str]:
    if stated is None:
        return []
    lines = [_table(HEADER, stated.cells)] if stated.lines else []
    return [f"<h2>Beside the paper: {escape(stated.rows)}</h2>", *lines, _list(stated.notes)]


def _summary(reports: Sequence[Report]) -> str:
    """The one table: a line a method, a block of columns a task."""
    headers = [tables.summary_header(report) for report in reports]
    top = ["<th></th>"]
    for report, header in zip(reports, headers, strict=True):
        name = f'{escape(report.task)} <span class="small">{escape(report.rule)}</span>'
        top.append(f'<th class="task" colspan="{len(header)}">{name}</th>')
    names = [_entries("th", report, h) for report, h in zip(reports, headers, strict=True)]
    rows = []
    for label in tables.all_labels(reports):
        cells = (_entries("td", report, tables.summary_line(report, label)) for report in reports)
        seeds = escape(tables.summary_label(reports, label).small)
        first = f'<th>{escape(label)}<span class="small">{seeds}</span></th>'
        rows.append(f"<tr>{first}{''.join(cells)}</tr>")
    head = f"<tr>{''.join(top)}</tr><tr><th>method</th>{''.join(names)}</tr>"
    return _wrap(f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody>", "summary")


def _entries(tag: str, report: Report, entries: Sequence[tables.Entry]) -> str:
    cells = []
    kinds = ["ood" if b in report.ood_bins else "id" for b in report.bins]
    kinds += ["wide"] if report.ood_bins else []
    for place, entry in enumerate(entries):
        names = [kinds[place] if place < len(kinds) else "", "" if place else "task"]
        classes = " ".join(name for name in names if name)
        text = f"<strong>{escape(entry.text)}</strong>" if entry.best else escape(entry.text)
        small = f'<span class="small">{escape(entry.small)}</span>' if entry.small else ""
        attribute = f' class="{classes}"' if classes else ""
        cells.append(f"<{tag}{attribute}>{text}{small}</{tag}>")
    return "".join(cells)


def _task(report: Report) -> list[str]:
    sections = [
        f"<h2>{escape(report.task)}</h2>",
        f'<p class="about">Score: <code>{escape(report.rule)}</code>. '
        f"{escape(tables.lengths(report))}</p>",
        _list(report.notes),
        "<h3>Scores, percent with 95% interval</h3>",
        _scores(report),
        *_differences(report),
    ]
    header, *rows = tables.seed_table(report) or [[]]
    sections += ["<h3>Each seed by itself</h3>", _table(header, rows)] if rows else []
    learned = trained.trained_rows(report)
    if learned:
        sections += [
            "<h3>What training reached</h3>",
            _table(trained.HEADER, learned),
            f'<p class="about">{escape(trained.HOW)}</p>',
        ]
    counts = _table(tables.COUNT_HEADER, tables.count_rows(report))
    title_ = "Rows: what was scored, skipped, unparsed, cut or still thinking"
    sections.append(_fold(title_, counts))
    for rule in tables.other_rules(report):
        sections.append(_fold(f"Beside it: {rule}", _scores(report, rule)))
    shared, (header, *rows) = settings(report)
    same = _table(["the same for all", ""], shared, "settings")
    sections.append(_fold("Settings", same + _table(header, rows, "settings")))
    sections += ["<h3>A row of each length</h3>", *(_sample(s) for s in report.samples)]
    return sections


def _fold(name: str, inner: str, is_open: bool = False) -> str:
    unfolded = " open" if is_open else ""
    return f"<details{unfolded}><summary>{escape(name)}</summary>{inner}</details>"


def _scores(report: Report, rule: str | None = None) -> str:
    header = tables.score_header(report)
    kinds = ["", *("ood" if b in report.ood_bins else "id" for b in report.bins), "ood"]
    rows = [tables.score_row(report, method, rule) for method in report.methods]
    if rule is not None:
        header = header[: 1 + len(report.bins)]
    head = "".join(_cell("th", kind, name) for kind, name in zip(kinds, header, strict=False))
    body = "".join("<tr>" + "".join(map(_score_cell, kinds, row)) + "</tr>" for row in rows)
    return _wrap(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>")


def _score_cell(kind: str, text: str) -> str:
    if not kind:
        return _cell("th", kind, text)
    mean, _, interval = text.partition(" ")
    small = f'<span class="small">{escape(interval)}</span>' if interval else ""
    return f'<td class="{kind}">{escape(mean)}{small}</td>'


def _differences(report: Report) -> list[str]:
    """The OOD averages in sight, the many single bins folded away."""
    if not report.comparisons:
        return []
    by_bin = _table(tables.COMPARISON_HEADER, tables.comparison_rows(report, report.by_bin))
    sections = ["<h3>Differences on the same rows, points with 95% interval</h3>"]
    if report.averages:
        rows = tables.comparison_rows(report, report.averages)
        sections.append(_table(tables.COMPARISON_HEADER, rows))
    return [*sections, _fold("Bin by bin", by_bin, is_open=not report.averages)]


def _sample(sample: Sample) -> str:
    rows = []
    for label, answer in sample.answers.items():
        score = sample.scores.get(label)
        rows.append([label, answer, tables.DASH if score is None else f"{score:g}"])
    return (
        f"<details><summary>{escape(tables.bin_label(sample.bin))}: {escape(sample.id)}</summary>"
        f"<p>The prompt ends with</p><pre>{escape(sample.prompt_end)}</pre>"
        f"<p>Expected: <code>{escape(sample.target)}</code></p>"
        f"{_table(['method', 'answer', 'score'], rows, 'answers')}</details>"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], name: str = "") -> str:
    head = "".join(_cell("th", "", cell) for cell in header)
    body = "".join(f"<tr>{''.join(_cell('td', '', cell) for cell in row)}</tr>" for row in rows)
    return _wrap(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", name)


def _wrap(inner: str, name: str = "") -> str:
    classes = f' class="{name}"' if name else ""
    return f'<div class="scroll"><table{classes}>{inner}</table></div>'


def _cell(tag: str, kind: str, text: str) -> str:
    classes = f' class="{kind}"' if kind else ""
    return f"<{tag}{classes}>{escape(text)}</{tag}>"


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="about">{items}</ul>' if items else ""
