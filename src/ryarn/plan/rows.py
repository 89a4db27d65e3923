"""A recipe's rows by length in the model's own tokens, before training or evaluation."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ryarn.chat import completion_ids, prompt_ids
from ryarn.cost.memory import Batch
from ryarn.counting import counting
from ryarn.errors import UserError
from ryarn.paper.expected import expected_rows, hub_source
from ryarn.records import Example
from ryarn.tasks.babilong_context import nominal
from ryarn.tasks.mrcr import MrcrConfig
from ryarn.tasks.registry import TaskConfig, make_task


@dataclass(frozen=True)
class Row:
    """Lengths of one row in tokens.

    Attributes:
        bin: Nominal length, by which reports group rows.
        prompt: The rendered prompt.
        answer: The training target with its end token; 0 where it is not known.
        example: What it was counted from; None if it was not read.
    """

    bin: int
    prompt: int
    answer: int
    example: Example | None = None

    @property
    def length(self) -> int:
        """Of both together."""
        return self.prompt + self.answer


@dataclass(frozen=True)
class Bin:
    """Rows of one nominal length; lengths in tokens of prompt and answer together."""

    bin: int
    rows: int
    shortest: int
    median: int
    longest: int
    too_long: int


@dataclass(frozen=True)
class Rows:
    """The rows of one split.

    Attributes:
        rows: All of them.
        source: Why they were not read but reckoned from the recipe; None if they were read.
    """

    rows: tuple[Row, ...]
    source: str | None = None

    def bins(self, limit: int | None, room: int | None = None) -> list[Bin]:
        """The rows by nominal length, the shortest first.

        Args:
            limit: Tokens that fit; None if all do.
            room: Tokens set aside for an answer; None takes each row's own.
        """
        groups: dict[int, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row.bin, []).append(row)
        return [_bin(key, rows, limit, room) for key, rows in sorted(groups.items())]

    def fitting(self, limit: int | None, room: int | None = None) -> tuple[Row, ...]:
        """Those that fit; see `bins`."""
        return tuple(row for row in self.rows if _fits(row, limit, room))


def _fits(row: Row, limit: int | None, room: int | None) -> bool:
    return limit is None or row.prompt + (row.answer if room is None else room) <= limit


def _bin(key: int, rows: list[Row], limit: int | None, room: int | None) -> Bin:
    lengths = [row.length for row in rows]
    return Bin(
        bin=key,
        rows=len(rows),
        shortest=min(lengths),
        median=round(statistics.median(lengths)),
        longest=max(lengths),
        too_long=sum(not _fits(row, limit, room) for row in rows),
    )


def read_rows(data: TaskConfig, split: str, tokenizer: Any, model: str) -> Rows:
    """Count a split's rows, or reckon those that lie on a hub that can't be asked.

    Args:
        data: Where rows come from.
        split: Which of them.
        tokenizer: The model's, or the error that says why there is none.
        model: Name of the model.

    Raises:
        UserError: The rows can't be made.
    """
    if isinstance(tokenizer, UserError):
        return Rows(_asked(data, split, model, tokenizer), f"there is no tokenizer ({tokenizer})")
    try:
        made = counting(make_task(data).examples(tokenizer, split), f"making {split} rows")
        return Rows(tuple(_counted(made, tokenizer)))
    except UserError as error:
        source = hub_source(data)
        if source is None:
            raise
        return Rows(_asked(data, split, model, error), f"{source} can't be read ({error})")


def _counted(examples: Iterable[Example], tokenizer: Any) -> Iterable[Row]:
    for example in examples:
        prompt = len(prompt_ids(tokenizer, example.prompt))
        yield Row(example.bin, prompt, len(completion_ids(tokenizer, example.completion)), example)


def _asked(data: TaskConfig, split: str, model: str, why: UserError) -> tuple[Row, ...]:
    """Rows as long and as many as the recipe asks for."""
    if hub_source(data):
        counted = expected_rows(data, split, model)
    elif isinstance(data, MrcrConfig):
        counted = Counter(data.asked)
    elif hasattr(data, "lengths") and hasattr(data, "rows"):
        each = data.rows * len(getattr(data, "questions", [None]))
        counted = Counter({nominal(length): each for length in data.lengths})
    else:
        raise why
    return tuple(Row(length, length, 0) for length, count in counted.items() for _ in range(count))


def longest_batch(rows: Iterable[Row], size: int) -> Batch:
    """The batch that takes most: rows as long as the longest, each with its labels at its end.

    Where rows differ in length, some batch of a long one and a shorter one needs the mask.
    """
    ordered = sorted(rows, key=lambda row: -row.length)
    chosen = ordered[:size]
    labelled = {place for row in chosen for place in range(row.prompt, row.length)}
    padded = len(chosen) > 1 and ordered[0].length > ordered[-1].length
    return Batch(len(chosen), ordered[0].length, padded, len(labelled))
