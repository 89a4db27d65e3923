"""LongBench v2's official answer rule on cases worked out from the official code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ryarn.records import Completion, Example
from ryarn.tasks.longbench_v2_score import longbench_v2_score, official_letter, sglang_letter

CASES = json.loads(
    (Path(__file__).parents[1] / "cases" / "longbench_v2.json").read_text(encoding="utf-8")
)


def example(answer: str) -> Example:
    return Example("id", (), "", answer, "longbench-v2", 65_536, "document")


@pytest.mark.parametrize("case", CASES, ids=[case["why"] for case in CASES])
def test_published_rules(case: dict[str, Any]) -> None:
    completion = Completion("id", case["text"], 9, case["finish"])
    score = longbench_v2_score(example(case["answer"]), completion)
    assert official_letter(case["text"]) == case["letter"]
    assert score.scores == {
        "longbench-v2": case["score"],
        "longbench-v2-compensated": case["compensated"],
        "longbench-v2-after-thinking": case["after_thinking"],
        "longbench-v2-sglang": case["sglang"],
    }
    assert next(iter(score.scores)) == "longbench-v2"
    assert score.parsed == (case["letter"] is not None)


def test_the_cases_tell_the_rule_from_its_neighbours() -> None:
    def differ(rule: Callable[[str], str | None]) -> int:
        return sum(rule(case["text"]) != case["letter"] for case in CASES)

    def found(pattern: str, text: str, flags: int = 0) -> str | None:
        letters = re.findall(pattern, text.replace("*", ""), flags)
        return letters[0].upper() if letters else None

    bracketed, bare = r"The correct answer is \(([A-D])\)", r"The correct answer is ([A-D])"
    assert len(CASES) >= 40
    assert differ(official_letter) == 0
    assert differ(sglang_letter) >= 10
    assert differ(lambda text: found(bracketed, text)) >= 5, "the bare letter counts"
    assert differ(lambda text: found(bare, text) or found(bracketed, text)) >= 1, "brackets first"
    assert differ(lambda text: found(r"The correct answer is \(?([A-D])", text)) >= 2
    assert differ(lambda text: found(bracketed, text) or found(bare + r"\b", text)) >= 2
    assert differ(lambda text: found(bracketed, text, re.I) or found(bare, text, re.I)) >= 5
    assert differ(lambda text: official_letter(text.rpartition("</think>")[2])) >= 1
    assert differ(lambda text: official_letter(text.replace("*", "?"))) >= 4, "asterisks go"
    assert differ(lambda text: official_letter(" ".join(text.split()))) >= 3, "white space counts"


def test_a_skipped_row_has_no_score() -> None:
    skipped = Completion("id", "", 99_999, "skipped", "too long")
    score = longbench_v2_score(example("B"), skipped)
    assert score.scores == {}
    assert not score.parsed
    assert (score.id, score.bin, score.source, score.finish) == (
        *("id", 65_536, "document"),
        "skipped",
    )


@pytest.mark.parametrize("finish", ["stop", "length", "thinking"])
def test_how_an_answer_ended_is_kept(finish: str) -> None:
    score = longbench_v2_score(
        example("B"), Completion("id", "The correct answer is (B)", 9, finish)
    )
    assert score.finish == finish
    assert score.scores["longbench-v2"] == 1.0
