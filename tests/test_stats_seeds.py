"""Rows crossed with training seeds: brute force, simulated coverage, and the test's error rate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binomtest, t

from ryarn.stats import (
    CROSSED,
    estimate,
    estimate_over_seeds,
    paired,
    paired_over_seeds,
)
from ryarn.stats.layout import lay_out
from ryarn.stats.seeds import two_way_variance


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def brute_variance(values, sources, bins):
    """Cameron, Gelbach and Miller's sum over all pairs of answers that share a cluster."""
    seeds, n = values.shape
    counts = {b: bins.count(b) for b in bins}
    means = {b: values[:, [c == b for c in bins]].mean() for b in counts}
    answers = [
        (s, sources[i], (values[s, i] - means[bins[i]]) / (seeds * len(counts) * counts[bins[i]]))
        for s in range(seeds)
        for i in range(n)
    ]

    def variance(key):
        clusters = {key(a) for a in answers}
        total = sum(x[2] * y[2] for x in answers for y in answers if key(x) == key(y))
        return total * len(clusters) / (len(clusters) - 1)

    return variance(lambda a: a[0]), variance(lambda a: a[1]), variance(lambda a: a[:2])


@pytest.fixture
def crossed(rng):
    """Unequal bins, several rows a source, a bin with rows of its own."""
    sources = [*"aabbcdeef", *"abcdeggh"]
    bins = [1] * 9 + [2] * 8
    of_source = {source: 1.5 * rng.normal() for source in "abcdefgh"}
    of_seed = 0.7 * rng.normal(size=(4, 1))
    values = 0.5 * rng.normal(size=(4, 17)) + of_seed + [of_source[s] for s in sources]
    return values, sources, bins


def test_variance_is_that_of_all_pairs_of_answers(crossed):
    values, sources, bins = crossed
    by_seed, by_source, by_both = brute_variance(values, sources, bins)
    got = two_way_variance(values, lay_out(17, sources, bins))
    assert by_seed + by_source - by_both > max(by_seed, by_source)
    assert got == pytest.approx(by_seed + by_source - by_both)


def test_variance_is_never_below_that_of_seeds_or_sources(rng):
    sources, bins = list(range(6)), [0] * 6
    seen = set()
    for _ in range(60):
        values = rng.normal(size=(3, 6))
        by_seed, by_source, by_both = brute_variance(values, sources, bins)
        got = two_way_variance(values, lay_out(6, sources, bins))
        parts = [by_seed + by_source - by_both, by_seed, by_source]
        assert got == pytest.approx(max(parts))
        seen.add(int(np.argmax(parts)))
    assert seen == {0, 1, 2}


def test_difference_interval_and_p_by_hand(crossed):
    values, sources, bins = crossed
    first, second = 0.5 + values / 10, np.full((4, 17), 0.45)
    got = paired_over_seeds(first, second, sources, bins)
    difference = first - second
    assert got.mean == pytest.approx((difference[:, :9].mean() + difference[:, 9:].mean()) / 2)
    by_seed, by_source, by_both = brute_variance(difference, sources, bins)
    error = (by_seed + by_source - by_both) ** 0.5
    # 4 seeds, 8 sources: 3 degrees of freedom
    assert (got.low, got.high) == pytest.approx(
        (got.mean - t.ppf(0.975, 3) * error, got.mean + t.ppf(0.975, 3) * error)
    )
    assert got.p == pytest.approx(2 * t.sf(abs(got.mean) / error, 3))
    assert (got.n, got.sources, got.seeds, got.test) == (17, 8, 4, CROSSED)
    assert got.smallest > t.ppf(0.975, 3) * error


def test_freedom_is_that_of_the_fewer_clusters(rng):
    values = rng.random((6, 9))
    got = paired_over_seeds(values, np.zeros((1, 9)), [0, 0, 0, 1, 1, 1, 2, 2, 2])
    error = two_way_variance(values, lay_out(9, [0, 0, 0, 1, 1, 1, 2, 2, 2], None)) ** 0.5
    assert got.p == pytest.approx(2 * t.sf(got.mean / error, 2))


def crossed_design(rng, seeds, sources, spread):
    """Differences without a true mean: an effect of the seed, of the row, and of the answer."""
    of_seed, of_row, of_answer = spread
    return (
        rng.normal(0, of_seed, (seeds, 1))
        + rng.normal(0, of_row, (1, sources))
        + rng.normal(0, of_answer, (seeds, sources))
    )


@pytest.mark.parametrize(
    ("seeds", "sources", "spread"),
    [(5, 100, (0.15, 0.3, 0.3)), (10, 40, (0.1, 0.2, 0.3)), (20, 20, (0.1, 0.1, 0.2))],
)
def test_interval_covers_the_truth_in_95_of_100_crossed_designs(rng, seeds, sources, spread):
    covered = 0
    for _ in range(2000):
        difference = crossed_design(rng, seeds, sources, spread)
        got = paired_over_seeds(difference, np.zeros((1, sources)), list(range(sources)))
        covered += got.low <= 0 <= got.high
    assert 0.93 <= covered / 2000 <= 0.97


def test_false_alarms_are_5_in_100_where_the_test_over_rows_alone_gives_many(rng):
    alarms, rows_only = 0, 0
    sources = list(range(12))
    for _ in range(2000):
        difference = crossed_design(rng, 5, 12, (0.12, 0.1, 0.2))
        alarms += paired_over_seeds(difference, np.zeros((1, 12)), sources).p < 0.05
        rows_only += paired(difference.mean(axis=0), np.zeros(12), sources, rng).p < 0.05
    assert 0.03 <= alarms / 2000 <= 0.06
    assert rows_only / 2000 > 0.15


def test_a_method_without_training_stands_against_every_seed(rng):
    trained, untrained = rng.random((5, 20)), rng.random((1, 20))
    sources = list(range(20))
    got = paired_over_seeds(trained, untrained, sources)
    assert got == paired_over_seeds(trained, np.repeat(untrained, 5, axis=0), sources)
    turned = paired_over_seeds(untrained, trained, sources)
    assert (turned.mean, turned.p) == pytest.approx((-got.mean, got.p))
    assert turned.seeds == 5


def test_seeds_are_paired(rng):
    # what a seed does to both methods cancels; set against other seeds it would not
    common = rng.normal(0, 0.3, (5, 1))
    first = common + rng.normal(0.1, 0.05, (5, 40))
    second = common + rng.normal(0.0, 0.05, (5, 40))
    assert paired_over_seeds(first, second, list(range(40))).p < 0.001
    assert paired_over_seeds(first, second[::-1], list(range(40))).p > 0.05


def test_equal_answers_do_not_differ():
    ones = np.ones((5, 30))
    got = paired_over_seeds(ones, ones, list(range(30)))
    assert (got.mean, got.low, got.p, got.smallest) == (0.0, None, 1.0, None)


def test_p_does_not_leap_where_the_last_spread_goes():
    ones, sources = np.ones((5, 100)), list(range(100))
    nearly = ones.copy()
    nearly[2, 7] = 0.0
    flat = paired_over_seeds(ones, np.zeros((1, 100)), sources)
    near = paired_over_seeds(nearly, np.zeros((1, 100)), sources)
    assert flat.low is None
    assert 0 < flat.p < 1e-4
    assert flat.p == pytest.approx(near.p, rel=0.05)
    # few rows and seeds without spread prove nothing
    assert paired_over_seeds(np.ones((2, 2)), np.zeros((1, 2)), [0, 1]).p > 0.05


def test_too_few_rows_have_no_interval_and_no_test():
    got = paired_over_seeds(np.ones((3, 1)), np.zeros((3, 1)), ["a"])
    assert (got.mean, got.low, got.p) == (1.0, None, None)
    assert paired_over_seeds(np.ones((3, 2)), np.zeros((3, 2)), ["a", "a"]).p is None
    assert paired_over_seeds(np.ones((3, 0)), np.zeros((3, 0)), []).mean is None
    alone = estimate_over_seeds(np.array([[1.0], [0.0]]), ["a"])
    assert (alone.mean, alone.low, alone.n) == (0.5, None, 1)
    assert estimate_over_seeds(np.ones((2, 0)), []).mean is None


def test_what_is_not_crossed_is_refused(rng):
    with pytest.raises(ValueError, match="same seeds and rows"):
        paired_over_seeds(np.ones((3, 4)), np.ones((2, 4)), [1, 2, 3, 4])
    with pytest.raises(ValueError, match="same seeds and rows"):
        paired_over_seeds(np.ones((3, 4)), np.ones((3, 5)), [1, 2, 3, 4])
    with pytest.raises(ValueError, match="two seeds"):
        paired_over_seeds(np.ones((1, 4)), np.ones((1, 4)), [1, 2, 3, 4])
    with pytest.raises(ValueError, match="two seeds"):
        estimate_over_seeds(np.ones((1, 4)), [1, 2, 3, 4])
    with pytest.raises(ValueError, match="must lie in"):
        estimate_over_seeds(np.full((2, 4), 1.5), [1, 2, 3, 4])


def test_graded_mean_over_seeds_by_hand(crossed):
    values, sources, bins = crossed
    scores = 0.5 + values / 20
    got = estimate_over_seeds(scores, sources, bins)
    assert got.mean == pytest.approx((scores[:, :9].mean() + scores[:, 9:].mean()) / 2)
    by_seed, by_source, by_both = brute_variance(scores, sources, bins)
    half = t.ppf(0.975, 3) * (by_seed + by_source - by_both) ** 0.5
    assert (got.low, got.high) == pytest.approx((got.mean - half, got.mean + half))
    assert (got.n, got.seeds) == (17, 4)


@pytest.mark.parametrize("centre", [0.0, 2.5])
def test_interval_of_a_mean_covers_other_seeds_and_rows(rng, centre):
    chance = expit(centre + rng.normal(0, 0.6, (4000, 1)) + rng.normal(0, 1, (1, 4000)))
    truth = chance.mean()
    covered, pooled = 0, 0
    sources = list(range(60))
    for _ in range(1000):
        logit = centre + rng.normal(0, 0.6, (5, 1)) + rng.normal(0, 1, (1, 60))
        scores = (rng.random((5, 60)) < expit(logit)).astype(float)
        got = estimate_over_seeds(scores, sources)
        covered += got.low <= truth <= got.high
        assert 0 <= got.low <= got.mean <= got.high <= 1
        alone = estimate(scores.ravel(), sources * 5)
        pooled += alone.low <= truth <= alone.high
    assert 0.93 <= covered / 1000 <= 0.98
    assert pooled / 1000 < 0.85


def test_seeds_that_all_agree_do_not_narrow_the_interval(rng):
    row = (rng.random(50) < 0.7).astype(float)
    once = estimate(row, list(range(50)))
    got = estimate_over_seeds(np.tile(row, (5, 1)), list(range(50)))
    assert got.high - got.low >= once.high - once.low
    assert got.mean == once.mean


def test_all_right_under_all_seeds_is_not_certainty():
    got = estimate_over_seeds(np.ones((5, 40)), list(range(40)))
    assert got.low == pytest.approx(binomtest(40, 40).proportion_ci(method="wilson").low)
    assert got.high == 1.0


def test_graded_interval_ends_at_one(rng):
    scores = np.clip(rng.normal(0.97, 0.05, (3, 4)), 0, 1)
    assert estimate_over_seeds(scores, list(range(4))).high <= 1.0
