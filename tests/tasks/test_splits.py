"""Splits by content."""

from __future__ import annotations

from collections import Counter

import pytest

from ryarn.tasks.splits import content_hash, split_of


def test_shares_are_kept() -> None:
    counts = Counter(split_of(content_hash((str(n),)), 0.2, 0.3) for n in range(4000))
    assert counts["held-out"] / 4000 == pytest.approx(0.2, abs=0.02)
    assert counts["test"] / 4000 == pytest.approx(0.3, abs=0.02)


def test_all_or_nothing() -> None:
    hashes = [content_hash((str(n),)) for n in range(200)]
    assert {split_of(h, 0.0, 0.0) for h in hashes} == {"train"}
    assert {split_of(h, 0.5, 1.0) for h in hashes} == {"test"}


def test_borders_between_parts_count() -> None:
    assert content_hash(("ab", "c")) != content_hash(("a", "bc")) != content_hash(("abc",))


def test_the_split_of_a_content_never_changes() -> None:
    # Published runs rest on these; a new hash would leak their test stories into training.
    assert content_hash(("John went to the office.", "Where is John?"))[:16] == "0b5cadd716bcbc65"
    assert [split_of(str(n), 0.1, 0.1) for n in range(5)] == [
        "train",
        "test",
        "held-out",
        "held-out",
        "train",
    ]
