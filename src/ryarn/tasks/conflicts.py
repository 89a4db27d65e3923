"""Conflicting facts: people who move several times; where was one first, before, and now?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, get_args

import numpy as np
from pydantic import Field, PositiveInt, field_validator, model_validator

from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.records import Completion, Example, Message, Score
from ryarn.tasks.babilong_context import weave
from ryarn.tasks.babilong_score import label_set
from ryarn.tasks.miniature import Measure, check_split, distinct, draw_stories
from ryarn.tasks.splits import SPLITS, content_hash
from ryarn.tasks.words import MOVES, NAMES, PLACES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Question = Literal["first", "previous", "latest"]
QUESTIONS: tuple[Question, ...] = get_args(Question)

_WORDING: dict[Question, str] = {
    "first": "Where was {} first?",
    "previous": "Where was {} before?",
    "latest": "Where is {} now?",
}
_VISIT: dict[Question, int] = {"first": 0, "previous": -2, "latest": -1}
"""Which of a person's visits is the answer."""


class ConflictsConfig(Config):
    """Which questions, how long, how many, and how many facts speak against each other."""

    task: Literal["conflicts"] = "conflicts"
    questions: list[Question] = Field(list(QUESTIONS), min_length=1)
    lengths: list[PositiveInt] = Field(min_length=1)
    """Tokens of a whole row (chat prompt, completion, end token); no row exceeds its own. Training
    rows take lengths of all sizes up to the largest."""
    rows: PositiveInt
    """Rows of each question and length; in training, of each question."""
    people: int = Field(2, ge=1, le=len(NAMES))
    """How many people move."""
    moves: int = Field(4, ge=2, le=len(PLACES))
    """Visits of each person, all to different places."""
    background: str | None = "packaged"
    """`packaged` prose, a `.txt` file, a folder of them, or a hub dataset; null: facts alone."""
    seed: int = Field(0, ge=0)

    _distinct = field_validator("questions", "lengths")(distinct)

    @model_validator(mode="after")
    def _something_to_fill_with(self) -> Self:
        if self.background is None and len(self.lengths) > 1:
            raise ValueError("background = None: rows are then the facts alone: give one length")
        return self


@dataclass(frozen=True)
class _Story:
    """What happened, who is asked about, and where that person was."""

    facts: tuple[str, ...]
    question: str
    answer: str

    @property
    def id(self) -> str:
        # Of the facts alone: a story with another question is no new story.
        return content_hash(self.facts)[:16]


class Conflicts:
    """The task `conflicts`: what makes multi-entry BABILong hard, in its words.

    Each of some people visits as many places, all different; the facts of all are shuffled
    together, each person's own in order. So counting words tells nothing: every visit of the
    person asked about is an answer to one of the three questions or to none, and only their order
    says which. Background sentences are drawn at random, and each fact stands at a gap between
    them drawn uniformly with replacement, as in BABILong.

    A story with its question is the same at every length, the background is drawn anew. Stories
    are shared out over the splits by a hash of their facts (80% train, 10% held-out, 10% test).
    Held-out and test rows are as long as their bin allows; the length of each training row is drawn
    uniformly from that of its facts alone to the largest of `lengths`, which is their bin. Every
    story and row has a generator of its own: changing `rows`, or adding a length or question,
    leaves other rows as they were (but for the longest of training).
    """

    def __init__(self, config: ConflictsConfig) -> None:
        self.config = config

    def examples(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Iterator[Example]:
        """Yield the rows, by question, then length; see `ryarn.tasks.Task`."""
        check_split(split)
        measure = Measure(tokenizer, self.config.background or "packaged")
        lengths = [max(self.config.lengths)] if split == "train" else self.config.lengths
        # All stories first: whatever can't be made is said before the long work of filling.
        stories = {kind: self._stories(kind, split) for kind in self.config.questions}
        sizes = {
            kind: [_size(measure, story, " ".join(story.facts)) for story in stories[kind]]
            for kind in stories
        }
        self._check_room(min(lengths), max(max(of_kind) for of_kind in sizes.values()))
        for kind in self.config.questions:
            for length in lengths:
                for index, (story, size) in enumerate(zip(stories[kind], sizes[kind], strict=True)):
                    rng = self._generator(split, kind, index, 1 if split == "train" else 1 + length)
                    limit = int(rng.integers(size, length + 1)) if split == "train" else length
                    context = self._context(measure, story, (size, limit), rng)
                    yield _example(kind, length, index, story, context)

    def score(self, example: Example, completion: Completion) -> Score:
        """BABILong's label-set rule `babilong` over this task's places, and `exact`."""
        return conflicts_score(example, completion)

    def _generator(self, split: str, kind: Question, index: int, use: int) -> np.random.Generator:
        address = (self.config.seed, SPLITS.index(split), QUESTIONS.index(kind), index, use)
        return np.random.default_rng(np.random.SeedSequence(address))

    def _stories(self, kind: Question, split: str) -> list[_Story]:
        return draw_stories(
            self.config.rows,
            split,
            lambda index: self._generator(split, kind, index, 0),
            lambda rng: _tell(kind, self.config.people, self.config.moves, rng),
            lambda story: story.id,
        )

    def _check_room(self, length: int, needed: int) -> None:
        if needed > length:
            raise UserError(
                f"lengths: {length} is too short for people = {self.config.people} with moves = "
                f"{self.config.moves}, whose facts and question take up to {needed} tokens: raise "
                "lengths, or lower people or moves"
            )

    def _context(
        self, measure: Measure, story: _Story, sizes: tuple[int, int], rng: np.random.Generator
    ) -> str:
        """The facts among as much background as there is room for between the two sizes."""
        context = " ".join(story.facts)
        if self.config.background is None:
            return context
        alone, limit = sizes
        sentences = measure.fill(limit - alone, rng)
        places = np.sort(rng.random(len(story.facts))).tolist()
        # Joined text may count more than its parts: take back what is too much and look again.
        while sentences:
            filled = weave(story.facts, sentences, places)
            if _size(measure, story, filled) <= limit:
                return filled
            sentences.pop()
        return context


def conflicts_score(example: Example, completion: Completion) -> Score:
    """The label-set rule of BABILong over all places, and equality once stripped.

    The rule is `ryarn.tasks.babilong_score.label_set`, with the places of this task as labels.
    """
    if completion.finish == "skipped":
        return Score(example.id, example.bin, example.source, {}, False, completion.finish)
    right, parsed = label_set(completion.text, example.question, example.target, PLACES)
    scores = {
        "babilong": float(right),
        "exact": float(completion.text.strip() == example.target),
    }
    return Score(example.id, example.bin, example.source, scores, parsed, completion.finish)


def _tell(kind: Question, people: int, moves: int, rng: np.random.Generator) -> _Story:
    names = [NAMES[i] for i in rng.permutation(len(NAMES))[:people].tolist()]
    visits = [[PLACES[i] for i in rng.permutation(len(PLACES))[:moves].tolist()] for _ in names]
    verbs = rng.integers(len(MOVES), size=people * moves).tolist()
    order = rng.permutation(people * moves) % people
    told = [0] * people
    facts = []
    for person, verb in zip(order.tolist(), verbs, strict=True):
        facts.append(f"{names[person]} {MOVES[verb]} the {visits[person][told[person]]}.")
        told[person] += 1
    # Names and places are in random order already: the first is as good as any.
    return _Story(tuple(facts), _WORDING[kind].format(names[0]), visits[0][_VISIT[kind]])


def _prompt(context: str, question: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": f"{context}\n{question}"},)


def _size(measure: Measure, story: _Story, context: str) -> int:
    return measure.row(_prompt(context, story.question), story.answer)


def _example(kind: Question, length: int, index: int, story: _Story, context: str) -> Example:
    return Example(
        id=f"{kind}-{length}-{index:05d}-{story.id[:8]}",
        prompt=_prompt(context, story.question),
        completion=story.answer,
        target=story.answer,
        task="conflicts",
        bin=length,
        source=story.id,
        question=story.question,
        info={"kind": kind, "length": length, "facts": len(story.facts)},
    )
