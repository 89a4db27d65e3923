"""The paper's split of LongBench v2 (appendix A.3): short rows train, longer ones evaluate."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EDGES = (32_768, 65_536, 131_072)
"""The paper's: training rows up to 32K tokens, evaluation bins of 32-64K and 64-128K."""
MIN_TRAINING_ROWS = 3
"""The paper's: fewer training rows than these, and a sub-domain is not evaluated."""
PAPER: dict[str, tuple[int, ...]] = {
    "Qwen2.5-7B-Instruct": (116, 66, 65),
    "Olmo-3-7B-Instruct": (119, 71, 67),
}
"""The paper's rows of training and of each evaluation bin, by the model that counts tokens."""


@dataclass(frozen=True, slots=True)
class Split:
    """Where each row goes.

    Attributes:
        edges: Upper ends of the bins in tokens; the first bin trains.
        bins: For each row its bin's upper end; 0 for a row that is left out.
        longer: How many rows are longer than the last edge.
        rare: Sub-domain that is not evaluated to its number of training rows.
        dropped: How many rows of evaluation length these sub-domains have.
    """

    edges: tuple[int, ...]
    bins: tuple[int, ...]
    longer: int
    rare: Mapping[str, int]
    dropped: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows of each bin, training first."""
        return tuple(self.bins.count(edge) for edge in self.edges)


def split_rows(
    lengths: Sequence[int],
    sub_domains: Sequence[str],
    edges: Sequence[int] = EDGES,
    min_training_rows: int = MIN_TRAINING_ROWS,
) -> Split:
    """Share rows out over training and the evaluation bins by their length.

    A row of at most `edges[0]` tokens trains, one of at most `edges[i]` is in evaluation bin i, and
    longer ones are left out. So are evaluation rows of sub-domains that too few training rows have.

    Args:
        lengths: Tokens of each row's prompt.
        sub_domains: Each row's sub-domain.
        edges: Upper ends, ascending.
        min_training_rows: Training rows that a sub-domain needs to be evaluated.
    """
    places = [bisect_left(edges, length) for length in lengths]
    known = Counter(name for name, place in zip(sub_domains, places, strict=True) if place == 0)
    bins: list[int] = []
    rare: dict[str, int] = {}
    dropped = 0
    for name, place in zip(sub_domains, places, strict=True):
        too_rare = 0 < place < len(edges) and known[name] < min_training_rows
        if too_rare:
            rare[name] = known[name]
            dropped += 1
        bins.append(0 if too_rare or place == len(edges) else edges[place])
    return Split(
        edges=tuple(edges),
        bins=tuple(bins),
        longer=places.count(len(edges)),
        rare=dict(sorted(rare.items())),
        dropped=dropped,
    )


def counts_text(counts: Sequence[int]) -> str:
    """Counts as the paper gives them: "116 / 66 + 65"."""
    return f"{counts[0]} / {' + '.join(str(count) for count in counts[1:])}"


def paper_counts(tokenizer_name: str) -> tuple[str, tuple[int, ...]] | None:
    """The paper's model that a tokenizer's name belongs to, and its counts; None for others."""
    name = tokenizer_name.lower().replace("olmo-3", "olmo3")
    for model, counts in PAPER.items():
        if model.lower().replace("olmo-3", "olmo3") in name:
            return model, counts
    return None
