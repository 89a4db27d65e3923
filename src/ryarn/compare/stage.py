"""The comparison: every method, seed and task of a grid trained, evaluated and set side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ryarn.compare.cells import is_done, progress
from ryarn.compare.choice import CHOSEN, Choice, write_choices
from ryarn.compare.estimate import Survey
from ryarn.compare.grid import (
    Cell,
    GridRecipe,
    candidates,
    cells,
    check_cells,
    every_cell,
    settings_count,
)
from ryarn.compare.schedule import Schedule, check_folders, plan
from ryarn.compare.sharing import spared, training
from ryarn.compare.watch import Board, part_done
from ryarn.compare.workers import Pool, share
from ryarn.config import dump
from ryarn.errors import UserError
from ryarn.runs import check_writable

if TYPE_CHECKING:
    from rich.console import Console

    from ryarn.report.results import Report

GRID, NOTES, LOCK, REPORT_FOLDER = "grid.yaml", "workers.txt", ".lock", "report"


@dataclass(frozen=True)
class Outcome:
    """What became of a grid.

    Attributes:
        done: Cells with scores, without the candidates.
        failed: Cell name to why, candidates among them.
        chosen: (task, label) to the number of the setting chosen, from 1.
        report: Folder of the report; None where no cell has scores.
        tasks: The report itself, task by task.
    """

    done: list[Cell]
    failed: dict[str, str]
    chosen: dict[tuple[str, str], int]
    report: Path | None
    tasks: list[Report]


def compare(
    grid: GridRecipe, *, processes: int | None = None, console: Console | None = None
) -> Outcome:
    """Run all cells of a grid that are not finished, then write the report.

    A killed grid goes on where it was, a failing cell does not stop the others. Called from a
    script, it must stand under `if __name__ == "__main__":`, as worker processes load the script.

    Args:
        grid: The grid.
        processes: Worker processes; by default the grid's `processes`, else one a core.
        console: Where progress is shown; by default stderr.

    Raises:
        UserError: Bad input, or a folder that belongs to another run, before anything is run.
        KeyboardInterrupt: After Ctrl-C, when all workers have been stopped.
    """
    from rich.console import Console

    check_cells(grid)
    check_output(grid)
    check_folders(grid)
    console = console or Console(stderr=True)
    planned = plan(grid)
    survey = Survey(spared=spared(planned, every_cell(grid)))
    survey.check(cell for cell in planned if not is_done(cell))
    with alone(grid.output):
        (grid.output / GRID).write_text(dump(grid), encoding="utf-8")
        schedule = _run(grid, planned, survey, processes or grid.processes, console)
        finals = cells(grid, schedule.chosen)
        done = [cell for cell in finals if is_done(cell) and cell.name not in schedule.failed]
        tasks = _report(grid, schedule, finals, done)
    report = grid.output / REPORT_FOLDER if tasks else None
    return Outcome(done, schedule.failed, schedule.chosen, report, tasks)


def check_output(grid: GridRecipe) -> None:
    """See that the grid's folder is free or holds a grid.

    Raises:
        UserError: It can't be written to, or holds something else.
    """
    check_writable(grid.output)
    there = {path.name for path in grid.output.iterdir()} if grid.output.is_dir() else set()
    if there - {LOCK} and GRID not in there:
        raise UserError(
            f"output = {str(grid.output)!r} is not empty and holds no comparison: choose another "
            "folder"
        )


@contextlib.contextmanager
def alone(folder: Path, command: str = "compare") -> Iterator[None]:
    """Hold the folder: two comparisons in it would write over each other.

    Args:
        folder: The output of a command.
        command: Its name.

    Raises:
        UserError: Another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        # Not every system has it; a lock of the system ends with its process, however that ends.
        with contextlib.suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"output = {str(folder)!r}: another ryarn {command} is at work there"
                ) from None
        yield


def _run(
    grid: GridRecipe,
    planned: list[Cell],
    survey: Survey,
    processes: int | None,
    console: Console,
) -> Schedule:
    """Run what is left, until nothing can run any more."""
    left = [cell for cell in planned if not is_done(cell)]

    def cost(cell: Cell) -> float:
        return float(survey.work(cell.recipe).cost)

    def chose(task: str, label: str, choice: Choice) -> None:
        tried[task, label] = choice
        write_choices(grid, tried, grid.output / CHOSEN)
        winner = choice.winner and choice.scores[choice.winner]
        if winner is not None:
            board.say(
                f"chosen  {task} / {label}: setting {choice.winner} of {len(choice.scores)}, "
                f"held-out OOD mean {winner:.3f}"
            )

    tried: dict[tuple[str, str], Choice] = {}
    board = Board(console, len(planned), len(planned) - len(left), sum(map(cost, left)))
    schedule = Schedule(grid, cost, chose)
    if not schedule.waiting:
        return schedule
    every = every_cell(grid)
    count, threads = share(len(planned), processes)
    with board, Pool(count, threads, grid.output / NOTES) as pool:
        while schedule.waiting or pool.running:
            pool.fill(len(schedule.waiting) + len(pool.running))
            while pool.has_room and (cell := schedule.next()) is not None:
                pool.submit(cell)
                board.started(cell)
            for result in pool.wait(0.5):
                board.ended(result.cell, cost(result.cell), result.error)
                schedule.settle(result.cell, result.error)
                survey.spared = spared(schedule.planned(), every)
            now = [(cell, progress(cell)) for cell in pool.running]
            board.tick([(c, p, part_done(survey.work(c.recipe), p)) for c, p in now])
    return schedule


def _report(
    grid: GridRecipe, schedule: Schedule, finals: list[Cell], done: list[Cell]
) -> list[Report]:
    """Write the report of the cells that are finished; nothing if there are none."""
    from ryarn.report.stage import report_grid

    runs = {task: [cell.recipe.output for cell in done if cell.task == task] for task in grid.tasks}
    runs = {task: folders for task, folders in runs.items() if folders}
    if not runs:
        return []
    about = tell(grid, schedule, finals, done)
    return report_grid(runs, grid.output / REPORT_FOLDER, grid.reference, about, grid.paper)


def tell(grid: GridRecipe, schedule: Schedule, finals: list[Cell], done: list[Cell]) -> list[str]:
    """What the report's reader must know about how its numbers came to be, in sentences."""
    seeds = ", ".join(map(str, grid.seeds))
    bases = list(dict.fromkeys(cell.recipe.model.name for cell in finals))
    sentences = [
        f"Base: {_listed(bases)}.",
        f"Each trained method was trained with {len(grid.seeds)} "
        f"{'seed' if len(grid.seeds) == 1 else 'seeds'} ({seeds}) on the same rows of each task.",
    ]
    once = list(dict.fromkeys(cell.label for cell in finals if not cell.trains))
    if once:
        sentences.append(f"Nothing is trained in {_listed(once)}, so it ran once.")
    sentences += _shared([*candidates(grid), *finals])
    if grid.choose is not None:
        sentences.append(
            f"Hyper-parameters were chosen on held-out rows, by the mean over the bins longer "
            f"than the training rows, in a run with seed {grid.choose.seed}: "
            f"{settings_count(grid)} settings each of {_listed(list(grid.choose.settings))}."
        )
        untuned = [label for label in grid.methods if label not in grid.choose.settings]
        if untuned:
            sentences.append(f"Nothing was chosen for {_listed(untuned)}.")
        for (task, label), choice in schedule.choices.items():
            for number, reason in choice.reasons.items():
                sentences.append(f"{task}: setting {number} of {label} has no score: {reason}.")
    have = {cell.name for cell in done}
    for cell in finals:
        if cell.name not in have:
            reason = schedule.failed.get(cell.name, "it was not run").rstrip(".")
            sentences.append(f"Missing: {cell.name} ({reason}).")
    return sentences


def _shared(planned: list[Cell]) -> list[str]:
    """Which cells have one training, without their seeds; nothing if there are none."""
    several = len({cell.task for cell in planned}) > 1
    groups: dict[str, dict[str, None]] = {}
    for cell in planned:
        if cell.trains:
            of = f"{cell.task} / {cell.label}" if several else cell.label
            name = f"setting {cell.setting} of {of}" if cell.candidate else of
            groups.setdefault(training(cell.recipe), {})[name] = None
    listed = dict.fromkeys(_listed(list(names)) for names in groups.values() if len(names) > 1)
    if not listed:
        return []
    return [
        f"One training serves all of what differs in s' or in the evaluation alone: "
        f"{'; '.join(listed)}."
    ]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
