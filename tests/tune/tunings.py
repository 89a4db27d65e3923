"""A small tuning that several tests share, and what its trials leave."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import yaml

from ryarn.compare.grid import Cell
from ryarn.records import write_jsonl
from ryarn.runs import save_recipe, write_json
from ryarn.tune.search import (
    TuneRecipe,
    load_tune,
)
from tiny_run import OTHER, write_rows

LONG = "Where, and where, and where, and where, and where, and where is number {}?"
RATES = {"low": 1e-4, "high": 1e-2, "log": True}
PAIR = {"train.learning_rate": RATES, "method.factor": [2, 4, 8]}


def write_tune(folder: Path, **changes: Any) -> Path:
    """A recipe with a `tune` section, on rows in and beyond the training length."""
    train_rows = write_rows(folder / "train.jsonl", 40)
    rows = write_rows(folder / "short.jsonl", 8, OTHER).read_text()
    rows += write_rows(folder / "long.jsonl", 8, LONG).read_text()
    (folder / "test.jsonl").write_text(rows)
    kept = {"task": "jsonl", "path": str(folder / "test.jsonl"), "held_out": 0.5, "test": 0.5}
    data = {
        "model": {"name": "tiny:llama", "dtype": "float32"},
        "method": {"name": "randomized-yarn", "factor": 2, "spans": [128]},
        "train": {
            "data": {"task": "jsonl", "path": str(train_rows), "held_out": 0.2},
            "max_length": 64,
            "max_steps": 4,
            "batch_size": 2,
            "held_out_rows": 4,
            "save_steps": 1,
        },
        "evaluate": {"data": kept, "max_new_tokens": 2},
        "tune": {"trials": 4, "seed": 7, "search": PAIR},
        "output": str(folder / "out"),
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            data[section][name] = value  # type: ignore[index]
        else:
            data[section] = value
    path = folder / "tune.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def make(folder: Path, *overrides: str, **changes: Any) -> TuneRecipe:
    return load_tune(write_tune(folder, **changes), list(overrides))


def finish(cell: Cell, score: float, losses: dict[int, float] | None = None) -> None:
    """Leave what a finished trial leaves: its mean beyond the training length is `score`."""
    folder = cell.recipe.output
    save_recipe(cell.recipe)
    write_json(folder / "run.json", {"steps": 4, "data": {"rows": 8}})
    curve = losses or {1: 2.0, 4: 1.0}
    write_json(folder / "checks.json", {str(k): {"step": k, "loss": v} for k, v in curve.items()})
    row = {"source": "1", "parsed": True, "finish": "stop"}
    write_jsonl(
        folder / "evaluation" / "scores.jsonl",
        (
            {**row, "id": str(b), "bin": b, "scores": {"exact": v}}
            for b, v in {64: 1, 128: score}.items()
        ),
    )


def prune(cell: Cell, step: int) -> None:
    """Leave what a pruned trial leaves."""
    folder = cell.recipe.output
    save_recipe(cell.recipe)
    write_json(folder / "checks.json", {"1": {"step": step, "loss": 8.25}})
    write_json(folder / "pruned.json", {"check": 1, "step": step, "steps": 4, "seconds": 30.0})


def rated(cell: Cell) -> float:
    """A score that the learning rate and the factor decide."""
    rate, factor = cell.recipe.train.learning_rate, cell.recipe.method.factor
    return round(1 - abs(math.log10(rate) + 3) / 2 - 0.1 * (factor == 2), 6)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "trials.csv").open() as file:
        return list(csv.DictReader(file))
