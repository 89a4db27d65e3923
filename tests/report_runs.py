"""Evaluated run folders without a model: what the tests of the report stage read."""

from __future__ import annotations

import random
from pathlib import Path

from ryarn.backends.echo import EchoBackend
from ryarn.evaluate import Budget, run_evaluation
from ryarn.records import Example, Score
from ryarn.runs import EVALUATION

PLACES = ["kitchen", "garden", "office", "hallway"]


class WordTokenizer:
    """A token a word."""

    name_or_path = "words"
    chat_template = "yes"

    def apply_chat_template(self, messages, **_):
        return " ".join(message["content"] for message in messages)

    def __call__(self, text, add_special_tokens):
        return {"input_ids": list(range(len(text.split())))}


class PlaceTask:
    """The official rule wants the place alone, the other one anywhere."""

    def score(self, example, completion):
        text = completion.text.rstrip(".").lower()
        scores = {
            "places": float(text.split()[-1:] == [example.target]),
            "places-substring": float(example.target in text),
        }
        parsed = any(place in text for place in PLACES)
        return Score(example.id, example.bin, example.source, scores, parsed, completion.finish)


def examples(bins=(512, 1024, 2048, 4096), rows=50):
    """The same stories in every bin, as BABILong has them."""
    return [
        Example(
            id=f"qa1-{bin_}-{n}",
            prompt=(
                {
                    "role": "user",
                    "content": f"Mary went to <b>{PLACES[n % 4]}</b> & stayed. " * 3
                    + "Where is Mary?",
                },
            ),
            completion=f"Mary is in the {PLACES[n % 4]}.",
            target=PLACES[n % 4],
            task="places",
            bin=bin_,
            source=f"story-{n}",
        )
        for bin_ in bins
        for n in range(rows)
    ]


def make_run(
    folder: Path, label: str, chances: dict[int, float], seed: int = 0, window: int = 10_000, **more
) -> Path:
    """Evaluate a method that is right with a chance for each bin; harder stories are harder."""
    rows = more.pop("rows", None) or examples(tuple(chances))
    rng = random.Random(f"{label} {seed}")
    hardness = {row.source: random.Random(row.source).random() for row in rows}

    def answer(row):
        if 0.6 * hardness[row.source] + 0.4 * rng.random() < 0.1 + 0.8 * chances[row.bin]:
            return f"Mary is in the {row.target}."
        return rng.choice(["Mary is in the attic.", "the garden of the shop", "kitchen or office?"])

    run_evaluation(
        rows,
        PlaceTask(),
        EchoBackend(rows, answer),
        WordTokenizer(),
        folder / EVALUATION,
        budget=Budget(window, 20),
        fingerprint={
            "label": label,
            "seed": seed,
            "task": "places",
            "model": {"name": "tiny:llama", "revision": None, "dtype": "float32"},
            "method": {"name": label, "spans": [512, 1024, 4096], "draw": "document"},
            "train_length": 512,
            "original_length": 2048,
            "train_factor": 4.0,
            "eval_factor": 4.0,
            **more,
        },
    )
    return folder
