"""Fixtures of the comparison's tests: no worker processes, no report, quiet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from grids import Reported, finish

from inline_pool import InlinePool
from ryarn.compare import stage, workers


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> InlinePool:
    pool = InlinePool(lambda cell: finish(cell, {128: [1.0]}), lambda cell: cell.name)
    monkeypatch.setattr(stage, "Pool", pool.start)
    return pool


@pytest.fixture(autouse=True)
def reported(monkeypatch: pytest.MonkeyPatch) -> Reported:
    seen = Reported()
    monkeypatch.setattr("ryarn.report.stage.report_grid", seen)
    return seen


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run in this process: its output stays where it is."""
    monkeypatch.setattr(workers, "_print_to", lambda path: None)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
