"""`ryarn tune` with workers played by this process."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tunings import finish, make, prune, rated, table

from inline_pool import InlinePool
from ryarn.compare.grid import Cell
from ryarn.errors import UserError
from ryarn.recipe import load_recipe
from ryarn.runs import write_json
from ryarn.tune import stage, tuned
from ryarn.tune.search import (
    chosen_recipe,
)
from ryarn.tune.stage import tune
from ryarn.tune.study import Past, propose


def test_the_best_held_out_mean_is_chosen_and_written_as_a_recipe(
    tmp_path: Path, inline: InlinePool
) -> None:
    recipe = make(tmp_path, tune__trials=12)
    outcome = tune(recipe)
    assert inline.order == list(range(1, 13))
    rows = table(tmp_path)
    assert [int(row["trial"]) for row in rows] == inline.order
    scores = [float(row["held_out_mean"]) for row in rows]
    top = rows[scores.index(max(scores))]
    known, check = Past(outcome.trials[:10]), stage.trial_maker(recipe)
    assert outcome.trials[10].setting == propose(stage.spaces(recipe), known, (7, 11), check)
    assert outcome.chosen.number == int(top["trial"])
    assert (top["state"], top["held_out_loss"], top["steps"]) == ("finished", "1.0", "4")
    text = (tmp_path / "out" / "tuned.yaml").read_text()
    number = outcome.chosen.number
    assert text.startswith(f"# Chosen by ryarn tune: trial {number} of 12, seed 7, held-out mean ")
    plain = load_recipe(tmp_path / "out" / "tuned.yaml", [])
    assert plain == outcome.recipe == chosen_recipe(recipe, outcome.chosen.setting)
    assert plain.train.learning_rate == json.loads(top["train.learning_rate"])
    assert plain.evaluate.split == "test"
    page = (tmp_path / "out" / "tune.md").read_text()
    assert "12 settings were tried (12 finished, 0 pruned, 0 failed)" in page
    assert "seed of the search and of every training: 7" in page
    assert f"the 12 scores lie between {min(scores):.3f} and {max(scores):.3f}" in page
    assert next(iter(outcome.importances)) == "train.learning_rate"


def test_the_first_of_equal_trials_is_chosen(tmp_path: Path, inline: InlinePool) -> None:
    inline.run = lambda cell: finish(cell, 0.5 if (cell.setting or 0) > 1 else 0.25)
    assert tune(make(tmp_path)).chosen.number == 2
    page = (tmp_path / "out" / "tune.md").read_text()
    assert "from so few trials they are a hint" in page


def test_what_pruned_trials_cost_is_told_and_they_are_never_chosen(
    tmp_path: Path, inline: InlinePool
) -> None:
    def run(cell: Cell) -> None:
        return prune(cell, 1) if cell.setting in (2, 3) else finish(cell, 0.5)

    inline.run = run
    recipe = make(tmp_path)
    outcome = tune(recipe)
    states = [row["state"] for row in table(tmp_path)]
    assert states == ["finished", "pruned", "pruned", "finished"]
    second = table(tmp_path)[1]
    assert (second["held_out_mean"], second["steps"], second["of_steps"]) == ("", "1", "4")
    assert second["reason"] == "held-out loss 8.25 at step 1 of 4"
    assert float(second["seconds"]) == 30
    told = tuned.sentences(recipe, outcome)
    assert told[0].startswith("4 settings were tried (2 finished, 2 pruned, 0 failed)")
    assert "of that 60 s in pruned trials, which did 2 of 8 steps" in told[3]
    assert outcome.chosen.number == 1
    screen = Console(record=True, width=100, file=io.StringIO())
    for shown in tuned.terminal(recipe, outcome):
        screen.print(shown)
    text = screen.export_text()
    assert "1/4" in text
    assert "pruned" in text


def test_a_failed_trial_is_recorded_and_tried_again_by_the_next_call(
    tmp_path: Path, inline: InlinePool
) -> None:
    inline.run = lambda cell: "no luck" if cell.setting == 2 else finish(cell, 0.5)
    outcome = tune(make(tmp_path))
    assert inline.order == [1, 2, 3, 4]
    assert outcome.failed == {"trial 2": "no luck"}
    assert (table(tmp_path)[1]["state"], table(tmp_path)[1]["reason"]) == ("failed", "no luck")
    inline.order.clear()
    inline.run = lambda cell: finish(cell, 0.75)
    again = tune(make(tmp_path))
    assert inline.order == [2]
    assert (again.failed, again.chosen.number) == ({}, 2)
    assert [t.setting for t in again.trials] == [t.setting for t in outcome.trials]


def test_if_all_fail_it_is_an_error(tmp_path: Path, inline: InlinePool) -> None:
    inline.run = lambda cell: "no luck"
    with pytest.raises(UserError, match="none of the 4 trials has a score; trial 1: no luck"):
        tune(make(tmp_path))
    assert [row["reason"] for row in table(tmp_path)] == ["no luck"] * 4
    assert not (tmp_path / "out" / "tuned.yaml").exists()


def test_a_trial_without_a_row_beyond_the_training_length_has_failed(
    tmp_path: Path, inline: InlinePool
) -> None:
    def run(cell: Cell) -> None:
        finish(cell, 0.5)
        if cell.setting == 1:
            path = cell.recipe.output / "evaluation" / "scores.jsonl"
            path.write_text(path.read_text().splitlines()[0] + "\n")

    inline.run = run
    assert "no held-out row is in a bin beyond" in tune(make(tmp_path)).failed["trial 1"]


# Going on


def test_killed_and_taken_up_it_ends_as_if_it_had_not_been(
    tmp_path: Path, inline: InlinePool
) -> None:
    straight = tune(make(tmp_path, f"output={tmp_path / 'straight'}", tune__trials=14))
    inline.order.clear()

    def run(cell: Cell) -> None:
        if cell.setting in (3, 12) and inline.order.count(cell.setting) == 1:
            raise KeyboardInterrupt
        finish(cell, rated(cell))

    inline.run = run
    recipe = make(tmp_path, tune__trials=14)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune(recipe)
    outcome = tune(recipe)
    assert inline.order == [1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 12, 13, 14]
    assert [t.setting for t in outcome.trials] == [t.setting for t in straight.trials]
    assert outcome.chosen.setting == straight.chosen.setting
    assert outcome.importances == straight.importances
    inline.order.clear()
    assert tune(recipe).trials == outcome.trials
    assert inline.order == []


def test_a_trial_that_ended_before_it_was_written_down_keeps_its_time(
    tmp_path: Path, inline: InlinePool
) -> None:
    def run(cell: Cell) -> None:
        finish(cell, 0.5)
        write_json(cell.recipe.output / "times.json", {"train": 50.0, "evaluate": 10.0})

    inline.run = run
    assert {trial.seconds for trial in tune(make(tmp_path)).trials} == {60.0}


def test_more_trials_may_be_asked_for_later(tmp_path: Path, inline: InlinePool) -> None:
    first = tune(make(tmp_path, tune__trials=2))
    second = tune(make(tmp_path, "train.log_steps=5", "tune.trials=3"))
    assert inline.order == [1, 2, 3]
    assert second.trials[:2] == first.trials


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("train.max_steps=5", "train.max_steps = 4, not 5"),
        ("tune.seed=8", "tune.seed = 7, not 8"),
        (
            "tune.search={method.factor: [2, 4]}",
            "tune.search.train.learning_rate.low = 0.0001, not",
        ),
        ("tune.prune=null", "tune.prune.checks = 2, not None"),
        ("evaluate.max_new_tokens=3", "evaluate.max_new_tokens = 2, not 3"),
    ],
)
def test_a_changed_recipe_is_refused(
    tmp_path: Path, inline: InlinePool, override: str, named: str
) -> None:
    tune(make(tmp_path))
    inline.order.clear()
    with pytest.raises(UserError) as error:
        tune(make(tmp_path, override, "tune.trials=9"))
    assert f"was tuned with {named}" in str(error.value)
    assert "choose another output" in str(error.value)
    assert inline.order == []
