"""LongBench v2 (Bai et al. 2024): questions on documents, split by length as in the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field, PositiveInt, field_validator

from ryarn.chat import render_prompt
from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.records import Completion, Example, Score
from ryarn.tasks.longbench_v2_data import DIGEST, HUB, REVISION, Row, load
from ryarn.tasks.longbench_v2_prompt import answer_sentence, cut_middle, longbench_v2_prompt
from ryarn.tasks.longbench_v2_score import longbench_v2_score
from ryarn.tasks.longbench_v2_split import (
    EDGES,
    MIN_TRAINING_ROWS,
    Split,
    counts_text,
    paper_counts,
    split_rows,
)
from ryarn.tasks.splits import SPLITS, content_hash, split_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HEAD = 8
"""Characters a token that are looked at before a row is called longer than the last edge."""
_SLACK = 1024
"""Tokens that cutting a text at the head's end may change at most."""


class LongBenchV2Config(Config):
    """Which edition of the data, and how it is shared out."""

    task: Literal["longbench-v2"] = "longbench-v2"
    source: str = HUB[0]
    """The hub's name, or a local copy: a folder, or a `.json`, `.jsonl` or `.parquet` file."""
    revision: str | None = None
    """Hub commit, tag or branch; null is the pinned commit."""
    edges: list[PositiveInt] = Field(list(EDGES), min_length=2)
    """Upper ends in tokens of the chat prompt: the first of training rows, the others of the
    evaluation bins. The default is the paper's."""
    min_training_rows: int = Field(MIN_TRAINING_ROWS, ge=0)
    """Training rows that a sub-domain needs to be evaluated. The default is the paper's."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Share of the training rows' documents that training leaves out; the paper trains on all."""
    truncate: PositiveInt | None = None
    """Cut the middle out of prompts above this many tokens, as the official script does (at
    120,000 for open models); null cuts nothing, as the paper."""
    seed: int = Field(0, ge=0)
    """Which documents are held out."""

    @field_validator("edges")
    @classmethod
    def _ascending(cls, edges: list[int]) -> list[int]:
        if any(low >= high for low, high in pairwise(edges)):
            raise ValueError("must ascend")
        return edges

    def check_shares_rows_like(self, other: LongBenchV2Config) -> None:
        """See that no row can train under one config and evaluate under the other.

        Raises:
            ValueError: They share rows out differently.
        """
        for key in ("edges", "min_training_rows", "held_out", "seed"):
            mine, theirs = getattr(self, key), getattr(other, key)
            if mine != theirs:
                raise ValueError(
                    f"train.data and evaluate.data share LongBench v2 out differently ({key}: "
                    f"{mine} and {theirs}), so rows trained on could be evaluated on: give both "
                    f"the same {key}"
                )


@dataclass(frozen=True, slots=True)
class _Read:
    """All rows, measured with one tokenizer and shared out."""

    tokenizer: PreTrainedTokenizerBase
    revision: str
    rows: tuple[Row | None, ...]  # None: longer than the last edge
    lengths: tuple[int, ...]  # of a row beyond the last edge at least this
    frames: tuple[int, ...]  # tokens of the prompt without its document
    groups: tuple[tuple[str, str], ...]  # domain and sub-domain
    split: Split

    @property
    def training_documents(self) -> set[str]:
        bins = zip(self.rows, self.split.bins, strict=True)
        return {row.document for row, bin_ in bins if row and bin_ == self.split.edges[0]}


class LongBenchV2:
    """The LongBench v2 task: the official prompt, answered directly, in the paper's split.

    A row's length is that of its prompt after the chat template, in the model's own tokens, so
    the split differs from model to model. It is the length before `truncate` cuts anything.
    """

    def __init__(self, config: LongBenchV2Config) -> None:
        self.config = config
        self.notes: list[str] = []
        """What the last call of `examples` found in its data, a sentence each."""
        self._last: _Read | None = None

    def examples(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Iterator[Example]:
        """Yield the rows in published order; see `ryarn.tasks.Task`."""
        if split not in SPLITS:
            raise UserError(f"split = {split!r}: must be one of {', '.join(SPLITS)}")
        if split == "held-out" and not self.config.held_out:
            raise UserError("held_out = 0.0: no row is held out; give a share, e.g. held_out=0.1")
        read = self._read(tokenizer)
        self.notes = list(self._notes(read))
        found = [
            number
            for number, row in enumerate(read.rows)
            if row is not None and self._part(row, read.split.bins[number]) == split
        ]
        if not found:
            raise UserError(
                f"edges = {self.config.edges}: none of {len(read.rows)} rows falls into the "
                f"{split} split ({self._shares(read)}); change edges, held_out or "
                "min_training_rows"
            )
        trained_on = read.training_documents if split == "test" else set()
        for number in found:
            yield self._example(read, number, trained_on)

    def score(self, example: Example, completion: Completion) -> Score:
        """The official rule `longbench-v2` first; see `ryarn.tasks.longbench_v2_score`."""
        return longbench_v2_score(example, completion)

    def _notes(self, read: _Read) -> Iterator[str]:
        yield f"{len(read.rows)} rows of {self.config.source}{_edition(read.revision)}"
        yield self._shares(read)
        trained_on = read.training_documents
        shared = [
            row.id
            for row, bin_ in zip(read.rows, read.split.bins, strict=True)
            if row and bin_ in read.split.edges[1:] and row.document in trained_on
        ]
        if shared:
            yield f"overlap: training rows have the documents of test rows {', '.join(shared)}"
        yield from self._paper(read)

    def _read(self, tokenizer: PreTrainedTokenizerBase) -> _Read:
        if self._last is not None and self._last.tokenizer is tokenizer:
            return self._last
        longest = self.config.edges[-1]
        published = load(self.config.source, self.config.revision)
        rows: list[Row | None] = []
        lengths: list[int] = []
        frames: list[int] = []
        groups: list[tuple[str, str]] = []
        for row in published.rows:
            lengths.append(_length(tokenizer, _prompt(row), longest))
            frames.append(_length(tokenizer, _prompt(row, ""), longest))
            groups.append((row.domain, row.sub_domain))
            rows.append(row if lengths[-1] <= longest else None)
        sub_domains = [sub_domain for _, sub_domain in groups]
        split = split_rows(lengths, sub_domains, self.config.edges, self.config.min_training_rows)
        self._last = _Read(
            tokenizer,
            published.revision,
            tuple(rows),
            tuple(lengths),
            tuple(frames),
            tuple(groups),
            split,
        )
        return self._last

    def _part(self, row: Row, bin_: int) -> str | None:
        """The split of a row; None for a row that is left out."""
        if bin_ != self.config.edges[0]:
            return "test" if bin_ else None
        draw = content_hash((str(self.config.seed), row.document))
        return split_of(draw, self.config.held_out, 0.0)

    def _example(self, read: _Read, number: int, trained_on: set[str]) -> Example:
        row = read.rows[number]
        assert row is not None
        full = text = _prompt(row)
        if self.config.truncate is not None:
            text = cut_middle(full, self.config.truncate, read.tokenizer)
        return Example(
            id=row.id,
            prompt=({"role": "user", "content": text},),
            completion=answer_sentence(row.answer),
            target=row.answer,
            task="longbench-v2",
            bin=read.split.bins[number],
            source=row.document,
            question=row.question,
            info={
                "domain": row.domain,
                "sub_domain": row.sub_domain,
                "difficulty": row.difficulty,
                "length": row.length,
                "prompt_tokens": read.lengths[number],
                "truncated": text != full,
                "document_trained_on": row.document in trained_on,
                "revision": read.revision,
            },
        )

    def _shares(self, read: _Read) -> str:
        split = read.split
        edges = ", ".join(f"{edge:,}" for edge in split.edges)
        rare = ", ".join(f"{name} {count}" for name, count in split.rare.items())
        return (
            f"train / test: {counts_text(split.counts)} rows of at most {edges} tokens; left out: "
            f"{split.longer} longer, {split.dropped} of sub-domains with fewer than "
            f"{self.config.min_training_rows} training rows" + (f" ({rare})" if rare else "")
        )

    def _paper(self, read: _Read) -> Iterator[str]:
        """The paper's counts, where it has any for this model and split."""
        known = paper_counts(str(read.tokenizer.name_or_path))
        ours = (tuple(self.config.edges), self.config.min_training_rows)
        if known is None or ours != (EDGES, MIN_TRAINING_ROWS):
            return
        model, counts = known
        if read.split.counts == counts:
            yield f"the paper has {counts_text(counts)} for {model}: the same"
            return
        yield (
            f"the paper has {counts_text(counts)} for {model}: NOT the same; see that source is "
            f"the pinned revision {REVISION}"
        )
        sub_domains = [sub_domain for _, sub_domain in read.groups]
        documents = [a - b for a, b in zip(read.lengths, read.frames, strict=True)]
        readings = {
            "with the document's tokens alone": split_rows(documents, sub_domains),
            "with 1K as 1,000 tokens": split_rows(
                read.lengths, sub_domains, [edge // 1024 * 1000 for edge in EDGES]
            ),
            "with sub-domains told apart by domain": split_rows(
                read.lengths, [" / ".join(group) for group in read.groups]
            ),
        }
        for reading, split in readings.items():
            yield f"{reading} it would be {counts_text(split.counts)}"


def _edition(revision: str) -> str:
    """What the notes say of it, behind the source."""
    if revision == REVISION:
        return f", the pinned revision {REVISION}"
    if revision.startswith(DIGEST):
        digest = revision.removeprefix(DIGEST)[:12]
        return f" (SHA-256 {digest}), not the data.json of the pinned revision {REVISION}"
    return f" at {revision}, not the pinned revision {REVISION}"


def _prompt(row: Row, context: str | None = None) -> str:
    document = row.context if context is None else context
    return longbench_v2_prompt(document, row.question, row.choices)


def _length(tokenizer: PreTrainedTokenizerBase, text: str, longest: int) -> int:
    """Tokens of a prompt after the chat template; of a far longer one only that it is longer."""

    def count(rendered: str) -> int:
        return len(tokenizer(rendered, add_special_tokens=False, verbose=False)["input_ids"])

    rendered = render_prompt(tokenizer, ({"role": "user", "content": text},))
    head = rendered[: _HEAD * longest]
    if len(head) < len(rendered):
        # Books of millions of words needn't be tokenized to the end.
        tokens = count(head)
        if tokens > longest + _SLACK:
            return tokens
    return count(rendered)
