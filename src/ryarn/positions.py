"""Samplers of training positions: where in 0..span-1 a row's tokens stand (paper, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ryarn.errors import UserError

Borders = NDArray[np.int64] | None


class Sampler(Protocol):
    """Gives each token of a row its position; token order is kept."""

    def __call__(
        self, length: int, span: int, rng: np.random.Generator, borders: Borders = None
    ) -> NDArray[np.int64]:
        """Draw positions.

        Args:
            length: Tokens in the row, at least 1.
            span: Positions are taken from 0..span-1; at least `length`, up to 2**31.
            rng: Where the randomness comes from; see `ryarn.draws.generator`.
            borders: Where the row's sentences begin, but for the first: increasing int64 indices
                from 1 to length - 1; None where nobody knows. Most samplers don't ask.

        Returns:
            Strictly increasing int64 positions, shape [length].

        Raises:
            UserError: `length` is below 1 or above `span`.
        """
        ...


@dataclass(frozen=True)
class Contiguous:
    """Ordinary positions 0..length-1, whatever the span; draws nothing."""

    def __call__(
        self, length: int, span: int, rng: np.random.Generator, borders: Borders = None
    ) -> NDArray[np.int64]:
        """See `Sampler`."""
        _check(length, span)
        return np.arange(length, dtype=np.int64)


@dataclass(frozen=True)
class UniformSubset:
    """Randomized positional encoding: every `length`-subset of 0..span-1 is equally likely, sorted.

    Source: Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of
    Transformers"; paper, section 2.2. They count from 1, we from 0: RoPE is relative, so it is the
    same method.
    """

    def __call__(
        self, length: int, span: int, rng: np.random.Generator, borders: Borders = None
    ) -> NDArray[np.int64]:
        """See `Sampler`; time O(length log length), memory O(length) for every span."""
        _check(length, span)
        return _subset(length, span, rng)


@dataclass(frozen=True)
class SkipWise:
    """PoSE: a row cut into chunks, each moved right by a random non-negative skip.

    Positions rise by one inside a chunk. The chunk borders are a uniform random choice of
    `chunks - 1` of the `length - 1` gaps between tokens. The chunks' offsets (cumulative skips)
    0 <= o_1 <= ... <= o_N <= span - length are a uniform random multiset, so every legal set of
    skips is equally likely, every start from 0 to span - length is reachable and the last position
    is at most span - 1. A row shorter than `chunks` tokens has one token a chunk; then this is
    `UniformSubset`.

    It differs from PoSE as published. There the first chunk always starts at 0 and each offset is
    drawn greedily, uniformly from the previous one up to the end, so with more than two chunks the
    early ones take most of the room; the reference code places its one border in the first half of
    the row, and also drops a stretch of text between the chunks, where here every token is kept.

    Source: Zhu et al. 2024, "PoSE: Efficient Context Window Extension of LLMs via Positional
    Skip-wise Training"; paper, appendix B.

    Attributes:
        chunks: N, how many chunks a row is cut into.

    Raises:
        UserError: `chunks` is below 1.
    """

    chunks: int = 2

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise UserError(f"chunks = {self.chunks}: a row has at least 1 chunk")

    def __call__(
        self, length: int, span: int, rng: np.random.Generator, borders: Borders = None
    ) -> NDArray[np.int64]:
        """See `Sampler`; time and memory O(length) for every span."""
        _check(length, span)
        chunks = min(self.chunks, length)
        return _skip(1 + _subset(chunks - 1, length - 1, rng), length, span, rng)


@dataclass(frozen=True)
class RandomChunks:
    """Many chunks with random skips between them, within a span of the row's own; not the paper's.

    A uniform subset takes the tokens of a sentence as far apart as the sentences of a row, so a row
    at ordinary positions is as foreign to the adapter as a long one. Here a chunk begins at each
    token with probability `1 / mean_length` and stays contiguous, as facts do in a long text. And
    positions are drawn from a span of each row's own: with probability `whole` the whole span, else
    one from the row's length to the span, uniform in its logarithm, so that every length up to the
    span is trained on.

    Between `SkipWise`, which places the chunks, and `UniformSubset`, which it is for a mean length
    of 1 and `whole = 1`. Source: docs/design/0005-chunks.md.

    Attributes:
        mean_length: Mean length of a chunk in tokens, at least 1.
        whole: Share of rows that have the whole span.
        plain: Share of rows at ordinary positions; those left have a span between.

    Raises:
        UserError: `mean_length` is below 1, or `whole` and `plain` are no shares of one whole.
    """

    mean_length: float = 4.0
    whole: float = 0.5
    plain: float = 0.0

    def __post_init__(self) -> None:
        if not self.mean_length >= 1:
            raise UserError(f"mean_length = {self.mean_length}: a chunk has at least 1 token")
        _check_shares(self.whole, self.plain)

    def __call__(
        self, length: int, span: int, rng: np.random.Generator, borders: Borders = None
    ) -> NDArray[np.int64]:
        """See `Sampler`; time and memory O(length) for every span."""
        _check(length, span)
        own = _own_span(length, span, self.whole, self.plain, rng)
        chunks = 1 + int(rng.binomial(length - 1, 1 / self.mean_length))
        return SkipWise(chunks)(length, own, rng)


@dataclass(frozen=True)
class SentenceChunks:
    """Whole sentences with random skips between them, in a span of the row's own; not the paper's.

    As `RandomChunks`, with a chunk for each sentence: what a reader finds inside a sentence stays
    as it was learned, and what lies between sentences is drawn. Source: docs/design/0005-chunks.md.

    Attributes:
        whole: Share of rows that have the whole span.
        plain: Share of rows at ordinary positions; those left have a span from the row's length to
            the whole one, uniform in its logarithm.

    Raises:
        UserError: `whole` and `plain` are no shares of one whole.
    """

    whole: float = 0.5
    plain: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(self.whole, self.plain)

    def __call__(
        self, length: int, span: int, rng: np.random.Generator, borders: Borders = None
    ) -> NDArray[np.int64]:
        """See `Sampler`; a row without borders is one chunk, somewhere in its span.

        Raises:
            UserError: Nobody knows the borders.
        """
        _check(length, span)
        if borders is None:
            raise UserError(
                "positions are drawn for whole sentences, so the text has to be known: train with "
                "a trainer that knows the tokenizer (processing_class), or call "
                "extension.read_sentences(tokenizer) first"
            )
        own = _own_span(length, span, self.whole, self.plain, rng)
        return _skip(borders, length, own, rng)


SAMPLERS: dict[str, type[Sampler]] = {
    "contiguous": Contiguous,
    "uniform-subset": UniformSubset,
    "skip-wise": SkipWise,
    "random-chunks": RandomChunks,
    "sentence-chunks": SentenceChunks,
}
"""Name to sampler class; called without arguments, each gives the paper's setting."""


def _skip(
    borders: NDArray[np.int64], length: int, span: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Chunks from border to border, every legal set of offsets equally likely, shape [length]."""
    chunks = len(borders) + 1
    # Stars and bars: a sorted multiset of N values out of 0..room is an N-subset of a range
    # that is N - 1 longer, with 0..N-1 taken off.
    room = span - length
    offsets = _subset(chunks, room + chunks, rng) - np.arange(chunks)
    sizes = np.diff(borders, prepend=0, append=length)
    return np.arange(length, dtype=np.int64) + np.repeat(offsets, sizes)


def _own_span(length: int, span: int, whole: float, plain: float, rng: np.random.Generator) -> int:
    """All of the span, the row's length (no room to move), or one between, log-uniform."""
    drawn = rng.random()
    if drawn < whole:
        return span
    if drawn >= 1 - plain:
        return length
    return int(length * (span / length) ** rng.random())


def _subset(size: int, span: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Uniform random `size`-subset of range(span), sorted, shape [size]."""
    if size == 0:  # NumPy refuses an empty population even then
        return np.empty(0, dtype=np.int64)
    # NumPy takes Floyd's algorithm (a hash set of at most 2.4 * size), or a tail shuffle where the
    # span is below 20 * size: both exact, both O(size). `shuffle=False`: the order is sorted away.
    chosen = rng.choice(span, size=size, replace=False, shuffle=False)
    chosen.sort()
    return chosen.astype(np.int64, copy=False)


def _check_shares(whole: float, plain: float) -> None:
    for name, share in (("whole", whole), ("plain", plain)):
        if not 0 <= share <= 1:
            raise UserError(f"{name} = {share}: a share lies between 0 and 1")
    if whole + plain > 1:
        raise UserError(
            f"whole = {whole} and plain = {plain} are shares of the same rows, so together at most "
            "1: lower one"
        )


def _check(length: int, span: int) -> None:
    if length < 1:
        raise UserError(f"length = {length}: a row to place has at least 1 token")
    if length > span:
        raise UserError(
            f"length = {length} does not fit into span = {span}: raise the span to at least "
            f"{length} or shorten the row"
        )
