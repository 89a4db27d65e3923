"""lm-evaluation-harness and `ryarn evaluate` on the same rows: the same answers and scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from environments import python_of, run_in
from tasks.longbench_v2_rows import published_row, write_json

pytestmark = pytest.mark.slow
TASKS = ("babilong", "mrcr", "longbench-v2")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    python_of("lm-eval")
    folder = tmp_path_factory.mktemp("lm-eval")
    source = write_json(folder / "data.json", [published_row(n) for n in range(24)])
    script = Path(__file__).parent / "lm_eval_probe.py"
    (folder / "work").mkdir()
    result: dict[str, Any] = json.loads(
        run_in("lm-eval", script, folder / "work", source).splitlines()[-1]
    )
    return result


@pytest.mark.parametrize("task", TASKS)
def test_a_model_gives_the_same_answers_and_scores_row_by_row(
    found: dict[str, Any], task: str
) -> None:
    ours, theirs = found[task]["model"]
    assert len(ours) >= 20
    assert theirs == ours
    assert any(row["text"] for row in ours.values())


@pytest.mark.parametrize("task", TASKS)
def test_right_and_wrong_answers_score_the_same_under_every_rule(
    found: dict[str, Any], task: str
) -> None:
    ours, theirs = found[task]["prepared"]
    assert len(ours) >= 20
    assert theirs == ours
    for rule in found[task]["rules"]:
        values = {row["scores"][rule] for row in ours.values()}
        assert len(values) > 1, rule
        mean = sum(row["scores"][rule] for row in ours.values()) / len(ours)
        assert found[task]["mean"][rule] == pytest.approx(mean)
