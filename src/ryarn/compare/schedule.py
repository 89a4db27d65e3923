"""Which cell comes next: candidates first, the longest first, the rest once a choice is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ryarn.compare.cells import check_owner, is_done
from ryarn.compare.choice import Choice, choose
from ryarn.compare.grid import Cell, GridRecipe, candidates, cells, every_cell
from ryarn.compare.sharing import Trainings


class Schedule:
    """The cells of a grid in the order in which they can run, and what became of them.

    Nothing is written: it reads which cells are finished on disk.

    Args:
        grid: A checked grid.
        cost: Grows with a cell's time.
        chose: Told of each choice as it is made: task, label, choice.

    Attributes:
        waiting: Cells that can run now.
        done: Finished cells, candidates among them.
        failed: Cell name to why.
        choices: (task, label) to what was tried there.
    """

    def __init__(
        self,
        grid: GridRecipe,
        cost: Callable[[Cell], float],
        chose: Callable[[str, str, Choice], None],
    ) -> None:
        self._cost, self._chose, self._grid = cost, chose, grid
        self.waiting: list[Cell] = []
        self.done: list[Cell] = []
        self.failed: dict[str, str] = {}
        self.choices: dict[tuple[str, str], Choice] = {}
        self._running: set[Path] = set()
        self._trainings = Trainings(every_cell(grid))
        self._candidates: dict[tuple[str, str], list[Cell]] = {}
        for cell in candidates(grid):
            self._candidates.setdefault((cell.task, cell.label), []).append(cell)
        self._open = {key: {cell.name for cell in of} for key, of in self._candidates.items()}
        for of_method in self._candidates.values():
            self._add(of_method)
        self._add([cell for cell in cells(grid) if (cell.task, cell.label) not in self._candidates])

    @property
    def chosen(self) -> dict[tuple[str, str], int]:
        """(task, label) to the number of the setting that won, from 1, as far as it is known."""
        winners = {key: choice.winner for key, choice in self.choices.items()}
        return {key: winner for key, winner in winners.items() if winner is not None}

    def planned(self) -> list[Cell]:
        """Candidates and cells that have not failed, with the settings that are known."""
        every = [*candidates(self._grid), *cells(self._grid, self.chosen)]
        return [cell for cell in every if cell.name not in self.failed]

    def _add(self, more: list[Cell]) -> None:
        for cell in more:
            if is_done(cell):
                self.settle(cell, None)
            else:
                self.waiting.append(cell)

    def next(self) -> Cell | None:
        """Take the cell that should run next; None if none can right now."""
        free = [cell for cell in self.waiting if not self._trainings.under_way(cell, self._running)]
        if not free:
            return None
        best = max(free, key=lambda cell: (cell.candidate, self._cost(cell)))
        self.waiting.remove(best)
        self._running.add(best.recipe.output)
        return replace(best, donor=self._trainings.finished(best))

    def settle(self, cell: Cell, error: str | None) -> None:
        """Note how a cell ended; the last candidate of a method decides for its other cells."""
        self._running.discard(cell.recipe.output)
        if error is None:
            self.done.append(cell)
        else:
            self.failed[cell.name] = error
        if not cell.candidate:
            return
        key = cell.task, cell.label
        self._open[key].discard(cell.name)
        if not self._open[key]:
            self._decide(*key)

    def _decide(self, task: str, label: str) -> None:
        choice = choose(self._candidates[task, label], self.failed)
        self.choices[task, label] = choice
        self._chose(task, label, choice)
        winner = choice.winner
        mine = [
            cell
            for cell in cells(self._grid, {} if winner is None else {(task, label): winner})
            if (cell.task, cell.label) == (task, label)
        ]
        if winner is None:
            why = f"no setting of it could be chosen: {next(iter(choice.reasons.values()))}"
            self.failed |= {cell.name: why for cell in mine}
            return
        self._add(mine)


def plan(grid: GridRecipe) -> list[Cell]:
    """Candidates and cells of a grid; with the first setting where none can be chosen yet."""
    return Schedule(grid, lambda cell: 0.0, lambda *_: None).planned()


def check_folders(grid: GridRecipe) -> None:
    """See that what lies in the cells' folders was made by this grid.

    Raises:
        UserError: A cell's folder belongs to another recipe.
    """
    for cell in every_cell(grid):
        check_owner(cell)
