"""The grid recipe: methods x seeds x tasks in one YAML file, and the plain recipe of each cell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, model_validator

from ryarn.backends.config import HfConfig
from ryarn.config import Config, build, load
from ryarn.errors import UserError
from ryarn.paper.numbers import STATED, nearest
from ryarn.recipe import Recipe, recipe_method

CELLS, CHOOSE = "cells", "choose"
"""Folders of the grid's output: what is compared, and the candidates for hyper-parameters."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _or_empty(value: Any) -> Any:
    """`zero-shot:` with nothing behind it changes nothing."""
    return {} if value is None else value


def _known_rows(name: str) -> str:
    if name not in STATED:
        raise ValueError(f"names no rows of the paper: {nearest(name)}")
    return name


Section = Annotated[dict[str, Any], BeforeValidator(_or_empty)]


class Changes(Config):
    """A part of a recipe: what it says is laid over what was said before."""

    model: Section = Field(default_factory=dict)
    method: Section = Field(default_factory=dict)
    train: Section = Field(default_factory=dict)
    evaluate: Section = Field(default_factory=dict)


Part = Annotated[Changes, BeforeValidator(_or_empty)]


class ChooseConfig(Config):
    """How hyper-parameters are chosen: the same number of settings for every method that has any.

    Each setting is trained once on each task and evaluated on held-out rows; the best mean over the
    bins longer than `train.max_length` wins, the first of equals.
    """

    seed: Seed
    """Training seed of the candidates; none of the grid's `seeds`."""
    evaluate: Section = Field(default_factory=dict)
    """Changes of `evaluate` for choosing, e.g. fewer rows."""
    settings: dict[str, Annotated[list[Part], Field(min_length=1)]] = Field(min_length=1)
    """Method label to its candidates; a label without a list is not tuned."""


class GridRecipe(Config):
    """A whole comparison. What is laid over what: shared < task < method < setting < seed."""

    model: Section = Field(default_factory=dict)
    method: Section = Field(default_factory=dict)
    train: Section = Field(default_factory=dict)
    evaluate: Section = Field(default_factory=dict)
    tasks: dict[str, Part] = Field(min_length=1)
    methods: dict[str, Part] = Field(min_length=1)
    """Label to changes; `method.name` is the label where none is given."""
    seeds: list[Seed] = Field(min_length=1)
    choose: ChooseConfig | None = None
    reference: str | None = None
    """Label of the method that the others are tested against."""
    output: Path
    paper: Annotated[str, AfterValidator(_known_rows)] | None = None
    """Which rows of the paper the grid reproduces, key of `ryarn.paper.numbers.STATED`: what its
    text says of them stands beside the results."""
    processes: PositiveInt | None = None
    """Worker processes; null: one a core."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {self.seeds}: name each only once")
        if self.reference is not None and self.reference not in self.methods:
            known = ", ".join(self.methods)
            raise ValueError(f"reference = {self.reference!r} is none of the methods: {known}")
        for section, names in (("tasks", self.tasks), ("methods", self.methods)):
            _check_folder_names(section, list(names))
        if self.paper is not None and len(self.tasks) > 1:
            raise ValueError(
                f"paper = {self.paper!r} beside {len(self.tasks)} tasks: the paper's rows are of "
                "one task, so give each task a grid of its own, or leave paper out"
            )
        shared = {"": self.method, **{f"tasks.{k}.": v.method for k, v in self.tasks.items()}}
        for where, method in shared.items():
            if "name" in method:
                raise ValueError(
                    f"{where}method.name would be that of every method: give it under methods"
                )
        for label, part in self.methods.items():
            _check_same_rows(f"methods.{label}", part)
        if self.choose is not None:
            _check_choose(self.choose, self)
        return self


def slug(name: str) -> str:
    """A name as a folder: lower case; all but letters, digits, `.`, `+`, `_`, `-` become `-`."""
    return re.sub(r"[^a-z0-9.+_]+", "-", name.lower()).strip("-.")


def _check_folder_names(section: str, names: Sequence[str]) -> None:
    taken: dict[str, str] = {}
    for name in names:
        folder = slug(name)
        if not folder:
            raise ValueError(f"{section}: {name!r} has no letter or digit to name a folder with")
        if folder in taken:
            raise ValueError(
                f"{section}: {taken[folder]!r} and {name!r} would share the folder {folder!r}: "
                "rename one"
            )
        taken[folder] = name


def _check_same_rows(where: str, part: Changes) -> None:
    """A comparison is of methods on the same rows."""
    for stage, key in (("train", "data"), ("evaluate", "data"), ("evaluate", "split")):
        if key in getattr(part, stage):
            raise ValueError(
                f"{where}.{stage}.{key}: all methods of a task share their rows; give it under "
                "tasks or for all"
            )


def _check_choose(choose: ChooseConfig, grid: GridRecipe) -> None:
    if choose.seed in grid.seeds:
        raise ValueError(
            f"choose.seed = {choose.seed} is among seeds: candidates need a seed of their own"
        )
    if "split" in choose.evaluate:
        raise ValueError("choose.evaluate.split: candidates are evaluated on held-out rows alone")
    if "split" in grid.evaluate or any("split" in part.evaluate for part in grid.tasks.values()):
        raise ValueError(
            "evaluate.split beside choose: the held-out rows are there to choose by, so results "
            "come from the test rows; leave it out"
        )
    for label, settings in choose.settings.items():
        if label not in grid.methods:
            known = ", ".join(grid.methods)
            raise ValueError(f"choose.settings.{label} is none of the methods: {known}")
        for number, part in enumerate(settings, start=1):
            _check_same_rows(f"choose.settings.{label}, setting {number}", part)
    counts = {label: len(settings) for label, settings in choose.settings.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{label} {count}" for label, count in counts.items())
        raise ValueError(
            f"choose.settings: the methods have different numbers of settings ({listed}): give "
            "each as many"
        )


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    Attributes:
        task: Key of `tasks`.
        label: Key of `methods`.
        seed: Training seed.
        setting: Number of the setting that it has, from 1; None where nothing is tuned.
        candidate: Whether it is there to choose by; else it is part of the comparison.
        recipe: The merged recipe, its `output` the cell's own folder.
        donor: Run folder of the cell whose adapter this one takes over; None for its own training.
    """

    task: str
    label: str
    seed: int
    setting: int | None
    candidate: bool
    recipe: Recipe
    donor: Path | None = field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        """What messages call it."""
        last = f"setting {self.setting}" if self.candidate else f"seed {self.seed}"
        return f"{self.task} / {self.label} / {last}"

    @property
    def trains(self) -> bool:
        """Whether there is anything to train."""
        return recipe_method(self.recipe.method).trains


Chosen = Mapping[tuple[str, str], int]
"""(task, label) to the number of the setting that was chosen, from 1."""


def load_grid(path: Path, overrides: Sequence[str]) -> GridRecipe:
    """Read a grid recipe and check every cell of it.

    Raises:
        UserError: See `ryarn.config.load` and `check_cells`.
    """
    grid = load(GridRecipe, path, overrides)
    check_cells(grid)
    return grid


def check_cells(grid: GridRecipe) -> None:
    """See that every cell that there can be is a recipe with a method.

    Raises:
        UserError: One is not; the sentence names it and the key.
    """
    every_cell(grid)
    for cell in candidates(grid):
        longest = cell.recipe.train.max_length
        lengths = getattr(cell.recipe.evaluate.data, "lengths", [])
        if lengths and all(isinstance(n, int) and n <= longest for n in lengths):
            raise UserError(
                f"{cell.name}: no length of evaluate.data.lengths = {lengths} is beyond "
                f"train.max_length = {longest}, so there is nothing to choose by: add a longer one"
            )


def settings_count(grid: GridRecipe) -> int:
    """How many settings each tuned method has; 1 where nothing is tuned."""
    return len(next(iter(grid.choose.settings.values()))) if grid.choose else 1


def candidates(grid: GridRecipe) -> list[Cell]:
    """The runs that hyper-parameters are chosen by.

    Raises:
        UserError: A merged recipe is none.
    """
    if grid.choose is None:
        return []
    return [
        _cell(grid, task, label, grid.choose.seed, number, candidate=True)
        for task in grid.tasks
        for label, settings in grid.choose.settings.items()
        for number in range(1, len(settings) + 1)
    ]


def cells(grid: GridRecipe, chosen: Chosen | None = None) -> list[Cell]:
    """The runs that are compared, by task, then method, then seed.

    A method that trains nothing is the same for every seed, so it has one cell, with the first.

    Args:
        grid: The grid.
        chosen: Settings that were chosen; a tuned method that is missing has its first.

    Raises:
        UserError: A merged recipe is none.
    """
    found = []
    for task in grid.tasks:
        for label in grid.methods:
            tuned = grid.choose is not None and label in grid.choose.settings
            number = (chosen or {}).get((task, label), 1) if tuned else None
            for seed in grid.seeds:
                cell = _cell(grid, task, label, seed, number, candidate=False)
                found.append(cell)
                if not cell.trains:
                    break
    return found


def every_cell(grid: GridRecipe) -> list[Cell]:
    """Every cell that there can be, whatever is chosen.

    Raises:
        UserError: A merged recipe is none.
    """
    found: dict[Path, Cell] = {}
    for number in range(1, settings_count(grid) + 1):
        chosen = {(task, label): number for task in grid.tasks for label in grid.methods}
        found |= {cell.recipe.output: cell for cell in cells(grid, chosen)}
    return [*found.values(), *candidates(grid)]


def _cell(
    grid: GridRecipe, task: str, label: str, seed: int, setting: int | None, *, candidate: bool
) -> Cell:
    parts: list[Changes | GridRecipe] = [grid, grid.tasks[task], grid.methods[label]]
    if setting is not None and grid.choose is not None:
        parts.append(grid.choose.settings[label][setting - 1])
    merged: dict[str, Any] = {}
    for part in parts:
        merged = merge(merged, {key: getattr(part, key) for key in Changes.model_fields})
    merged["method"] = {"name": label, **merged["method"]}
    # With the setting in its path, a choice that changes leaves finished cells where they are.
    tuned = [] if setting is None else [f"setting-{setting}"]
    folder = Path(grid.output, CELLS, slug(task), slug(label), *tuned, f"seed-{seed}")
    if candidate and grid.choose is not None:
        chooser = merge(grid.choose.evaluate, {"split": "held-out"})
        merged["evaluate"] = merge(merged["evaluate"], chooser)
        folder = grid.output / CHOOSE / slug(task) / slug(label) / str(setting)
    merged |= {"seed": seed, "label": label, "output": folder}
    where = f"task {task!r}, method {label!r}" + (f", setting {setting}" if setting else "")
    try:
        recipe = build(Recipe, merged)
        recipe_method(recipe.method)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    if not isinstance(recipe.evaluate.backend, HfConfig):
        raise UserError(
            f"{where}: evaluate.backend = {recipe.evaluate.backend.name!r} does not go with a "
            "comparison, which answers "
            "with the models that it trains itself: evaluate each served model with ryarn "
            "evaluate, then set them side by side with ryarn report"
        )
    return Cell(task, label, seed, setting, candidate, recipe)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a section over another, key by key; a `data` section of another `task` replaces it."""
    merged = dict(base)
    for key, value in changes.items():
        there = merged.get(key)
        merged[key] = value
        if not isinstance(value, dict) or not isinstance(there, dict):
            continue
        if value.get("task", there.get("task")) == there.get("task"):
            merged[key] = merge(there, value)
    return merged
