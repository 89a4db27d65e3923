"""A report as one HTML page that needs no other file, no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from ryarn import tables

if TYPE_CHECKING:
    from ryarn.results import Report, Sample

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; margin: 0; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem 1.2rem 4rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .6rem 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
.scroll { overflow-x: auto; }
.scroll svg { display: block; width: 100%; min-width: 38rem; height: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .32rem .7rem .32rem 0; border-bottom: 1px solid #e4e4e4;
  vertical-align: top; white-space: nowrap; }
thead th { border-bottom: 2px solid #999; }
.ood { background: #eef5fa; } .ood, .id { padding-left: .5rem; }
.interval { color: #666; font-size: .8rem; display: block; }
.settings td { white-space: normal; min-width: 9rem; max-width: 20rem; overflow-wrap: anywhere; }
.settings th { position: sticky; left: 0; background: #fff; }
.about { color: #444; } li { margin: .25rem 0; } summary { cursor: pointer; padding: .3rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .6rem;
  font-size: .82rem; margin: .3rem 0; }
.answers td { white-space: normal; overflow-wrap: anywhere; }
"""


def page(report: Report, figure: str) -> str:
    """The report as HTML.

    Args:
        report: What to show; all its text is escaped.
        figure: The figure as an `<svg>` element.
    """
    title = f"{report.task}: score by length"
    figure = figure.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="about">Score: <code>{escape(report.rule)}</code>. '
        f"{escape(tables.lengths(report))}</p>",
        f'<div class="scroll">{figure}</div>',
        "<h2>Scores, percent with 95% interval</h2>",
        _scores(report),
        _list(report.notes),
    ]
    sections += _differences(report)
    sections += ["<h2>Rows</h2>", _table(tables.COUNT_HEADER, tables.count_rows(report))]
    for rule in tables.other_rules(report):
        sections += [f"<h2>Beside it: <code>{escape(rule)}</code></h2>", _scores(report, rule)]
    sections += ["<h2>Settings</h2>", _settings(report)]
    sections += ["<h2>How the numbers are made</h2>", _list(tables.HOW)]
    sections += ["<h2>A row of each length</h2>", *(_sample(s) for s in report.samples)]
    body = "\n".join(section for section in sections if section)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


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
    small = f'<span class="interval">{escape(interval)}</span>' if interval else ""
    return f'<td class="{kind}">{escape(mean)}{small}</td>'


def _differences(report: Report) -> list[str]:
    """The OOD averages in sight, the many single bins folded away."""
    if not report.comparisons:
        return []
    by_bin = _table(tables.COMPARISON_HEADER, tables.comparison_rows(report, report.by_bin))
    sections = ["<h2>Differences on the same rows, points with 95% interval</h2>"]
    if report.averages:
        rows = tables.comparison_rows(report, report.averages)
        sections.append(_table(tables.COMPARISON_HEADER, rows))
    unfolded = "" if report.averages else " open"
    sections.append(f"<details{unfolded}><summary>Bin by bin</summary>{by_bin}</details>")
    return sections


def _settings(report: Report) -> str:
    rows = tables.settings_rows(report)
    body = "".join(
        f"<tr>{_cell('th', '', row[0])}{''.join(_cell('td', '', cell) for cell in row[1:])}</tr>"
        for row in rows
    )
    return _wrap(f"<tbody>{body}</tbody>", "settings")


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
