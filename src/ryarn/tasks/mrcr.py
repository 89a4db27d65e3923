"""MRCR (OpenAI 2025; the idea is Vodrahalli et al. 2024): published rows, or ones made here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.records import Completion, Example, Score
from ryarn.tasks.miniature import check_split
from ryarn.tasks.mrcr_conversations import Conversations
from ryarn.tasks.mrcr_length import BINS, load_encoding
from ryarn.tasks.mrcr_published import Published, load
from ryarn.tasks.mrcr_score import mrcr_score
from ryarn.tasks.mrcr_split import TRAIN_BIN, Chosen, Splitter
from ryarn.tasks.mrcr_writing import GRAMMAR

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GENERATOR = "generator"


class MrcrConfig(Config):
    """Which look-alikes, how long, how many, and from where."""

    task: Literal["mrcr"] = "mrcr"
    lengths: list[int | str] = Field(min_length=1)
    """For the generator, tokens of a whole row (chat prompt, completion, end token) in the model's
    own tokenizer, which no row exceeds. For published rows the official bins by their upper end,
    `8k`, `16k`, ..., `512k`, `1M`: o200k_base tokens of all messages and the answer."""
    rows: PositiveInt | list[PositiveInt] | None = None
    """Rows of each length, or one number for each. Null: all that are published."""
    needles: list[Literal[2, 4, 8]] = Field([2, 4, 8], min_length=1)
    """How many look-alikes a row has; rows take turns."""
    source: str = GENERATOR
    """`generator`, or published rows: `openai/mrcr`, or a local copy of it."""
    serves: Literal["all", "test"] = "all"
    """What published rows may serve as. `all`: training (8k alone), held-out and test rows, shared
    out by content. `test`: all of them are test rows, and training on them is refused."""
    revision: str | None = None
    """Commit, tag or branch of a hub `source`; null is the pinned one, of December 2025."""
    uncorrected: bool = False
    """Take the data from before the correction of December 2025."""
    texts: str = GRAMMAR
    """What the generator's pieces are: `grammar`, or passages of a `.txt` file, a folder of them,
    `packaged` prose, or a hub dataset."""
    seed: int = Field(0, ge=0)

    @field_validator("lengths", "needles")
    @classmethod
    def _distinct(cls, values: list[Any]) -> list[Any]:
        if len(set(values)) < len(values):
            raise ValueError("name each only once")
        return values

    @model_validator(mode="after")
    def _fits_source(self) -> Self:
        if isinstance(self.rows, list) and len(self.rows) != len(self.lengths):
            raise ValueError(
                f"rows = {self.rows}: give one number, or as many as there are lengths "
                f"({len(self.lengths)})"
            )
        if self.published:
            self._check_published()
        else:
            self._check_made()
        return self

    def _check_published(self) -> None:
        for length in self.lengths:
            if length not in BINS:
                raise ValueError(
                    f"lengths = {length!r}: published rows have the lengths {', '.join(BINS)}"
                )
        if self.texts != GRAMMAR:
            raise ValueError(f"texts = {self.texts!r}: it is for source: {GENERATOR}")

    def _check_made(self) -> None:
        for length in self.lengths:
            if not isinstance(length, int) or length < 1:
                raise ValueError(
                    f"lengths = {length!r}: the generator takes numbers of tokens; for published "
                    "rows set source: openai/mrcr, or a local copy"
                )
        if self.rows is None:
            raise ValueError("rows = None: the generator must be told how many")
        for name in ("revision", "uncorrected"):
            if getattr(self, name):
                raise ValueError(f"{name} = {getattr(self, name)!r}: it is for published rows")

    @property
    def published(self) -> bool:
        """Whether rows are read, not made."""
        return self.source != GENERATOR

    @property
    def wanted(self) -> dict[int | str, int | None]:
        """Each length and how many rows; None is all there are."""
        rows = self.rows if isinstance(self.rows, list) else [self.rows] * len(self.lengths)
        return dict(zip(self.lengths, rows, strict=True))

    @property
    def asked(self) -> dict[int, int]:
        """Bin to how many rows; nothing where all there are were asked for."""
        if None in self.wanted.values():
            return {}
        return {
            length if isinstance(length, int) else BINS[length]: rows or 0
            for length, rows in self.wanted.items()
        }

    def check_apart(self, evaluation: MrcrConfig) -> None:
        """See that no row trained on here can be evaluated there.

        Args:
            evaluation: The recipe's evaluation rows; these are its training rows.

        Raises:
            ValueError: Both read published rows and share them out differently.
        """
        if not self.published or not evaluation.published:
            return
        for name in ("source", "revision", "uncorrected", "serves"):
            mine, theirs = getattr(self, name), getattr(evaluation, name)
            if mine != theirs:
                raise ValueError(
                    f"train.data and evaluate.data read published MRCR rows with {name} = {mine!r} "
                    f"and {theirs!r}, so rows trained on could be tested on: give both the same"
                )
        unseen = sorted(set(self.needles) - set(evaluation.needles))
        if unseen:
            raise ValueError(
                f"train.data.needles has {unseen}, which evaluate.data.needles lacks, so texts "
                "trained on could be asked for in tests: name them in both, or not in train.data"
            )


class Mrcr:
    """The MRCR task: give back the i-th of several pieces that were asked for in the same words.

    Published rows are sent as they are, through the model's chat template. They begin with two
    messages of the user, which some templates refuse.
    """

    def __init__(self, config: MrcrConfig) -> None:
        self.config = config
        self.notes: list[str] = []
        """What the last call of `examples` found in published data, a sentence each."""

    def examples(self, tokenizer: PreTrainedTokenizerBase, split: str) -> Iterator[Example]:
        """Yield the rows, by length; see `ryarn.tasks.Task`."""
        check_split(split)
        config = self.config
        self.notes = []
        if config.published:
            yield from self._read(split)
            return
        maker = Conversations(config.needles, config.texts, config.seed)
        wanted = [(int(length), count or 0) for length, count in config.wanted.items()]
        yield from maker.rows(tokenizer, split, wanted)

    def score(self, example: Example, completion: Completion) -> Score:
        """The official rule `mrcr`; `mrcr-lstrip`, `mrcr-after-thinking` and `exact` beside it."""
        return mrcr_score(example, completion)

    def _read(self, split: str) -> Iterator[Example]:
        config = self.config
        self._check_serves(split)
        # The tokenizer first: the data is more than a gigabyte.
        encoding = load_encoding()
        published = load(config.source, config.needles, config.revision, config.uncorrected)
        splitter = Splitter(published, encoding, config.needles, whole=config.serves == "test")
        wanted = {str(length): count for length, count in config.wanted.items()}
        names = {BINS[name]: name for name in wanted}
        found = splitter.choose(wanted, split, config.seed)
        counts = Counter(chosen.entry.needles for chosen in found)
        with_each = ", ".join(f"{counts[needles]} with {needles}" for needles in sorted(counts))
        self.notes = [f"edition: {published.revision}; needles: {with_each or 'no rows'}"]
        for chosen in found:
            yield _example(published, chosen, names[chosen.bin])

    def _check_serves(self, split: str) -> None:
        config = self.config
        if config.serves == "test" and split != "test":
            raise UserError(
                f"source = {config.source!r} serves test, but {split} rows are asked for: set "
                "serves: all, or make rows with source: generator"
            )
        longer = [length for length in config.lengths if length != TRAIN_BIN]
        if split == "train" and longer:
            raise UserError(
                f"lengths = {config.lengths}: of published rows only {TRAIN_BIN} is trained on, as "
                "longer ones are made of each other's texts; for longer training rows set source: "
                "generator"
            )


def _example(published: Published, chosen: Chosen, length: str) -> Example:
    row = published.row(chosen.entry)
    return Example(
        id=f"{length}-{row.needles}needle-{row.id[:12]}",
        prompt=row.messages,
        completion=row.answer,
        target=row.answer,
        task="mrcr",
        bin=chosen.bin,
        source=row.source[:16],
        question=row.messages[-1]["content"],
        info={
            "prefix": row.prefix,
            "needles": row.needles,
            "asked": row.asked,
            "turns": len(row.messages),
            "length": length,
            "o200k_tokens": chosen.tokens,
            "date_added": row.date_added,
            "revision": published.revision,
        },
    )
