"""Fixtures of the tuning's tests: no worker processes, and quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tunings import finish, rated

from inline_pool import InlinePool
from ryarn.compare import workers
from ryarn.tune import stage
from ryarn.tune.trials import run_trial


class Inline(InlinePool):
    """The pool of `ryarn tune`."""

    def start(self, count: int, threads: int, notes: Path, *run: Any) -> Inline:
        assert run == (run_trial,)
        return super().start(count, threads, notes)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> Inline:
    pool = Inline(lambda cell: finish(cell, rated(cell)), lambda cell: cell.setting or 0)
    monkeypatch.setattr(stage, "Pool", pool.start)
    return pool


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials run in this process: its output stays where it is."""
    monkeypatch.setattr(workers, "_print_to", lambda path: None)
