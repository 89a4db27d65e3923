"""The report stage: several evaluations of the same rows become one comparison, in every format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ryarn.errors import UserError
from ryarn.evaluate import MANIFEST, SCORES
from ryarn.records import Score, read_jsonl
from ryarn.report.answers import Run
from ryarn.report.results import Report, build_reports, check_reference
from ryarn.report.trained import Trained
from ryarn.runs import EVALUATION, read_json


def report(runs: Sequence[Path], out: Path, reference: str | None = None) -> Report:
    """Compare evaluated runs of one task: a grid of one task.

    Args:
        runs: Run folders that `ryarn evaluate` has finished; runs that differ in their seed alone
            are pooled.
        out: Folder for the files.
        reference: Label that every other method is compared with; by default Randomized YaRN is
            compared with every other method, or where it is missing the last method.

    Raises:
        UserError: No runs, a run without a finished evaluation, or runs on different rows.
    """
    loaded = load_runs(runs)
    check_reference(loaded, reference)
    return _write({str(loaded[0].manifest["task"]): loaded}, out, reference, [], None)[0]


def report_grid(
    runs: Mapping[str, Sequence[Path]],
    out: Path,
    reference: str | None,
    about: Sequence[str],
    paper: str | None = None,
) -> list[Report]:
    """Compare evaluated runs of several tasks in one table, one figure and one page.

    Writes report.md, .csv, .json, .png and .html, and rows.csv.gz with every answer's score.

    Args:
        runs: Task name to its run folders, methods in the order of the table.
        out: Folder for the files.
        reference: As in `report`; a task that lacks it compares nothing and says so.
        about: Sentences on what was compared, for the top: base, data, seeds, budget.
        paper: Which rows of the paper stand beside them, key of `ryarn.paper.numbers.STATED`.

    Returns:
        A report for each task.

    Raises:
        UserError: As in `report`.
    """
    if not runs:
        raise UserError("report: no task has a finished run")
    loaded = {task: load_runs(folders) for task, folders in runs.items()}
    return _write(loaded, out, reference, about, paper)


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """Read evaluated run folders and check that they can be compared.

    Raises:
        UserError: As in `report`.
    """
    if not folders:
        raise UserError("report: no run folders given; name at least one that was evaluated")
    runs: list[Run] = []
    known: set[Path] = set()
    for folder in folders:
        if folder.resolve() in known:
            raise UserError(f"run {folder} is given twice: name every run once")
        known.add(folder.resolve())
        runs.append(_load_run(folder))
    first = runs[0]
    for run in runs[1:]:
        for key, what in (("task", "task"), ("data", "evaluation rows")):
            if run.manifest.get(key) != first.manifest.get(key):
                raise UserError(
                    f"runs {first.folder} and {run.folder} have different {what}: evaluate both "
                    "with the same evaluate.data, or report them apart"
                )
        rules = [_rule(first), _rule(run)]
        if all(rules) and rules[0] != rules[1]:
            raise UserError(
                f"runs {first.folder} and {run.folder} are scored by different rules "
                f"({rules[0]} and {rules[1]}): evaluate both with the same evaluate.data.score"
            )
    return runs


def _rule(run: Run) -> str:
    """The official rule; nothing where no row was scored."""
    return next((next(iter(score.scores)) for score in run.scores if score.scores), "")


def _load_run(folder: Path) -> Run:
    place = folder / EVALUATION
    if not (place / MANIFEST).is_file():
        raise UserError(f"run {folder} has no evaluation: run `ryarn evaluate` on its recipe first")
    if not (place / SCORES).is_file():
        raise UserError(f"run {folder}: its evaluation is not finished; run `ryarn evaluate` again")
    manifest = read_json(place / MANIFEST)
    scores = [Score(**row) for row in read_jsonl(place / SCORES)]
    return Run(folder, manifest, scores, Trained.read(folder))


def _write(
    tasks: Mapping[str, Sequence[Run]],
    out: Path,
    reference: str | None,
    about: Sequence[str],
    paper: str | None,
) -> list[Report]:
    from ryarn.paper.comparison import beside
    from ryarn.report import plots, tidy
    from ryarn.report.markdown import markdown
    from ryarn.report.page import page

    reports = build_reports(tasks, reference)
    # A grid that reproduces rows of the paper has one task.
    stated = beside(next(iter(tasks.values())), paper) if paper is not None else None
    out.mkdir(parents=True, exist_ok=True)
    figure = plots.score_by_length(reports)
    figure.savefig(out / "report.png", dpi=160)
    (out / "report.md").write_text(markdown(reports, about, stated), encoding="utf-8")
    drawn = plots.as_svg(figure)
    (out / "report.html").write_text(page(reports, drawn, about, stated), encoding="utf-8")
    content: dict[str, Any] = {
        "about": list(about),
        "tasks": [asdict(result) for result in reports],
    }
    if stated is not None:
        content["paper"] = stated.to_json()
    text = json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False)
    (out / "report.json").write_text(text + "\n", encoding="utf-8")
    tidy.write_numbers(reports, out / "report.csv")
    tidy.write_rows(tasks, out / "rows.csv.gz")
    return reports
