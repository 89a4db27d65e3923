"""Trials for real: stopped in training, killed, taken up, in worker processes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tunings import make, table

from ryarn.compare import workers
from ryarn.compare.grid import Cell
from ryarn.compare.workers import Pool, attempt
from ryarn.tune import stage
from ryarn.tune import trials as in_worker
from ryarn.tune.search import (
    PruneConfig,
)
from ryarn.tune.stage import tune
from ryarn.tune.study import Journal, Settled
from ryarn.tune.trials import check_steps, make_trial, run_trial


def test_checks_are_spread_over_the_training() -> None:
    assert check_steps(100, 4) == {25: 1, 50: 2, 75: 3, 100: 4}
    assert check_steps(10, 4) == {3: 1, 5: 2, 8: 3, 10: 4}
    assert check_steps(2, 4) == {1: 2, 2: 4}


def losses(cell: Cell) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(
        (cell.recipe.output / "checks.json").read_text()
    )
    return found


@pytest.mark.usefixtures("quiet")
def test_a_hopeless_trial_stops_in_training_and_an_interrupted_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make(tmp_path, "tune.prune={checks: 2, after: 1}", "train.learning_rate=1e-2")
    setting = {"train.learning_rate": 1e-2, "method.factor": 2}
    trials = [make_trial(recipe, number, setting) for number in (1, 2, 3)]
    (tmp_path / "out").mkdir()
    journal = Journal(tmp_path / "out", stage.spaces(recipe))
    assert attempt(trials[0], run_trial) is None
    straight = losses(trials[0])
    assert [(k, v["step"]) for k, v in straight.items()] == [("1", 2), ("2", 4)]
    assert (trials[0].recipe.output / "evaluation" / "scores.jsonl").is_file()

    # Killed at the second check; its checkpoint is of the step before.
    def kill(folder: Path, rule: PruneConfig, curve: dict[int, float]) -> bool:
        if 2 in curve:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(in_worker, "is_hopeless", kill)
    with pytest.raises(KeyboardInterrupt):
        attempt(trials[1], run_trial)
    monkeypatch.undo()
    monkeypatch.setattr(workers, "_print_to", lambda path: None)
    asked: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(in_worker, "is_hopeless", lambda folder, rule, curve: asked.append([*curve]))
        assert attempt(trials[1], run_trial) is None
    assert asked == [[1, 2]], "the check that was not answered is asked again"
    run = json.loads((trials[1].recipe.output / "run.json").read_text())
    assert run["resumed_from"] == "checkpoint-3"
    assert losses(trials[1]) == straight

    curve = {int(k): v["loss"] for k, v in straight.items()}
    better = {1: curve[1] + 1, 2: curve[2] - 1}
    journal.add(Settled(1, setting, "finished", 0.5, curve=better))
    assert attempt(trials[2], run_trial) is None
    # Its best loss so far counts: at the first check it was good, at the second it is not.
    folder = trials[2].recipe.output
    stop = json.loads((folder / "pruned.json").read_text())
    assert (stop["check"], stop["step"], stop["steps"]) == (2, 4, 4)
    assert not (folder / "adapter").exists()
    assert not (folder / "evaluation").exists()
    before = (folder / "pruned.json").read_bytes()
    assert attempt(trials[2], run_trial) is None
    assert (folder / "pruned.json").read_bytes() == before


@pytest.mark.usefixtures("quiet")
def test_trials_run_in_a_worker_process_and_a_hopeless_one_is_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make(
        tmp_path,
        "tune.prune={checks: 2, keep: 0.5, after: 1}",
        "tune.trials=2",
        tune__search={"train.learning_rate": [1e-3, 10.0]},
        tune__seed=6,
    )
    assert stage.Pool is Pool
    screen = Console(record=True, width=200, file=io.StringIO())
    outcome = tune(recipe, console=screen)
    assert [t.setting["train.learning_rate"] for t in outcome.trials] == [1e-3, 10.0]
    assert [t.state for t in outcome.trials] == ["finished", "pruned"], table(tmp_path)
    assert outcome.trials[1].steps == 2
    assert outcome.trials[1].of_steps == 4
    assert outcome.chosen.number == 1
    assert outcome.recipe.train.learning_rate == 1e-3
    text = screen.export_text()
    assert "train.learning_rate 10: pruned, held-out loss " in text
    log = (tmp_path / "out/trials/1/log.txt").read_text()
    assert "rows of" in log
    assert torch.cuda.is_available() or "device" in (tmp_path / "out/trials/1/run.json").read_text()
