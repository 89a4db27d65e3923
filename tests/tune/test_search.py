"""What a tuning recipe may search, and the recipe of each trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tunings import RATES, make

from ryarn.config import dump
from ryarn.errors import UserError
from ryarn.tune.search import (
    PruneConfig,
    chosen_recipe,
    trial_recipe,
)


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
