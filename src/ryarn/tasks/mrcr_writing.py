"""Pieces of writing for MRCR-like conversations: made by a grammar, or passages of given texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from ryarn.errors import UserError
from ryarn.tasks import mrcr_lexicon as lexicon
from ryarn.tasks.background import load_documents, split_sentences
from ryarn.tasks.splits import SPLITS, content_hash, split_of

Pair = tuple[str, str]
"""The form and the topic that a piece is asked for with."""

GRAMMAR = "grammar"
SENTENCES = (8, 14)
"""Fewest and most sentences of a piece: some 500 to 1,200 characters, as in published rows."""
PASSAGE_WORDS = 110
"""A passage of a text ends with the sentence that reaches so many words."""
HELD_OUT, TEST = 0.1, 0.1
"""Shares of all pieces, or passages, that can be asked for in these splits."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of writing: sentences between a head and a tail.

    Attributes:
        sentences: What it is made of.
        joint: What stands between two of them.
        head: Before them.
        tail: After them.
    """

    sentences: tuple[str, ...]
    joint: str = " "
    head: str = ""
    tail: str = ""

    @property
    def text(self) -> str:
        """The whole piece."""
        return self.head + self.joint.join(self.sentences) + self.tail

    def cut(self, sentences: int) -> Piece:
        """The same piece with its first sentences alone."""
        return replace(self, sentences=self.sentences[:sentences])


class Writer(Protocol):
    """Where pieces come from."""

    def needles(
        self,
        counts: Sequence[int],
        pairs: Sequence[Pair],
        split: str,
        generator: Callable[[int], np.random.Generator],
    ) -> list[list[Piece]]:
        """The look-alikes of some rows; of each row's, the first is asked for, in no other row.

        Args:
            counts: Look-alikes of each row.
            pairs: What each row's are asked for with.
            split: One of `SPLITS`; what is asked for in one of them stands in no row of another.
            generator: The generator of the row of a given number.

        Raises:
            UserError: There are not so many.
        """
        ...

    def others(
        self, split: str, needles: Sequence[Piece], rng: np.random.Generator
    ) -> Callable[[Pair], Piece | None]:
        """A source of further pieces for one row, all different; None once there is no other."""
        ...


class Grammar:
    """Writes pieces of its own: a sentence has some dozen forms, and some 1,000 words fill them."""

    def needles(
        self,
        counts: Sequence[int],
        pairs: Sequence[Pair],
        split: str,
        generator: Callable[[int], np.random.Generator],
    ) -> list[list[Piece]]:
        """See `Writer`; which split a row's pieces belong to, their own text decides."""
        rows = []
        seen: set[str] = set()
        for index, (count, pair) in enumerate(zip(counts, pairs, strict=True)):
            rng = generator(index)
            while True:  # a tenth of all draws belongs to the smallest split
                pieces = [compose(pair, rng) for _ in range(count)]
                texts = {piece.text for piece in pieces}
                key = content_hash([piece.text for piece in pieces])
                fresh = len(texts) == count and not texts & seen
                if fresh and split_of(key, HELD_OUT, TEST) == split:
                    break
            seen |= texts
            rows.append(pieces)
        return rows

    def others(
        self, split: str, needles: Sequence[Piece], rng: np.random.Generator
    ) -> Callable[[Pair], Piece | None]:
        """See `Writer`; there is always another."""
        return lambda pair: compose(pair, rng)


class Passages:
    """Takes passages of whole sentences from texts, in place of what was asked to be written.

    Args:
        source: As `load_documents` takes it.
    """

    def __init__(self, source: str) -> None:
        self._source = source

    @cached_property
    def _passages(self) -> dict[str, list[Piece]]:
        """Split to its passages; no text is there twice."""
        found: dict[str, list[Piece]] = {split: [] for split in SPLITS}
        seen: set[str] = set()
        documents = load_documents(self._source)
        for number in range(len(documents)):
            for piece in _passages(split_sentences(documents[number])):
                key = content_hash((piece.text,))
                if key not in seen:
                    seen.add(key)
                    found[split_of(key, HELD_OUT, TEST)].append(piece)
        return found

    def needles(
        self,
        counts: Sequence[int],
        pairs: Sequence[Pair],
        split: str,
        generator: Callable[[int], np.random.Generator],
    ) -> list[list[Piece]]:
        """See `Writer`; a row's look-alikes are passages of its own split."""
        mine = self._passages[split]
        needed = max(len(counts), *counts)
        if len(mine) < needed:
            raise UserError(
                f"texts = {self._source!r}: {len(mine)} passages of about {PASSAGE_WORDS} words "
                f"fall to the {split} split, and {needed} are needed (one to ask for in each of "
                f"{len(counts)} rows, {max(counts)} look-alikes in one): give more text, or ask "
                "for fewer rows or needles"
            )
        order = generator(len(counts)).permutation(len(mine)).tolist()
        rows = []
        for index, count in enumerate(counts):
            others = [number for number in order if number != order[index]]
            chosen = generator(index).permutation(len(others))[: count - 1].tolist()
            rows.append([mine[order[index]], *(mine[others[number]] for number in chosen)])
        return rows

    def others(
        self, split: str, needles: Sequence[Piece], rng: np.random.Generator
    ) -> Callable[[Pair], Piece | None]:
        """See `Writer`; training rows take training passages alone, test rows take all."""
        allowed = SPLITS[: SPLITS.index(split) + 1]
        pieces = [p for name in allowed for p in self._passages[name] if p not in needles]
        left = iter(rng.permutation(len(pieces)).tolist())

        def take(pair: Pair) -> Piece | None:
            number = next(left, None)
            return None if number is None else pieces[number]

        return take


def _passages(sentences: Sequence[str]) -> list[Piece]:
    found: list[Piece] = []
    held: list[str] = []
    words = 0
    for sentence in sentences:
        held.append(sentence)
        words += len(sentence.split(" "))
        if words >= PASSAGE_WORDS:
            found.append(Piece(tuple(held)))
            held, words = [], 0
    # What is left is too short to be told from others by its letters.
    return found


def compose(pair: Pair, rng: np.random.Generator) -> Piece:
    """Write a piece.

    Args:
        pair: Form and topic.
        rng: Source of all randomness.
    """
    form, topic = pair
    count = int(rng.integers(SENTENCES[0], SENTENCES[1] + 1))
    pen = _Pen(topic, rng)
    sentences = tuple(pen.sentence() for _ in range(count))
    if form in ("poem", "song"):
        return Piece(sentences, joint="\n")
    if form == "letter":
        return Piece(sentences, head=f"Dear {pen.name()},\n\n", tail=f"\n\nYours, {pen.name()}")
    if form == "scene of a play":
        lines = tuple(f"{pen.name().upper()}: {sentence}" for sentence in sentences)
        return Piece(lines, joint="\n", head=f"{_capital(pen.place())}.\n\n")
    if form in ("news report", "blog post"):
        return Piece(sentences, head=f"**{pen.title()}**\n\n")
    if form in ("diary entry", "travel note"):
        return Piece(sentences, head=f"{_capital(pen.time())}, {pen.place()}. ")
    return Piece(sentences)


class _Pen:
    """Draws words and sentences."""

    def __init__(self, topic: str, rng: np.random.Generator) -> None:
        self._topic = topic
        self._rng = rng

    def pick(self, words: Sequence[str]) -> str:
        return words[int(self._rng.integers(len(words)))]

    def name(self) -> str:
        return self.pick(lexicon.NAMES)

    def place(self) -> str:
        return self.pick(lexicon.PLACES)

    def time(self) -> str:
        return self.pick(lexicon.TIMES)

    def title(self) -> str:
        return _capital(f"{self.pick(lexicon.ADJECTIVES)} {self._topic} {self.place()}")

    def sentence(self) -> str:
        patterns = (self._deed, self._happening, self._speech, self._scene, self._choice)
        return _capital(patterns[int(self._rng.integers(len(patterns)))]())

    def _who(self) -> str:
        draw = float(self._rng.random())
        if draw < 0.15:
            return f"the {self._topic}"
        if draw < 0.35:
            return self.name()
        if draw < 0.45:
            return f"{self.name()}'s {self.pick(lexicon.NOUNS)}"
        article = "the" if draw < 0.85 else "that"
        adjective = f"{self.pick(lexicon.ADJECTIVES)} " if self._rng.random() < 0.6 else ""
        return f"{article} {adjective}{self.pick(lexicon.NOUNS)}"

    def _did(self) -> str:
        return f"{self._who()} {self.pick(lexicon.DEEDS)} {self._who()}"

    def _was(self) -> str:
        return f"{self._who()} {self.pick(lexicon.HAPPENINGS)}"

    def _deed(self) -> str:
        end = f" {self.place()}" if self._rng.random() < 0.5 else f" {self.time()}"
        start = f"{self.pick(lexicon.OPENINGS)} " if self._rng.random() < 0.4 else ""
        return f"{start}{self._did()}{end}."

    def _happening(self) -> str:
        joint = self.pick((", and", ", but", "; then", ", for", " because", " while", " until"))
        return f"{self._was()} {self.place()}{joint} {self._did()}."

    def _speech(self) -> str:
        said = f"{self.pick(lexicon.SPEECH)} {self.name()}"
        if self._rng.random() < 0.5:
            return f'"{_capital(self._did())}," {said} {self.time()}.'
        return f'"{_capital(self._who())}!" {said}; {self._was()}.'

    def _scene(self) -> str:
        link = self.pick(("whose", "beside whose", "near whose"))
        noun, other = self.pick(lexicon.NOUNS), self.pick(lexicon.NOUNS)
        return f"{self.place()} stood the {noun}, {link} {other} {self._end()}"

    def _choice(self) -> str:
        start = self.pick(("neither", "either", "both"))
        link = {"neither": "nor", "either": "or", "both": "and"}[start]
        return f"{start} {self._who()} {link} {self._who()} {self._end()}"

    def _end(self) -> str:
        return f"{self.pick(lexicon.HAPPENINGS)} {self.time()}."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
