"""The run folder: what lies where, whose it is, and where to resume."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ryarn.checkpoints import last_checkpoint
from ryarn.config import dump, leaves, parse_yaml
from ryarn.disk import writing
from ryarn.errors import UserError
from ryarn.recipe import WITHOUT_EFFECT, Recipe

RECIPE = "recipe.yaml"
RUN = "run.json"
LOG = "log.jsonl"
CHECKPOINTS = "checkpoints"
ADAPTER = "adapter"
EVALUATION = "evaluation"
_PARTIAL = ".partial"


def check_folder(recipe: Recipe, *, resume: bool) -> Path | None:
    """See that the run folder is free or ours, and find the checkpoint to resume from.

    Nothing is written: a recipe that fails a later check leaves no folder behind.

    Raises:
        UserError: The folder belongs to another run, is finished, holds an interrupted run that
            nobody asked to resume, or has nothing to resume.
    """
    folder = recipe.output
    check_writable(folder)
    if (folder / RECIPE).is_file():
        _check_same_run(recipe)
        if (folder / ADAPTER / "adapter_config.json").is_file():
            raise UserError(
                f"output = {str(folder)!r} already holds this run's finished adapter: choose "
                "another output or delete the folder"
            )
    # A kill may come before the recipe, the first file of a run, has its name.
    elif folder.is_dir() and any(path.name != RECIPE + _PARTIAL for path in folder.iterdir()):
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


def check_writable(folder: Path) -> None:
    """See that a folder can be made or written into, before anything is computed for it.

    Raises:
        UserError: A part of its path is a file, or may not be written to.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"output = {str(folder)!r}: {there} is a file, choose a folder")
    if not os.access(there, os.W_OK):
        raise UserError(f"output = {str(folder)!r}: {there} may not be written to, choose another")


_BESIDE = ("evaluate.", "output", "label", *(f"train.{key}" for key in WITHOUT_EFFECT))


def _check_same_run(recipe: Recipe) -> None:
    """What makes the adapter must be equal; evaluation may change after training."""
    _compare(recipe, lambda key: not key.startswith(_BESIDE))


def check_trained(recipe: Recipe) -> None:
    """See that a recipe says how the adapter in its run folder was trained.

    The base is left to the adapter's contract, and s' may be another one. An adapter that was
    copied without its run has no recipe to compare with.

    Raises:
        UserError: Something differs; the key is named.
    """
    if (recipe.output / RECIPE).is_file():
        _compare(
            recipe,
            lambda key: (
                key.startswith(("train.", "method.", "seed"))
                and not key.startswith(("method.eval_factor", *_BESIDE))
            ),
        )


def _compare(recipe: Recipe, counts: Callable[[str], bool]) -> None:
    mine = leaves(parse_yaml(dump(recipe)))
    theirs = leaves(parse_yaml((recipe.output / RECIPE).read_text("utf-8")) or {})
    for key in {**theirs, **mine}:
        if counts(key) and mine.get(key) != theirs.get(key):
            raise UserError(
                f"output = {str(recipe.output)!r} belongs to another run, whose recipe has "
                f"{key} = {theirs.get(key)!r}, not {mine.get(key)!r}: choose another output, or "
                "run it with its own recipe"
            )


def save_recipe(recipe: Recipe) -> None:
    """Make the run folder ours: the resolved recipe, every value spelled out."""
    recipe.output.mkdir(parents=True, exist_ok=True)
    _write(recipe.output / RECIPE, dump(recipe))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    _write(path, json.dumps(value, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    """Through a temporary neighbour: a kill leaves the old file or the new one."""
    partial = path.with_name(path.name + _PARTIAL)
    with writing(path, "then start the same command again"):
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    value: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return value
