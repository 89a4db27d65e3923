"""One of the user's own rows, as JSON or Parquet has it, made an `Example` or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ryarn.errors import UserError
from ryarn.records import Example, Message
from ryarn.tasks.splits import content_hash

OPTIONAL = ("id", "source", "target")
"""Columns that say more about a row, where it has them."""

_FORMATS = "prompt and completion, or messages"
_FIRST = ("system", "developer")


def plain_example(row: Mapping[str, Any], number: int) -> Example:
    """The example of a row, without a bin.

    Columns of no meaning here are kept in `info` where JSON can hold them, for scores of the user's
    own.

    Args:
        row: The row.
        number: Its number from 0, for its id where it has none.

    Raises:
        UserError: It is no row of ours; the sentence names the column.
    """
    prompt, completion = conversation(row)
    # Not in rows that `ryarn data` wrote: published MRCR opens with two turns of the user.
    _check_roles([turn["role"] for turn in prompt])
    targets = _targets(row)
    used = {"prompt", "completion", "messages", *OPTIONAL}
    others = {name: value for name, value in row.items() if name not in used}
    info = {name: value for name, value in others.items() if is_json({name: value})}
    if isinstance(row.get("target"), list):
        info["target"] = targets
    return Example(
        id=_name(row, "id") or f"row-{number:06d}",
        prompt=prompt,
        completion=completion,
        target=targets[0] if targets else completion.strip(),
        task="jsonl",
        bin=0,
        source=_name(row, "source") or prompt_hash(prompt),
        question=prompt[-1]["content"],
        info=info,
    )


def conversation(row: Mapping[str, Any]) -> tuple[tuple[Message, ...], str]:
    """The prompt's chat turns, and the answer.

    Raises:
        UserError: They are not there, or are empty.
    """
    if row.get("messages") is not None:
        turns = _turns(row["messages"], "messages")
        prompt, answer = turns[:-1], turns[-1:]
    elif "prompt" in row and "completion" in row:
        prompt = _turns(row["prompt"], "prompt")
        answer = _turns(row["completion"], "completion", role="assistant")
    else:
        raise UserError(f"no column {_FORMATS}, only {', '.join(map(str, row)) or 'none'}")
    if len(answer) != 1 or answer[0]["role"] != "assistant":
        raise UserError("the row has no answer: its last turn must be the assistant's")
    completion = answer[0]["content"]
    if not completion.strip():
        raise UserError("the row has no answer: its completion is empty")
    if not prompt:
        raise UserError("the row has an answer but no prompt before it")
    if not prompt[-1]["content"].strip():
        raise UserError("the row has no question: the last turn of its prompt is empty")
    return prompt, completion


def prompt_hash(prompt: Sequence[Message]) -> str:
    """What tells prompts apart; the source of a row that names none."""
    return content_hash([part for turn in prompt for part in (turn["role"], turn["content"])])[:16]


def _check_roles(roles: Sequence[str]) -> None:
    """User and assistant take turns; a system turn may open. Chat templates rely on it."""
    turns = roles[1:] if roles[0] in _FIRST else roles
    wanted = ["user" if place % 2 == 0 else "assistant" for place in range(len(turns))]
    if list(turns) != wanted or len(turns) % 2 == 0:
        listed = ", ".join(role[:20] for role in roles[:12]) + (", …" if len(roles) > 12 else "")
        raise UserError(
            f"the prompt's roles are {listed}: after a system turn, where there is one, user and "
            "assistant must take turns, the user first and last"
        )


def _turns(value: Any, column: str, role: str = "user") -> tuple[Message, ...]:
    """Chat turns from a list of messages, or one turn of `role` from a string."""
    if isinstance(value, str):
        _check_text(value, column)
        return ({"role": role, "content": value},)
    if not isinstance(value, list):
        kind = "empty" if value is None else type(value).__name__
        raise UserError(f"column {column} must be a string or a list of messages, not {kind}")
    turns: list[Message] = []
    for number, turn in enumerate(value, start=1):
        match turn:
            case {"role": str(who), "content": str(text)}:
                _check_text(who, column)
                _check_text(text, column)
                turns.append({"role": who, "content": text})
            case {"role": str(), "content": other}:
                kind = "empty" if other is None else f"of type {type(other).__name__}"
                raise UserError(
                    f"column {column}, message {number}: its content is {kind}, must be a text"
                )
            case _:
                raise UserError(
                    f"column {column}, message {number}: every message needs a role and a text "
                    "content"
                )
    return tuple(turns)


def _targets(row: Mapping[str, Any]) -> list[str]:
    """The accepted targets of the column `target`; none where the row has no such column."""
    value = row.get("target")
    if value is None:
        return []
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(text, str) and text.strip() for text in found):
        raise UserError(
            f"column target = {str(value)[:80]!r}: must be a text, or a list of texts that are all "
            "right; none empty"
        )
    for text in found:
        _check_text(text, "target")
    return found


def _name(row: Mapping[str, Any], column: str) -> str | None:
    value = row.get(column)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"column {column} = {str(value)[:80]!r}: must be a text or a whole number")
    _check_text(str(value), column)
    return str(value)


def _check_text(text: str, column: str) -> None:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"column {column}: half a UTF-16 surrogate pair, which is no text")


def is_json(value: Any) -> bool:
    """Whether a value can be written as JSON in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError):
        return False
    return True
