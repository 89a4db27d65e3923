"""Small local copies of BABILong's published sets, in their layouts, and rows as their maker's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ryarn.tasks.babi import QuestionType, Story, simulate

PROSE = (
    "It was a calm day at the end of spring.",
    "The old road ran past the mill, and nobody took it any more.",
    "He had been told so often that he believed it.",
    "A bell rang twice.",
)
CUT = "They came back to the hou"
"""The last sentence of a context, cut inside a word as the official generator does it."""

Rows = Sequence[Mapping[str, Any]]
Sets = Mapping[tuple[str, str], Rows]
"""Length and question type to rows."""


def stories(kind: QuestionType, count: int, seed: int = 0) -> list[Story]:
    rng = np.random.default_rng(seed)
    return [simulate(kind, rng, 40) for _ in range(count)]


def row(story: Story, prose: Sequence[str] = ()) -> dict[str, str]:
    """A row: sentences and facts run together, the last facts right behind the cut sentence."""
    parts: list[str] = []
    sentences = [*prose, CUT] if prose else []
    for number, fact in enumerate(story.facts):
        parts += sentences[number : number + 1]
        if number == len(story.facts) - 1:
            parts += sentences[number + 1 :]
        parts.append(fact)
    joined = "".join(parts) if prose else " ".join(parts)
    return {"input": joined, "question": f"{story.question} ", "target": story.answer}


def rows(kind: QuestionType, count: int, seed: int = 0, prose: Sequence[str] = ()) -> list[Any]:
    return [row(story, prose) for story in stories(kind, count, seed)]


def json_copy(folder: Path, sets: Sets) -> str:
    """The layout of `RMT-team/babilong` and `RMT-team/babilong-train-5k-samples`."""
    configs: dict[str, list[dict[str, str]]] = {}
    for (length, kind), of_set in sets.items():
        path = folder / "data" / kind / f"{length}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(list(of_set)), encoding="utf-8")
        configs.setdefault(length, []).append({"split": kind, "path": f"data/{kind}/{length}.json"})
    _readme(folder, {"configs": [_config(name, files) for name, files in configs.items()]})
    return str(folder)


def parquet_copy(folder: Path, sets: Sets) -> str:
    """The layout of `RMT-team/babilong-1k-samples`, whose README.md counts the rows."""
    from datasets import Dataset

    configs: dict[str, list[dict[str, str]]] = {}
    infos: dict[str, list[dict[str, Any]]] = {}
    for (length, kind), of_set in sets.items():
        path = folder / length / f"{kind}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        Dataset.from_list([dict(values) for values in of_set]).to_parquet(path)
        configs.setdefault(length, []).append({"split": kind, "path": f"{length}/{kind}-*"})
        counts = {"name": kind, "num_bytes": 1, "num_examples": len(of_set)}
        infos.setdefault(length, []).append(counts)
    features = [{"name": name, "dtype": "string"} for name in ("question", "target", "input")]
    about = [
        {"config_name": name, "features": features, "splits": splits}
        for name, splits in infos.items()
    ]
    settings = [_config(name, files) for name, files in configs.items()]
    _readme(folder, {"language": ["en"], "dataset_info": about, "configs": settings})
    return str(folder)


def _config(name: str, files: list[dict[str, str]]) -> dict[str, Any]:
    return {"config_name": name, "data_files": files}


def _readme(folder: Path, card: dict[str, Any]) -> None:
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n", encoding="utf-8")
