"""A report as flat files: a line for each number, and a line for each answer's score."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ryarn.evaluate import official
from ryarn.report.answers import Run, group

if TYPE_CHECKING:
    from ryarn.report.results import Method, Report
    from ryarn.stats import Estimate

COLUMNS = ("task", "label", "seed", "id", "bin", "source", "score", "finish")
"""Of the raw rows. `seed` is empty for a method without training, `score` for a skipped row."""


def numbers(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """A flat record for each method, bin and rule, scores in [0, 1]; the average has bin "ood"."""
    records: list[dict[str, Any]] = []
    for report in reports:
        for method in report.methods:
            records += _of_method(report, method)
    return records


def _of_method(report: Report, method: Method) -> Iterator[dict[str, Any]]:
    for cell in method.cells:
        counts: dict[str, Any] = {
            "rows": cell.rows,
            "skipped": cell.skipped,
            "unparsed": cell.unparsed,
            "cut": cell.cut,
            "thinking": cell.thinking,
            "failed": cell.failed,
        }
        place: dict[str, Any] = {"bin": cell.bin, "ood": cell.bin in report.ood_bins}
        for rule, score in {report.rule: cell.score, **cell.others}.items():
            yield _record(report, method, rule, score) | place | counts
    if report.ood_bins:
        place = {"bin": "ood", "ood": True}
        counted = ("rows", "skipped", "unparsed", "cut", "thinking", "failed")
        blank: dict[str, Any] = dict.fromkeys(counted, "")
        yield _record(report, method, report.rule, method.ood) | place | blank


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
        "seeds": len(method.seeds),
    }


def write_numbers(reports: Sequence[Report], path: Path) -> None:
    """Write `numbers` as CSV."""
    records = numbers(reports)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)


def write_rows(tasks: Mapping[str, Sequence[Run]], path: Path) -> None:
    """Write every answer's official score as a gzipped CSV, the same bytes every time.

    All tables of a report can be computed from it.

    Args:
        tasks: Task name to its runs.
        path: File to write.
    """
    # No name and no time in the header: equal runs give equal bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(_rows(tasks))


def _rows(tasks: Mapping[str, Sequence[Run]]) -> Iterator[tuple[Any, ...]]:
    for task, runs in tasks.items():
        for label, members in group(runs).items():
            for run in members:
                seed = "" if run.seed is None else run.seed
                for row in run.scores:
                    score = f"{official(row):.9g}" if row.scores else ""
                    yield task, label, seed, row.id, row.bin, row.source, score, row.finish
