"""What is seen of a grid while it runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ryarn.compare.cells import ANSWERING, TRAINING, Progress
from ryarn.compare.estimate import BACKWARD, Work
from ryarn.compare.grid import Cell

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

EVERY = 30.0
"""Seconds between plain lines, at most."""


def part_done(work: Work, progress: Progress) -> float:
    """How much of a cell's cost is behind it."""
    training = BACKWARD * work.train_tokens
    if progress.stage == TRAINING:
        return training * progress.share
    if progress.stage == ANSWERING:
        return training + work.read_tokens * progress.share
    return 0.0


def duration(seconds: float) -> str:
    """E.g. "45 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Board:
    """The view; a context manager.

    Args:
        console: Where to.
        total: Number of cells of the grid.
        done: How many of them were finished before.
        cost: Cost of those that were not.
        clock: Seconds that pass.
        unit: What the cells are called.
    """

    def __init__(
        self,
        console: Console,
        total: int,
        done: int,
        cost: float,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "cells",
    ) -> None:
        from rich.live import Live

        self._console, self._clock, self._unit = console, clock, unit
        self._total, self._done, self._failed = total, done, 0
        self._cost, self._spent = cost, 0.0
        self._start = self._last = clock()
        self._starts: dict[str, float] = {}
        self._live = (
            Live(console=console, auto_refresh=False, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, cell: Cell) -> None:
        """A worker has taken a cell."""
        self._starts[cell.name] = self._clock()
        if self._live is None:
            self.say(f"start   {cell.name}")

    def ended(self, cell: Cell, cost: float, error: str | None) -> None:
        """A cell is done, or failed in a way that one sentence tells."""
        took = duration(self._clock() - self._starts.pop(cell.name, self._clock()))
        self._spent += cost
        if error is None:
            self._done += 1
            self.say(f"done    {cell.name} in {took}")
        else:
            self._failed += 1
            self.say(f"failed  {cell.name}: {error}")

    def say(self, line: str) -> None:
        """Print a line of its own, e.g. what was chosen."""
        self._last = self._clock()
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def tick(self, running: Sequence[tuple[Cell, Progress, float]]) -> None:
        """Show where the running cells are.

        Args:
            running: Cell, how far it is, and its cost so far.
        """
        spent = self._spent + sum(cost for _, _, cost in running)
        if self._live is not None:
            self._live.update(self._view(running, spent), refresh=True)
        elif self._clock() - self._last >= EVERY:
            where = [f"{cell.name}: {progress}" for cell, progress, _ in running]
            self.say("; ".join([self._count(), self._left(spent), *where]))

    def _count(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done} of {self._total} {self._unit} done{failed}"

    def _left(self, spent: float) -> str:
        """Time left, from the cost that this call has got done so far."""
        if spent <= 0:
            return "time left unknown yet"
        passed = self._clock() - self._start
        return f"about {duration(passed * max(0.0, self._cost - spent) / spent)} left"

    def _view(
        self, running: Sequence[tuple[Cell, Progress, float]], spent: float
    ) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(self._cost, 1.0), completed=min(spent, self._cost), width=30)
        head.add_row(bar, Text(self._count()), Text(self._left(spent)))
        lines = Table.grid(padding=(0, 2))
        for cell, progress, _ in running:
            bar = ProgressBar(total=1.0, completed=progress.share, width=12)
            lines.add_row(bar, Text(cell.name), Text(str(progress)))
        if not running:
            lines.add_row(Text("loading libraries in the workers"))
        return Group(head, lines)
