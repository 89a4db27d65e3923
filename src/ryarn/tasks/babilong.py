"""BABILong (Kuratov et al. 2024): bAbI facts hidden in prose, made here or read as published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt, ValidationInfo, field_validator

from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.records import Completion, Example, Score
from ryarn.tasks import babi
from ryarn.tasks.babi import QUESTION_TYPES, QuestionType, Story
from ryarn.tasks.babilong_context import Ruler, make_rulers, nominal
from ryarn.tasks.babilong_prompt import answer_sentence, babilong_prompt
from ryarn.tasks.babilong_score import babilong_score
from ryarn.tasks.splits import SPLITS, content_hash, split_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HELD_OUT, TEST = 0.1, 0.1
"""Shares of all stories that can serve in these splits."""
SIMULATOR = "simulator"

_MAX_TRIES = 10_000


class BabilongConfig(Config):
    """Which questions, how long, how many, and from where."""

    task: Literal["babilong"] = "babilong"
    questions: list[QuestionType] = Field(min_length=1)
    lengths: list[int | str] = Field(min_length=1)
    """A number is tokens of a whole row (chat prompt, completion, end token) in the model's own
    tokenizer; no row exceeds it. `0k`, `1k`, ..., `128k`, `1M` are the official lengths: tokens of
    the context alone, thousands minus 300; `0k` is the facts alone."""
    rows: PositiveInt
    """Rows of each question type and length; official data may have fewer."""
    background: str = "packaged"
    """`packaged` prose, a `.txt` file, a folder of them, or a hub dataset such as `pg19`."""
    multi_entry: bool = False
    """Keep only qa3 questions whose object came to the asked place at least twice."""
    source: str = SIMULATOR
    """`simulator`, or published rows: a hub dataset such as `RMT-team/babilong-1k-samples`, or a
    local copy."""
    serves: Literal["test", "train", "all"] = "test"
    """What published rows may serve as. `test`: all of them are the test split, and training on
    them is refused. `train`: train and held-out, shared out by content. `all`: all three splits."""
    revision: str | None = None
    """Commit, tag or branch of a hub `source`."""
    count_with: str | None = None
    """Tokenizer (hub id or folder) that counts official lengths: `gpt2` is the official one; null
    is the model's own."""
    seed: int = Field(0, ge=0)
    max_facts: PositiveInt | None = None
    """Longest story; null derives it from the shortest of `lengths`, so that all share stories."""

    @field_validator("questions", "lengths")
    @classmethod
    def _distinct(cls, values: list[Any]) -> list[Any]:
        if len(set(values)) < len(values):
            raise ValueError("name each only once")
        return values

    @field_validator("lengths")
    @classmethod
    def _known_lengths(cls, lengths: list[int | str]) -> list[int | str]:
        for length in lengths:
            nominal(length)
            if isinstance(length, int) and length < 1:
                raise ValueError(f"{length} is not a positive number of tokens")
        return lengths

    @field_validator("multi_entry")
    @classmethod
    def _only_qa3(cls, multi_entry: bool, info: ValidationInfo) -> bool:
        if multi_entry and info.data.get("questions", ["qa3"]) != ["qa3"]:
            raise ValueError("only qa3 has such questions: set questions: [qa3]")
        return multi_entry

    @field_validator("source")
    @classmethod
    def _published_lengths(cls, source: str, info: ValidationInfo) -> str:
        numbers = [n for n in info.data.get("lengths", []) if isinstance(n, int)]
        if source != SIMULATOR and numbers:
            raise ValueError(f"published rows have lengths like 4k, not {numbers[0]}")
        return source


class Babilong:
    """The BABILong task: rows made by the simulator or read from published data.

    Assembly follows the official generator: background sentences in order from a random start,
    the last one cut to the length; each fact at a gap between sentences drawn uniformly with
    replacement, facts in order, before the sentence of the same number. Unlike it, sentences are
    joined by single spaces (it joins the tokens of sentences cut apart, with nothing between them)
    and the last is cut at a word, not inside one.

    A story is the same at every length, the background is drawn anew. Stories are shared out
    over the splits by a hash of their content (80% train, 10% held-out, 10% test), so no story is
    in two of them whatever the seeds. Every story and row has a generator of its own: changing
    `rows`, or adding a length or question type, leaves other rows as they were (a length shorter
    than all others may bring shorter stories: fix `max_facts` to keep them).
    """

    def __init__(self, config: BabilongConfig) -> None:
        self.config = config

    def examples(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Iterator[Example]:
        """Yield the rows, by question type, then length; see `ryarn.tasks.Task`."""
        if split not in SPLITS:
            raise UserError(f"split = {split!r}: must be one of {', '.join(SPLITS)}")
        if self.config.source != SIMULATOR:
            for kind in self.config.questions:
                for length in self.config.lengths:
                    yield from self._published(kind, str(length), split)
            return
        rulers = make_rulers(
            self.config.lengths, tokenizer, self.config.count_with, self.config.background
        )
        # All stories first: whatever can't be made is said before the long work of filling.
        stories = {k: list(self._stories(k, split, rulers)) for k in self.config.questions}
        for kind in self.config.questions:
            for ruler in rulers:
                for index, story in enumerate(stories[kind]):
                    rng = self._generator(split, kind, index, 1 + nominal(ruler.name))
                    context = ruler.fill(kind, story, rng)
                    yield _example(kind, ruler.name, index, context, story)

    def score(self, example: Example, completion: Completion) -> Score:
        """The official label-set rule `babilong`, and the older `babilong-substring`."""
        return babilong_score(example, completion)

    def _generator(
        self, split: str, kind: QuestionType, index: int, use: int
    ) -> np.random.Generator:
        address = (self.config.seed, SPLITS.index(split), QUESTION_TYPES.index(kind), index, use)
        return np.random.default_rng(np.random.SeedSequence(address))

    def _stories(self, kind: QuestionType, split: str, rulers: Sequence[Ruler]) -> Iterator[Story]:
        bounds = [ruler.max_facts(kind) for ruler in rulers] + [self.config.max_facts]
        bound = min((b for b in bounds if b is not None), default=None)
        seen: set[str] = set()
        for index in range(self.config.rows):
            rng = self._generator(split, kind, index, 0)
            for _ in range(_MAX_TRIES):
                try:
                    story = babi.simulate(kind, rng, bound)
                except ValueError as error:
                    raise UserError(f"max_facts = {bound}: too few for {kind} stories") from error
                story_id = _story_id(story.facts, story.question)
                if (
                    story_id not in seen
                    and split_of(story_id, HELD_OUT, TEST) == split
                    and (story.multi_entry or not self.config.multi_entry)
                    and all(ruler.fits(kind, story) for ruler in rulers)
                ):
                    break
            else:
                raise UserError(
                    f"rows = {self.config.rows}: only {index} different {kind} stories found for "
                    f"the {split} split with at most {bound} facts; ask for fewer rows or raise "
                    "lengths or max_facts"
                )
            seen.add(story_id)
            yield story

    def _published(self, kind: QuestionType, length: str, split: str) -> Iterator[Example]:
        serves = self.config.serves
        if serves != "all" and (split == "test") != (serves == "test"):
            raise UserError(
                f"source = {self.config.source!r} serves {serves}, but {split} rows are asked for; "
                "set serves, or use another source (source: simulator makes rows for any split)"
            )
        index = 0
        for row in _load(self.config.source, length, kind, self.config.revision):
            question = row["question"].strip()
            facts = babi.find_facts(row["input"])
            multi_entry = babi.is_multi_entry(facts, question)
            test_share = {"test": 1.0, "train": 0.0, "all": TEST}[serves]
            if split_of(_story_id(facts, question), HELD_OUT, test_share) != split:
                continue
            if self.config.multi_entry and not multi_entry:
                continue
            story = Story(facts, question, row["target"].strip(), (), multi_entry)
            yield _example(kind, length, index, row["input"], story)
            index += 1
            if index == self.config.rows:
                return


def _story_id(facts: Sequence[str], question: str) -> str:
    return content_hash((*facts, question))[:16]


def _example(
    kind: QuestionType, length: int | str, index: int, context: str, story: Story
) -> Example:
    story_id = _story_id(story.facts, story.question)
    return Example(
        id=f"{kind}-{length}-{index:05d}-{story_id[:8]}",
        prompt=babilong_prompt(kind, context, story.question),
        completion=answer_sentence(kind, story.question, story.answer),
        target=story.answer,
        task="babilong",
        bin=nominal(length),
        source=story_id,
        question=story.question,
        info={
            "kind": kind,
            "length": length,
            "facts": len(story.facts),
            "multi_entry": story.multi_entry,
        },
    )


def _load(source: str, length: str, kind: str, revision: str | None) -> Iterator[dict[str, Any]]:
    from datasets import load_dataset

    try:
        rows = load_dataset(source, length, split=kind, revision=revision)
    except Exception as error:
        raise UserError(
            f"source = {source!r}: no {kind} rows of length {length} load from there "
            f"({' '.join(str(error).split())[:200]})"
        ) from error
    missing = {"input", "question", "target"} - set(rows.column_names)
    if missing:
        raise UserError(
            f"source = {source!r}: no column {', '.join(sorted(missing))} among "
            f"{', '.join(rows.column_names)}"
        )
    yield from rows
