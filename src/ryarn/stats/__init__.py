"""Means with intervals and paired tests that know which rows and training runs belong together."""

from ryarn.stats.layout import LEVEL, Difference, Estimate, wilson
from ryarn.stats.power import POWER, detectable, smallest_difference, smallest_graded_difference
from ryarn.stats.rows import EXACT_UP_TO, FLIPS, estimate, holm, paired
from ryarn.stats.seeds import CROSSED, estimate_over_seeds, paired_over_seeds

__all__ = [
    "CROSSED",
    "EXACT_UP_TO",
    "FLIPS",
    "LEVEL",
    "POWER",
    "Difference",
    "Estimate",
    "detectable",
    "estimate",
    "estimate_over_seeds",
    "holm",
    "paired",
    "paired_over_seeds",
    "smallest_difference",
    "smallest_graded_difference",
    "wilson",
]
