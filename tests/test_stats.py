"""Intervals and tests against scipy, hand-worked values, and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, permutation_test, t, ttest_1samp

from ryarn.stats import estimate, holm, paired, wilson


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(("wins", "n"), [(0, 5), (3, 10), (41, 50), (50, 50), (1, 2)])
def test_independent_binary_rows_get_scipys_wilson_interval(wins, n):
    got = estimate([1.0] * wins + [0.0] * (n - wins), list(range(n)))
    expected = binomtest(wins, n).proportion_ci(method="wilson")
    assert got.mean == pytest.approx(wins / n)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_wilson_by_hand():
    # p = 0.5, n = 4: centre 0.5, half = 1.96 / (1 + 3.8415 / 4) * sqrt(1/16 + 3.8415 / 64)
    assert wilson(0.5, 4) == pytest.approx((0.15003, 0.84997), abs=1e-4)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_fewer_than_two_rows_have_no_interval(values):
    got = estimate(values, ["a"] * len(values))
    assert (got.low, got.high) == (None, None)
    assert got.mean == (1.0 if values else None)


def test_rows_of_a_single_source_have_no_interval():
    assert estimate([0.0, 1.0, 1.0], ["a", "a", "a"]).low is None


def test_copies_of_rows_do_not_narrow_the_interval():
    values = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    once = estimate(values, list(range(10)))
    copied = estimate(values * 8, list(range(10)) * 8)
    naive = estimate(values * 8, list(range(80)))
    assert copied.high - copied.low >= once.high - once.low - 1e-9
    assert naive.high - naive.low < 0.6 * (once.high - once.low)


def test_all_right_is_not_certainty():
    got = estimate([1.0] * 40, [i // 4 for i in range(40)])
    assert got.low == pytest.approx(binomtest(10, 10).proportion_ci(method="wilson").low)
    assert got.high == 1.0


def test_graded_scores_get_the_t_interval_of_their_sources(rng):
    per_source = rng.uniform(0.3, 0.7, size=20)
    got = estimate(per_source.repeat(3), np.arange(20).repeat(3).tolist())
    expected = ttest_1samp(per_source, 0).confidence_interval()
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high))


def test_scores_outside_the_unit_interval_are_refused():
    with pytest.raises(ValueError, match="must lie in"):
        estimate([0.5, 2.0], ["a", "b"])


def test_mean_of_bins_weighs_bins_alike():
    got = estimate([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], list("abcdef"), [1, 1, 1, 1, 2, 2])
    assert got.mean == pytest.approx(0.5)


def test_interval_of_bins_of_unequal_size_by_hand(rng):
    # graded scores, a source a row: the variance of (m1 + m2) / 2 is the sum of v_k / (4 n_k)
    small, large = rng.uniform(0.2, 0.8, size=5), rng.uniform(0.2, 0.8, size=45)
    got = estimate([*small, *large], list(range(50)), [1] * 5 + [2] * 45)
    variance = (small.var() / 5 + large.var() / 45) / 4 * 50 / 49
    assert got.high - got.low == pytest.approx(2 * t.ppf(0.975, 49) * variance**0.5)


def test_interval_covers_the_truth_in_95_of_100_clustered_samples(rng):
    covered, naive = 0, 0
    for _ in range(600):
        chance = rng.beta(2, 2, size=30)
        values = (rng.random((30, 4)) < chance[:, None]).astype(float)
        bins = [2**b for _ in range(30) for b in range(4)]
        got = estimate(values.ravel(), np.arange(30).repeat(4).tolist(), bins)
        covered += got.low <= 0.5 <= got.high
        plain = estimate(values.ravel(), list(range(120)), bins)
        naive += plain.low <= 0.5 <= plain.high
    assert 0.925 <= covered / 600 <= 0.985
    assert naive < covered


def test_interval_of_bin_means_agrees_with_a_cluster_bootstrap(rng):
    chance = np.clip(rng.beta(3, 2, size=(60, 1)) - [0.0, 0.1, 0.25], 0, 1)
    values = (rng.random((60, 3)) < chance).astype(float)
    got = estimate(values.ravel(), np.arange(60).repeat(3).tolist(), [1, 2, 3] * 60)
    resampled = values[rng.integers(0, 60, size=(4000, 60))].mean(axis=(1, 2))
    assert (got.low, got.high) == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=0.02)


def test_independent_binary_pairs_get_the_exact_mcnemar_test(rng):
    first = [1.0] * 9 + [0.0] * 2 + [1.0] * 5
    second = [0.0] * 9 + [1.0] * 2 + [1.0] * 5
    got = paired(first, second, list(range(16)), rng)
    assert got.test == "exact McNemar"
    assert got.mean == pytest.approx(7 / 16)
    # 2 * (C(11, 0) + C(11, 1) + C(11, 2)) / 2^11
    assert got.p == pytest.approx(2 * 67 / 2048)


def test_sign_flips_agree_with_scipys_exact_permutation_test(rng):
    first, second = rng.random(9), rng.random(9)
    got = paired(first, second, list(range(9)), rng)
    expected = permutation_test(
        (first - second,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert got.test == "sign flips by source"
    assert got.p == pytest.approx(expected.pvalue)


def test_random_sign_flips_agree_with_mcnemar_and_repeat_with_their_seed():
    first = np.array([1.0] * 20 + [0.0] * 8 + [1.0] * 12)
    second = np.array([0.0] * 20 + [1.0] * 8 + [1.0] * 12)
    exact = paired(first, second, list(range(40)), np.random.default_rng(1)).p
    # the same rows seen as two bins that share no source are tested by flips
    bins = [0, 1] * 20
    drawn = [paired(first, second, list(range(40)), np.random.default_rng(1), bins).p, exact]
    assert drawn[0] == pytest.approx(drawn[1], abs=0.01)
    assert drawn[0] == paired(first, second, list(range(40)), np.random.default_rng(1), bins).p


def test_copied_rows_do_not_sharpen_the_test(rng):
    first, second = [1.0, 1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0]
    once = paired(first, second, list(range(5)), rng)
    copied = paired(first * 20, second * 20, list(range(5)) * 20, rng)
    assert copied.p == pytest.approx(once.p) == pytest.approx(2 * 5 / 16)
    assert copied.high - copied.low == pytest.approx(once.high - once.low)


def test_equal_methods_do_not_differ(rng):
    got = paired([1.0, 0.0, 1.0], [1.0, 0.0, 1.0], [1, 2, 3], rng)
    assert (got.mean, got.low, got.p) == (0.0, None, 1.0)


def test_one_pair_has_no_test(rng):
    assert paired([1.0], [0.0], ["a"], rng).p is None


def test_paired_needs_the_same_rows(rng):
    with pytest.raises(ValueError, match="same rows"):
        paired([1.0], [0.0, 1.0], ["a"], rng)


def test_holm_by_hand():
    # sorted .01 .03 .04: .01 * 3, .03 * 2, then max(.06, .04 * 1); None takes no part
    assert holm([0.04, None, 0.01, 0.03]) == pytest.approx([0.06, None, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
