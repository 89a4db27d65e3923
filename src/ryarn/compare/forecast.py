"""What a grid would do: its cells as a table, with tokens and time, before anything is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ryarn.compare.cells import is_done
from ryarn.compare.estimate import (
    Survey,
    Work,
    done_cells,
    makespan,
    measured,
    reckoned,
    seconds_each,
)
from ryarn.compare.grid import Cell, GridRecipe, cells, check_cells, every_cell
from ryarn.compare.schedule import check_folders, plan
from ryarn.compare.sharing import spared
from ryarn.compare.stage import check_output
from ryarn.compare.watch import duration
from ryarn.compare.workers import share
from ryarn.cost.resources import hours_each, hours_note, resource_notes, sizes_of, source_note

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Line:
    """The cells of one method on one task in one stage, which all have the same work.

    Attributes:
        task: Its name.
        label: The method's.
        runs: E.g. "seed 0 1 2".
        cells: How many.
        done: How many of them are finished.
        work: Of one cell.
        seconds: Of one cell on this machine; None where that can't be told.
        hours: Of one cell on an accelerator; None for a model that needs none.
    """

    task: str
    label: str
    runs: str
    cells: int
    done: int
    work: Work
    seconds: float | None
    hours: float | None


@dataclass(frozen=True)
class Forecast:
    """The lines, and what to say below them."""

    lines: list[Line]
    notes: list[str]


def forecast(grid: GridRecipe, *, processes: int | None = None) -> Forecast:
    """Say what `ryarn.compare.stage.compare` would do; nothing is written and no weights are read.

    The hub is not asked for the paper's models and data, see `Survey`.

    Args:
        grid: The grid.
        processes: As for `compare`.

    Raises:
        UserError: As for `compare`.
    """
    check_cells(grid)
    check_output(grid)
    check_folders(grid)
    every = plan(grid)
    survey = Survey(offline=True, spared=spared(every, every_cell(grid)))
    survey.check(every)
    left = [cell for cell in every if not is_done(cell)]
    count, threads = share(len(every), processes or grid.processes)
    sizes = sizes_of(every, survey)
    speed = measured(done_cells(every), survey)
    if speed is None and sizes is None:
        speed = reckoned(every, survey, threads)
    seconds = seconds_each(every, survey, speed) if speed else {}
    hours = hours_each(every, survey, sizes) if sizes else {}
    groups: dict[tuple[str, str, bool], list[Cell]] = {}
    for cell in every:
        groups.setdefault((cell.task, cell.label, cell.candidate), []).append(cell)
    lines = [
        _line(group, survey, seconds, hours)
        for task in grid.tasks
        for (of_task, _, _), group in groups.items()
        if of_task == task
    ]
    notes = [f"{len(every)} cells, {len(every) - len(left)} of them finished"]
    once = list(dict.fromkeys(cell.label for cell in cells(grid) if not cell.trains))
    if once and len(grid.seeds) > 1:
        notes.append(f"nothing is trained in {', '.join(once)}: once, with the first seed")
    if survey.spared:
        notes.append(
            f"adapters taken over from a cell with the same training: {len(survey.spared)}"
        )
    unread = source_note(every)
    if unread:
        notes.append(unread)
    if sizes is not None:
        notes += [*resource_notes(every, survey, sizes), hours_note(hours, left)]
    where = f"with {count} {'process' if count == 1 else 'processes'} of {threads} " + (
        "thread" if threads == 1 else "threads"
    )
    if not left:
        notes.append("nothing is left to run but the report")
    elif speed is None:
        notes.append(f"time: not known before the first cell is finished ({where})")
    else:
        total = duration(makespan([seconds[cell.name] for cell in left], count))
        notes.append(f"time: about {total} {where} ({speed.source})")
    return Forecast(lines, notes)


def _line(
    group: list[Cell], survey: Survey, seconds: Mapping[str, float], hours: Mapping[str, float]
) -> Line:
    first = group[0]
    numbers = [cell.setting if cell.candidate else cell.seed for cell in group]
    kind = "setting" if first.candidate else "seed"
    runs = f"{kind} {' '.join(map(str, numbers))}"
    works = [survey.work(cell.recipe) for cell in group]
    return Line(
        task=first.task,
        label=first.label,
        runs=runs,
        cells=len(group),
        done=sum(map(is_done, group)),
        work=max(works, key=lambda work: work.cost),
        seconds=max((seconds[cell.name] for cell in group), default=None) if seconds else None,
        hours=max((hours[cell.name] for cell in group), default=None) if hours else None,
    )


def table(forecast: Forecast) -> Table:
    """The lines for a terminal; rows, steps, tokens and time (or hours) are those of one cell."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    shown.add_column("method", min_width=20)
    shown.add_column("runs")
    on_gpu = any(line.hours is not None for line in forecast.lines)
    last = "GPU\nhours" if on_gpu else "time"
    for name in ("done", "rows", "steps", "tokens", "eval\nrows", "eval\ntokens", last):
        shown.add_column(name, justify="right")
    task = None
    for line in forecast.lines:
        if line.task != task:
            task = line.task
            shown.add_row(Text(task, style="bold"))
        work = line.work
        shown.add_row(
            Text(f" {line.label}"),
            line.runs,
            f"{line.done}/{line.cells}",
            *(_number(n) if n else "-" for n in (work.rows, work.steps, work.train_tokens)),
            _number(work.answers),
            _number(work.read_tokens),
            _time(line),
        )
    return shown


def _time(line: Line) -> str:
    """Hours on an accelerator where the model is for one, else the time on this machine."""
    if line.hours is not None:
        return f"{line.hours:.2g}"
    return duration(line.seconds) if line.seconds is not None else "?"


def _number(count: int) -> str:
    """E.g. "950", "12.3k", "4.1M"."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if count >= size:
            return f"{count / (1000 if unit == 'k' else size):.3g}{unit}"
    return str(count)
