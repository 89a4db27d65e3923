"""What every interval and test shares: the results, how rows weigh, and an interval in [0, 1]."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
FLAT = 1e-24
"""Variances below are none: a sum of equal floats can miss its own mean by a rounding error."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95% interval.

    Attributes:
        mean: None without rows.
        low: Lower end; None where the rows allow no interval.
        high: Upper end; None where the rows allow no interval.
        n: Rows; each was answered under every seed.
        sources: Different sources among them.
        seeds: Training seeds that the interval covers; 1 where it covers the rows alone.
    """

    mean: float | None
    low: float | None
    high: float | None
    n: int
    sources: int
    seeds: int = 1


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
        seeds: Training seeds that interval and test cover; 1 where they cover the rows alone.
        smallest: The smallest true difference that such data show with 80% power at p < 0.05
            (one test, uncorrected), see `ryarn.stats.power`; None where that can't be told.
    """

    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    test: str
    n: int
    sources: int
    seeds: int = 1
    smallest: float | None = None


@dataclass(frozen=True, slots=True)
class Layout:
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


def lay_out(n: int, sources: Sequence[Hashable], bins: Sequence[Hashable] | None) -> Layout:
    """The layout of n rows.

    Raises:
        ValueError: The lengths differ.
    """
    bins = [0] * n if bins is None else bins
    if len(sources) != n or len(bins) != n:
        raise ValueError(f"{n} scores, {len(sources)} sources and {len(bins)} bins do not match")
    of_bin, of_source = _codes(bins), _codes(sources)
    count = np.bincount(of_bin)
    weight = 1 / (len(count) * count[of_bin])
    return Layout(weight, of_bin, of_source, int(of_source.max()) + 1)


def _codes(labels: Sequence[Hashable]) -> npt.NDArray[np.int64]:
    """Labels as 0, 1, ... in order of appearance; labels need not be sortable."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def clustered(totals: Floats) -> float:
    """Variance of a sum of independent clusters' totals, with the factor G / (G - 1)."""
    return float((totals**2).sum()) * totals.size / (totals.size - 1)


def check_scores(scores: Floats) -> None:
    """See that scores lie in [0, 1].

    Raises:
        ValueError: One does not.
    """
    if scores.size and not (scores.min() >= 0 and scores.max() <= 1):
        raise ValueError(f"scores must lie in [0, 1], got {scores.min()} to {scores.max()}")


def binary(values: Floats) -> bool:
    """Whether every score is 0 or 1."""
    return bool(np.isin(values, (0.0, 1.0)).all())


def interval(
    scores: Floats, mean: float, variance: float, freedom: int, sources: int
) -> tuple[float, float]:
    """A 95% interval within [0, 1]; see `ryarn.stats.rows.estimate` for the rule.

    Args:
        scores: All answers' scores, of any shape.
        mean: Their (weighted) mean.
        variance: Variance of the mean.
        freedom: Degrees of freedom of the variance.
        sources: Different sources among the rows: the effective number of rows without spread.
    """
    n, flat = scores.size, variance < FLAT
    if not flat and not binary(scores):
        half = t_quantile(freedom) * variance**0.5
        return max(0.0, mean - half), min(1.0, mean + half)
    if flat:
        return wilson(mean, float(sources))
    design = variance / (mean * (1 - mean) / (n - 1))
    shrink = (t_quantile(n - 1) / t_quantile(freedom)) ** 2
    return wilson(mean, min(float(n), n / design * shrink))


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


def t_quantile(freedom: int) -> float:
    """How many standard errors a 95% interval reaches to each side."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))
