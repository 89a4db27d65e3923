"""BABILong (Kuratov et al. 2024): bAbI facts hidden in prose, made here or read as published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt, ValidationInfo, field_validator

from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.records import Completion, Example, Score
from ryarn.tasks import babi
from ryarn.tasks.babi import QUESTION_TYPES, QuestionType, Story
from ryarn.tasks.babilong_context import Ruler, make_rulers, nominal, token_counter
from ryarn.tasks.babilong_prompt import answer_sentence, babilong_prompt
from ryarn.tasks.babilong_published import FACTS_ALONE, Place, read_published, story_id
from ryarn.tasks.babilong_score import babilong_score
from ryarn.tasks.babilong_tally import Tally
from ryarn.tasks.splits import SPLITS, split_of

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
    exclude: list[str] = Field(default_factory=list)
    """Published rows (hub ids or local copies) whose stories must not be among these: their `0k`
    rows are read, and what is there is left out here and counted."""
    count_with: str | None = None
    """Tokenizer (hub id or folder) that counts official lengths: `gpt2` is the official one; null
    is the model's own. Where it is given, each row tells its context's length in it."""
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

    @field_validator("exclude")
    @classmethod
    def _not_itself(cls, exclude: list[str], info: ValidationInfo) -> list[str]:
        if info.data.get("source") in exclude:
            raise ValueError(f"{info.data['source']!r} is the source itself: nothing would be left")
        return exclude

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
        self.notes: list[str] = []
        """What the last call of `examples` found in published data, a sentence each."""

    def examples(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Iterator[Example]:
        """Yield the rows, by question type, then length; see `ryarn.tasks.Task`."""
        if split not in SPLITS:
            raise UserError(f"split = {split!r}: must be one of {', '.join(SPLITS)}")
        if self.config.source != SIMULATOR:
            yield from self._some_published(split)
            return
        self.notes = []
        make = self._maker()
        rulers = make_rulers(
            self.config.lengths, tokenizer, self.config.count_with, self.config.background
        )
        # All stories first: whatever can't be made is said before the long work of filling.
        stories = {kind: list(self._stories(kind, split, rulers)) for kind in self.config.questions}
        for kind in self.config.questions:
            for ruler in rulers:
                for index, story in enumerate(stories[kind]):
                    rng = self._generator(split, kind, index, 1 + nominal(ruler.name))
                    context = ruler.fill(kind, story, rng)
                    yield make(kind, ruler.name, index, context, story)

    def published(self, split: str) -> Iterator[Example]:
        """Yield published rows, by question type, then length; they need no tokenizer.

        Raises:
            UserError: As for `examples`, except that there may be none.
        """
        self.notes = []
        make = self._maker()
        for kind in self.config.questions:
            excluded = self._excluded(kind)
            for length in map(str, self.config.lengths):
                place = Place(self.config.source, kind, length, self.config.revision)
                yield from self._published(place, split, excluded, make)

    def _some_published(self, split: str) -> Iterator[Example]:
        empty = True
        for example in self.published(split):
            empty = False
            yield example
        if empty:
            raise UserError(
                f"source = {self.config.source!r}: no row is left to serve as {split}: check "
                "serves, multi_entry and exclude"
            )

    def score(self, example: Example, completion: Completion) -> Score:
        """The official label-set rule `babilong` first; see `ryarn.tasks.babilong_score`."""
        return babilong_score(example, completion)

    def _generator(
        self, split: str, kind: QuestionType, index: int, use: int
    ) -> np.random.Generator:
        address = (self.config.seed, SPLITS.index(split), QUESTION_TYPES.index(kind), index, use)
        return np.random.default_rng(np.random.SeedSequence(address))

    def _maker(self) -> Callable[..., Example]:
        """`_example`, with the context's length in the tokenizer of `count_with`."""
        if self.config.count_with is None:
            return _example
        count = token_counter(self.config.count_with)

        def counted(
            kind: QuestionType, length: int | str, index: int, context: str, story: Story
        ) -> Example:
            example = _example(kind, length, index, context, story)
            example.info["context_tokens"] = count(context.strip())
            return example

        return counted

    def _excluded(self, kind: QuestionType) -> dict[str, str]:
        """Ids of stories that are not to be used, and which published rows have them."""
        return {
            story_id(row.story): source
            for source in self.config.exclude
            for row in read_published(Place(source, kind, FACTS_ALONE, key="exclude"))
        }

    def _stories(self, kind: QuestionType, split: str, rulers: Sequence[Ruler]) -> Iterator[Story]:
        excluded = self._excluded(kind)
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
                key = story_id(story)
                if (
                    key not in seen
                    and key not in excluded
                    and split_of(key, HELD_OUT, TEST) == split
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
            seen.add(key)
            yield story

    def _published(
        self, place: Place, split: str, excluded: dict[str, str], make: Callable[..., Example]
    ) -> Iterator[Example]:
        serves = self.config.serves
        if serves != "all" and (split == "test") != (serves == "test"):
            raise UserError(
                f"source = {self.config.source!r} serves {serves}, but {split} rows are asked for; "
                "set serves, or use another source (source: simulator makes rows for any split)"
            )
        test_share = {"test": 1.0, "train": 0.0, "all": TEST}[serves]
        rows = read_published(place)
        tally = Tally(place, rows.commit)
        # To the end, though `rows` may be reached: all of them are checked and counted.
        for row in rows:
            key = story_id(row.story)
            tally.add(row)
            if split_of(key, HELD_OUT, test_share) != split:
                continue
            if self.config.multi_entry and not row.story.multi_entry:
                continue
            if key in excluded:
                tally.exclude(excluded[key])
            elif tally.served < self.config.rows:
                example = make(place.kind, place.length, tally.served, row.context, row.story)
                if rows.commit:
                    example.info["revision"] = rows.commit
                yield example
                tally.served += 1
        self.notes += tally.notes(split, self.config.multi_entry, self.config.rows)


def _example(
    kind: QuestionType, length: int | str, index: int, context: str, story: Story
) -> Example:
    source = story_id(story)
    return Example(
        id=f"{kind}-{length}-{index:05d}-{source[:8]}",
        prompt=babilong_prompt(kind, context, story.question),
        completion=answer_sentence(kind, story.question, story.answer),
        target=story.answer,
        task="babilong",
        bin=nominal(length),
        source=source,
        question=story.question,
        info={
            "kind": kind,
            "length": length,
            "facts": len(story.facts),
            "multi_entry": story.multi_entry,
        },
    )
