"""Means and differences when each row is answered under each of several training seeds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ryarn.stats.layout import (
    FLAT,
    Difference,
    Estimate,
    Floats,
    Layout,
    check_scores,
    clustered,
    interval,
    lay_out,
    t_quantile,
)
from ryarn.stats.power import detectable

CROSSED = "t, rows and seeds"
"""Name of the test of `paired_over_seeds`."""


def estimate_over_seeds(
    scores: Floats, sources: Sequence[Hashable], bins: Sequence[Hashable] | None = None
) -> Estimate:
    """Mean of scores in [0, 1], with a 95% interval for other rows and other training seeds.

    As `ryarn.stats.estimate`, with the variance of `paired_over_seeds` and its degrees of freedom:
    Wilson's interval at the effective number of answers where all scores are 0 or 1, else the t
    interval, cut at 0 and 1.

    Args:
        scores: One method's scores, [seeds, rows].
        sources: Source of each row, [rows].
        bins: Bin of each row, [rows]; None for a plain mean, else the mean of the bins' means.

    Raises:
        ValueError: Fewer than two seeds, a score outside [0, 1], or the lengths differ.
    """
    scores = _crossed(scores)
    check_scores(scores)
    seeds, n = scores.shape
    if not n:
        return Estimate(None, None, None, 0, 0, seeds)
    layout = lay_out(n, sources, bins)
    mean = layout.mean(scores.mean(axis=0))
    if not layout.estimable:
        return Estimate(mean, None, None, n, layout.sources, seeds)
    freedom = min(seeds, layout.sources) - 1
    ends = interval(scores, mean, two_way_variance(scores, layout), freedom, layout.sources)
    return Estimate(mean, *ends, n, layout.sources, seeds)


def paired_over_seeds(
    first: Floats,
    second: Floats,
    sources: Sequence[Hashable],
    bins: Sequence[Hashable] | None = None,
) -> Difference:
    """Difference of two methods on the same rows, for other rows and other training seeds.

    Rows and seeds are crossed: all answers to a source's rows move together, and so do all answers
    of a training run. The variance is therefore clustered both ways (`two_way_variance`), and the
    t distribution has min(seeds, sources) - 1 degrees of freedom (Cameron and Miller 2015, Journal
    of Human Resources 50:317-372, section IV). With few seeds this is careful: where seeds hardly
    differ the interval is wider than it need be.

    When no bin has any spread there is no interval, and p is that of data in which one answer had
    come out without a difference.

    Args:
        first: Scores of one method, [seeds, rows].
        second: Scores of the other with the same rows, [seeds, rows] with the same seeds, or
            [1, rows] for a method without training. Either may be the one without training.
        sources: Source of each row, [rows].
        bins: Bin of each row, [rows]; None for a plain mean, else the mean of the bins' means.

    Raises:
        ValueError: The shapes differ, or both methods have fewer than two seeds.
    """
    shapes = [np.shape(first), np.shape(second)]
    if shapes[0][1] != shapes[1][1] or len({s for s, _ in shapes} - {1}) > 1:
        raise ValueError(f"scores of the same seeds and rows are needed, got {shapes}")
    difference = _crossed(np.asarray(first, dtype=np.float64) - second)
    seeds, n = difference.shape
    if not n:
        return Difference(None, None, None, None, "", 0, 0, seeds)
    layout = lay_out(n, sources, bins)
    mean = layout.mean(difference.mean(axis=0))
    if not layout.estimable:
        return Difference(mean, None, None, None, "", n, layout.sources, seeds)
    freedom = min(seeds, layout.sources) - 1
    error = two_way_variance(difference, layout) ** 0.5
    low = high = smallest = None
    if error**2 >= FLAT:
        half = t_quantile(freedom) * error
        low, high = max(-1.0, mean - half), min(1.0, mean + half)
        smallest = detectable(error, freedom)
    p = _p_value(difference, mean, error, layout)
    return Difference(mean, low, high, p, CROSSED, n, layout.sources, seeds, smallest)


def two_way_variance(values: Floats, layout: Layout) -> float:
    """Variance of a mean over rows and seeds when a seed's and a source's values go together.

    By seed, plus by source, minus by seed and source, each with its factor G / (G - 1) (Cameron,
    Gelbach and Miller 2011, Journal of Business & Economic Statistics 29:238-249); never smaller
    than either one-way variance.

    Args:
        values: [seeds, rows], at least two of both.
        layout: Of the rows.
    """
    means = layout.bin_means(values.mean(axis=0))
    deviation = layout.weight * (values - means[layout.bin]) / len(values)
    cells = np.array([layout.by_source(of_seed) for of_seed in deviation])
    by_seed, by_source = clustered(cells.sum(axis=1)), clustered(cells.sum(axis=0))
    return max(by_seed + by_source - clustered(cells), by_seed, by_source)


def _crossed(values: Floats) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or len(values) < 2:
        raise ValueError(f"scores of two seeds and more are needed, got shape {values.shape}")
    return values


def _p_value(difference: Floats, mean: float, error: float, layout: Layout) -> float:
    from scipy.stats import t

    if abs(mean) < 1e-12:
        return 1.0
    if error**2 < FLAT:
        # No spread is not certainty, and one equal answer must not turn p round: it is put in.
        nudged = difference.copy()
        nudged[0, np.argmax(np.abs(difference[0]))] = 0.0
        error = two_way_variance(nudged, layout) ** 0.5
    freedom = min(len(difference), layout.sources) - 1
    return float(2 * t.sf(abs(mean) / error, freedom))
