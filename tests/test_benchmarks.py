"""The benchmarks' arithmetic, and what one of them guards: logits only where there are labels."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ryarn import tiny

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package of benchmarks, which is not installed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    package = import_module("benchmarks")
    for name in ("setting", "cost", "vocabulary"):
        import_module(f"benchmarks.{name}")
    return package


def test_a_training_step_has_logits_for_labelled_tokens_alone(benchmarks: Any) -> None:
    model, tokenizer = tiny.build("llama")
    found = benchmarks.vocabulary.in_ryarn(model, tokenizer, length=256, batch=2)
    assert (found.tokens, found.labelled, found.vocabulary) == (512, 32, len(tokenizer))
    assert 0 < found.rows <= found.labelled
    assert found.share < 0.1


def test_the_watch_sees_full_logits_and_those_of_trl_in_tiles(benchmarks: Any) -> None:
    model, _ = tiny.build("llama")
    plain = benchmarks.vocabulary.in_plain_forward(model, length=256, batch=2)
    assert (plain.rows, plain.share) == (512, 1.0)
    tiles = benchmarks.vocabulary.in_trl(tiny.build("llama")[0], length=256)
    assert (tiles.rows, tiles.width) == (255, tiles.vocabulary)


def test_the_interval_of_a_median(benchmarks: Any) -> None:
    # Of 10 values, the 2nd smallest to the 2nd largest cover the median with 97.9%.
    found = benchmarks.cost.interval([float(n) for n in range(10, 0, -1)])
    assert (found.median, found.low, found.high, found.n) == (5.5, 2.0, 9.0, 10)
    # Of 4, not even all of them do with 95%.
    found = benchmarks.cost.interval([1.0, 2.0, 3.0, 4.0])
    assert (found.low, found.high) == (1.0, 4.0)


def test_steps_are_taken_turn_about(benchmarks: Any) -> None:
    shape = benchmarks.setting.Shape(1, 32, 32, 2, 1, 64)
    found = benchmarks.cost.measure(shape, length=64, pairs=2)
    assert found.ratio.n == found.share.n == 2
    assert 0 < found.share.median < 1
