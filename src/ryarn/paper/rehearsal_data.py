"""Small copies of published data in their published layouts, made here for a rehearsal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ryarn.tasks import babi
from ryarn.tasks.babi import Story
from ryarn.tasks.babilong_context import make_rulers
from ryarn.tasks.background import load_documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FACTS = 30
"""Facts of a story at most, so that the shortest context takes it."""


def write_babilong(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    lengths: Sequence[str],
    rows: int,
    *,
    seed: int,
) -> None:
    """Multi-entry qa3 rows as the official generator lays them out: `qa3/4k.json` and the like.

    Args:
        folder: Where to.
        tokenizer: Counts the contexts' tokens.
        lengths: Official names.
        rows: Of each length.
        seed: Two folders with different seeds share no story.
    """
    rng = np.random.default_rng(np.random.SeedSequence((seed, 3)))
    stories: list[Story] = []
    while len(stories) < rows:
        story = babi.simulate("qa3", rng, FACTS)
        if story.multi_entry:
            stories.append(story)
    for ruler in make_rulers(list(lengths), tokenizer, None, "packaged"):
        found = [
            {
                "input": ruler.fill("qa3", story, rng),
                "question": story.question,
                "target": story.answer,
            }
            for story in stories
        ]
        _write(folder / "qa3" / f"{ruler.name}.json", found)


def write_longbench(
    path: Path, tokenizer: PreTrainedTokenizerBase, edges: Sequence[int], rows: int
) -> None:
    """LongBench v2's `data.json`: rows in every bin, and one beyond the last.

    Args:
        path: The file.
        tokenizer: Counts the documents' tokens.
        edges: Upper ends of the bins in tokens.
        rows: Of each bin; as many of the first, which trains, as its sub-domain needs, and more.
    """
    rng = np.random.default_rng(0)
    text = "\n\n".join(load_documents("packaged"))
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    found: list[dict[str, str]] = []
    for place, edge in enumerate((*edges, 2 * edges[-1])):
        for _ in range(rows):
            # Well inside the bin, as the prompt around it has a length, too.
            length = int(0.8 * edge)
            start = int(rng.integers(len(ids)))
            words = np.take(ids, range(start, start + length), mode="wrap").tolist()
            number = len(found)
            found.append(
                {
                    "_id": f"{number:024x}",
                    "domain": "Single-Document QA",
                    "sub_domain": "Literary",
                    "difficulty": ("easy", "hard")[number % 2],
                    "length": ("short", "medium", "long", "long")[min(place, 3)],
                    "question": f"Which of these does text {number} tell of?",
                    "choice_A": "A lighthouse",
                    "choice_B": "A mill",
                    "choice_C": "A choir",
                    "choice_D": "Bees",
                    "answer": "ABCD"[number % 4],
                    "context": str(tokenizer.decode(words)),
                }
            )
    _write(path, found)


def _write(path: Path, rows: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
