"""The paper's split of published rows: how many, which, and that no text is on both sides."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import pytest
from mrcr_rows import byte_encoding, published_row

from ryarn.errors import UserError
from ryarn.tasks import mrcr_split
from ryarn.tasks.mrcr_length import BINS
from ryarn.tasks.mrcr_published import Published
from ryarn.tasks.mrcr_split import HELD_OUT, PAPER_TEST, PAPER_TRAIN, TEST, Chosen, Splitter
from ryarn.tasks.splits import split_of

LENGTHS = {"8k": 4200, "16k": 8300, "32k": 16_500, "64k": 33_000, "128k": 66_000}
NEEDLES = (2, 4, 8)


@cache
def data() -> Published:
    """Data like the published, with fewer long rows, and all at the lower end of their bins."""
    import datasets

    files = {}
    number = 0
    for needles in NEEDLES:
        rows = []
        for name, length in LENGTHS.items():
            for _ in range(100 if name == "8k" else 16):
                number += 1
                asked = 1 + number % needles
                rows.append(published_row(number, length + 7 * (number % 9), needles, asked))
        files[f"{needles}needle.parquet"] = datasets.Dataset.from_list(rows)
    return Published("copy", files, "r", dated=True)


def choose(wanted: dict[str, int | None], split: str, **settings: Any) -> list[Chosen]:
    return list(_choose(tuple(wanted.items()), split, **settings))


@cache
def _choose(
    wanted: tuple[tuple[str, int | None], ...],
    split: str,
    seed: int = 0,
    needles: tuple[int, ...] = (2, 4, 8),
    published: Published | None = None,
    whole: bool = False,
) -> list[Chosen]:
    splitter = Splitter(published or data(), byte_encoding(), needles, whole=whole)
    return splitter.choose(dict(wanted), split, seed)


def sources(chosen: list[Chosen]) -> set[str]:
    return {row.entry.source for row in chosen}


def test_the_paper_s_numbers() -> None:
    assert PAPER_TRAIN == {"8k": 60}
    assert list(PAPER_TEST.items()) == [
        *(("8k", 26), ("16k", 30), ("32k", 30), ("64k", 30), ("128k", 31))
    ]
    assert sum(PAPER_TEST.values()) == 147


def test_the_paper_s_split_comes_out_with_the_needle_counts_even() -> None:
    train, test = choose(dict(PAPER_TRAIN), "train"), choose(dict(PAPER_TEST), "test")
    assert [row.bin for row in train] == [8192] * 60
    assert Counter(row.entry.needles for row in train) == {2: 20, 4: 20, 8: 20}
    assert Counter(row.bin for row in test) == {BINS[n]: c for n, c in PAPER_TEST.items()}
    for name in PAPER_TEST:
        counts = Counter(row.entry.needles for row in test if row.bin == BINS[name]).values()
        assert len(counts) == 3
        assert max(counts) - min(counts) <= 1
    assert [row.bin for row in test] == sorted(row.bin for row in test)
    assert not sources(train) & sources(test)


def test_length_is_that_of_messages_and_answer_together() -> None:
    for row in choose({"8k": 10, "64k": 4}, "test"):
        raw = data().row(row.entry)
        contents = sum(len(message["content"]) for message in raw.messages)
        assert row.tokens == contents + len(raw.answer)


def test_a_seed_takes_other_rows_but_never_across_the_splits() -> None:
    splits = {
        (split, seed): sources(choose({"8k": 25}, split, seed=seed))
        for split in ("train", "held-out", "test")
        for seed in (0, 1)
    }
    assert splits["train", 0] != splits["train", 1]
    assert splits["test", 0] != splits["test", 1]
    for (one, _), rows in splits.items():
        for (two, _), others in splits.items():
            assert one == two or not rows & others


def test_the_same_call_gives_the_same_rows_in_the_same_order() -> None:
    first = choose({"8k": 20, "16k": 20}, "test")
    _choose.cache_clear()
    assert choose({"8k": 20, "16k": 20}, "test") == first


def test_fewer_rows_or_other_bins_leave_the_rest_as_it_was() -> None:
    many = choose({"8k": 30, "16k": 30}, "test")
    assert choose({"8k": 12}, "test") == many[:12]
    assert choose({"16k": 9}, "test") == many[30:39]


def test_the_content_decides_the_split_whatever_else_the_data_holds() -> None:
    train = choose({"8k": None}, "train", needles=(4,))
    everything = choose({"8k": None}, "train")
    assert train == [row for row in everything if row.entry.needles == 4]
    for row in everything:
        assert split_of(row.entry.source, HELD_OUT, TEST) == "train"


def test_all_rows_are_shared_out_once() -> None:
    parts = [choose({"8k": None}, split) for split in ("train", "held-out", "test")]
    assert sum(map(len, parts)) == len(set().union(*map(sources, parts))) == 300
    assert [round(len(part) / 300, 1) for part in parts] == [0.5, 0.2, 0.3]
    longer = [choose({"32k": None}, split) for split in ("held-out", "test")]
    assert sum(map(len, longer)) == 48  # nothing is trained on there
    assert len(longer[1]) > 35


def test_every_row_tests_where_nothing_is_trained_on() -> None:
    whole = choose({"8k": None, "16k": None}, "test", whole=True)
    assert Counter(row.bin for row in whole) == {8192: 300, 16384: 48}


def test_too_few_rows_are_refused_for_results_and_taken_where_held_out() -> None:
    for split in ("train", "test"):
        with pytest.raises(UserError) as error:
            choose({"8k": 250}, split)
        assert f"'copy' has only {len(choose({'8k': None}, split))} for the {split} split" in str(
            error.value
        )
    found = choose({"8k": 250}, "held-out")
    assert found == choose({"8k": None}, "held-out")


def test_a_short_needle_count_is_made_up_by_the_others() -> None:
    all_of_8 = len(choose({"8k": None}, "test", needles=(8,)))
    everything = len(choose({"8k": None}, "test"))
    counts = Counter(row.entry.needles for row in choose({"8k": everything - 1}, "test"))
    assert sum(counts.values()) == everything - 1
    assert counts[8] in (all_of_8, all_of_8 - 1)


def test_a_text_asked_for_in_tests_stands_in_no_row_that_may_be_trained_on() -> None:
    """Published conversations share pieces: one asked for in a long row may stand in a short."""
    import datasets

    long = [published_row(number, 8300) for number in range(100, 140)]
    short = [published_row(number) for number in range(40)]

    def of(rows: list[dict[str, Any]], split: str, name: str) -> dict[int, Chosen]:
        published = Published("c", {"a": datasets.Dataset.from_list(rows)}, "r", dated=True)
        chosen = choose({name: None}, split, needles=(2,), published=published)
        return {row.entry.number: row for row in chosen}

    before = of(long + short, "test", "16k")
    asked = long[next(iter(before))]
    piece = asked["answer"].removeprefix(asked["random_string_to_prepend"])
    for row in short:
        messages = json.loads(row["prompt"])
        messages[0]["content"] += "e" * (len(messages[4]["content"]) - len(piece))
        messages[4]["content"] = piece
        row["prompt"] = json.dumps(messages)
    kept_out = set(before) - set(of(long + short, "test", "16k"))
    assert kept_out == {next(iter(before))}
    # As long as only rows that test have it, it may be asked for.
    trained_on = of(long + short, "train", "8k")
    others = [row for n, row in enumerate(long + short) if n not in trained_on]
    assert len(of(others, "test", "16k")) == len(before)


def test_rows_far_longer_than_the_bins_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    real, lengths = mrcr_split.count_tokens, []

    def count(encoding: Any, texts: Any, most: int) -> int:
        lengths.append(sum(map(len, texts)))
        return real(encoding, texts, most)

    monkeypatch.setattr(mrcr_split, "count_tokens", count)
    _choose.cache_clear()
    assert len(choose({"8k": None}, "train", needles=(2,))) > 40
    # Rows of 66,000 characters are longer than 8,192 tokens of 8 characters each.
    assert 16_500 < max(lengths) < 65_600
