"""The table of tasks."""

from __future__ import annotations

import pytest

from ryarn.errors import UserError
from ryarn.tasks.babilong import Babilong, BabilongConfig
from ryarn.tasks.jsonl import SCORES, Jsonl, JsonlConfig
from ryarn.tasks.registry import TASKS, make_task


def test_a_config_makes_its_task() -> None:
    config = BabilongConfig(questions=["qa1"], lengths=[512], rows=1)
    assert isinstance(make_task(config), Babilong)
    assert isinstance(make_task(JsonlConfig(path="a.jsonl")), Jsonl)


def test_rows_written_by_any_task_can_be_scored() -> None:
    assert set(SCORES) == set(TASKS)


def test_an_unknown_task_is_refused() -> None:
    config = JsonlConfig(path="a.jsonl").model_copy(update={"task": "ruler"})
    with pytest.raises(UserError, match="known tasks are babilong, jsonl"):
        make_task(config)
