"""What a server answered, and whether it read the whole prompt by its own count of tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from ryarn.backends import Generated, Prompt
from ryarn.errors import UserError

FINISHES: dict[str, Literal["stop", "length"]] = {
    "stop": "stop",
    "length": "length",
    # What text-generation-inference and others after it say for an end token.
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
}
"""A server's finish_reason to ours; whatever else it says (content_filter, abort, ...) fails the
row."""

SEAM = 4
"""Prompt tokens that a chat template's text and a message may merge into more or fewer of, a
message: so far counts of the server and ours may drift apart."""

SHOWN = 300
"""Letters of a server's message that are kept."""


class NoReply(ValueError):
    """The body is no answer; the message says what it is instead."""


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(BaseModel):
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None


class _Body(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a server.

    Attributes:
        text: The answer; empty where the token budget went into the reasoning.
        finish: The server's finish_reason.
        prompt_tokens: What it counted; None if it does not say.
        reasoned: Whether there is reasoning beside the answer.
    """

    text: str
    finish: str | None
    prompt_tokens: int | None
    reasoned: bool = False

    def generated(self) -> Generated:
        """The answer as ours, failed where it can't be known what the model answered."""
        finish = FINISHES.get(self.finish or "")
        if finish is None:
            return Generated("", "failed", f"the server ended it with {self.finish!r}")
        if self.text or not self.reasoned:
            return Generated(self.text, finish)
        if finish == "length":
            return Generated("", "thinking")
        # Some reasoning parsers file an answer that has no thinking under the reasoning.
        reason = "the server gave reasoning and no answer: start it without a reasoning parser"
        return Generated("", "failed", reason)


def read_reply(body: str) -> Reply:
    """Read the body of a response, of either endpoint.

    Raises:
        NoReply: It is not JSON, holds an error, or no choice.
    """
    try:
        data = json.loads(body)
    except ValueError:
        raise NoReply(f"not JSON but {short(body)!r}") from None
    try:
        read = _Body.model_validate(data)
    except ValidationError as error:
        told = error_message(data)
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise NoReply(told or f"no completion ({where}: {error.errors()[0]['msg']})") from None
    first = read.choices[0]
    if first.message is None and first.text is None:
        raise NoReply("a choice with neither message nor text")
    said = first.message or _Message(content=first.text)
    return Reply(
        text=said.content or "",
        finish=first.finish_reason,
        prompt_tokens=read.usage.prompt_tokens if read.usage else None,
        reasoned=bool(said.reasoning_content or said.reasoning),
    )


def error_message(body: Any) -> str:
    """What an error's body says, in one short line: OpenAI's form, FastAPI's, or whatever it is."""
    if isinstance(body, str):
        return short(body)
    for key in ("error", "message", "detail", "msg"):
        if isinstance(body, dict) and body.get(key):
            return error_message(body[key])
    return short(json.dumps(body)) if body else ""


def short(text: str) -> str:
    """The first letters of a text in one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


class TokenCheck:
    """Sees that a server read the whole prompt, by the number of tokens that it counted.

    Raw completions are our own tokens, so both counts must be equal. In chat the server renders
    the messages with its own template, which may hold a few words more or less than ours: by how
    many tokens, a prompt too short to be cut tells beforehand. From there the counts of a row may
    differ by `SEAM`, and by as much again for each message that it has more or less than that
    short prompt.

    Args:
        server: What messages call it.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._offset = 0
        self._seams: int | None = None

    def calibrate(self, short: Prompt, counted: int | None) -> None:
        """Learn by how many tokens the server's template differs from ours."""
        self._offset = self._known(short, counted) - len(short.ids)
        self._seams = len(short.messages)

    def check(self, prompt: Prompt, counted: int | None) -> None:
        """Compare the counts of one row.

        Raises:
            UserError: The server read another prompt, or does not say how many tokens it read.
        """
        known, expected = self._known(prompt, counted), len(prompt.ids) + self._offset
        allowed = 0
        if self._seams is not None:
            allowed = SEAM * (1 + abs(len(prompt.messages) - self._seams))
        if abs(known - expected) <= allowed:
            return
        template = f" ({expected} with its own chat template)" if self._offset else ""
        counts = (
            f"{self._server} counted {known} prompt tokens in row {prompt.id!r}, which has "
            f"{len(prompt.ids)}{template}"
        )
        if known < expected:
            raise UserError(
                f"{counts}: it cuts prompts, or has another tokenizer; raise its context length "
                "(vLLM --max-model-len, SGLang --context-length, llama.cpp -c, Ollama num_ctx) or "
                f"skip longer rows with evaluate.window, and give its own tokenizer as model.name"
            )
        raise UserError(
            f"{counts}: it adds tokens, or has another tokenizer; give its own tokenizer as "
            "model.name, and send token ids where it takes them (evaluate.backend.prompt=tokens)"
        )

    def _known(self, prompt: Prompt, counted: int | None) -> int:
        if counted is None:
            raise UserError(
                f"{self._server} does not say how many prompt tokens it read in row {prompt.id!r} "
                "(usage.prompt_tokens), so a prompt that it cut would not be seen: use a server "
                "that reports usage"
            )
        return counted
