"""BABILong's two score rules on cases worked out from the official code."""

from __future__ import annotations

import json
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
        example(case["question"], case["target"]), Completion("id", case["text"], 9, "stop")
    )
    assert list(score.scores) == ["babilong", "babilong-substring"]
    assert score.scores["babilong"] == case["babilong"]
    assert score.scores["babilong-substring"] == case["substring"]
    assert score.parsed == case["parsed"]


def test_a_skipped_row_has_no_score() -> None:
    skipped = Completion("id", "", 99_999, "skipped", "too long")
    score = babilong_score(example("Where is Mary?", "kitchen"), skipped)
    assert score.scores == {}
    assert not score.parsed
    assert (score.id, score.bin, score.source, score.finish) == ("id", 512, "story", "skipped")
