"""The user's own rows: a file or hub dataset in TRL's prompt-completion or messages format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from ryarn.chat import completion_ids, prompt_ids
from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.records import Completion, Example, Message, Score, read_jsonl
from ryarn.tasks.babilong_score import babilong_score
from ryarn.tasks.conflicts import conflicts_score
from ryarn.tasks.lookalikes import lookalikes_score
from ryarn.tasks.splits import SPLITS, content_hash, split_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FILES = (".jsonl", ".json", ".parquet")
_FORMATS = "prompt and completion, or messages"
_OURS = {field.name for field in fields(Example)}


class JsonlConfig(Config):
    """Where the rows are and how they are shared out over the splits."""

    task: Literal["jsonl"] = "jsonl"
    path: str
    """A `.jsonl` or `.parquet` file, or a hub dataset."""
    split: str | None = None
    """Split of a hub dataset; null means train."""
    revision: str | None = None
    """Commit, tag or branch of a hub dataset."""
    held_out: float = Field(0.05, ge=0, le=1)
    """Share of the rows, chosen by content, that training leaves out."""
    test: float = Field(0.0, ge=0, le=1)
    """Share of the rows kept for evaluation; 1 makes the whole file a test set."""

    @field_validator("test")
    @classmethod
    def _shares(cls, test: float, info: ValidationInfo) -> float:
        # A whole file as test set shouldn't need held_out: 0 beside it.
        if test < 1 and test + info.data.get("held_out", 0.0) > 1:
            raise ValueError("held_out and test together are more than all rows")
        return test


class Jsonl:
    """Rows of a file, scored by equality with the completion.

    A row is put into a split by its prompt, so equal prompts stay together. Rows that `ryarn data`
    wrote keep the split, bin, source and score of the task that made them.
    """

    def __init__(self, config: JsonlConfig) -> None:
        self.config = config

    def examples(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Iterator[Example]:
        """Yield the rows of a split in file order; see `ryarn.tasks.Task`."""
        if split not in SPLITS:
            raise UserError(f"split = {split!r}: must be one of {', '.join(SPLITS)}")
        count = 0
        for number, row in enumerate(_rows(self.config)):
            try:
                example = _example(row, number)
            except UserError as error:
                raise UserError(f"{_place(self.config.path, number)}: {error}") from error
            own = example.info.get("split")
            given = split_of(example.source, self.config.held_out, self.config.test)
            if (own or given) == split:
                count += 1
                # A made row may have bin 0 of its own (BABILong's facts alone).
                plain = example.task == "jsonl" and not example.bin
                yield _with_bin(example, tokenizer) if plain else example
        if not count:
            raise UserError(
                f"{self.config.path}: no row falls into the {split} split with held_out = "
                f"{self.config.held_out} and test = {self.config.test}"
                + ("; set test: 1 to evaluate on the whole file" if split == "test" else "")
            )

    def score(self, example: Example, completion: Completion) -> Score:
        """`exact` (equal once stripped) first and `contains`; a made row by its own task's rule."""
        return SCORES[example.task](example, completion)


def plain_score(example: Example, completion: Completion) -> Score:
    """Equality with the expected completion, and whether it is contained; none when skipped."""
    text, target = completion.text.strip(), example.target.strip()
    scores = {"exact": float(text == target), "contains": float(target in text)}
    if completion.finish == "skipped":
        scores, text = {}, ""
    return Score(example.id, example.bin, example.source, scores, bool(text), completion.finish)


SCORES: dict[str, Callable[[Example, Completion], Score]] = {
    "jsonl": plain_score,
    "babilong": babilong_score,
    "conflicts": conflicts_score,
    "lookalikes": lookalikes_score,
}
"""A row's `task` to its score."""


def _rows(config: JsonlConfig) -> Iterable[Mapping[str, Any]]:
    path = Path(config.path).expanduser()
    local = path.suffix in _FILES or path.exists() or config.path.startswith((".", "/", "~"))
    if not local:
        return _hub_rows(config)
    if config.split or config.revision:
        raise UserError(
            f"path = {config.path!r}: split and revision are for hub datasets, not files"
        )
    if not path.is_file():
        raise UserError(f"path = {config.path!r}: no such file")
    if path.suffix not in _FILES:
        raise UserError(f"path = {config.path!r}: must end in {' or '.join(_FILES)}")
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    return read_jsonl(path)


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        for batch in ParquetFile(path).iter_batches(batch_size=256):
            yield from batch.to_pylist()
    except ArrowInvalid as error:
        raise UserError(f"path = {str(path)!r}: not a Parquet file") from error


def _hub_rows(config: JsonlConfig) -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset

    split = config.split or "train"
    try:
        rows: Iterable[Mapping[str, Any]] = load_dataset(
            config.path, split=split, revision=config.revision
        )
    except Exception as error:
        raise UserError(
            f"path = {config.path!r}: neither a file here nor a hub dataset with a split {split!r} "
            f"({' '.join(str(error).split())[:200]})"
        ) from error
    return rows


def _place(path: str, number: int) -> str:
    """Where the row of that number (from 0) stands; a JSONL file's blank lines count as lines."""
    file = Path(path).expanduser()
    if file.suffix not in (".jsonl", ".json"):
        return f"{path}, row {number + 1}"
    with file.open(encoding="utf-8") as lines:
        filled = [line for line, text in enumerate(lines, start=1) if text.strip()]
    return f"{path}, line {filled[number]}"


def _example(row: Mapping[str, Any], number: int) -> Example:
    if row.get("messages") is not None:
        turns = _turns(row["messages"], "messages")
        prompt, answer = turns[:-1], turns[-1:]
    elif "prompt" in row and "completion" in row:
        prompt = _turns(row["prompt"], "prompt")
        answer = _turns(row["completion"], "completion", role="assistant")
    else:
        raise UserError(f"no column {_FORMATS}, only {', '.join(row) or 'none'}")
    if len(answer) != 1 or answer[0]["role"] != "assistant":
        raise UserError("the row has no answer: its last turn must be the assistant's")
    completion = answer[0]["content"]
    if not completion.strip():
        raise UserError("the row has no answer: its completion is empty")
    if not prompt:
        raise UserError("the row has an answer but no prompt before it")
    if set(row) >= _OURS:
        return _made(row)
    source = content_hash([part for turn in prompt for part in (turn["role"], turn["content"])])
    return Example(
        id=f"row-{number:06d}",
        prompt=prompt,
        completion=completion,
        target=completion.strip(),
        task="jsonl",
        bin=0,
        source=source[:16],
        question=prompt[-1]["content"],
    )


def _made(row: Mapping[str, Any]) -> Example:
    """A row that `ryarn data` wrote."""
    if row["task"] not in SCORES:
        raise UserError(f"task = {row['task']!r}: known tasks are {', '.join(SCORES)}")
    return Example.from_json({name: row[name] for name in _OURS})


def _turns(value: Any, column: str, role: str = "user") -> tuple[Message, ...]:
    """Chat turns from a list of messages, or one turn of `role` from a string."""
    if isinstance(value, str):
        _check_text(value, column)
        return ({"role": role, "content": value},)
    if not isinstance(value, list):
        kind = "empty" if value is None else type(value).__name__
        raise UserError(f"column {column} must be a string or a list of messages, not {kind}")
    turns: list[Message] = []
    for turn in value:
        match turn:
            case {"role": str(who), "content": str(text)}:
                _check_text(text, column)
                turns.append({"role": who, "content": text})
            case _:
                raise UserError(f"column {column}: every message needs a role and a text content")
    return tuple(turns)


def _check_text(text: str, column: str) -> None:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"column {column}: half a UTF-16 surrogate pair, which is no text")


def _with_bin(example: Example, tokenizer: PreTrainedTokenizerBase) -> Example:
    """The row with its bin: its length rounded up to a power of two."""
    tokens = prompt_ids(tokenizer, example.prompt)
    length = len(tokens) + len(completion_ids(tokenizer, example.completion))
    return replace(example, bin=1 << (length - 1).bit_length())
