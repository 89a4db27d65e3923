"""The user's own rows: a file or hub dataset in TRL's prompt-completion or messages format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveInt, ValidationInfo, field_validator

from ryarn.chat import completion_ids, prompt_ids
from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.records import Completion, Example, Score
from ryarn.tasks.babilong_score import babilong_score
from ryarn.tasks.conflicts import conflicts_score
from ryarn.tasks.longbench_v2_score import longbench_v2_score
from ryarn.tasks.lookalikes import lookalikes_score
from ryarn.tasks.mrcr_score import mrcr_score
from ryarn.tasks.row_files import place, read_rows
from ryarn.tasks.row_format import conversation, is_json, plain_example
from ryarn.tasks.scores import Scorer, check_name, targets_of
from ryarn.tasks.splits import SPLITS, content_hash, split_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OURS = {field.name for field in fields(Example)}


class JsonlConfig(Config):
    """Where the rows are, how they are shared out over the splits, and how they are scored."""

    task: Literal["jsonl"] = "jsonl"
    path: str
    """A `.jsonl` or `.parquet` file, or a hub dataset."""
    split: str | None = None
    """Split of a hub dataset; null means train."""
    revision: str | None = None
    """Commit, tag or branch of a hub dataset."""
    held_out: float = Field(0.05, ge=0, le=1)
    """Share of the rows, chosen by content, that training leaves out."""
    test: float = Field(0.0, ge=0, le=1)
    """Share of the rows kept for evaluation; 1 makes the whole file a test set."""
    score: str | None = None
    """A key of `ryarn.tasks.scores.RULES`, or `module:function`. Null is `exact`, and for rows that
    `ryarn data` made the rule of their own task."""
    bins: list[PositiveInt] | None = Field(None, min_length=1)
    """Lengths in tokens, ascending; a row is in the smallest that holds it. Null: powers of two."""

    @field_validator("test")
    @classmethod
    def _shares(cls, test: float, info: ValidationInfo) -> float:
        # A whole file as test set shouldn't need held_out: 0 beside it.
        if test < 1 and test + info.data.get("held_out", 0.0) > 1:
            raise ValueError("held_out and test together are more than all rows")
        return test

    @field_validator("score")
    @classmethod
    def _score(cls, score: str | None) -> str | None:
        if score is not None:
            check_name(score)
        return score

    @field_validator("bins")
    @classmethod
    def _ascending(cls, bins: list[int] | None) -> list[int] | None:
        if bins and any(one >= two for one, two in pairwise(bins)):
            raise ValueError("must ascend, each length once")
        return bins


class Jsonl:
    """Rows of a file, scored by the rule that the config names.

    A row is put into a split by its prompt, or by the `source` that it names, so what belongs
    together stays together. Rows that `ryarn data` wrote keep the split, bin, source and score of
    the task that made them.

    Raises:
        UserError: The config names a function as score that can't be imported.
    """

    def __init__(self, config: JsonlConfig) -> None:
        self.config = config
        self._scorer = Scorer.of(config.score or "exact")

    def examples(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Iterator[Example]:
        """Yield the rows of a split in file order; see `ryarn.tasks.Task`."""
        if split not in SPLITS:
            raise UserError(f"split = {split!r}: must be one of {', '.join(SPLITS)}")
        count = 0
        for number, part, example in self.rows():
            if part == split:
                count += 1
                yield self._with_bin(example, number, tokenizer)
        if not count:
            raise UserError(
                f"{self.config.path}: no row falls into the {split} split with held_out = "
                f"{self.config.held_out} and test = {self.config.test}"
                + ("; set test: 1 to evaluate on the whole file" if split == "test" else "")
            )

    def rows(self) -> Iterator[tuple[int, str, Example]]:
        """Yield every row's number in the file (from 0), its split, and the row without a bin.

        Raises:
            UserError: The file or a row is not usable, or a row is there twice.
        """
        config = self.config
        first: dict[str, int] = {}
        for number, row in enumerate(read_rows(config.path, config.split, config.revision)):
            try:
                example = self._example(row, number)
                self._check_new(example, number, first)
            except UserError as error:
                raise UserError(f"{place(config.path, number)}: {error}") from error
            own = example.info.get("split") if set(row) >= _OURS else None
            yield number, own or split_of(example.source, config.held_out, config.test), example

    def score(self, example: Example, completion: Completion) -> Score:
        """By the config's rule, first of `Score.scores`; a made row by its own task's."""
        if example.task != "jsonl":
            return SCORES[example.task](example, completion)
        return self._scorer.score(example, completion)

    def _example(self, row: Mapping[str, Any], number: int) -> Example:
        example = _made(row) if set(row) >= _OURS else plain_example(row, number)
        if example.task != "jsonl":
            if self.config.score is not None:
                raise UserError(
                    f"score = {self.config.score!r}: the row was made by the task "
                    f"{example.task!r}, which has its own score: leave score out"
                )
            return example
        reason = self._scorer.why_not(targets_of(example))
        if reason is not None:
            raise UserError(reason)
        return example

    def _check_new(self, example: Example, number: int, first: dict[str, int]) -> None:
        """See that neither the id nor, in a row of the user's own, the content was there before."""
        ids = content_hash(("id", example.id))
        if ids in first:
            raise UserError(
                f"id {example.id[:80]!r} is that of {place(self.config.path, first[ids])}, too: "
                "make every id unique"
            )
        first[ids] = number
        if example.task != "jsonl":
            return
        parts = [part for turn in example.prompt for part in (turn["role"], turn["content"])]
        content = content_hash((*parts, example.completion))
        if content in first:
            raise UserError(
                "the same prompt and completion as "
                f"{place(self.config.path, first[content])}: take one of them out"
            )
        first[content] = number

    def _with_bin(
        self, example: Example, number: int, tokenizer: PreTrainedTokenizerBase
    ) -> Example:
        """The row with its bin; a made one keeps its own, which may be 0 (BABILong's facts)."""
        bins = self.config.bins
        if example.task != "jsonl" or (example.bin and not bins):
            return example
        tokens = prompt_ids(tokenizer, example.prompt)
        length = len(tokens) + len(completion_ids(tokenizer, example.completion))
        if not bins:
            return replace(example, bin=1 << (length - 1).bit_length())
        holding = [edge for edge in bins if length <= edge]
        if not holding:
            raise UserError(
                f"{place(self.config.path, number)}: its {length} tokens are more than the largest "
                f"of bins = {bins}: add a larger one"
            )
        return replace(example, bin=holding[0])


def plain_score(example: Example, completion: Completion) -> Score:
    """`exact` and `contains`, what rows of the user's own have where no score is named."""
    return Scorer("exact").score(example, completion)


SCORES: dict[str, Callable[[Example, Completion], Score]] = {
    "jsonl": plain_score,
    "babilong": babilong_score,
    "conflicts": conflicts_score,
    "lookalikes": lookalikes_score,
    "longbench-v2": longbench_v2_score,
    "mrcr": mrcr_score,
}
"""A row's `task` to its score."""


def _made(row: Mapping[str, Any]) -> Example:
    """A row that `ryarn data` wrote.

    Raises:
        UserError: Somebody changed it so that its task's score can't be given.
    """
    if row["task"] not in list(SCORES):
        raise UserError(f"task = {row['task']!r}: known tasks are {', '.join(SCORES)}")
    prompt, completion = conversation(row)
    kinds = dict.fromkeys(("id", "target", "source", "question"), str) | {"bin": int, "info": dict}
    for column, kind in kinds.items():
        if not isinstance(row[column], kind) or (column == "bin" and row[column] < 0):
            raise UserError(f"column {column} = {str(row[column])[:80]!r} is not what was written")
    rest = {column: row[column] for column in ("task", *kinds)}
    if not is_json(rest):
        raise UserError("a column holds what JSON in UTF-8 can't: restore the row")
    example = Example(prompt=prompt, completion=completion, **rest)
    try:
        SCORES[example.task](example, Completion(example.id, "", 0, "stop"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"the row lacks what the score of task {example.task!r} needs in info: {error!r}"
        ) from error
    return example
