"""What lies in a cell's folder: whose it is, how far it got, how long it took."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ryarn.compare.grid import Cell
from ryarn.config import build, dump, leaves, parse_yaml
from ryarn.errors import UserError
from ryarn.evaluate import COMPLETIONS, EXAMPLES, SCORES
from ryarn.recipe import WITHOUT_EFFECT, Recipe, TrainConfig, recipe_method
from ryarn.runs import ADAPTER, EVALUATION, LOG, RECIPE, RUN, read_json

OUTPUT, ERROR, TIMES = "log.txt", "error.txt", "times.json"
"""What a worker leaves in the cell's folder: all that was printed, a traceback, seconds."""


def is_done(cell: Cell) -> bool:
    """Whether there is nothing left to do."""
    return (cell.recipe.output / EVALUATION / SCORES).is_file()


def is_trained(recipe: Recipe) -> bool:
    """Whether the adapter is whole: its configuration is written last."""
    return (recipe.output / ADAPTER / "adapter_config.json").is_file()


def check_owner(cell: Cell) -> None:
    """See that the cell's folder is free, or was made with the cell's recipe.

    Raises:
        UserError: It belongs to another recipe (the first key that differs is named), or is no run.
    """
    folder = cell.recipe.output
    if not (folder / RECIPE).is_file():
        # A kill may have left the recipe half written, and nothing else.
        if folder.is_dir() and any(path.name != f"{RECIPE}.partial" for path in folder.iterdir()):
            raise UserError(
                f"{cell.name}: {folder} is not empty and is no run of ryarn: choose another output"
            )
        return
    try:
        theirs = parse_yaml((folder / RECIPE).read_text("utf-8")) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{cell.name}: {folder / RECIPE} is not YAML: delete the folder") from error
    found = _first_difference(cell.recipe, theirs)
    if found is not None:
        key, mine, other = found
        raise UserError(
            f"{cell.name}: {folder} was made with {key} = {other!r}, not {mine!r}: choose another "
            "output, or delete that folder"
        )


def _first_difference(recipe: Recipe, theirs: Any) -> tuple[str, Any, Any] | None:
    with contextlib.suppress(UserError):
        # A key that is newer than the folder had its default's effect.
        theirs = parse_yaml(dump(build(Recipe, theirs)))
    mine, other = leaves(parse_yaml(dump(recipe))), leaves(theirs)
    for key in {**mine, **other}:
        if _counts(key, recipe) and mine.get(key) != other.get(key):
            return key, mine.get(key), other.get(key)
    return None


def _counts(key: str, recipe: Recipe) -> bool:
    """Whether the cell's numbers, or what the report says of them, depend on a key."""
    beside = ("output", "evaluate.batch_tokens", *(f"train.{name}" for name in WITHOUT_EFFECT))
    if key.startswith("train.") and not recipe_method(recipe.method).trains:
        return key == "train.max_length"
    return key not in beside


@dataclass(frozen=True)
class Progress:
    """How far a cell got.

    Attributes:
        stage: What it is doing.
        done: Steps or rows.
        total: Of how many; None where it is not known yet.
    """

    stage: str
    done: int = 0
    total: int | None = None

    def __str__(self) -> str:
        """E.g. "training step 3/20"."""
        count = f" {self.done}/{self.total}" if self.total else ""
        return self.stage + count

    @property
    def share(self) -> float:
        """Of this stage."""
        return min(1.0, self.done / self.total) if self.total else 0.0


TRAINING, ANSWERING = "training step", "answering row"


def progress(cell: Cell) -> Progress:
    """Read from the cell's files how far it is."""
    folder = cell.recipe.output
    answers = folder / EVALUATION / COMPLETIONS
    if answers.is_file():
        return Progress(ANSWERING, _lines(answers), _lines(folder / EVALUATION / EXAMPLES))
    if not cell.trains:
        return Progress("starting")
    if is_trained(cell.recipe):
        return Progress("making rows")
    if (folder / LOG).is_file() and (folder / RUN).is_file():
        rows = read_json(folder / RUN)["data"]["rows"]
        return Progress(TRAINING, _last_step(folder / LOG), steps(cell.recipe.train, rows))
    return Progress("starting")


def steps(config: TrainConfig, rows: int) -> int:
    """Optimizer steps of a training in one process.

    Args:
        config: The recipe's section.
        rows: Rows that fit.
    """
    if config.max_steps is not None:
        return config.max_steps
    an_epoch = math.ceil(math.ceil(rows / config.batch_size) / config.gradient_accumulation)
    return math.ceil(config.epochs * max(1, an_epoch))


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _last_step(path: Path) -> int:
    lines = path.read_bytes().splitlines()
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError):
            continue  # a line that is being written
    return 0
