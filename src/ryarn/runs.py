"""The run folder: what lies where, whose it is, and where to resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ryarn.config import dump, parse_yaml
from ryarn.errors import UserError
from ryarn.recipe import Recipe

RECIPE = "recipe.yaml"
RUN = "run.json"
LOG = "log.jsonl"
CHECKPOINTS = "checkpoints"
ADAPTER = "adapter"
EVALUATION = "evaluation"


def check_folder(recipe: Recipe, *, resume: bool) -> Path | None:
    """See that the run folder is free or ours, and find the checkpoint to resume from.

    Nothing is written: a recipe that fails a later check leaves no folder behind.

    Raises:
        UserError: The folder belongs to another run, is finished, holds an interrupted run that
            nobody asked to resume, or has nothing to resume.
    """
    folder = recipe.output
    if (folder / RECIPE).is_file():
        _check_same_run(recipe)
        if (folder / ADAPTER / "adapter_config.json").is_file():
            raise UserError(
                f"output = {str(folder)!r} already holds this run's finished adapter: choose "
                "another output or delete the folder"
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise UserError(
            f"output = {str(folder)!r} is not empty and is no run of ryarn: choose another folder"
        )
    checkpoint = last_checkpoint(folder / CHECKPOINTS)
    if resume and checkpoint is None:
        raise UserError(f"--resume: {folder / CHECKPOINTS} holds no checkpoint; train without it")
    if checkpoint is not None and not resume:
        raise UserError(
            f"output = {str(folder)!r} holds an interrupted run: add --resume to go on from "
            f"{checkpoint.name}, or delete the folder"
        )
    return checkpoint


def _check_same_run(recipe: Recipe) -> None:
    """What makes the adapter must be equal; evaluation may change after training."""
    mine = _training_part(dump(recipe))
    theirs = _training_part((recipe.output / RECIPE).read_text("utf-8"))
    for key in {**mine, **theirs}:
        if mine.get(key) != theirs.get(key):
            raise UserError(
                f"output = {str(recipe.output)!r} belongs to another run, whose recipe differs in "
                f"{key!r}: choose another output or delete the folder"
            )


def _training_part(text: str) -> dict[str, Any]:
    recipe: dict[str, Any] = parse_yaml(text)
    return {key: value for key, value in recipe.items() if key not in ("evaluate", "output")}


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end: the trainer's state is written last."""
    whole = [
        path.parent
        for path in folder.glob("checkpoint-*/trainer_state.json")
        if (path.parent / "adapter_config.json").is_file()
    ]
    return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def save_recipe(recipe: Recipe) -> None:
    """Make the run folder ours: the resolved recipe, every value spelled out."""
    recipe.output.mkdir(parents=True, exist_ok=True)
    (recipe.output / RECIPE).write_text(dump(recipe), encoding="utf-8")


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file through a temporary neighbour, so it is whole or the old one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    value: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return value
