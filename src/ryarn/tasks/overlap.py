"""Rows of the user's own that would be trained on and tested on: found before the training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.records import Example
from ryarn.tasks.babilong_apart import check_babilong_apart
from ryarn.tasks.jsonl import Jsonl, JsonlConfig
from ryarn.tasks.row_files import is_local, place
from ryarn.tasks.row_format import prompt_hash
from ryarn.tasks.splits import content_hash


def check_apart(train: Config, evaluate: Config, split: str) -> None:
    """See that no row of the evaluation has the prompt or the source of a row that is learned from.

    Data that ryarn makes is disjoint by construction; looked at are two files (or hub datasets) of
    the user's own, be they the same one, and BABILong's published rows.

    Args:
        train: The recipe's `train.data`.
        evaluate: The recipe's `evaluate.data`.
        split: Which rows of it are evaluated, "test" or "held-out". Against test rows, the rows
            held out of the training count, too: settings are chosen by them.

    Raises:
        UserError: There is such a row, one of the files can't be read, or there is no such score.
    """
    learned = ("train",) if split == "held-out" else ("train", "held-out")
    check_babilong_apart(train, evaluate, split, learned)
    if not isinstance(evaluate, JsonlConfig):
        return
    scored = Jsonl(evaluate)
    if not isinstance(train, JsonlConfig):
        return
    known: dict[str, tuple[str, int]] = {}
    for number, part, example in Jsonl(train).rows():
        if part in learned:
            for what, key in _keys(example):
                known.setdefault(key, (what, number))
    shared: dict[int, tuple[str, int]] = {}
    for number, part, example in scored.rows():
        for _, key in _keys(example) if part == split else ():
            if key in known:
                shared.setdefault(number, known[key])
    if shared:
        number, (what, other) = next(iter(shared.items()))
        raise UserError(
            f"evaluate.data: {place(evaluate.path, number)} has the {what} of "
            f"{place(train.path, other)}, which is learned from: take such rows out of one of the "
            f"two ({len(shared)} in all)"
        )


def is_checkable(train: Config) -> bool:
    """Whether the training rows can still be read without a hub: the adapter may have moved."""
    return (
        isinstance(train, JsonlConfig)
        and is_local(train.path)
        and Path(train.path).expanduser().is_file()
    )


def _keys(example: Example) -> Iterator[tuple[str, str]]:
    """Keys that rows which belong together share, each with what it is of."""
    prompt = prompt_hash(example.prompt)
    yield "prompt", content_hash(("prompt", prompt))
    if example.source != prompt:
        yield "source", content_hash(("source", example.source))
