"""Backends: where completions come from, one greedy answer a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from ryarn.records import Message


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question as a backend takes it; a backend reads the form that it needs.

    It carries no target: a backend can't see the answer.

    Attributes:
        id: The example's id.
        messages: Chat turns, for backends that apply the chat template themselves.
        ids: Token ids of the rendered prompt, [length].
    """

    id: str
    messages: tuple[Message, ...]
    ids: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Generated:
    """What a backend answered.

    Attributes:
        text: The generated text without special tokens.
        finish: "stop" (end token), "length" (token budget spent), or "thinking" from a backend
            that knows that the answer ended inside a thinking block which the text doesn't show,
            or "failed": there is no answer, and asking again later may give one.
        reason: Why it failed, else empty.
    """

    text: str
    finish: Literal["stop", "length", "thinking", "failed"]
    reason: str = ""


class Backend(Protocol):
    """A model that answers greedily."""

    @property
    def name(self) -> str:
        """What the manifest of an evaluation calls it."""
        ...

    def generate(
        self, prompts: Sequence[Prompt], max_new_tokens: int
    ) -> Iterator[tuple[str, Generated]]:
        """Answer every prompt, whole, in any order.

        Answers are yielded as they are done, so that the caller can save each at once.

        Args:
            prompts: All of them; the backend forms the batches.
            max_new_tokens: Token budget of one answer.

        Yields:
            The prompt's id and its answer.
        """
        ...
