"""Methods against each other on the same rows and, where they have several, the same seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ryarn.report.answers import Answers
from ryarn.stats import Difference, holm, paired, paired_over_seeds


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method against another on the same rows.

    Attributes:
        first: Label of the method that the difference is in favour of.
        second: Label of the other.
        bin: The bin; None for the OOD average.
        bins: The bins that took part.
        difference: First minus second.
        rows_only: A trained method took part, but interval and test do not cover its training:
            there are no two seeds to see its spread.
        p_holm: Corrected p-value; a task's OOD averages are one family, all its single bins
            another.
    """

    first: str
    second: str
    bin: int | None
    bins: tuple[int, ...]
    difference: Difference
    rows_only: bool
    p_holm: float | None = None


def compare(
    answers: Mapping[str, Answers],
    pairs: Sequence[tuple[str, str]],
    bins: Sequence[int],
    ood: Sequence[int],
) -> list[Comparison]:
    """Test pairs of labels on the OOD average and within each bin, corrected by family."""
    average = [compare_pair(answers, pair, None, ood) for pair in pairs if ood]
    single = [compare_pair(answers, pair, b, [b]) for pair in pairs for b in bins]
    return [*_corrected(average), *_corrected(single)]


def compare_pair(
    answers: Mapping[str, Answers],
    labels: tuple[str, str],
    bin_: int | None,
    wanted: Collection[int],
) -> Comparison:
    """One method minus another, over rows and seeds where they allow it, else over rows alone.

    Two trained methods are paired by the seeds that both have. A method without training has no
    seeds: its answers are set against the other's under each of them.
    """
    one, two = (answers[label] for label in labels)
    seeds = _seeds(one, two)
    ids = _shared(one, two, seeds, wanted)
    rows = [one.rows[key] for key in ids]
    sources, bins = [row.source for row in rows], [row.bin for row in rows]
    if len(seeds) > 1:
        first, second = (side.matrix(ids, _known(side, seeds)) for side in (one, two))
        difference = paired_over_seeds(first, second, sources, bins)
    else:
        mine, theirs = ([side.mean(key) for key in ids] for side in (one, two))
        # A fresh generator each: a p-value doesn't change when another run joins the report.
        difference = paired(mine, theirs, sources, np.random.default_rng(0), bins)
    trained = bool(one.seeds or two.seeds)
    alone = trained and len(seeds) < 2
    return Comparison(*labels, bin_, tuple(sorted(set(bins))), difference, alone)


def _seeds(one: Answers, two: Answers) -> list[int]:
    if one.seeds and two.seeds:
        return sorted(set(one.seeds) & set(two.seeds))
    return list(one.seeds or two.seeds)


def _known(side: Answers, seeds: Sequence[int]) -> Sequence[int | None]:
    return seeds if side.seeds else [None]


def _shared(one: Answers, two: Answers, seeds: Sequence[int], wanted: Collection[int]) -> list[str]:
    """Rows that both answered: under all the seeds that are crossed, else under any."""
    if len(seeds) < 2:
        return [key for key, row in one.rows.items() if key in two.rows and row.bin in wanted]
    theirs = set(two.ids(wanted, _known(two, seeds)))
    return [key for key in one.ids(wanted, _known(one, seeds)) if key in theirs]


def _corrected(family: Sequence[Comparison]) -> list[Comparison]:
    adjusted = holm([c.difference.p for c in family])
    return [replace(c, p_holm=p) for c, p in zip(family, adjusted, strict=True)]
