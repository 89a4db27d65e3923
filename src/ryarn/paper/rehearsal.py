"""A grid in small: the paper's models as stand-ins, lengths divided, data made here.

All stages run as they would, on transformers' own classes, in about a minute on a CPU. The numbers
that come of it mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ryarn.compare.grid import Changes, GridRecipe, check_cells, merge
from ryarn.config import build
from ryarn.errors import UserError
from ryarn.tasks.babilong_context import nominal
from ryarn.tasks.longbench_v2_split import EDGES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT = 512
"""Tokens that prompt and answer take beside a text; they don't get shorter with it."""
STEPS = 5
TRAIN_ROWS, ROWS = 4, 2
"""Of each length, in training and in evaluation."""
STANDS_FOR = {
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "allenai/Olmo-3-7B-Instruct": "olmo3-7b",
    "Qwen/Qwen3-14B": "qwen3-14b",
}
"""Hub id to its stand-in, see `ryarn.tiny.STAND_INS`."""


@dataclass(frozen=True)
class _Stage:
    """Where rehearsal data comes from, and in whose tokens it is measured."""

    folder: Path
    tokenizer: PreTrainedTokenizerBase
    scale: int

    def less(self, length: int) -> int:
        """A length in small."""
        return length // self.scale + PROMPT


def rehearse(grid: GridRecipe) -> GridRecipe:
    """The grid in small; small copies of its published data are written beside its output.

    Args:
        grid: A grid on one of the paper's models.

    Raises:
        UserError: Its model has no stand-in, or its data no small copy.
    """
    from ryarn import tiny

    name = grid.model.get("name")
    stand_in = STANDS_FOR.get(str(name), str(name).removeprefix("tiny:"))
    if stand_in not in tiny.STAND_INS:
        raise UserError(
            f"--tiny: model.name = {name!r} has no stand-in: it is for {', '.join(STANDS_FOR)}"
        )
    output = grid.output.with_name(f"{grid.output.name}-tiny")
    folder = output.with_name(f"{output.name}-data")
    stage = _Stage(folder, tiny.tokenizer_of(stand_in), tiny.SCALE)
    shared = _shrink(grid, stage)
    shared["model"] = {"name": f"tiny:{stand_in}", "dtype": "float32"}
    shared["train"] = merge(
        shared["train"], {"max_steps": STEPS, "gradient_accumulation": 1, "batch_size": 1}
    )
    small = build(
        GridRecipe,
        {
            **grid.model_dump(exclude={*Changes.model_fields, "tasks", "methods", "choose"}),
            **shared,
            "tasks": {label: _shrink(part, stage) for label, part in grid.tasks.items()},
            "methods": {label: _shrink(part, stage) for label, part in grid.methods.items()},
            "output": output,
        },
    )
    check_cells(small)
    return small


def _shrink(part: Changes | GridRecipe, stage: _Stage) -> dict[str, Any]:
    """The sections of a part with all lengths divided and small data."""
    method, train, evaluate = dict(part.method), dict(part.train), dict(part.evaluate)
    spans = method.get("spans")
    if isinstance(spans, list):
        method["spans"] = [stage.less(span) for span in spans]
    elif isinstance(spans, dict):
        method["spans"] = {**spans, **{key: stage.less(spans[key]) for key in ("start", "end")}}
    for section, key in ((train, "max_length"), (evaluate, "window"), (evaluate, "batch_tokens")):
        if section.get(key) is not None:
            section[key] = stage.less(section[key])
    if "max_new_tokens" in evaluate:
        evaluate["max_new_tokens"] = max(8, evaluate["max_new_tokens"] // stage.scale)
    for section, serves in ((train, "train"), (evaluate, "test")):
        if "data" in section:
            section["data"] = _small_data(section["data"], serves, stage)
    return {"model": dict(part.model), "method": method, "train": train, "evaluate": evaluate}


def _small_data(data: Mapping[str, Any], serves: str, stage: _Stage) -> dict[str, Any]:
    task = data.get("task")
    if task == "babilong":
        return _babilong(data, serves, stage)
    if task == "mrcr":
        # Published bins are told in o200k_base tokens, from 4,096 on: there is no smaller copy.
        lengths = [stage.less(length) for length in _bins(data["lengths"])]
        rows = TRAIN_ROWS if serves == "train" else ROWS
        return {"task": "mrcr", "lengths": lengths, "rows": rows, "needles": [2]}
    if task == "longbench-v2":
        return _longbench(data, stage)
    raise UserError(f"--tiny: {serves} data of task {task!r} have no small copy")


def _bins(lengths: list[Any]) -> list[int]:
    from ryarn.tasks.mrcr_length import BINS

    return [BINS[length] if isinstance(length, str) else length for length in lengths]


def _babilong(data: Mapping[str, Any], serves: str, stage: _Stage) -> dict[str, Any]:
    """Official lengths by their shorter names; what is left of less than 1K has none."""
    from ryarn.paper.rehearsal_data import write_babilong

    shorter = [nominal(length) // 1000 / stage.scale for length in data["lengths"]]
    lengths = [f"{int(length)}k" for length in shorter if length == int(length)]
    rows = TRAIN_ROWS if serves == "train" else ROWS
    folder = stage.folder / f"babilong-{serves}"
    # Of published training rows a tenth is held out, by content: make enough.
    write_babilong(folder, stage.tokenizer, lengths, 2 * rows, seed=len(serves))
    small = {
        "task": "babilong",
        "questions": ["qa3"],
        "lengths": lengths,
        "rows": rows,
        "multi_entry": bool(data.get("multi_entry")),
        "source": str(folder),
        "serves": serves,
    }
    if data.get("exclude"):
        small["exclude"] = [str(stage.folder / "babilong-test")]
    return small


def _longbench(data: Mapping[str, Any], stage: _Stage) -> dict[str, Any]:
    from ryarn.paper.rehearsal_data import write_longbench

    edges = [edge // stage.scale for edge in data.get("edges", EDGES)]
    path = stage.folder / "longbench-v2" / "data.json"
    write_longbench(path, stage.tokenizer, edges, TRAIN_ROWS)
    return {"task": "longbench-v2", "source": str(path), "edges": edges}
