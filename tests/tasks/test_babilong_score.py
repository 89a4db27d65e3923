"""BABILong's score rules on cases worked out from the official code."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ryarn.records import Completion, Example
from ryarn.tasks.babilong_score import babilong_score

CASES = json.loads(
    (Path(__file__).parents[1] / "cases" / "babilong.json").read_text(encoding="utf-8")
)


def example(question: str, target: str) -> Example:
    return Example("id", (), "", target, "babilong", 512, "story", question)


@pytest.mark.parametrize("case", CASES, ids=[case["why"] for case in CASES])
def test_published_rules(case: dict[str, Any]) -> None:
    score = babilong_score(
        example(case["question"], case["target"]), Completion("id", case["text"], 9, case["finish"])
    )
    assert score.scores == {
        "babilong": case["babilong"],
        "babilong-after-thinking": case["after_thinking"],
        "babilong-substring": case["substring"],
        "babilong-lm-eval": case["lm_eval"],
    }
    assert next(iter(score.scores)) == "babilong"
    assert score.parsed == case["parsed"]
    assert score.finish == case["finish"]


def test_there_are_enough_cases_and_each_rule_differs_from_each_other_on_some() -> None:
    assert len(CASES) >= 40
    assert len({case["why"] for case in CASES}) == len(CASES)
    rules = ("babilong", "after_thinking", "substring", "lm_eval", "parsed")
    for one, two in combinations(rules, 2):
        assert any(case[one] != case[two] for case in CASES), (one, two)


def test_the_lenient_rules_are_lenient() -> None:
    for case in CASES:
        asked = case["target"].lower() in case["question"].lower()
        assert case["babilong"] <= case["substring"] <= case["lm_eval"] or asked


def test_a_skipped_row_has_no_score() -> None:
    skipped = Completion("id", "", 99_999, "skipped", "too long")
    score = babilong_score(example("Where is Mary?", "kitchen"), skipped)
    assert score.scores == {}
    assert not score.parsed
    assert (score.id, score.bin, score.source, score.finish) == ("id", 512, "story", "skipped")
