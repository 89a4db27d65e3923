"""The paper's split on lengths whose shares are plain to see."""

from __future__ import annotations

import pytest

from ryarn.tasks.longbench_v2_split import EDGES, counts_text, paper_counts, split_rows


def test_the_paper_s_edges_are_the_default() -> None:
    lengths = [1, 32_768, 32_769, 65_536, 65_537, 131_072, 131_073]
    split = split_rows(lengths, ["x"] * 7, min_training_rows=2)
    assert EDGES == (32_768, 65_536, 131_072)
    assert split.bins == (32_768, 32_768, 65_536, 65_536, 131_072, 131_072, 0)
    assert split.counts == (2, 2, 2)
    assert (split.longer, split.dropped, split.rare) == (1, 0, {})


def test_a_sub_domain_needs_three_training_rows_to_be_evaluated() -> None:
    names = ["three"] * 3 + ["two"] * 2 + ["three", "two", "none", "two", "none"]
    lengths = [9] * 5 + [15, 15, 15, 40, 40]
    split = split_rows(lengths, names, (10, 20, 30))
    assert split.bins == (10, 10, 10, 10, 10, 20, 0, 0, 0, 0)
    # Rows that are too long anyway are no rows of a rare sub-domain.
    assert (split.longer, split.dropped) == (2, 2)
    assert split.rare == {"none": 0, "two": 2}
    assert split.counts == (5, 1, 0)


@pytest.mark.parametrize(("least", "kept"), [(0, 3), (1, 2), (2, 2), (3, 1), (4, 0)])
def test_how_many_training_rows_are_asked_for(least: int, kept: int) -> None:
    names = ["a"] * 3 + ["b"] * 2 + ["a", "b", "c"]
    split = split_rows([5] * 5 + [15] * 3, names, (10, 20), least)
    assert split.counts == (5, kept)


def test_counts_are_written_as_the_paper_writes_them() -> None:
    assert counts_text((116, 66, 65)) == "116 / 66 + 65"
    assert counts_text((9, 4)) == "9 / 4"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", ("Qwen2.5-7B-Instruct", (116, 66, 65))),
        ("/models/qwen2.5-7b-instruct/", ("Qwen2.5-7B-Instruct", (116, 66, 65))),
        ("allenai/Olmo-3-7B-Instruct", ("Olmo-3-7B-Instruct", (119, 71, 67))),
        ("allenai/Olmo3-7B-Instruct", ("Olmo-3-7B-Instruct", (119, 71, 67))),
        ("Qwen/Qwen2.5-14B-Instruct", None),
        ("Qwen/Qwen3-14B", None),
        ("", None),
    ],
)
def test_the_paper_s_counts_belong_to_its_models(
    name: str, known: tuple[str, tuple[int, ...]] | None
) -> None:
    assert paper_counts(name) == known
