"""The `ryarn data` stage: a task's rows written to a JSONL file, and what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ryarn.chat import completion_ids, prompt_ids
from ryarn.config import parse
from ryarn.errors import UserError
from ryarn.records import write_jsonl
from ryarn.tasks.registry import CONFIGS, TaskConfig, check_name, make_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class BinSummary:
    """The rows of one bin; lengths in tokens of prompt, completion and end token together."""

    rows: int
    sources: int
    """Different stories or conversations among them."""
    shortest: int
    mean: float
    longest: int


@dataclass(frozen=True, slots=True)
class DataSummary:
    """What was written."""

    path: Path
    rows: int
    bins: dict[int, BinSummary]


def task_config(task: str, settings: Iterable[str]) -> TaskConfig:
    """A task's config from its name and `key=value` settings.

    Raises:
        UserError: The task is unknown, or a setting is not one of its own.
    """
    check_name(task)
    return parse(CONFIGS[task], settings)


def write_rows(
    config: TaskConfig, tokenizer: PreTrainedTokenizerBase, split: str, out: Path
) -> DataSummary:
    """Write the rows of one split of a task to a JSONL file that trains and evaluates as it is.

    The file is TRL's prompt-completion format with our columns beside it; each row keeps its split
    in `info`, which `task: jsonl` goes by.

    Args:
        config: The task's config.
        tokenizer: The model's tokenizer; it decides how much text makes a length.
        split: "train", "held-out" or "test".
        out: The file to write; its folder is made.

    Raises:
        UserError: The config's data is not usable, or there are no such rows.
    """
    lengths: dict[int, list[int]] = {}
    sources: dict[int, set[str]] = {}

    def rows() -> Iterator[dict[str, Any]]:
        for example in make_task(config).examples(tokenizer, split):
            length = len(prompt_ids(tokenizer, example.prompt))
            length += len(completion_ids(tokenizer, example.completion))
            lengths.setdefault(example.bin, []).append(length)
            sources.setdefault(example.bin, set()).add(example.source)
            yield replace(example, info={**example.info, "split": split}).to_json()
        if not lengths:
            raise UserError(f"split = {split!r}: the {config.task} task has no such rows")

    count = write_jsonl(out, rows())
    return DataSummary(
        path=out,
        rows=count,
        bins={
            bin_: BinSummary(
                rows=len(found),
                sources=len(sources[bin_]),
                shortest=min(found),
                mean=sum(found) / len(found),
                longest=max(found),
            )
            for bin_, found in sorted(lengths.items())
        },
    )
