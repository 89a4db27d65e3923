"""Which cell comes next: candidates first, the longest first, the rest once a choice is made."""

from __future__ import annotations

from collections.abc import Callable

from ryarn.compare.cells import check_owner, is_done
from ryarn.compare.choice import Choice, choose
from ryarn.compare.grid import Cell, GridRecipe, candidates, cells, settings_count
from ryarn.errors import UserError


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
        self._candidates: dict[tuple[str, str], list[Cell]] = {}
        for cell in candidates(grid):
            self._candidates.setdefault((cell.task, cell.label), []).append(cell)
        self._open = {key: {cell.name for cell in of} for key, of in self._candidates.items()}
        for of_method in self._candidates.values():
            self._add(of_method)
        self._add([cell for cell in cells(grid) if (cell.task, cell.label) not in self._candidates])

    def _add(self, more: list[Cell]) -> None:
        for cell in more:
            if is_done(cell):
                self.settle(cell, None)
            else:
                self.waiting.append(cell)

    def next(self) -> Cell | None:
        """Take the cell that should run next; None if none can right now."""
        if not self.waiting:
            return None
        best = max(self.waiting, key=lambda cell: (cell.candidate, self._cost(cell)))
        self.waiting.remove(best)
        return best

    def settle(self, cell: Cell, error: str | None) -> None:
        """Note how a cell ended; the last candidate of a method decides for its other cells."""
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
        for cell in mine:
            try:
                check_owner(cell)
            except UserError as error:
                self.failed[cell.name] = str(error)
            else:
                self._add([cell])


def check_folders(grid: GridRecipe) -> None:
    """See that what lies in the cells' folders was made by this grid.

    Raises:
        UserError: A cell's folder belongs to another recipe.
    """
    for cell in candidates(grid):
        check_owner(cell)
    every = {
        number: cells(
            grid, {(task, label): number for task in grid.tasks for label in grid.methods}
        )
        for number in range(1, settings_count(grid) + 1)
    }
    for variants in zip(*every.values(), strict=True):
        # Which setting it will have is not known yet: any of them may be there.
        check_owner(variants[0], [cell.recipe for cell in variants[1:]])
