"""The smallest difference that can be shown: textbook sample sizes, exact power, simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest, t

from ryarn.stats import detectable, paired, smallest_difference, smallest_graded_difference


def test_connors_formula_by_hand():
    # (1.95996 * sqrt(.3) + .84162 * sqrt(.3 - .1^2))^2 / .1^2 = 233.09
    assert smallest_difference(233, 0.3) == pytest.approx(0.1, abs=1e-4)
    assert smallest_difference(233, 0.3) > smallest_difference(234, 0.3)


@pytest.mark.parametrize(("n", "discordant"), [(200, 0.2), (200, 0.5), (400, 0.1)])
def test_mcnemar_has_80_percent_power_at_the_smallest_difference(n, discordant):
    share = (1 + smallest_difference(n, discordant) / discordant) / 2
    power = 0.0
    for count in range(n + 1):
        weight = binom.pmf(count, n, discordant)
        if weight > 1e-9:
            wins = np.arange(count + 1)
            # McNemar's test without the exact test's caution, as the formula has it
            shown = (2 * wins - count) ** 2 > 1.959964**2 * count
            power += weight * binom.pmf(wins, count, share)[shown].sum()
    assert power == pytest.approx(0.8, abs=0.02)


def test_few_rows_or_no_discordance_can_show_nothing():
    assert smallest_difference(200, 0.0) is None
    assert smallest_difference(2, 0.5) is None
    # 5 rows, a tenth discordant: not even if all of them went one way
    assert smallest_difference(5, 0.1) is None
    assert smallest_difference(200, 0.2) < 0.2


@pytest.mark.parametrize(("size", "rows"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_paired_t_test_needs_the_rows_of_the_power_tables(size, rows):
    # Cohen's small, medium and large effect, two-sided .05, power .8
    assert smallest_graded_difference(rows, 1.0) <= size
    assert smallest_graded_difference(rows - 1, 1.0) > size


def test_one_row_shows_nothing():
    assert smallest_graded_difference(1, 0.5) is None


@pytest.mark.parametrize("freedom", [1, 4, 30])
def test_t_test_finds_the_detectable_mean_in_80_of_100_samples(freedom):
    rng = np.random.default_rng(0)
    draws = rng.normal(size=40_000) * 0.05 + detectable(0.05, freedom)
    error = 0.05 * (rng.chisquare(freedom, 40_000) / freedom) ** 0.5
    assert (draws / error > t.ppf(0.975, freedom)).mean() == pytest.approx(0.8, abs=0.01)


def test_a_test_tells_what_it_could_have_shown():
    rng = np.random.default_rng(0)
    first, second = (rng.random(80) < 0.6).astype(float), (rng.random(80) < 0.5).astype(float)
    got = paired(first, second, list(range(80)), rng)
    assert got.p == binomtest(int((first > second).sum()), int((first != second).sum())).pvalue
    assert got.smallest == smallest_difference(80, float((first != second).mean()))
    graded = paired(rng.random(80), rng.random(80), list(range(80)), rng)
    half = (graded.high - graded.low) / 2
    assert graded.smallest == pytest.approx(detectable(half / t.ppf(0.975, 79), 79))
