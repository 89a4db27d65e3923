"""Samplers: exactly uniform, inside the span, cheap."""

from __future__ import annotations

import itertools
import math
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from ryarn.errors import UserError
from ryarn.positions import (
    SAMPLERS,
    Borders,
    Contiguous,
    RandomChunks,
    Sampler,
    SentenceChunks,
    SkipWise,
    UniformSubset,
)


@dataclass(frozen=True)
class EverySeventh:
    """`SentenceChunks` of sentences of seven tokens."""

    whole: float = 0.5
    plain: float = 0.0

    def __call__(
        self, length: int, span: int, rng: np.random.Generator, borders: Borders = None
    ) -> NDArray[np.int64]:
        return SentenceChunks(self.whole, self.plain)(length, span, rng, np.arange(7, length, 7))


ALL = [
    *(Contiguous(), UniformSubset(), SkipWise(), SkipWise(chunks=5), RandomChunks()),
    EverySeventh(),
]
ALPHA = 1e-4  # seeds are fixed: a test that passes once passes always
DRAWS = 20_000


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def law_p_value(
    sampler: Sampler, length: int, span: int, law: dict[tuple[int, ...], Fraction]
) -> float:
    """P-value of many draws under a law that lists every possible outcome."""
    source = seeded(1)
    seen = Counter(tuple(sampler(length, span, source).tolist()) for _ in range(DRAWS))
    if not seen.keys() <= law.keys():
        return 0.0
    expected = [float(probability * DRAWS) for probability in law.values()]
    return float(stats.chisquare([seen[outcome] for outcome in law], expected).pvalue)


def uniform_subset_law(length: int, span: int) -> dict[tuple[int, ...], Fraction]:
    subsets = list(itertools.combinations(range(span), length))
    return dict.fromkeys(subsets, Fraction(1, len(subsets)))


def skip_wise_law(length: int, span: int, chunks: int) -> dict[tuple[int, ...], Fraction]:
    """Every choice of borders and of non-decreasing offsets once, from the definition."""
    outcomes = []
    for borders in itertools.combinations(range(1, length), chunks - 1):
        for offsets in itertools.combinations_with_replacement(range(span - length + 1), chunks):
            outcomes.append(
                tuple(j + offsets[sum(j >= border for border in borders)] for j in range(length))
            )
    return {o: Fraction(n, len(outcomes)) for o, n in Counter(outcomes).items()}


# --- what every sampler promises -------------------------------------------------------------


@pytest.mark.parametrize("sampler", ALL, ids=str)
@pytest.mark.parametrize(
    ("length", "span"), [(1, 1), (1, 9), (2, 2), (7, 7), (7, 8), (64, 20_000), (3000, 20_000)]
)
def test_positions_are_increasing_int64_inside_the_span(
    sampler: Sampler, length: int, span: int
) -> None:
    for seed in range(20):
        positions = sampler(length, span, seeded(seed))
        assert positions.dtype == np.int64
        assert positions.shape == (length,)
        assert (np.diff(positions) > 0).all()
        assert positions[0] >= 0
        assert positions[-1] < span


@pytest.mark.parametrize("sampler", ALL, ids=str)
def test_a_full_span_leaves_one_choice(sampler: Sampler) -> None:
    np.testing.assert_array_equal(sampler(100, 100, seeded()), np.arange(100))


@pytest.mark.parametrize("sampler", ALL, ids=str)
def test_same_generator_state_gives_the_same_positions(sampler: Sampler) -> None:
    np.testing.assert_array_equal(sampler(50, 1000, seeded(3)), sampler(50, 1000, seeded(3)))


@pytest.mark.parametrize("sampler", ALL, ids=str)
def test_a_row_longer_than_the_span_is_refused(sampler: Sampler) -> None:
    with pytest.raises(UserError, match="length = 9 does not fit into span = 8: raise the span"):
        sampler(9, 8, seeded())


@pytest.mark.parametrize("sampler", ALL, ids=str)
@pytest.mark.parametrize("length", [0, -1])
def test_an_empty_row_is_refused(sampler: Sampler, length: int) -> None:
    with pytest.raises(UserError, match=f"length = {length}: "):
        sampler(length, 8, seeded())


def test_names_give_the_samplers() -> None:
    made = {name: make() for name, make in SAMPLERS.items()}
    assert made == {
        "contiguous": Contiguous(),
        "uniform-subset": UniformSubset(),
        "skip-wise": SkipWise(chunks=2),
        "random-chunks": RandomChunks(mean_length=4, whole=0.5, plain=0),
        "sentence-chunks": SentenceChunks(whole=0.5, plain=0),
    }


def test_contiguous_ignores_span_and_draws_nothing() -> None:
    source = seeded()
    before = source.bit_generator.state
    np.testing.assert_array_equal(Contiguous()(5, 1000, source), np.arange(5))
    assert source.bit_generator.state == before


# --- uniform subset ----------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "span"), [(1, 7), (3, 6), (2, 8), (5, 7), (6, 7)])
def test_every_subset_is_equally_likely(length: int, span: int) -> None:
    law = uniform_subset_law(length, span)
    assert len(law) == math.comb(span, length)
    assert law_p_value(UniformSubset(), length, span, law) > ALPHA


def stratified(length: int, span: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Biased: one position in each equal part of the span."""
    edges = np.linspace(0, span, length + 1).astype(np.int64)
    return rng.integers(edges[:-1], edges[1:])


def window(length: int, span: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Biased: a block of consecutive positions."""
    return np.arange(length, dtype=np.int64) + rng.integers(span - length + 1)


def sloppy(length: int, span: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Biased: duplicates are pushed up until distinct, a common short cut."""
    positions = np.sort(rng.integers(0, span, size=length))
    for j in range(1, length):
        positions[j] = max(positions[j], positions[j - 1] + 1)
    return np.minimum(positions, span - np.arange(length, 0, -1))


@pytest.mark.parametrize("biased", [stratified, window, sloppy])
def test_the_subset_test_sees_a_biased_sampler(biased: Sampler) -> None:
    assert law_p_value(biased, 3, 6, uniform_subset_law(3, 6)) < 1e-10


def bucket_p_value(sampler: Sampler, length: int, span: int, draws: int) -> float:
    """P-value of how positions spread over 64 parts of the span, equal but for rounding.

    Within one draw the counts are multivariate hypergeometric, whose covariance is the multinomial
    one times (span - length) / (span - 1); independent draws add up.
    """
    buckets = 64
    edges = np.arange(buckets + 1) * span // buckets
    expected = np.diff(edges) * (draws * length / span)
    source = seeded(2)
    counts = np.zeros(buckets)
    for _ in range(draws):
        counts += np.diff(np.searchsorted(sampler(length, span, source), edges))
    statistic = stats.chisquare(counts, expected).statistic * (span - 1) / (span - length)
    return float(stats.chi2.sf(statistic, buckets - 1))


def order_p_value(sampler: Sampler, length: int, span: int, rank: int, draws: int) -> float:
    """P-value of the position of the token `rank`, by its exact law.

    At most `rank` of the positions lie at or below x with the hypergeometric probability; so the
    distribution function at the drawn position, smoothed over its step, is uniform.
    """
    source = seeded(3)
    drawn = np.array([sampler(length, span, source)[rank] for _ in range(draws)])
    at, below = (stats.hypergeom.sf(rank, span, length, drawn + shift) for shift in (1, 0))
    uniform = below + (at - below) * seeded(4).random(draws)
    return float(stats.chisquare(np.histogram(uniform, bins=16, range=(0, 1))[0]).pvalue)


# One for each way a subset can be found: sparse, a twentieth of the span, dense, and small.
LARGE = [(512, 1 << 20), (2000, 20_000), (18_000, 20_000), (700, 1000), (64, 2**31)]


@pytest.mark.parametrize(("length", "span"), LARGE)
def test_large_subsets_spread_evenly(length: int, span: int) -> None:
    assert bucket_p_value(UniformSubset(), length, span, draws=200) > ALPHA


@pytest.mark.parametrize(("length", "span"), [case for case in LARGE if case[1] <= 1 << 20])
@pytest.mark.parametrize("quantile", [0.0, 0.3, 1.0])
def test_each_token_of_a_large_subset_follows_its_order_statistic(
    length: int, span: int, quantile: float
) -> None:
    rank = int(quantile * (length - 1))
    assert order_p_value(UniformSubset(), length, span, rank, draws=800) > ALPHA


def test_the_large_tests_see_a_biased_sampler() -> None:
    def near_end(length: int, span: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return UniformSubset()(length, span - span // 50, rng) + span // 50

    assert bucket_p_value(near_end, 2000, 20_000, draws=200) < 1e-10
    # Even spread alone is not enough: a stratified draw has it and the order statistics catch it.
    assert bucket_p_value(stratified, 2000, 20_000, draws=200) > ALPHA
    assert order_p_value(stratified, 2000, 20_000, rank=600, draws=800) < 1e-10


# --- skip-wise ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "span", "chunks"), [(3, 5, 2), (4, 7, 2), (4, 6, 3), (5, 7, 4), (3, 6, 1)]
)
def test_every_border_and_every_set_of_skips_is_equally_likely(
    length: int, span: int, chunks: int
) -> None:
    law = skip_wise_law(length, span, chunks)
    assert law_p_value(SkipWise(chunks), length, span, law) > ALPHA


def greedy(length: int, span: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """PoSE's published rule for the offsets, with a free start."""
    border = rng.integers(1, length)
    first = rng.integers(span - length + 1)
    second = rng.integers(first, span - length + 1)
    return np.arange(length) + np.where(np.arange(length) < border, first, second)


def test_the_skip_test_sees_greedy_skips() -> None:
    assert law_p_value(greedy, 4, 7, skip_wise_law(4, 7, 2)) < 1e-10


@pytest.mark.parametrize("chunks", [4, 9])
def test_a_row_of_one_token_chunks_is_a_uniform_subset(chunks: int) -> None:
    assert law_p_value(SkipWise(chunks), 4, 7, uniform_subset_law(4, 7)) > ALPHA


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_every_start_and_every_end_is_reached(chunks: int) -> None:
    length, span, source = 6, 16, seeded(5)
    drawn = np.array([SkipWise(chunks)(length, span, source) for _ in range(4000)])
    assert set(drawn[:, 0]) == set(range(span - length + 1))
    assert set(drawn[:, -1]) == set(range(length - 1, span))


@pytest.mark.parametrize("chunks", [1, 2, 3, 8])
def test_positions_jump_at_most_between_chunks(chunks: int) -> None:
    source = seeded(6)
    jumps = [(np.diff(SkipWise(chunks)(500, 1 << 20, source)) > 1).sum() for _ in range(200)]
    # Two equal offsets out of a million: a jump is all but never missing.
    assert max(jumps) == chunks - 1
    assert np.mean(jumps) > chunks - 1.05


def test_a_border_can_stand_before_any_token_but_the_first() -> None:
    length, source = 12, seeded(7)
    borders = []
    for _ in range(4400):
        steps = np.diff(SkipWise(2)(length, 1 << 20, source))
        borders += (1 + np.flatnonzero(steps > 1)).tolist()
    counts = np.bincount(borders, minlength=length)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > ALPHA


@pytest.mark.parametrize("chunks", [0, -2])
def test_a_row_has_at_least_one_chunk(chunks: int) -> None:
    with pytest.raises(UserError, match=f"chunks = {chunks}: "):
        SkipWise(chunks)


# --- random chunks ---------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "span"), [(3, 6), (4, 7)])
def test_chunks_of_one_token_in_the_whole_span_are_a_uniform_subset(length: int, span: int) -> None:
    sampler = RandomChunks(mean_length=1, whole=1)
    assert law_p_value(sampler, length, span, uniform_subset_law(length, span)) > ALPHA


@pytest.mark.parametrize("mean_length", [2.0, 4.0, 16.0])
def test_chunks_have_their_mean_length(mean_length: float) -> None:
    # A span so long that two chunks next to each other hardly ever touch.
    sampler, length, source = RandomChunks(mean_length, whole=1), 400, seeded()
    jumps = [int((np.diff(sampler(length, 10**9, source)) > 1).sum()) for _ in range(400)]
    expected = (length - 1) / mean_length
    error = math.sqrt((length - 1) / mean_length * (1 - 1 / mean_length) / len(jumps))
    assert abs(np.mean(jumps) - expected) < 4 * error


@pytest.mark.parametrize("whole", [0.0, 0.5, 1.0])
def test_a_row_has_the_whole_span_or_one_uniform_in_its_logarithm(whole: float) -> None:
    length, span, source = 64, 2**16, seeded()
    # With one token a chunk the reach is close to the row's own span.
    sampler = RandomChunks(mean_length=1, whole=whole)
    reach = np.array([int(sampler(length, span, source)[-1]) for _ in range(3000)])
    octaves = np.log2(reach / length)
    in_the_lower_half = float((octaves < 5).mean())
    assert abs(in_the_lower_half - (1 - whole) / 2) < 0.04
    assert (octaves > 9.5).mean() == pytest.approx(whole + (1 - whole) * 0.05, abs=0.04)


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"mean_length": 0.5}, "mean_length = 0.5: a chunk has at least 1 token"),
        ({"mean_length": math.nan}, "mean_length = nan: a chunk has at least 1 token"),
        ({"whole": 1.5}, "whole = 1.5: a share lies between 0 and 1"),
        ({"plain": -0.5}, "plain = -0.5: a share lies between 0 and 1"),
        ({"plain": 0.75}, r"whole = 0.5 and plain = 0.75 are .* together at most 1: lower one"),
    ],
)
def test_numbers_of_chunks_out_of_range(numbers: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        RandomChunks(**numbers)


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"whole": -1}, "whole = -1: a share lies between 0 and 1"),
        ({"plain": math.nan}, "plain = nan: a share lies between 0 and 1"),
        ({"plain": 0.75}, r"whole = 0.5 and plain = 0.75 are shares of the same rows"),
    ],
)
def test_shares_of_rows_are_shares(numbers: dict[str, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        SentenceChunks(**numbers)


@pytest.mark.parametrize("make", [RandomChunks, EverySeventh])
@pytest.mark.parametrize("plain", [0.0, 0.3, 1.0])
def test_a_share_of_the_rows_has_ordinary_positions(
    make: Callable[..., Sampler], plain: float
) -> None:
    length, span, source = 64, 2**16, seeded()
    sampler = make(whole=(1 - plain) / 2, plain=plain)
    drawn = [sampler(length, span, source) for _ in range(3000)]
    ordinary = np.array([np.array_equal(row, np.arange(length)) for row in drawn])
    assert abs(ordinary.mean() - plain) < 0.03
    # The others are as they would be without: half of the whole span, half uniform between.
    octaves = np.log2(
        [
            int(np.ptp(row)) / length
            for row, is_own in zip(drawn, ordinary, strict=True)
            if not is_own
        ]
    )
    assert not len(octaves) or abs(float((octaves < 5).mean()) - 0.25 * (5 + 0.3) / 5) < 0.04


# --- sentence chunks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "span", "borders"), [(4, 7, []), (4, 7, [1]), (5, 8, [2, 3]), (4, 6, [1, 2, 3])]
)
def test_sentences_stay_whole_and_every_set_of_skips_is_equally_likely(
    length: int, span: int, borders: list[int]
) -> None:
    outcomes = [
        tuple(j + offsets[sum(j >= border for border in borders)] for j in range(length))
        for offsets in itertools.combinations_with_replacement(
            range(span - length + 1), len(borders) + 1
        )
    ]
    law = dict.fromkeys(outcomes, Fraction(1, len(outcomes)))
    where = np.array(borders, dtype=np.int64)

    def sampler(length: int, span: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return SentenceChunks(whole=1, plain=0)(length, span, rng, where)

    assert law_p_value(sampler, length, span, law) > ALPHA


def test_sentences_have_the_span_of_their_row() -> None:
    length, span, source = 64, 2**16, seeded()
    sampler = EverySeventh(whole=0.5)
    reach = np.array([np.ptp(sampler(length, span, source)) for _ in range(3000)])
    short = float((np.log2(reach / length) < 5).mean())
    # Ten sentences reach over most of their span: 0.82 of it in the mean.
    assert abs(short - 0.25 * (5 + 0.3) / 5) < 0.04


def test_sentences_ask_for_the_text() -> None:
    with pytest.raises(UserError, match=r"the text has to be known: .*read_sentences"):
        SentenceChunks()(8, 64, seeded())


# --- cost --------------------------------------------------------------------------------------


def peak_bytes(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sampler", [*ALL, SkipWise(chunks=8192)], ids=str)
@pytest.mark.parametrize("span", [8192, 10_001, 20 * 8192 - 1, 20 * 8192, 1 << 20, 2**31])
def test_memory_follows_length_and_not_span(sampler: Sampler, span: int) -> None:
    length = 8192
    source = seeded()
    # 20 int64 a position is the worst that NumPy's choice takes, just below span = 20 * length.
    assert peak_bytes(lambda: sampler(length, span, source)) < 200 * length


@pytest.mark.parametrize("sampler", ALL, ids=str)
def test_8k_positions_of_1m_take_well_under_a_millisecond(sampler: Sampler) -> None:
    source = seeded()

    def seconds() -> float:
        start = time.perf_counter()
        sampler(8192, 1 << 20, source)
        return time.perf_counter() - start

    # The fastest of many: what the draw costs, not what else the machine does.
    assert min(seconds() for _ in range(50)) < 1e-3
