"""Tasks: where examples come from and the one official score each has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from ryarn.records import Completion, Example, Score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Task(Protocol):
    """A benchmark or a user's own data: examples in, scores out."""

    def examples(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Iterator[Example]:
        """Yield the examples of a split, the same ones in the same order every time.

        Args:
            tokenizer: The model's tokenizer, for tasks that build rows to a token length.
            split: "train", "held-out" or "test"; no story is in two of them.

        Raises:
            UserError: A file is missing or a row is not usable.
        """
        ...

    def score(self, example: Example, completion: Completion) -> Score:
        """Score one completion; the official rule is the first key of `Score.scores`."""
        ...
