"""Rows of published data that a recipe can be expected to have, told without reading them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ryarn.tasks.babilong import SIMULATOR, BabilongConfig
from ryarn.tasks.babilong_context import nominal
from ryarn.tasks.babilong_tally import PAPER_ROWS
from ryarn.tasks.longbench_v2 import LongBenchV2Config
from ryarn.tasks.longbench_v2_split import PAPER, paper_counts
from ryarn.tasks.mrcr import MrcrConfig
from ryarn.tasks.mrcr_length import BINS
from ryarn.tasks.registry import TaskConfig

MRCR_ROWS = 100
"""Published MRCR rows of each length and needle count, as the dataset's card has it."""


def hub_source(data: TaskConfig) -> str | None:
    """The hub dataset that a task reads; None for what is made here, or lies on this machine."""
    if isinstance(data, BabilongConfig):
        source = None if data.source == SIMULATOR else data.source
    elif isinstance(data, MrcrConfig):
        source = data.source if data.published else None
    elif isinstance(data, LongBenchV2Config):
        source = data.source
    else:
        return None
    if source is None or source.startswith((".", "/", "~")) or Path(source).exists():
        return None
    return source


def expected_rows(data: TaskConfig, split: str, model: str) -> Counter[int]:
    """Length to rows, of data that `hub_source` names.

    Args:
        data: The task's config.
        split: Which rows.
        model: Name of the model, whose tokens LongBench v2 is shared out by.
    """
    if isinstance(data, BabilongConfig):
        found = Counter[int]()
        for length in map(str, data.lengths):
            rows = min(data.rows, PAPER_ROWS.get(length, data.rows)) if data.multi_entry else None
            found[nominal(length)] += len(data.questions) * (rows or data.rows)
        return found
    if isinstance(data, MrcrConfig):
        every = MRCR_ROWS * len(data.needles)
        return Counter({BINS[str(name)]: rows or every for name, rows in data.wanted.items()})
    assert isinstance(data, LongBenchV2Config)
    known = paper_counts(model)
    counts = known[1] if known else next(iter(PAPER.values()))
    shares = dict(zip(data.edges, counts, strict=False))
    first = data.edges[0]
    if split == "test":
        return Counter({edge: rows for edge, rows in shares.items() if edge != first})
    share = data.held_out if split == "held-out" else 1 - data.held_out
    return Counter({first: round(share * shares[first])})
