"""What the tasks in miniature share: stories that differ, rows made to a length, short prose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ryarn.chat import completion_ids, prompt_ids
from ryarn.errors import UserError
from ryarn.records import Message
from ryarn.tasks.background import load_documents, split_sentences
from ryarn.tasks.splits import SPLITS, split_of
from ryarn.tasks.words import NAMES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HELD_OUT, TEST = 0.1, 0.1
"""Shares of all stories that can serve in these splits."""
MIN_WORDS, MAX_WORDS = 3, 12
"""Words of a background sentence: about 16 tokens at most where a word is a token. Counted in
words, so that every tokenizer, also one of bytes, has the same sentences."""
POOL = 5000
"""Background sentences at most; a library of books is read only so far."""
MISSES = 16
"""Drawn sentences in a row that don't fit any more, after which a row counts as full."""

_MAX_TRIES = 10_000

S = TypeVar("S")


def distinct(values: list[S] | None) -> list[S] | None:
    """The values of a config's list, if one was given.

    Raises:
        ValueError: One stands twice.
    """
    if values is not None and len(set(values)) < len(values):
        raise ValueError("name each only once")
    return values


def check_split(split: str) -> None:
    """See that there is such a split.

    Raises:
        UserError: There is none.
    """
    if split not in SPLITS:
        raise UserError(f"split = {split!r}: must be one of {', '.join(SPLITS)}")


def draw_stories(
    rows: int,
    split: str,
    generator: Callable[[int], np.random.Generator],
    draw: Callable[[np.random.Generator], S],
    content: Callable[[S], str],
) -> list[S]:
    """Different stories of one split.

    Args:
        rows: How many.
        split: One of `SPLITS`; the content decides which a story belongs to.
        generator: The generator of the story of a given number.
        draw: Draws a story.
        content: Hash of a story's content.

    Raises:
        UserError: There are not so many.
    """
    seen: set[str] = set()
    stories: list[S] = []
    for index in range(rows):
        rng = generator(index)
        for _ in range(_MAX_TRIES):
            story = draw(rng)
            key = content(story)
            if key not in seen and split_of(key, HELD_OUT, TEST) == split:
                break
        else:
            raise UserError(
                f"rows = {rows}: only {index} different stories found for the {split} split; ask "
                "for fewer rows or larger stories"
            )
        seen.add(key)
        stories.append(story)
    return stories


class Measure:
    """Tokens of rows and of their parts, and prose to fill rows with, for one tokenizer.

    Args:
        tokenizer: The model's own.
        background: As `load_documents` takes it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, background: str = "packaged") -> None:
        self._tokenizer = tokenizer
        self._background = background
        self.count = cache(self._count)
        # Asked once: finding the end token renders a chat.
        self._end = len(completion_ids(tokenizer, ""))

    def row(self, prompt: Sequence[Message], completion: str) -> int:
        """Tokens of a whole row: chat prompt, completion and end token."""
        return len(prompt_ids(self._tokenizer, prompt)) + self.count(completion) + self._end

    def words(self, text: str) -> int:
        """Tokens of a text of plain words, from the words' own counts."""
        first, *others = text.split(" ")
        return self.count(first) + sum(self.count(f" {word}") for word in others)

    @cached_property
    def prose(self) -> list[tuple[str, int]]:
        """Background sentences with their tokens, a space before them included.

        Sentences with a name of the tasks' own people are left out: they might be taken for facts.

        Raises:
            UserError: No sentence is short enough.
        """
        sentences = list(_short_sentences(load_documents(self._background)))
        if not sentences:
            raise UserError(
                f"background = {self._background!r}: no sentence has {MIN_WORDS} to {MAX_WORDS} "
                "words"
            )
        texts = [f" {sentence}" for sentence in sentences]
        ids = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [(s, len(tokens)) for s, tokens in zip(sentences, ids, strict=True)]

    def fill(self, room: int, rng: np.random.Generator) -> list[str]:
        """Sentences in random order that take at most `room` tokens; none twice before all once."""
        chosen: list[str] = []
        misses = 0
        while True:
            for index in rng.permutation(len(self.prose)).tolist():
                sentence, tokens = self.prose[index]
                if tokens <= room:
                    chosen.append(sentence)
                    room -= tokens
                    misses = 0
                else:
                    misses += 1
                    if misses == MISSES:
                        return chosen

    def _count(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _short_sentences(documents: Sequence[str]) -> Iterator[str]:
    found = 0
    for number in range(len(documents)):
        for sentence in split_sentences(documents[number]):
            words = sentence.split(" ")
            if not MIN_WORDS <= len(words) <= MAX_WORDS:
                continue
            if any(name in sentence for name in NAMES):
                continue
            yield sentence
            found += 1
            if found == POOL:
                return
