"""Look-alikes: a chat asks several times for the same kind of piece; repeat the i-th (as MRCR)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, PositiveInt, field_validator, model_validator

from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.records import Completion, Example, Message, Score
from ryarn.tasks.miniature import Measure, check_split, distinct, draw_stories
from ryarn.tasks.mrcr_score import mrcr
from ryarn.tasks.splits import SPLITS, content_hash
from ryarn.tasks.words import FORMS, PREFIXES, TOPICS, WRITING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
PROSE_FROM = 4
"""Rows at least so many times as long as their look-alikes alone have turns of prose."""


class LookalikesConfig(Config):
    """How long, how many, and how many look-alikes of how many words."""

    task: Literal["lookalikes"] = "lookalikes"
    lengths: list[PositiveInt] = Field(min_length=1)
    """Tokens of a whole row (chat prompt, completion, end token); no row exceeds its own. Training
    rows take lengths of all sizes up to the largest."""
    rows: PositiveInt
    """Rows of each length; in training, of all."""
    needles: int = Field(2, ge=2, le=len(ORDINALS))
    """Look-alikes: pieces of the same form and topic, one of which is asked for."""
    words: int = Field(5, ge=1, le=len(WRITING))
    """Words of a piece after its title, all different."""
    asked: list[PositiveInt] | None = Field(None, min_length=1)
    """Which look-alikes may be asked for, from 1; null: any. One alone, e.g. [2], leaves nothing to
    tell from the question: what a base learns that can't tell ordinals."""
    seed: int = Field(0, ge=0)

    _distinct = field_validator("lengths", "asked")(distinct)

    @model_validator(mode="after")
    def _asked_for_what_is_there(self) -> Self:
        if self.asked and max(self.asked) > self.needles:
            raise ValueError(
                f"asked = {self.asked}: there are needles = {self.needles} look-alikes, so ask for "
                "those, or raise needles"
            )
        return self


@dataclass(frozen=True)
class _Turn:
    """A request and the piece written; prose can be added to."""

    request: str
    piece: str
    is_prose: bool = False

    @property
    def messages(self) -> tuple[Message, Message]:
        return (
            {"role": "user", "content": self.request},
            {"role": "assistant", "content": self.piece},
        )


@dataclass(frozen=True)
class _Story:
    """The look-alikes and which of them is asked for."""

    pair: tuple[str, str]
    pieces: tuple[str, ...]
    asked: int
    prefix: str

    @property
    def id(self) -> str:
        # Of the pieces alone: look-alikes with another question are no new story.
        return content_hash((*self.pair, *self.pieces))[:16]

    @property
    def turns(self) -> list[_Turn]:
        return [_Turn(_request(*self.pair), piece) for piece in self.pieces]

    @property
    def question(self) -> str:
        form, topic = self.pair
        return f"Prepend {self.prefix} to the {ORDINALS[self.asked]} {form} about {topic}."

    @property
    def completion(self) -> str:
        return f"{self.prefix} {self.pieces[self.asked]}"


class Lookalikes:
    """The task `lookalikes`: OpenAI's MRCR in miniature.

    Some turns ask for a piece of the same form and topic and get different texts; the other turns
    are about other topics, each once, and stand around them in random order. A piece
    is its topic, as a title, and a few words; in rows that are long enough (`PROSE_FROM`), half of
    the other turns are answered with a sentence of prose. Where all topics are used up, or no
    further turn has room, sentences are added to the turns of prose.

    The look-alikes and the question are the same at every length, the other turns are drawn anew.
    Splits, training rows and generators are as in `ryarn.tasks.conflicts.Conflicts`, with a
    conversation's look-alikes in place of a story's facts.
    """

    def __init__(self, config: LookalikesConfig) -> None:
        self.config = config

    def examples(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Iterator[Example]:
        """Yield the rows, by length; see `ryarn.tasks.Task`."""
        check_split(split)
        lengths = [max(self.config.lengths)] if split == "train" else self.config.lengths
        filler = _Filler(Measure(tokenizer), self.config.words)
        stories = draw_stories(
            self.config.rows,
            split,
            lambda index: self._generator(split, index, 0),
            lambda rng: _draw(self.config, rng),
            lambda story: story.id,
        )
        sizes = [filler.size(story, story.turns) for story in stories]
        self._check_room(min(lengths), max(sizes))
        for length in lengths:
            for index, story in enumerate(stories):
                rng = self._generator(split, index, 1 if split == "train" else 1 + length)
                limit = length
                if split == "train":
                    limit = int(rng.integers(sizes[index], length + 1))
                turns = filler.fill(story, sizes[index], limit, rng)
                yield _example(length, index, story, turns)

    def score(self, example: Example, completion: Completion) -> Score:
        """The official rule `mrcr`, and `exact`."""
        return lookalikes_score(example, completion)

    def _generator(self, split: str, index: int, use: int) -> np.random.Generator:
        address = (self.config.seed, SPLITS.index(split), index, use)
        return np.random.default_rng(np.random.SeedSequence(address))

    def _check_room(self, length: int, needed: int) -> None:
        if needed > length:
            raise UserError(
                f"lengths: {length} is too short for needles = {self.config.needles} of words = "
                f"{self.config.words}, which with the question take up to {needed} tokens: raise "
                "lengths, or lower needles or words"
            )


def lookalikes_score(example: Example, completion: Completion) -> Score:
    """The official MRCR rule, and equality once stripped.

    The prefix is the code as the question has it; the space after it belongs to the text that is
    compared, on both sides.
    """
    if completion.finish == "skipped":
        return Score(example.id, example.bin, example.source, {}, False, completion.finish)
    prefix = example.info["prefix"]
    scores = {
        "mrcr": mrcr(completion.text, example.target, prefix),
        "exact": float(completion.text.strip() == example.target),
    }
    parsed = completion.text.startswith(prefix)
    return Score(example.id, example.bin, example.source, scores, parsed, completion.finish)


class _Filler:
    """Other turns around the look-alikes, to a length."""

    def __init__(self, measure: Measure, words: int) -> None:
        self._measure = measure
        self._words = words
        probe = _Turn("a", "a")
        question: Message = {"role": "user", "content": "a"}
        self._frame = (
            measure.row((*probe.messages, *probe.messages, question), "a")
            - measure.row((*probe.messages, question), "a")
            - 2 * measure.count("a")
        )

    def size(self, story: _Story, turns: Sequence[_Turn]) -> int:
        """Tokens of the whole row."""
        return self._measure.row(_prompt(turns, story.question), story.completion)

    def fill(
        self, story: _Story, alone: int, limit: int, rng: np.random.Generator
    ) -> Sequence[_Turn]:
        """The look-alikes among as many other turns as the limit allows.

        Args:
            story: Look-alikes and question.
            alone: Tokens of the row with them alone.
            limit: Tokens that the row must not exceed.
            rng: Source of all randomness.
        """
        others = self._others(story, limit - alone, limit >= PROSE_FROM * alone, rng)
        places = np.sort(rng.permutation(len(story.pieces) + len(others))[: len(story.pieces)])
        # The whole may count more than its parts: take back what is too much and look again.
        while True:
            turns = list(others)
            for turn, place in zip(story.turns, places.tolist(), strict=True):
                turns.insert(place, turn)
            if not others or self.size(story, turns) <= limit:
                return turns
            others.pop()

    def _others(
        self, story: _Story, room: int, with_prose: bool, rng: np.random.Generator
    ) -> list[_Turn]:
        turns: list[_Turn] = []
        for index in rng.permutation(len(TOPICS)).tolist():
            if TOPICS[index] == story.pair[1]:
                continue
            pair = (FORMS[int(rng.integers(len(FORMS)))], TOPICS[index])
            turn = self._other(pair, with_prose and rng.random() < 0.5, rng)
            size = self._frame + self._measure.count(turn.request) + self._piece_tokens(turn)
            if size > room:
                break
            room -= size
            turns.append(turn)
        prose = [place for place, turn in enumerate(turns) if turn.is_prose]
        if prose:
            for sentence in self._measure.fill(room, rng):
                place = prose[int(rng.integers(len(prose)))]
                turns[place] = replace(turns[place], piece=f"{turns[place].piece} {sentence}")
        return turns

    def _other(self, pair: tuple[str, str], is_prose: bool, rng: np.random.Generator) -> _Turn:
        if not is_prose:
            return _Turn(_request(*pair), _piece(pair[1], self._words, rng))
        sentence, _ = self._measure.prose[int(rng.integers(len(self._measure.prose)))]
        return _Turn(_request(*pair), f"{pair[1]} {sentence}", is_prose=True)

    def _piece_tokens(self, turn: _Turn) -> int:
        if turn.is_prose:
            return self._measure.count(turn.piece)
        return self._measure.words(turn.piece)


def _draw(config: LookalikesConfig, rng: np.random.Generator) -> _Story:
    pair = FORMS[int(rng.integers(len(FORMS)))], TOPICS[int(rng.integers(len(TOPICS)))]
    pieces: list[str] = []
    while len(pieces) < config.needles:
        piece = _piece(pair[1], config.words, rng)
        if piece not in pieces:
            pieces.append(piece)
    prefix = PREFIXES[int(rng.integers(len(PREFIXES)))]
    asked = config.asked or range(1, config.needles + 1)
    return _Story(pair, tuple(pieces), asked[int(rng.integers(len(asked)))] - 1, prefix)


def _piece(title: str, words: int, rng: np.random.Generator) -> str:
    drawn = rng.permutation(len(WRITING))[:words].tolist()
    return " ".join([title, *(WRITING[i] for i in drawn)])


def _request(form: str, topic: str) -> str:
    return f"Write a {form} about {topic}."


def _prompt(turns: Sequence[_Turn], question: str) -> tuple[Message, ...]:
    messages = [message for turn in turns for message in turn.messages]
    return (*messages, {"role": "user", "content": question})


def _example(length: int, index: int, story: _Story, turns: Sequence[_Turn]) -> Example:
    return Example(
        id=f"{length}-{index:05d}-{story.id[:8]}",
        prompt=_prompt(turns, story.question),
        completion=story.completion,
        target=story.completion,
        task="lookalikes",
        bin=length,
        source=story.id,
        question=story.question,
        info={
            "prefix": story.prefix,
            "needles": len(story.pieces),
            "asked": story.asked + 1,
            "turns": len(turns),
            "length": length,
        },
    )
