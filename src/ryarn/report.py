"""The report stage: several evaluations of the same rows become one comparison, in every format."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ryarn.errors import UserError
from ryarn.evaluate import MANIFEST, SCORES
from ryarn.records import Score, read_jsonl
from ryarn.results import Report, Run, build_report
from ryarn.runs import EVALUATION, read_json


def report(runs: Sequence[Path], out: Path, reference: str | None = None) -> Report:
    """Compare evaluated runs; write report.md, .csv, .json, .png and .html into a folder.

    Args:
        runs: Run folders that `ryarn evaluate` has finished; runs that differ in their seed alone
            are pooled.
        out: Folder for the files.
        reference: Label that every other method is compared with; by default Randomized YaRN is
            compared with every other method, or where it is missing the last method.

    Raises:
        UserError: No runs, a run without a finished evaluation, or runs on different rows.
    """
    from ryarn import plots, tables
    from ryarn.page import page

    result = build_report(load_runs(runs), reference)
    out.mkdir(parents=True, exist_ok=True)
    figure = plots.score_by_length(result)
    figure.savefig(out / "report.png", dpi=160)
    (out / "report.md").write_text(tables.markdown(result), encoding="utf-8")
    (out / "report.html").write_text(page(result, plots.as_svg(figure)), encoding="utf-8")
    text = json.dumps(asdict(result), ensure_ascii=False, indent=2, allow_nan=False)
    (out / "report.json").write_text(text + "\n", encoding="utf-8")
    with (out / "report.csv").open("w", encoding="utf-8", newline="") as file:
        rows = tables.tidy(result)
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return result


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """Read evaluated run folders and check that they can be compared.

    Raises:
        UserError: As in `report`.
    """
    if not folders:
        raise UserError("report: no run folders given; name at least one that was evaluated")
    runs: list[Run] = []
    for folder in folders:
        if folder.resolve() in [run.folder.resolve() for run in runs]:
            raise UserError(f"run {folder} is given twice: name every run once")
        runs.append(_load_run(folder))
    first = runs[0]
    for run in runs[1:]:
        for key, what in (("task", "task"), ("data", "evaluation rows")):
            if run.manifest.get(key) != first.manifest.get(key):
                raise UserError(
                    f"runs {first.folder} and {run.folder} have different {what}: evaluate both "
                    "with the same evaluate.data, or report them apart"
                )
    return runs


def _load_run(folder: Path) -> Run:
    place = folder / EVALUATION
    if not (place / MANIFEST).is_file():
        raise UserError(f"run {folder} has no evaluation: run `ryarn evaluate` on its recipe first")
    if not (place / SCORES).is_file():
        raise UserError(f"run {folder}: its evaluation is not finished; run `ryarn evaluate` again")
    manifest = read_json(place / MANIFEST)
    return Run(folder, manifest, [Score(**row) for row in read_jsonl(place / SCORES)])
