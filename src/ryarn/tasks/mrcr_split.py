"""The paper's split of published MRCR rows (appendix A.1): who trains, who is held out, who tests.

The paper trains on 60 rows of 4-8K and evaluates on 147 others in five bins; it does not say which
rows, nor how many have 2, 4 and 8 needles. Here a conversation's own content decides what it may
serve as, so no seed and no number of rows can put it in two splits; a seed decides which of them
are taken, and needle counts take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ryarn.errors import UserError
from ryarn.tasks.mrcr_length import BINS, MOST_CHARACTERS, bin_of, count_tokens
from ryarn.tasks.mrcr_published import Entry, Published
from ryarn.tasks.splits import content_hash, split_of

if TYPE_CHECKING:
    from tiktoken import Encoding

TRAIN_BIN = "8k"
"""The only bin that is trained on. Longer conversations are made of the same pieces: every text
that is asked for stands in some other row, too, so only short rows can be kept apart."""
PAPER_TRAIN = {TRAIN_BIN: 60}
PAPER_TEST = {"8k": 26, "16k": 30, "32k": 30, "64k": 30, "128k": 31}
"""Rows of each bin in the paper's appendix A.1."""
HELD_OUT, TEST = 0.15, 0.3
"""Shares of the conversations that can serve in these splits."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A row of a split, its bin and its length in o200k_base tokens."""

    entry: Entry
    bin: int
    tokens: int


class Splitter:
    """Chooses rows of published data.

    Args:
        published: The data.
        encoding: Counts lengths, see `ryarn.tasks.mrcr_length`.
        needles: Needle counts, which take turns.
        whole: Every row is a test row; nothing is trained on.
    """

    def __init__(
        self, published: Published, encoding: Encoding, needles: Sequence[int], *, whole: bool
    ) -> None:
        self._published = published
        self._encoding = encoding
        self._needles = sorted(needles)
        self._whole = whole
        self._measured: dict[tuple[str, int], Chosen | None] = {}

    def choose(self, wanted: Mapping[str, int | None], split: str, seed: int) -> list[Chosen]:
        """Rows of a split, by bin, each bin's in an order of the seed's own.

        A row that asks for a text which stands in a row that may be trained on serves nowhere else.

        Args:
            wanted: Name of each bin to how many rows; None is all there are.
            split: "train", "held-out" or "test".
            seed: Decides which rows are taken.

        Raises:
            UserError: Training or test rows are fewer than wanted, or a row is not whole. Held-out
                rows may be fewer.
        """
        longest = max(BINS[name] for name in wanted)
        entries = self._published.entries(MOST_CHARACTERS * longest, self._needles)
        if not self._whole:
            # Of all rows that may be trained on: these, too, are no test rows by that.
            known = set() if split == "train" else self._training_texts(entries)
            entries = [e for e in entries if _may_serve(e, split) and e.text not in known]
        entries.sort(key=lambda entry: content_hash((str(seed), entry.id)))
        taken: dict[str, list[Chosen]] = {}
        for name, count in wanted.items():
            taken[name] = list(self._take(entries, BINS[name], count, longest))
            if count is not None and len(taken[name]) < count and split != "held-out":
                raise UserError(
                    f"rows: {count} of {name} are asked for, but {self._published.name!r} has only "
                    f"{len(taken[name])} for the {split} split with needles {self._needles}: ask "
                    "for fewer, or for null (all there are)"
                )
        return [chosen for name in wanted for chosen in taken[name]]

    def _take(
        self, entries: Sequence[Entry], bin_: int, count: int | None, longest: int
    ) -> Iterator[Chosen]:
        """The first rows of a bin, as many with each needle count as can be."""
        rows = {
            needles: self._in_bin([e for e in entries if e.needles == needles], bin_, longest)
            for needles in self._needles
        }
        left = count
        while rows:
            for needles in list(rows):
                if left == 0:
                    return
                chosen = next(rows[needles], None)
                if chosen is None:
                    del rows[needles]
                else:
                    left = None if left is None else left - 1
                    yield chosen

    def _in_bin(self, entries: Sequence[Entry], bin_: int, longest: int) -> Iterator[Chosen]:
        for entry in entries:
            chosen = self._measure(entry, longest)
            if chosen is not None and chosen.bin == bin_:
                yield chosen

    def _training_texts(self, entries: Sequence[Entry]) -> set[str]:
        """Hashes of all pieces in the rows that may be trained on."""
        longest = BINS[TRAIN_BIN]
        found: set[str] = set()
        for entry in entries:
            short = entry.characters <= MOST_CHARACTERS * longest
            if short and _share(entry) == "train":
                chosen = self._measure(entry, longest)
                if chosen is not None and chosen.bin == longest:
                    messages = self._published.row(entry).messages
                    found |= {
                        content_hash((message["content"],))
                        for message in messages
                        if message["role"] == "assistant"
                    }
        return found

    def _measure(self, entry: Entry, longest: int) -> Chosen | None:
        """The row with its bin, counted once; None where it is longer or in no bin."""
        key = (entry.id, longest)
        if key not in self._measured:
            row = self._published.row(entry)
            texts = (*(message["content"] for message in row.messages), row.answer)
            tokens = count_tokens(self._encoding, texts, longest)
            found = bin_of(tokens) if tokens <= longest else None
            self._measured[key] = None if found is None else Chosen(entry, found, tokens)
        return self._measured[key]


def _share(entry: Entry) -> str:
    return split_of(entry.source, HELD_OUT, TEST)


def _may_serve(entry: Entry, split: str) -> bool:
    """Whether a row may be in a split; beyond the bin of training, the training share tests."""
    return _share(entry) in (("test", "train") if split == "test" else (split,))
