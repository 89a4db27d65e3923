"""The `ryarn data` stage: a task's rows written to a JSONL file, and what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ryarn.chat import completion_ids, prompt_ids
from ryarn.config import parse
from ryarn.counting import counting
from ryarn.errors import UserError
from ryarn.recipe import EvaluateConfig
from ryarn.records import Example, write_jsonl
from ryarn.tasks.registry import CONFIGS, TaskConfig, check_name, make_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NAMED = 5
"""Rows that exceed the window which are named; all are found by `tokens` in the file."""


@dataclass(frozen=True, slots=True)
class BinSummary:
    """The rows of one bin; lengths in tokens of prompt, completion and end token together."""

    rows: int
    sources: int
    """Different stories or conversations among them."""
    shortest: int
    mean: float
    longest: int
    context: tuple[int, int] | None = None
    """Shortest and longest context in the tokenizer of `count_with`, for tasks that have it."""
    too_long: tuple[str, ...] = ()
    """Ids of the rows that don't fit into the window asked about, the longest first."""


@dataclass(frozen=True, slots=True)
class DataSummary:
    """What was written."""

    path: Path
    rows: int
    bins: dict[int, BinSummary]
    notes: tuple[str, ...] = ()
    """What the task found in its data, a sentence each."""


def task_config(task: str, settings: Iterable[str]) -> TaskConfig:
    """A task's config from its name and `key=value` settings.

    Raises:
        UserError: The task is unknown, or a setting is not one of its own.
    """
    check_name(task)
    return parse(CONFIGS[task], settings)


def write_rows(
    config: TaskConfig,
    tokenizer: PreTrainedTokenizerBase,
    split: str,
    out: Path,
    window: int | None = None,
) -> DataSummary:
    """Write the rows of one split of a task to a JSONL file that trains and evaluates as it is.

    The file is TRL's prompt-completion format with our columns beside it; each row keeps in `info`
    its split, which `task: jsonl` goes by, and its length in `tokens`.

    Args:
        config: The task's config.
        tokenizer: The model's tokenizer; it decides how much text makes a length.
        split: "train", "held-out" or "test".
        out: The file to write; its folder is made.
        window: Tokens that a row may take; longer ones are named. A row takes its prompt and its
            answer or, if that is longer, the default of `evaluate.max_new_tokens`.

    Raises:
        UserError: The config's data is not usable, or there are no such rows.
    """
    audits: dict[int, _Audit] = {}
    if out.exists() and Path(getattr(config, "path", "")).expanduser().resolve() == out.resolve():
        raise UserError(f"--out {out}: the rows are read from this file; choose another")
    task = make_task(config)

    def rows() -> Iterator[dict[str, Any]]:
        for example in counting(task.examples(tokenizer, split), f"making {split} rows"):
            prompt = len(prompt_ids(tokenizer, example.prompt))
            answer = len(completion_ids(tokenizer, example.completion))
            audits.setdefault(example.bin, _Audit()).add(example, prompt, answer)
            info = {**example.info, "split": split, "tokens": prompt + answer}
            yield replace(example, info=info).to_json()
        if not audits:
            raise UserError(f"split = {split!r}: the {config.task} task has no such rows")

    count = write_jsonl(out, rows())
    return DataSummary(
        path=out,
        rows=count,
        bins={bin_: audit.summary(window) for bin_, audit in sorted(audits.items())},
        notes=tuple(getattr(task, "notes", ())),
    )


@dataclass(slots=True)
class _Audit:
    """The lengths of the rows of one bin."""

    tokens: list[int] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    contexts: list[int] = field(default_factory=list)
    needs: list[tuple[int, str]] = field(default_factory=list)
    """What evaluating a row takes, and its id."""

    def add(self, example: Example, prompt: int, answer: int) -> None:
        self.tokens.append(prompt + answer)
        self.sources.add(example.source)
        if "context_tokens" in example.info:
            self.contexts.append(example.info["context_tokens"])
        budget = EvaluateConfig.model_fields["max_new_tokens"].default
        self.needs.append((prompt + max(answer, budget), example.id))

    def summary(self, window: int | None) -> BinSummary:
        too_long = [need for need in self.needs if window is not None and need[0] > window]
        return BinSummary(
            rows=len(self.tokens),
            sources=len(self.sources),
            shortest=min(self.tokens),
            mean=sum(self.tokens) / len(self.tokens),
            longest=max(self.tokens),
            context=(min(self.contexts), max(self.contexts)) if self.contexts else None,
            too_long=tuple(key for _, key in sorted(too_long, key=lambda need: -need[0])),
        )


def describe(summary: DataSummary, count_with: str | None, window: int | None) -> list[str]:
    """A line for each bin, the rows that exceed the window below it, and what the task says.

    Args:
        summary: What was written.
        count_with: The tokenizer of the contexts' lengths.
        window: As it was given to `write_rows`.
    """
    lines = []
    for bin_, rows in summary.bins.items():
        line = f"bin {bin_}: {rows.rows} rows of {rows.sources} stories, "
        line += f"{rows.shortest} to {rows.longest} tokens"
        if rows.context is not None:
            line += f"; contexts of {rows.context[0]} to {rows.context[1]} by {count_with}"
        lines.append(line)
        if rows.too_long:
            more = len(rows.too_long) - NAMED
            named = ", ".join(rows.too_long[:NAMED]) + (f" and {more} more" if more > 0 else "")
            lines.append(f"  {len(rows.too_long)} don't fit into {window} tokens: {named}")
    if window is not None and not any(rows.too_long for rows in summary.bins.values()):
        lines.append(f"every row fits into {window} tokens")
    return [*lines, *summary.notes, f"{summary.rows} rows in {summary.path}"]
