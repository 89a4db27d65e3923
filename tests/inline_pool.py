"""In place of the pool of worker processes: a function of the test runs each cell, right here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ryarn.compare.cells import Cell
from ryarn.compare.workers import Result

Run = Callable[[Cell], str | None]


class InlinePool:
    """Has the pool's methods and runs one cell at a time.

    Attributes:
        run: What a cell's run is; the sentence that it returns is the cell's failure.
        sizes: Workers and threads of each pool that was started.
        order: What each cell is called, in the order in which a worker got it.
    """

    def __init__(self, run: Run, called: Callable[[Cell], Any]) -> None:
        self.run = run
        self._called = called
        self.sizes: list[tuple[int, int]] = []
        self.order: list[Any] = []
        self.running: list[Cell] = []

    def start(self, count: int, threads: int, notes: Path, *_: Any) -> Self:
        self.sizes.append((count, threads))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.clear()

    def fill(self, wanted: int) -> None:
        pass

    @property
    def has_room(self) -> bool:
        return not self.running

    def submit(self, cell: Cell) -> None:
        self.order.append(self._called(cell))
        self.running.append(cell)

    def wait(self, seconds: float) -> list[Result]:
        ended, self.running = self.running, []
        return [Result(cell, self.run(cell)) for cell in ended]
