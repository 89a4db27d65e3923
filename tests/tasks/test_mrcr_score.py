"""OpenAI MRCR's score rule on cases worked out from the official code."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from ryarn.records import Completion, Example
from ryarn.tasks.mrcr_score import mrcr, mrcr_score

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


def scores(text: str, finish: str = "stop") -> dict[str, float]:
    example = Example("a", (), "", "ka silver moon", "mrcr", 8192, "s", info={"prefix": "ka"})
    return mrcr_score(example, Completion("a", text, 0, finish)).scores


@pytest.mark.parametrize("case", CASES, ids=[case["why"] for case in CASES])
def test_the_official_rule_comes_first_in_a_row_s_scores(case: dict[str, Any]) -> None:
    example = Example(
        "a", (), "", case["answer"], "mrcr", 8192, "s", info={"prefix": case["prefix"]}
    )
    score = mrcr_score(example, Completion("a", case["response"], 0, "stop"))
    assert list(score.scores) == ["mrcr", "mrcr-lstrip", "mrcr-after-thinking", "exact"]
    assert score.scores["mrcr"] == pytest.approx(case["score"], abs=1e-12)
    assert score.parsed == case["response"].startswith(case["prefix"])
    assert (score.bin, score.source, score.finish) == (8192, "s", "stop")


@pytest.mark.parametrize(
    ("text", "lstrip", "after_thinking", "exact"),
    [
        ("ka silver moon", 1, 1, 1),
        ("\n ka silver moon", 1, 1, 1),
        ("ka silver moon \n", 24 / 26, 24 / 26, 1),
        ("<think>first</think>\n\nka silver moon", 0, 1, 0),
        ("first</think>ka silver moon", 0, 1, 0),
        ("<think>a</think><think>b</think> ka silver moon", 0, 1, 0),
        ("<think>ka silver moon</think>", 0, 0, 0),
        ("Sure: ka silver moon", 0, 0, 0),
        ("silver moon", 0, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_more_lenient_rules_have_names_of_their_own(
    text: str, lstrip: float, after_thinking: float, exact: float
) -> None:
    found = scores(text)
    assert found["mrcr-lstrip"] == pytest.approx(lstrip)
    assert found["mrcr-after-thinking"] == pytest.approx(after_thinking)
    assert found["exact"] == exact
    assert found["mrcr"] == pytest.approx(mrcr(text, "ka silver moon", "ka"))


def test_an_answer_that_ended_inside_its_thinking_has_nothing_behind_it() -> None:
    text = "<think>a</think>ka silver moon<think>or"
    assert scores(text)["mrcr-after-thinking"] > 0
    assert scores(text, "thinking")["mrcr-after-thinking"] == 0
    assert scores("<think>ka silver", "thinking") == {
        **{"mrcr": 0, "mrcr-lstrip": 0, "mrcr-after-thinking": 0, "exact": 0}
    }


def test_a_skipped_row_has_no_score() -> None:
    assert scores("", "skipped") == {}
