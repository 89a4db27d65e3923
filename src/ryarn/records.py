"""The nouns that cross every border, each one line of JSONL: `Example`, `Completion`, `Score`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ryarn.disk import writing
from ryarn.errors import UserError

Message = dict[str, str]
"""One chat turn: `{"role": ..., "content": ...}`, as chat templates take it."""


@dataclass(frozen=True, slots=True)
class Example:
    """One question with its context, before any chat template.

    Its JSON form is TRL's conversational prompt-completion row plus our own columns, so a file of
    examples trains in any TRL script as it is.

    Attributes:
        id: Unique and stable within its task; completions and scores are joined by it.
        prompt: The chat turns that the model is given.
        completion: What a right answer looks like in full; the training target.
        target: What the task's score compares with (for BABILong one word).
        task: Name of the task that scores it, a key of `ryarn.tasks.TASKS`.
        bin: Nominal length of the row in tokens: the report groups rows by it.
        source: Which story, conversation or document it was made from. Rows of one source are
            not independent; statistics cluster by it.
        question: The question alone (some scores need it).
        info: Anything else worth keeping, e.g. the kind of question.
    """

    id: str
    prompt: tuple[Message, ...]
    completion: str
    target: str
    task: str
    bin: int
    source: str
    question: str = ""
    info: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The row as TRL's prompt-completion format, our columns beside it."""
        row = asdict(self)
        row["prompt"] = list(self.prompt)
        row["completion"] = [{"role": "assistant", "content": self.completion}]
        return row

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Example:
        """Inverse of `to_json`."""
        return cls(
            **{
                **row,
                "prompt": tuple(row["prompt"]),
                "completion": row["completion"][0]["content"],
            }
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """What a backend answered for one example.

    Attributes:
        id: The example's id.
        text: The generated text, special tokens removed; empty when skipped.
        prompt_tokens: Length of the rendered prompt in the model's own tokens.
        finish: "stop" (end token), "length" (token budget spent), "thinking" (either, but inside a
            thinking block: there is no answer yet), "skipped" (did not fit) or "failed" (the
            backend got no answer; the next run asks again).
        reason: Why it was skipped or failed, else empty.
    """

    id: str
    text: str
    prompt_tokens: int
    finish: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """One example's scores under each rule of its task.

    Attributes:
        id: The example's id.
        bin: The example's bin.
        source: The example's source.
        scores: Rule name to value in [0, 1]; the task's official rule comes first. Empty when the
            row was skipped or failed: a row without an answer is counted, never scored 0.
        parsed: Whether the official rule found an answer at all in the text.
        finish: The completion's `finish`.
    """

    id: str
    bin: int
    source: str
    scores: dict[str, float]
    parsed: bool
    finish: str


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file; blank lines are passed over.

    Raises:
        UserError: The file is missing, or a line is not a JSON object (its number is named).
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    # A byte that is no UTF-8 is let through as a surrogate, so that its line can be named.
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isascii() and any("\udc80" <= letter <= "\udcff" for letter in line):
                raise UserError(f"{path}, line {number}: not UTF-8; save the file as UTF-8")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else error
                raise UserError(f"{path}, line {number}: not valid JSON ({reason})") from error
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number}: expected a JSON object, got {line[:40]!r}")
            yield row


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows to a JSONL file through a temporary neighbour, so it is whole or absent.

    Returns:
        How many rows were written.
    """
    partial = path.with_name(path.name + ".partial")
    count = 0
    with writing(path, "then start the same command again"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as out:
            for row in rows:
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
        partial.replace(path)
    return count
