"""The tuning: what can be searched, proposals, pruning, the study on disk, restarts, the result."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

from ryarn.compare import workers
from ryarn.compare.grid import Cell
from ryarn.compare.workers import Pool, Result, attempt
from ryarn.config import dump
from ryarn.errors import UserError
from ryarn.recipe import load_recipe
from ryarn.records import write_jsonl
from ryarn.runs import save_recipe, write_json
from ryarn.tasks.conflicts import Conflicts
from ryarn.tune import stage, tuned
from ryarn.tune import trials as in_worker
from ryarn.tune.outlook import forecast
from ryarn.tune.search import (
    Choices,
    PruneConfig,
    Range,
    Setting,
    TuneRecipe,
    chosen_recipe,
    load_tune,
    trial_recipe,
)
from ryarn.tune.stage import tune
from ryarn.tune.study import Journal, Past, Settled, importances, is_hopeless, propose
from ryarn.tune.trials import check_steps, make_trial, run_trial
from tiny_run import OTHER, command, write_rows

LONG = "Where, and where, and where, and where, and where, and where is number {}?"
RATES = {"low": 1e-4, "high": 1e-2, "log": True}
PAIR = {"train.learning_rate": RATES, "method.factor": [2, 4, 8]}


def write_tune(folder: Path, **changes: Any) -> Path:
    """A recipe with a `tune` section, on rows in and beyond the training length."""
    train_rows = write_rows(folder / "train.jsonl", 40)
    rows = write_rows(folder / "short.jsonl", 8, OTHER).read_text()
    rows += write_rows(folder / "long.jsonl", 8, LONG).read_text()
    (folder / "test.jsonl").write_text(rows)
    kept = {"task": "jsonl", "path": str(folder / "test.jsonl"), "held_out": 0.5, "test": 0.5}
    data = {
        "model": {"name": "tiny:llama", "dtype": "float32"},
        "method": {"name": "randomized-yarn", "factor": 2, "spans": [128]},
        "train": {
            "data": {"task": "jsonl", "path": str(train_rows), "held_out": 0.2},
            "max_length": 64,
            "max_steps": 4,
            "batch_size": 2,
            "held_out_rows": 4,
            "save_steps": 1,
        },
        "evaluate": {"data": kept, "max_new_tokens": 2},
        "tune": {"trials": 4, "seed": 7, "search": PAIR},
        "output": str(folder / "out"),
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            data[section][name] = value  # type: ignore[index]
        else:
            data[section] = value
    path = folder / "tune.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def make(folder: Path, *overrides: str, **changes: Any) -> TuneRecipe:
    return load_tune(write_tune(folder, **changes), list(overrides))


# What can be searched


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tune__seed": 0}, "tune.seed = 0 is the recipe's seed"),
        ({"tune__evaluate": {"split": "test"}}, "evaluate.split: trials are evaluated on held-out"),
        ({"method": {"name": "lora2"}}, "method.name 'lora2' is unknown"),
        ({"train__held_out_rows": 0}, "train.held_out_rows = 0: trials are pruned by the loss"),
        ({"tune__search": {}}, "tune.search = {}"),
        (
            {"evaluate__backend": {"name": "openai", "base_url": "http://x/v1", "model": "m"}},
            "evaluate.backend = 'openai': trials are answered by the models",
        ),
    ],
)
def test_a_tuning_that_makes_no_sense_is_one_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as error:
        make(tmp_path, **changes)
    assert str(error.value).startswith(sentence)


def test_the_recipe_itself_is_evaluated_on_test_rows(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^evaluate\.split: "):
        make(tmp_path, "evaluate.split=held-out")


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ({"evaluate.window": [1, 2]}, "evaluate.window: what can be searched are keys of method"),
        ({"train": [1, 2]}, "train: what can be searched are keys of method"),
        ({"method.name": ["lora", "pose"]}, "method.name: methods are compared with ryarn compare"),
        ({"train.data.held_out": [0.1, 0.2]}, "train.data.held_out: all trials train on the same"),
        ({"train.max_length": [32, 64]}, "train.max_length: it decides which bins"),
        ({"train.log_steps": [1, 2]}, "train.log_steps: it changes nothing about the adapter"),
        ({"train.epochs": [1]}, "train.epochs = [1]: give at least two values, all different"),
        ({"train.epochs": [1, 2, 1]}, "train.epochs = [1, 2, 1]: give at least two values"),
        ({"train.epochs": 3}, "train.epochs = 3: give a list of values, or a range"),
        ({"train.epochs": {"start": 3}}, "train.epochs = {'start': 3}: give a list of values"),
        ({"train.epochs": {"low": 3, "hgh": 4}}, "train.epochs: unknown key 'hgh': did you mean"),
        ({"train.epochs": {"low": 3, "high": "4"}}, "train.epochs: high."),
        ({"train.epochs": {"low": 3, "high": 3}}, "train.epochs: low = 3 must be below high = 3"),
        ({"train.weight_decay": {**RATES, "low": 0}}, "train.weight_decay: low = 0 must be above"),
        ({"train.learning_rat": [1, 2]}, "train.learning_rat, value 1: unknown key"),
        ({"train.learning_rate": [1e-3, -1]}, "train.learning_rate, value -1: train.learning_rate"),
        ({"method.spans.end": [128, 256]}, "method.spans.end: method.spans is no section"),
        (
            {"method.spans": [[128], [256]], "method.spans.end": [256, 512]},
            "method.spans: method.spans.end is a part of it",
        ),
    ],
)
def test_a_key_that_can_not_be_searched_is_one_sentence(
    tmp_path: Path, search: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as error:
        make(tmp_path, tune__search=search)
    assert str(error.value).startswith(f"tune.search.{sentence}")


@pytest.mark.parametrize(
    ("name", "search", "sentence"),
    [
        (
            "lora",
            {"method.factor": [2, 4]},
            "method.factor: it changes nothing about method 'lora'",
        ),
        (
            "zero-shot+yarn",
            {"train.epochs": [1, 2]},
            "train.epochs: method 'zero-shot+yarn' trains",
        ),
    ],
)
def test_a_key_that_the_method_does_not_use_is_refused(
    tmp_path: Path, name: str, search: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=r"^tune\.search\.") as error:
        make(tmp_path, method={"name": name}, tune__search=search)
    assert str(error.value).startswith(f"tune.search.{sentence}")


def test_a_method_without_training_is_never_pruned(tmp_path: Path) -> None:
    search = {"method.factor": [2, 4]}
    changes = {"method": {"name": "zero-shot+yarn"}, "tune__search": search}
    recipe = make(tmp_path, "train.held_out_rows=0", **changes)
    assert recipe.prune is None
    assert make(tmp_path).prune == PruneConfig()


def test_a_trial_is_the_recipe_on_held_out_rows_with_the_seed_of_the_tuning(tmp_path: Path) -> None:
    recipe = make(tmp_path, tune__evaluate={"max_new_tokens": 3, "data": {"held_out": 0.5}})
    setting = {"train.learning_rate": 3e-3, "method.factor": 8}
    trial, chosen = trial_recipe(recipe, 2, setting), chosen_recipe(recipe, setting)
    for made in (trial, chosen):
        assert (made.train.learning_rate, made.method.factor) == (3e-3, 8)
        assert made.train.max_steps == 4
    assert (trial.seed, trial.evaluate.split) == (7, "held-out")
    assert (trial.evaluate.max_new_tokens, trial.output) == (3, tmp_path / "out/trials/2")
    assert (chosen.seed, chosen.evaluate) == (0, recipe.evaluate)
    assert chosen.output == tmp_path / "out/tuned"


def test_a_key_inside_a_curriculum_can_be_searched(tmp_path: Path) -> None:
    spans = {"start": 64, "end": 128, "epochs": 2}
    method = {"name": "randomized-yarn", "factor": 2, "spans": spans}
    recipe = make(tmp_path, method=method, tune__search={"method.spans.end": [128, 256]})
    made = trial_recipe(recipe, 1, {"method.spans.end": 256})
    assert dump(made.method) == dump(make(tmp_path, method=method).method).replace("128", "256")


# Proposals

SPACES: dict[str, Range | Choices] = {
    "rate": Range(low=1e-4, high=1e-2, log=True),
    "rank": Range(low=1, high=64),
    "spans": Choices(values=[[128], [256], [128, 256], None, {"end": 5}]),
}


def anything(setting: Setting) -> None:
    """Every setting is possible."""


def finished(number: int, setting: Setting, score: float, **more: Any) -> Settled:
    return Settled(number, setting, "finished", score, **more)


def test_the_first_settings_cover_every_part_of_every_space() -> None:
    drawn = [propose(SPACES, Past(), (3, n), anything) or {} for n in range(1, 11)]
    assert Counter(json.dumps(s["spans"]) for s in drawn) == Counter(
        {json.dumps(value): 2 for value in SPACES["spans"].values}  # type: ignore[union-attr]
    )
    tenths = [math.floor(10 * (math.log10(s["rate"]) + 4) / 2) for s in drawn]
    assert sorted(tenths) == list(range(10))
    assert sorted(round((s["rank"] - 1) / 6.3 - 0.5) for s in drawn) == pytest.approx(
        list(range(10)), abs=1
    )
    assert all(isinstance(s["rank"], int) and s["rate"] == float(f"{s['rate']:.3g}") for s in drawn)


def test_a_proposal_depends_on_seed_number_and_past_alone() -> None:
    past = Past(
        [finished(n, {"rate": n / 2000, "rank": n, "spans": [128]}, n) for n in range(1, 13)]
    )
    args = (SPACES, past, (1, 13), anything)
    one = propose(*args)
    assert propose(*args) == one
    assert propose(SPACES, past, (2, 13), anything) != one
    assert propose(SPACES, past, (1, 14), anything) != one


def test_after_the_first_settings_good_ones_are_followed() -> None:
    space: dict[str, Range | Choices] = {"rate": Range(low=0.0, high=1.0)}
    settled: list[Settled] = []
    for number in range(1, 31):
        setting = propose(space, Past(settled), (5, number), anything)
        assert setting is not None
        settled.append(finished(number, setting, -abs(setting["rate"] - 0.8)))
    later = [trial.setting["rate"] for trial in settled[10:]]
    # Drawn evenly, 4 of 20 would be as near: 10 or more have a chance of 0.3%.
    assert sum(abs(rate - 0.8) < 0.1 for rate in later) >= 10


def test_nothing_is_proposed_twice_and_the_end_of_a_small_space_is_seen() -> None:
    space = {"a": Choices(values=[1, 2, 3, 4, 5]), "b": Choices(values=["x", "y", "z", "u"])}
    running: dict[int, Setting] = {}
    settled: list[Settled] = []
    for number in range(1, 23):
        found = propose(space, Past(settled, running), (0, number), anything)
        if found is None:
            break
        running[number] = found
        settled.append(finished(number, found, 1.0 if found["a"] == 1 else 0.0))
    assert len(running) == 20
    assert len({json.dumps(s) for s in running.values()}) == 20


def test_impossible_settings_are_passed_over(tmp_path: Path) -> None:
    search = {"method.factor": [2, 8], "method.eval_factor": [2, 4]}
    recipe = make(tmp_path, tune__search=search)
    check = stage.trial_maker(recipe)
    space = stage.spaces(recipe)
    running: dict[int, Setting] = {}
    for number in (1, 2):
        running[number] = propose(space, Past(running=running), (0, number), check) or {}
    assert [s["method.factor"] for s in running.values()] == [2, 2]
    assert propose(space, Past(running=running), (0, 3), check) is None


def test_if_no_setting_is_possible_it_says_why(tmp_path: Path) -> None:
    recipe = make(tmp_path, tune__search={"method.factor": [4, 8], "method.eval_factor": [2, 3]})
    with pytest.raises(
        UserError, match=r"none of 200 settings is possible: .* s' must be at least"
    ):
        tune(recipe)
    assert not (tmp_path / "out").exists()


# The study on disk


def test_the_journal_keeps_what_became_of_each_trial(tmp_path: Path) -> None:
    setting = {"rate": 1e-3, "rank": 3, "spans": {"end": 5}}
    trials = [
        finished(1, setting, 0.5, curve={1: 2.5, 2: 1.5}, seconds=3.5, steps=9, of_steps=9),
        Settled(3, setting, "pruned", None, {1: 9.0}, "held-out loss 9", 1.0, 3, 9),
        Settled(2, setting, "failed", reason="boom"),
    ]
    journal = Journal(tmp_path, SPACES)
    for trial in trials:
        journal.add(trial)
    journal.add(replace(trials[2], reason="boom again"))
    found = Journal(tmp_path, SPACES).settled()
    assert found == {1: trials[0], 3: trials[1], 2: replace(trials[2], reason="boom again")}


def test_a_kill_in_the_middle_of_a_line_loses_that_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = {"rate": 1e-3, "rank": 3, "spans": None}
    Journal(tmp_path, SPACES).add(finished(1, setting, 0.5))
    path = tmp_path / "study.journal"
    with path.open("a") as file:
        file.write('{"op_code":4,"wor')
    (tmp_path / "study.journal.lock").symlink_to(path)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited for a lock of the dead"))
    journal = Journal(tmp_path, SPACES)
    journal.add(finished(2, setting, 0.25))
    assert {n: t.score for n, t in Journal(tmp_path, SPACES).settled().items()} == {1: 0.5, 2: 0.25}


def test_a_trial_is_hopeless_when_most_others_were_better_at_that_check(tmp_path: Path) -> None:
    setting = {"rate": 1e-3, "rank": 3, "spans": None}
    journal = Journal(tmp_path, SPACES)
    rule = PruneConfig(keep=0.75, after=4)
    for number, loss in enumerate((1.0, 2.0, 3.0), start=1):
        journal.add(finished(number, setting, 0.5, curve={1: loss + 5, 2: loss}))
    journal.add(Settled(8, setting, "pruned", None, {1: 9.5}))
    assert not is_hopeless(tmp_path, rule, {1: 99.0}), "only three finished"
    journal.add(finished(4, setting, 0.5, curve={1: 9.0, 2: 4.0}))
    # At the first check others had 6, 7, 8, 9 and 9.5; at the second 1, 2, 3, 4, and one was gone.
    assert is_hopeless(tmp_path, rule, {1: 9.1})
    assert not is_hopeless(tmp_path, rule, {1: 8.9})
    assert is_hopeless(tmp_path, rule, {1: 9.1, 2: 4.1})
    assert not is_hopeless(tmp_path, rule, {1: 3.9, 2: 4.1}), "its best loss counts"
    assert not is_hopeless(tmp_path, PruneConfig(keep=0.9, after=4), {1: 9.1})
    assert not is_hopeless(tmp_path, PruneConfig(keep=0.75, after=5), {1: 9.1})
    assert is_hopeless(tmp_path, PruneConfig(keep=0.5, after=4), {2: 3.1})
    assert not is_hopeless(tmp_path, PruneConfig(keep=0.7, after=4), {2: 3.1}), "one was gone"
    assert not is_hopeless(tmp_path, rule, {3: 99.0}), "nobody came there"


def test_a_loss_that_is_no_number_is_hopeless_at_once(tmp_path: Path) -> None:
    assert is_hopeless(tmp_path, PruneConfig(), {1: math.nan})
    assert is_hopeless(tmp_path, PruneConfig(), {1: 1.0, 2: math.inf})


def test_what_mattered_is_found_and_too_little_is_not_told() -> None:
    trials = [
        finished(n, s, 0.1 + 0.5 * (s["spans"] == [256]) + n / 1000)
        for n in range(1, 21)
        if (s := propose(SPACES, Past(), (n, 1), anything)) is not None
    ]
    found = importances(trials, SPACES, 0)
    assert next(iter(found)) == "spans"
    assert found["spans"] > 0.8
    assert sum(found.values()) == pytest.approx(1)
    assert importances(trials[:3], SPACES, 0) == {}
    assert importances([replace(trial, score=0.5) for trial in trials], SPACES, 0) == {}


# The run, with workers played by this process


def finish(cell: Cell, score: float, losses: dict[int, float] | None = None) -> None:
    """Leave what a finished trial leaves: its mean beyond the training length is `score`."""
    folder = cell.recipe.output
    save_recipe(cell.recipe)
    write_json(folder / "run.json", {"steps": 4, "data": {"rows": 8}})
    curve = losses or {1: 2.0, 4: 1.0}
    write_json(folder / "checks.json", {str(k): {"step": k, "loss": v} for k, v in curve.items()})
    row = {"source": "1", "parsed": True, "finish": "stop"}
    write_jsonl(
        folder / "evaluation" / "scores.jsonl",
        (
            {**row, "id": str(b), "bin": b, "scores": {"exact": v}}
            for b, v in {64: 1, 128: score}.items()
        ),
    )


def prune(cell: Cell, step: int) -> None:
    """Leave what a pruned trial leaves."""
    folder = cell.recipe.output
    save_recipe(cell.recipe)
    write_json(folder / "checks.json", {"1": {"step": step, "loss": 8.25}})
    write_json(folder / "pruned.json", {"check": 1, "step": step, "steps": 4, "seconds": 30.0})


class Inline:
    """In place of the pool: each trial is run by a function of the test, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[int] = []
        self.run: Callable[[Cell], str | None] = lambda cell: finish(cell, rated(cell))
        self.running: list[Cell] = []
        monkeypatch.setattr(stage, "Pool", self.start)

    def start(self, count: int, threads: int, notes: Path, run: Any) -> Inline:
        assert run is run_trial
        return self

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.clear()

    def fill(self, wanted: int) -> None:
        pass

    @property
    def has_room(self) -> bool:
        return not self.running

    def submit(self, cell: Cell) -> None:
        self.order.append(cell.setting or 0)
        self.running.append(cell)

    def wait(self, seconds: float) -> list[Result]:
        ended, self.running = self.running, []
        return [Result(cell, self.run(cell)) for cell in ended]


def rated(cell: Cell) -> float:
    """A score that the learning rate and the factor decide."""
    rate, factor = cell.recipe.train.learning_rate, cell.recipe.method.factor
    return round(1 - abs(math.log10(rate) + 3) / 2 - 0.1 * (factor == 2), 6)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> Inline:
    return Inline(monkeypatch)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials run in this process: its output stays where it is."""
    monkeypatch.setattr(workers, "_print_to", lambda path: None)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_best_held_out_mean_is_chosen_and_written_as_a_recipe(
    tmp_path: Path, inline: Inline
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


def test_the_first_of_equal_trials_is_chosen(tmp_path: Path, inline: Inline) -> None:
    inline.run = lambda cell: finish(cell, 0.5 if (cell.setting or 0) > 1 else 0.25)
    assert tune(make(tmp_path)).chosen.number == 2
    page = (tmp_path / "out" / "tune.md").read_text()
    assert "from so few trials they are a hint" in page


def test_what_pruned_trials_cost_is_told_and_they_are_never_chosen(
    tmp_path: Path, inline: Inline
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
    tmp_path: Path, inline: Inline
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


def test_if_all_fail_it_is_an_error(tmp_path: Path, inline: Inline) -> None:
    inline.run = lambda cell: "no luck"
    with pytest.raises(UserError, match="none of the 4 trials has a score; trial 1: no luck"):
        tune(make(tmp_path))
    assert [row["reason"] for row in table(tmp_path)] == ["no luck"] * 4
    assert not (tmp_path / "out" / "tuned.yaml").exists()


def test_a_trial_without_a_row_beyond_the_training_length_has_failed(
    tmp_path: Path, inline: Inline
) -> None:
    def run(cell: Cell) -> None:
        finish(cell, 0.5)
        if cell.setting == 1:
            path = cell.recipe.output / "evaluation" / "scores.jsonl"
            path.write_text(path.read_text().splitlines()[0] + "\n")

    inline.run = run
    assert "no held-out row is in a bin beyond" in tune(make(tmp_path)).failed["trial 1"]


# Going on


def test_killed_and_taken_up_it_ends_as_if_it_had_not_been(tmp_path: Path, inline: Inline) -> None:
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
    tmp_path: Path, inline: Inline
) -> None:
    def run(cell: Cell) -> None:
        finish(cell, 0.5)
        write_json(cell.recipe.output / "times.json", {"train": 50.0, "evaluate": 10.0})

    inline.run = run
    assert {trial.seconds for trial in tune(make(tmp_path)).trials} == {60.0}


def test_more_trials_may_be_asked_for_later(tmp_path: Path, inline: Inline) -> None:
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
    tmp_path: Path, inline: Inline, override: str, named: str
) -> None:
    tune(make(tmp_path))
    inline.order.clear()
    with pytest.raises(UserError) as error:
        tune(make(tmp_path, override, "tune.trials=9"))
    assert f"was tuned with {named}" in str(error.value)
    assert "choose another output" in str(error.value)
    assert inline.order == []


def test_folders_of_others_are_left_alone(tmp_path: Path, inline: Inline) -> None:
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
    tmp_path: Path, inline: Inline
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


def test_rows_that_would_be_tested_on_are_refused(tmp_path: Path, inline: Inline) -> None:
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


def test_all_bins_may_be_chosen_by(tmp_path: Path, inline: Inline) -> None:
    inline.run = lambda cell: finish(cell, 0.5)
    recipe = make(tmp_path, "train.max_length=128", "tune.bins=all")
    outcome = tune(recipe)
    assert {trial.score for trial in outcome.trials} == {0.75}
    assert (
        "A score is the mean over all bins of held-out rows" in tuned.sentences(recipe, outcome)[1]
    )


@pytest.mark.parametrize("task", ["jsonl", "conflicts"])
def test_rows_no_longer_than_those_of_training_are_refused(
    tmp_path: Path, inline: Inline, task: str
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
    tmp_path: Path, inline: Inline
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
    inline: Inline,
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
    journal.add(finished(1, setting, 0.5, curve=better))
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
