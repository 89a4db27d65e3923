"""OpenAI MRCR's score rule on cases worked out from the official code."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from ryarn.tasks.mrcr_score import mrcr

CASES = json.loads((Path(__file__).parents[1] / "cases" / "mrcr.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["why"] for case in CASES])
def test_published_rule(case: dict[str, Any]) -> None:
    score = mrcr(case["response"], case["answer"], case["prefix"])
    assert score == pytest.approx(case["score"], abs=1e-12)
    assert isinstance(score, float)


def test_the_cases_tell_the_rule_from_its_neighbours() -> None:
    # Ports swap the arguments, switch autojunk off, strip the response or keep the prefix.
    def differ(rule: Any) -> int:
        return sum(
            abs(rule(c["response"], c["answer"], c["prefix"]) - c["score"]) > 0.001 for c in CASES
        )

    def rest(response: str, answer: str, prefix: str) -> tuple[str, str]:
        return response.removeprefix(prefix), answer.removeprefix(prefix)

    def guarded(ratio: Any) -> Any:
        return lambda r, a, p: ratio(r, a, p) if r.startswith(p) else 0.0

    assert len(CASES) >= 40
    assert differ(mrcr) == 0
    assert differ(guarded(lambda *c: SequenceMatcher(None, *rest(*c)[::-1]).ratio())) >= 5
    assert differ(guarded(lambda *c: SequenceMatcher(None, *rest(*c), False).ratio())) >= 5
    assert differ(lambda r, a, p: mrcr(r.lstrip(), a, p)) >= 2
    assert differ(guarded(lambda r, a, p: SequenceMatcher(None, r, a).ratio())) >= 5
    assert differ(lambda r, a, p: SequenceMatcher(None, *rest(r, a, p)).ratio()) >= 5
    assert differ(guarded(lambda r, a, p: SequenceMatcher(None, r[len(p) :], a[len(p) :]).ratio()))
