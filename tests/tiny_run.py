"""A small training run that several test files share: its rows, its recipe, the command line."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from ryarn.cli import main
from ryarn.recipe import Recipe, load_recipe

RECIPE: dict[str, Any] = {
    "model": {"name": "tiny:llama", "dtype": "float32"},
    "method": {"name": "randomized-yarn", "factor": 2, "spans": [128, 256]},
    "train": {
        "data": {"task": "jsonl", "path": "rows.jsonl", "held_out": 0},
        "max_length": 64,
        "epochs": 1,
        "batch_size": 4,
        "learning_rate": 1e-3,
    },
    "evaluate": {
        # Rows of the same form and length, about other things: no prompt is trained on, too.
        "data": {"task": "jsonl", "path": "test.jsonl", "test": 1},
        "max_new_tokens": 4,
    },
    "output": "run",
}


OTHER = "Where is figure {}?"
"""A question as long as the one of training rows."""


def write_rows(path: Path, count: int = 12, question: str = "Where is number {}?") -> Path:
    """Rows of some 30 byte tokens, all different."""
    rows = [
        {"prompt": question.format("x" * (n % 5) + str(n)), "completion": f"room {n % 7}"}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_recipe(folder: Path) -> Path:
    """The recipe and its rows in a folder, paths absolute."""
    data = copy.deepcopy(RECIPE)
    data["train"]["data"]["path"] = str(write_rows(folder / "rows.jsonl"))
    data["evaluate"]["data"]["path"] = str(write_rows(folder / "test.jsonl", question=OTHER))
    data["output"] = str(folder / "run")
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def make_recipe(folder: Path, *overrides: str) -> Recipe:
    """The recipe, checked, with overrides."""
    return load_recipe(write_recipe(folder), list(overrides))


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run the command line in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["ryarn", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / "adapter_model.safetensors")
    return found


def run_info(recipe: Recipe) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((recipe.output / "run.json").read_text())
    return info
