"""A small grid that the tests of the comparison share, and what its cells and report leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ryarn.compare.grid import Cell, GridRecipe, load_grid
from ryarn.records import write_jsonl
from ryarn.report.results import Report
from ryarn.runs import save_recipe
from tiny_run import OTHER, write_rows

LONG = "Where, and where, and where, and where, and where, and where is number {}?"


def write_grid(folder: Path, **changes: Any) -> Path:
    """Two trained methods and one that is not, on rows in and beyond the training length."""
    train_rows = write_rows(folder / "train.jsonl", 12)
    rows = write_rows(folder / "short.jsonl", 8, OTHER).read_text()
    rows += write_rows(folder / "long.jsonl", 8, LONG).read_text()
    (folder / "test.jsonl").write_text(rows)
    data = {
        "model": {"name": "tiny:llama", "dtype": "float32"},
        "method": {"factor": 2, "spans": [128]},
        "train": {
            "data": {"task": "jsonl", "path": str(train_rows), "held_out": 0},
            "max_length": 64,
            "max_steps": 2,
            "batch_size": 2,
        },
        "evaluate": {
            "data": {
                "task": "jsonl",
                "path": str(folder / "test.jsonl"),
                "held_out": 0.5,
                "test": 0.5,
            },
            "max_new_tokens": 2,
        },
        "tasks": {"rooms": {}},
        "methods": {"zero-shot": {}, "lora": {}, "randomized-yarn": {}},
        "seeds": [0, 1],
        "output": str(folder / "out"),
    } | changes
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


CHOOSE = {
    "seed": 1000,
    "settings": {
        "lora": [{}, {"train": {"learning_rate": 2e-4}}, {"train": {"learning_rate": 3e-4}}],
        "randomized-yarn": [{}, {"method": {"factor": 4}}, {"method": {"factor": 8}}],
    },
}


def make(folder: Path, **changes: Any) -> GridRecipe:
    return load_grid(write_grid(folder, **changes), [])


def finish(cell: Cell, scores: Mapping[int, Sequence[float]]) -> None:
    """Leave what a finished cell leaves."""
    folder = cell.recipe.output
    save_recipe(cell.recipe)
    write_jsonl(
        folder / "evaluation" / "scores.jsonl",
        (
            {
                "id": f"{bin_}-{n}",
                "bin": bin_,
                "source": str(n),
                "scores": {"exact": value},
                "parsed": True,
                "finish": "stop",
            }
            for bin_, values in scores.items()
            for n, value in enumerate(values)
        ),
    )


class Reported:
    """In place of the report."""

    def __init__(self) -> None:
        self.runs: dict[str, list[Path]] = {}
        self.reference: str | None = "not called"
        self.about: list[str] = []

    def __call__(
        self,
        runs: dict[str, list[Path]],
        out: Path,
        reference: str | None,
        about: list[str],
        paper: str | None = None,
    ) -> list[Report]:
        self.runs, self.reference, self.about = runs, reference, about
        return [Report(task, "exact", "", 64, None, [], [], "", [], [], []) for task in runs]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
