"""Means with intervals and paired tests that know which rows come from one source."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
FLIPS = 9_999
"""Random sign flips of a permutation test: p-values have steps of 1 / (FLIPS + 1)."""
EXACT_UP_TO = 12
"""With at most so many sources all 2^n sign flips are tried instead of random ones."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95% interval.

    Attributes:
        mean: None without rows.
        low: Lower end; None where the rows allow no interval.
        high: Upper end; None where the rows allow no interval.
        n: Rows.
        sources: Different sources among them.
    """

    mean: float | None
    low: float | None
    high: float | None
    n: int
    sources: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What one method scores above another on the same rows.

    Attributes:
        mean: First minus second; None without rows.
        low: Lower end of the 95% interval; None where the rows allow no interval.
        high: Upper end of the 95% interval; None where the rows allow no interval.
        p: Two-sided p-value of "no difference"; None where n < 2.
        test: Name of the test that gave `p`.
        n: Rows that both methods have.
        sources: Different sources among them.
    """

    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    test: str
    n: int
    sources: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """How rows weigh and belong together: every bin weighs the same, so do rows within a bin."""

    weight: Floats
    """[n], sums to 1."""
    bin: npt.NDArray[np.int64]
    """[n], bin index of each row."""
    source: npt.NDArray[np.int64]
    """[n], source index of each row."""
    sources: int

    def mean(self, values: Floats) -> float:
        """Mean of the bins' means; exactly 1 when every value is."""
        return float(self.bin_means(values).mean())

    def bin_means(self, values: Floats) -> Floats:
        """Mean of each bin, [bins]."""
        return np.bincount(self.bin, values) / np.bincount(self.bin)

    def by_source(self, values: Floats) -> Floats:
        """Sum over each source, [sources]."""
        return np.bincount(self.source, values, self.sources).astype(np.float64)

    @property
    def estimable(self) -> bool:
        """Whether spread can be seen: two sources, and two rows in every bin."""
        return self.sources >= 2 and bool(np.bincount(self.bin).min() >= 2)


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
    if len(scores) and not (scores.min() >= 0 and scores.max() <= 1):
        raise ValueError(f"scores must lie in [0, 1], got {scores.min()} to {scores.max()}")
    if not len(scores):
        return Estimate(None, None, None, 0, 0)
    layout = _layout(len(scores), sources, bins)
    mean = layout.mean(scores)
    n, groups = len(scores), layout.sources
    if not layout.estimable:
        return Estimate(mean, None, None, n, groups)
    variance = _variance(scores, layout)
    # A sum of equal floats can miss its own mean by a rounding error.
    flat = variance < 1e-24
    if not flat and not _binary(scores):
        half = _t_quantile(groups - 1) * variance**0.5
        return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half), n, groups)
    if flat:
        effective = float(groups)
    else:
        design = variance / (mean * (1 - mean) / (n - 1))
        shrink = (_t_quantile(n - 1) / _t_quantile(groups - 1)) ** 2
        effective = min(float(n), n / design * shrink)
    return Estimate(mean, *wilson(mean, effective), n, groups)


def wilson(mean: float, n: float) -> tuple[float, float]:
    """Wilson's 95% score interval of a proportion (Wilson 1927).

    Args:
        mean: Observed proportion.
        n: Number of rows; an effective number need not be whole.
    """
    from scipy.stats import norm

    z = float(norm.ppf((1 + LEVEL) / 2))
    centre = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (mean * (1 - mean) / n + z**2 / (4 * n**2)) ** 0.5
    # At 0 and 1 the near end is the mean itself, but for rounding.
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


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
    layout = _layout(len(one), sources, bins)
    difference = one - two
    mean = layout.mean(difference)
    n, groups = len(one), layout.sources
    if not layout.estimable:
        return Difference(mean, None, None, None, "", n, groups)
    low = high = None
    variance = _variance(difference, layout)
    if variance >= 1e-24:
        half = _t_quantile(groups - 1) * variance**0.5
        low, high = max(-1.0, mean - half), min(1.0, mean + half)
    one_bin = layout.bin.max() == 0
    if one_bin and groups == n and _binary(one) and _binary(two):
        p, test = _mcnemar(difference), "exact McNemar"
    else:
        totals = layout.by_source(layout.weight * difference)
        p, test = _sign_flip(totals, rng), "sign flips by source"
    return Difference(mean, low, high, p, test, n, groups)


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


def _layout(n: int, sources: Sequence[Hashable], bins: Sequence[Hashable] | None) -> _Layout:
    bins = [0] * n if bins is None else bins
    if len(sources) != n or len(bins) != n:
        raise ValueError(f"{n} scores, {len(sources)} sources and {len(bins)} bins do not match")
    of_bin, of_source = _codes(bins), _codes(sources)
    count = np.bincount(of_bin)
    weight = 1 / (len(count) * count[of_bin])
    return _Layout(weight, of_bin, of_source, int(of_source.max()) + 1)


def _codes(labels: Sequence[Hashable]) -> npt.NDArray[np.int64]:
    """Labels as 0, 1, ... in order of appearance; labels need not be sortable."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def _variance(values: Floats, layout: _Layout) -> float:
    """Variance of the mean (of bin means) when rows of one source move together."""
    deviation = layout.weight * (values - layout.bin_means(values)[layout.bin])
    totals = layout.by_source(deviation)
    return float(totals @ totals) * layout.sources / (layout.sources - 1)


def _binary(values: Floats) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


def _t_quantile(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))


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
