"""The smallest true difference that a number of rows can show, with 80% power at p < 0.05."""

from __future__ import annotations

from functools import cache

ALPHA = 0.05
"""Two-sided, for a single test."""
POWER = 0.8


def smallest_difference(n: int, discordant: float) -> float | None:
    """Smallest difference of two proportions that McNemar's test shows on n paired rows.

    Connor's formula (Connor 1987, Biometrics 43:207-211), solved for the difference d:
    n d^2 = (z_a sqrt(D) + z_b sqrt(D - d^2))^2, where D is the share of discordant rows.

    Args:
        n: Rows that both methods answered, each right or wrong.
        discordant: Share of the rows that exactly one of them answers rightly, in [0, 1].

    Returns:
        The difference in [0, 1]; None where n rows can't show any: it is never more than the
        discordant share.
    """
    from scipy.stats import norm

    alpha, beta = float(norm.ppf(1 - ALPHA / 2)), float(norm.ppf(POWER))
    rest = n + beta**2 - alpha**2
    if rest < 0 or not discordant:
        return None
    found = discordant**0.5 * (alpha * n**0.5 + beta * rest**0.5) / (n + beta**2)
    return float(found) if found <= discordant else None


def smallest_graded_difference(n: int, deviation: float) -> float | None:
    """Smallest mean difference of graded scores that the paired t test shows on n rows.

    Args:
        n: Rows that both methods answered, each of a source of its own.
        deviation: Standard deviation of the rows' differences.

    Returns:
        The difference; None where n < 2.
    """
    return detectable(deviation / n**0.5, n - 1) if n >= 2 else None


def detectable(error: float, freedom: int) -> float:
    """Smallest true mean that a t test shows, from the noncentral t distribution.

    Args:
        error: Standard error of the mean.
        freedom: Degrees of freedom of the standard error, at least 1.
    """
    return error * _errors(freedom)


@cache
def _errors(freedom: int) -> float:
    """`detectable` in standard errors."""
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = float(t.ppf(1 - ALPHA / 2, freedom))

    def lacking(shift: float) -> float:
        return float(nct.sf(critical, freedom, shift)) - POWER

    # Wrong-sided rejections are less than 1e-5 of the power here, so one tail is enough. With
    # 1 degree of freedom the root is 16.3 standard errors, with many 2.8.
    return float(brentq(lacking, 0.0, 100.0))
