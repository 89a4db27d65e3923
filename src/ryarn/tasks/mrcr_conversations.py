"""MRCR-like conversations of any length: a piece is asked for several times, give back the i-th."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ryarn.errors import UserError
from ryarn.records import Example, Message
from ryarn.tasks.miniature import Measure
from ryarn.tasks.mrcr_lexicon import FORMS, TOPICS
from ryarn.tasks.mrcr_writing import GRAMMAR, Grammar, Pair, Passages, Piece, Writer
from ryarn.tasks.splits import SPLITS, content_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ORDINALS = ("1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th")
CODE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
CODE_LENGTH = 10
NEAR = 0.5
"""Share of the other requests that have the form or the topic of the look-alikes, not both."""
MIN_FILL = 0.75
"""Share of its length that a row reaches at least; a writer that has not so much is refused."""

_PAIRS = tuple(product(FORMS, TOPICS))


@dataclass(frozen=True, slots=True)
class Turn:
    """A request and the piece written for it."""

    pair: Pair
    piece: Piece

    @property
    def request(self) -> str:
        """The user's message."""
        form, topic = self.pair
        return f"Write a {form} about {topic}."

    @property
    def messages(self) -> tuple[Message, Message]:
        """Both messages."""
        return (
            {"role": "user", "content": self.request},
            {"role": "assistant", "content": self.piece.text},
        )


@dataclass(frozen=True, slots=True)
class Story:
    """Look-alikes and which of them is asked for: the same at every length.

    Attributes:
        turns: The look-alikes, in order.
        asked: Which is asked for, from 0.
        prefix: The code that the answer begins with.
    """

    turns: tuple[Turn, ...]
    asked: int
    prefix: str

    @property
    def id(self) -> str:
        """Hash of the look-alikes."""
        return content_hash([turn.piece.text for turn in self.turns])[:16]

    @property
    def question(self) -> str:
        """The last message, worded as in the published rows."""
        form, topic = self.turns[0].pair
        return (
            f"Prepend {self.prefix} to the {ORDINALS[self.asked]} (1 indexed) {form} about "
            f"{topic}. Do not include any other text in your response."
        )

    @property
    def completion(self) -> str:
        """The right answer."""
        return self.prefix + self.turns[self.asked].piece.text


class Conversations:
    """Makes rows.

    Args:
        needles: Counts of look-alikes, which take turns from row to row.
        texts: "grammar", or where passages come from, as `load_documents` takes it.
        seed: Of all draws.
    """

    def __init__(self, needles: Sequence[int], texts: str, seed: int) -> None:
        self._needles = sorted(needles)
        self._seed = seed
        self._writer: Writer = Grammar() if texts == GRAMMAR else Passages(texts)
        self._texts = texts

    def rows(
        self, tokenizer: PreTrainedTokenizerBase, split: str, wanted: Sequence[tuple[int, int]]
    ) -> Iterator[Example]:
        """Yield rows, by length.

        The look-alikes and the question of the row of a number are the same at every length; the
        other turns are drawn anew.

        Args:
            tokenizer: The model's own.
            split: One of `SPLITS`.
            wanted: Each length in tokens of a whole row (chat prompt, completion and end token),
                which no row exceeds, and how many rows.

        Raises:
            UserError: A length has no room for the look-alikes, or the texts are too few.
        """
        filler = _Filler(Measure(tokenizer), self._writer, split)
        stories = self._stories(split, max(count for _, count in wanted))
        sizes = [filler.size(story, story.turns) for story in stories]
        for length, count in wanted:
            for needles in self._needles:
                of_these = zip(stories[:count], sizes, strict=False)
                self._check_room(
                    length,
                    needles,
                    max((size for s, size in of_these if len(s.turns) == needles), default=0),
                )
        for length, count in wanted:
            for index, story in enumerate(stories[:count]):
                rng = self._generator(split, index, 3 + length)
                turns, tokens = filler.fill(story, sizes[index], length, rng)
                if self._texts != GRAMMAR and tokens < MIN_FILL * length:
                    raise UserError(
                        f"texts = {self._texts!r}: all passages of the {split} split together fill "
                        f"only {tokens} of {length} tokens: give more text, or lower lengths"
                    )
                yield _example(length, index, story, turns)

    def _generator(self, split: str, index: int, use: int) -> np.random.Generator:
        address = (self._seed, SPLITS.index(split), index, use)
        return np.random.default_rng(np.random.SeedSequence(address))

    def _stories(self, split: str, rows: int) -> list[Story]:
        counts = [self._needles[index % len(self._needles)] for index in range(rows)]
        draws = [self._generator(split, index, 0) for index in range(rows)]
        pairs = [_PAIRS[int(rng.integers(len(_PAIRS)))] for rng in draws]
        needles = self._writer.needles(
            counts, pairs, split, lambda index: self._generator(split, index, 1)
        )
        stories = []
        for pair, rng, (first, *others) in zip(pairs, draws, needles, strict=True):
            asked = int(rng.integers(len(others) + 1))
            pieces = (*others[:asked], first, *others[asked:])
            code = "".join(CODE[i] for i in rng.integers(len(CODE), size=CODE_LENGTH).tolist())
            stories.append(Story(tuple(Turn(pair, piece) for piece in pieces), asked, code))
        return stories

    def _check_room(self, length: int, needles: int, needed: int) -> None:
        if needed > length:
            raise UserError(
                f"lengths: {length} is too short for {needles} look-alikes, which with the "
                f"question and the answer take up to {needed} tokens: raise lengths, or name fewer "
                "needles"
            )


class _Filler:
    """Other turns around the look-alikes, to a length."""

    def __init__(self, measure: Measure, writer: Writer, split: str) -> None:
        self._measure = measure
        self._writer = writer
        self._split = split
        probe = Turn(("a", "a"), Piece(("a",)))
        question: Message = {"role": "user", "content": "a"}
        self._frame = (
            measure.row((*probe.messages, *probe.messages, question), "a")
            - measure.row((*probe.messages, question), "a")
            - measure.count(probe.request)
            - measure.count("a")
        )

    def size(self, story: Story, turns: Sequence[Turn]) -> int:
        """Tokens of the whole row."""
        return self._measure.row(_prompt(story, turns), story.completion)

    def fill(
        self, story: Story, alone: int, limit: int, rng: np.random.Generator
    ) -> tuple[list[Turn], int]:
        """The look-alikes among as many other turns as the limit allows, and the row's tokens.

        Args:
            story: Look-alikes and question.
            alone: Tokens of the row with them alone.
            limit: Tokens that the row must not exceed.
            rng: Source of all randomness.
        """
        others = self._others(story, limit - alone, rng)
        places = np.sort(rng.permutation(len(story.turns) + len(others))[: len(story.turns)])
        # The whole may count more than its parts: take back what is too much and look again.
        while True:
            turns = list(others)
            for turn, place in zip(story.turns, places.tolist(), strict=True):
                turns.insert(place, turn)
            tokens = self.size(story, turns)
            if not others or tokens <= limit:
                return turns, tokens
            others.pop()

    def _others(self, story: Story, room: int, rng: np.random.Generator) -> list[Turn]:
        take = self._writer.others(self._split, [turn.piece for turn in story.turns], rng)
        turns: list[Turn] = []
        while True:
            pair = _other_pair(story.turns[0].pair, rng)
            piece = take(pair)
            if piece is None:
                return turns
            turn = Turn(pair, piece)
            size = self._size_of(turn)
            if size > room:
                last = self._cut(turn, room)
                return turns if last is None else [*turns, last]
            turns.append(turn)
            room -= size

    def _size_of(self, turn: Turn) -> int:
        return (
            self._frame + self._measure.count(turn.request) + self._measure.count(turn.piece.text)
        )

    def _cut(self, turn: Turn, room: int) -> Turn | None:
        """The turn with as many of its sentences as have room, at least one."""
        for sentences in range(len(turn.piece.sentences) - 1, 0, -1):
            shorter = Turn(turn.pair, turn.piece.cut(sentences))
            if self._size_of(shorter) <= room:
                return shorter
        return None


def _other_pair(pair: Pair, rng: np.random.Generator) -> Pair:
    """Another pair of form and topic, often one that has one of the two in common."""
    form, topic = pair
    while True:
        other = _PAIRS[int(rng.integers(len(_PAIRS)))]
        if rng.random() < NEAR:
            other = (form, other[1]) if rng.random() < 0.5 else (other[0], topic)
        if other != pair:
            return other


def _prompt(story: Story, turns: Sequence[Turn]) -> tuple[Message, ...]:
    messages = [message for turn in turns for message in turn.messages]
    return (*messages, {"role": "user", "content": story.question})


def _example(length: int, index: int, story: Story, turns: Sequence[Turn]) -> Example:
    return Example(
        id=f"{length}-{index:05d}-{story.id[:8]}",
        prompt=_prompt(story, turns),
        completion=story.completion,
        target=story.completion,
        task="mrcr",
        bin=length,
        source=story.id,
        question=story.question,
        info={
            "prefix": story.prefix,
            "needles": len(story.turns),
            "asked": story.asked + 1,
            "turns": len(turns),
            "length": length,
        },
    )
