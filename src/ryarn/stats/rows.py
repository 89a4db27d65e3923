"""Means and paired tests over rows of one run each, clustered by the rows' source."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ryarn.stats.layout import (
    FLAT,
    Difference,
    Estimate,
    Floats,
    Layout,
    binary,
    check_scores,
    clustered,
    interval,
    lay_out,
    t_quantile,
)
from ryarn.stats.power import detectable, smallest_difference

FLIPS = 9_999
"""Random sign flips of a permutation test: p-values have steps of 1 / (FLIPS + 1)."""
EXACT_UP_TO = 12
"""With at most so many sources all 2^n sign flips are tried instead of random ones."""


def estimate(
    values: Sequence[float] | Floats,
    sources: Sequence[Hashable],
    bins: Sequence[Hashable] | None = None,
) -> Estimate:
    """Mean of values in [0, 1] with a 95% interval that counts rows of one source as dependent.

    With `bins` it is the mean of the bins' means, each bin weighing the same (the paper's OOD
    average).

    Values that are all 0 or 1: the Wilson score interval (Wilson 1927, JASA 22:209-212) at the
    effective number of rows n / deff, where the design effect deff (Kish 1965) is the variance
    clustered by source over that of independent rows, and the degrees of freedom are those of the
    sources (Korn and Graubard 1998, Survey Methodology 24:193-201). It never exceeds n. With one
    row a source and one bin it is Wilson's interval itself. When no bin has any spread the number
    of sources stands for the effective number of rows: 50 of 50 is not certainty.

    Other values: mean +- t * the standard error clustered by source (arXiv 2411.00640, section
    2.2, with the small-sample factor G / (G - 1) for G sources), cut at 0 and 1.

    There is no interval with fewer than two rows (in a bin) or fewer than two sources.

    Args:
        values: Scores, [n].
        sources: Source of each row, [n].
        bins: Bin of each row, [n]; None for a plain mean.

    Raises:
        ValueError: A value lies outside [0, 1], or the lengths differ.
    """
    scores = np.asarray(values, dtype=np.float64)
    check_scores(scores)
    if not len(scores):
        return Estimate(None, None, None, 0, 0)
    layout = lay_out(len(scores), sources, bins)
    mean, groups = layout.mean(scores), layout.sources
    if not layout.estimable:
        return Estimate(mean, None, None, len(scores), groups)
    ends = interval(scores, mean, _variance(scores, layout), groups - 1, groups)
    return Estimate(mean, *ends, len(scores), groups)


def paired(
    first: Sequence[float] | Floats,
    second: Sequence[float] | Floats,
    sources: Sequence[Hashable],
    rng: np.random.Generator,
    bins: Sequence[Hashable] | None = None,
) -> Difference:
    """Difference of two methods on the same rows, with interval and p-value.

    The interval is mean +- t * the standard error of the differences clustered by source (arXiv
    2411.00640, section 4.2); there is none when all differences of a bin are equal. The test is the
    exact McNemar test for 0/1 scores with one row a source in one bin, else a permutation test
    that flips the sign of a source's whole difference: every flip with at most `EXACT_UP_TO`
    sources that differ, else `FLIPS` random ones.

    Args:
        first: Scores of one method, [n].
        second: Scores of the other on the same rows, [n].
        sources: Source of each row, [n].
        rng: Draws the flips.
        bins: Bin of each row, [n]; None for a plain mean, else the mean of the bins' means.

    Raises:
        ValueError: The lengths differ.
    """
    one, two = (np.asarray(scores, dtype=np.float64) for scores in (first, second))
    if len(one) != len(two):
        raise ValueError(f"paired scores need the same rows, got {len(one)} and {len(two)}")
    if not len(one):
        return Difference(None, None, None, None, "", 0, 0)
    layout = lay_out(len(one), sources, bins)
    difference = one - two
    mean = layout.mean(difference)
    n, groups = len(one), layout.sources
    if not layout.estimable:
        return Difference(mean, None, None, None, "", n, groups)
    low = high = smallest = None
    variance = _variance(difference, layout)
    if variance >= FLAT:
        half = t_quantile(groups - 1) * variance**0.5
        low, high = max(-1.0, mean - half), min(1.0, mean + half)
        smallest = detectable(variance**0.5, groups - 1)
    one_bin = layout.bin.max() == 0
    if one_bin and groups == n and binary(one) and binary(two):
        p, test = _mcnemar(difference), "exact McNemar"
        smallest = smallest_difference(n, float((difference != 0).mean()))
    else:
        totals = layout.by_source(layout.weight * difference)
        p, test = _sign_flip(totals, rng), "sign flips by source"
    return Difference(mean, low, high, p, test, n, groups, smallest=smallest)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (Holm 1979) of one family of tests; None stays None.

    Returns:
        Adjusted p-values in the given order.
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    worst = 0.0
    for rank, (p, i) in enumerate(tested):
        worst = max(worst, min(1.0, p * (len(tested) - rank)))
        adjusted[i] = worst
    return adjusted


def _variance(values: Floats, layout: Layout) -> float:
    """Variance of the mean (of bin means) when rows of one source move together."""
    deviation = layout.weight * (values - layout.bin_means(values)[layout.bin])
    return clustered(layout.by_source(deviation))


def _mcnemar(difference: Floats) -> float:
    from scipy.stats import binomtest

    wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def _sign_flip(totals: Floats, rng: np.random.Generator) -> float:
    totals = totals[np.abs(totals) > 1e-12]
    if not len(totals):
        return 1.0
    # Flips that tie with what was observed count, whatever order their sum was rounded in.
    observed = abs(totals.sum()) - 1e-12
    if len(totals) <= EXACT_UP_TO:
        patterns = np.arange(2 ** len(totals))[:, None] >> np.arange(len(totals)) & 1
        return float((np.abs((1 - 2 * patterns) @ totals) >= observed).mean())
    extreme = 0
    for start in range(0, FLIPS, 1000):
        size = (min(1000, FLIPS - start), len(totals))
        signs = 1 - 2 * rng.integers(0, 2, size=size, dtype=np.int8)
        extreme += int((np.abs(signs @ totals) >= observed).sum())
    return (extreme + 1) / (FLIPS + 1)
