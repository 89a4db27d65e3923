"""What `ryarn tune` refuses, foresees and prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tunings import finish, make, prune, rated, write_tune

from inline_pool import InlinePool
from ryarn.compare.grid import Cell
from ryarn.errors import UserError
from ryarn.tasks.conflicts import Conflicts
from ryarn.tune import stage, tuned
from ryarn.tune.outlook import forecast
from ryarn.tune.stage import tune
from ryarn.tune.trials import make_trial
from tiny_run import command


def test_folders_of_others_are_left_alone(tmp_path: Path, inline: InlinePool) -> None:
    recipe = make(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not empty and holds no tuning"):
        tune(recipe)
    (tmp_path / "out" / "thesis.tex").unlink()

    def run(cell: Cell) -> None:
        with pytest.raises(UserError, match="another ryarn tune is at work there"):
            tune(recipe)
        finish(cell, 0.5)

    inline.run = run
    tune(recipe)


def test_a_space_smaller_than_the_trials_is_searched_to_its_end(
    tmp_path: Path, inline: InlinePool
) -> None:
    inline.run = lambda cell: finish(cell, 0.5)
    recipe = make(tmp_path, tune__search={"method.factor": [2, 4, 8]}, tune__trials=6)
    assert sorted(s["method.factor"] for s in forecast(recipe).settings) == [2, 4, 8]
    outcome = tune(recipe)
    assert sorted(t.setting["method.factor"] for t in outcome.trials) == [2, 4, 8]
    assert "The search ended before 6: no further setting was found." in tuned.sentences(
        recipe, outcome
    )


# Before anything runs


def test_rows_that_would_be_tested_on_are_refused(tmp_path: Path, inline: InlinePool) -> None:
    recut = {"data": {"held_out": 1.0, "test": 0.0}}
    with pytest.raises(UserError, match=r"^tune\.evaluate: rows to choose by must be apart: "):
        tune(make(tmp_path, tune__evaluate=recut))
    assert not (tmp_path / "out").exists()


def test_rows_that_another_setting_of_the_task_shares_out_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data: dict[str, Any] = {"task": "conflicts", "questions": ["latest"], "rows": 2}
    data |= {"lengths": [300, 400]}
    changes = {"evaluate": {"data": data}, "train__max_length": 300}
    fewer = make(tmp_path, "tune.evaluate={data: {rows: 1}}", **changes)
    other = make(tmp_path, "tune.evaluate={data: {moves: 3}}", **changes)
    for recipe in (fewer, other):
        stage._check_rows(recipe, make_trial(recipe, 1, {}))

    class Leaky(Conflicts):
        def examples(self, tokenizer: Any, split: str) -> Any:
            return super().examples(tokenizer, "test")

    monkeypatch.setattr(stage, "make_task", lambda config: Leaky(data_config))
    data_config = fewer.evaluate.data
    stage._check_rows(fewer, make_trial(fewer, 1, {}))
    with pytest.raises(UserError, match=r"2 sources of its held-out rows, e\.g\. .* test rows"):
        stage._check_rows(other, make_trial(other, 1, {}))


def test_all_bins_may_be_chosen_by(tmp_path: Path, inline: InlinePool) -> None:
    inline.run = lambda cell: finish(cell, 0.5)
    recipe = make(tmp_path, "train.max_length=128", "tune.bins=all")
    outcome = tune(recipe)
    assert {trial.score for trial in outcome.trials} == {0.75}
    assert (
        "A score is the mean over all bins of held-out rows" in tuned.sentences(recipe, outcome)[1]
    )


@pytest.mark.parametrize("task", ["jsonl", "conflicts"])
def test_rows_no_longer_than_those_of_training_are_refused(
    tmp_path: Path, inline: InlinePool, task: str
) -> None:
    recipe = make(tmp_path)
    if task == "conflicts":
        data: dict[str, Any] = {"task": "conflicts", "questions": ["latest"], "rows": 2}
        changes = {"train__max_length": 400, "evaluate": {"data": {**data, "lengths": [300, 400]}}}
        recipe = make(tmp_path, **changes)
    else:
        recipe = make(tmp_path, "train.max_length=128")
    with pytest.raises(UserError, match=r"none beyond train\.max_length = (128|400), so there is"):
        tune(recipe)
    assert not (tmp_path / "out").exists()


def test_what_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs optuna and sklearn: pip install 'ryarn\[tune\]'"):
        tune(make(tmp_path))


def test_the_forecast_shows_the_settings_that_are_run_and_writes_nothing(
    tmp_path: Path, inline: InlinePool
) -> None:
    recipe = make(tmp_path, tune__trials=12)
    seen = forecast(recipe)
    assert not (tmp_path / "out").exists()
    assert len(seen.settings) == 10
    assert seen.notes[:2] == [
        "12 trials, 0 of them settled",
        "the other 2 are proposed from what these give",
    ]
    assert "less what is pruned (roughly, from" in seen.notes[2]
    inline.run = lambda cell: prune(cell, 1) if cell.setting == 12 else finish(cell, rated(cell))
    trials = tune(recipe).trials
    assert [trial.setting for trial in trials[:10]] == seen.settings
    after = forecast(recipe)
    assert after.notes == ["12 trials, 12 of them settled"]
    assert [*after.settings] == [trial.setting for trial in trials]


def test_the_command_prints_the_choice_and_fails_if_a_trial_did(
    tmp_path: Path,
    inline: InlinePool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_tune(tmp_path)
    assert command(monkeypatch, "tune", path, "--dry-run") == 0
    assert "4 trials, 0 of them settled" in capsys.readouterr().out
    inline.run = lambda cell: "no luck" if cell.setting == 2 else finish(cell, 0.5)
    assert command(monkeypatch, "tune", path) == 1
    out, err = capsys.readouterr()
    assert "failed: trial 2: no luck" in err
    assert "4 settings were tried (3 finished, 0 pruned, 1 failed)" in out
    assert "method.factor" in out
    assert f"next: ryarn train {tmp_path / 'out' / 'tuned.yaml'}" in out.replace("\n", "")
    inline.run = lambda cell: finish(cell, 0.5)
    assert command(monkeypatch, "tune", path) == 0


# In a worker
