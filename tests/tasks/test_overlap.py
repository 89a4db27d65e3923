"""Rows trained on and tested on: found in whatever two files of the user's own they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ryarn.compare.estimate import Survey
from ryarn.compare.grid import GridRecipe, cells
from ryarn.config import build
from ryarn.errors import UserError
from ryarn.evaluate import evaluate
from ryarn.recipe import load_recipe
from ryarn.tasks.conflicts import ConflictsConfig
from ryarn.tasks.jsonl import JsonlConfig
from ryarn.tasks.overlap import check_apart, is_checkable
from ryarn.train import train
from tiny_run import command, write_recipe, write_rows

CONFLICTS = build(ConflictsConfig, {"lengths": [512], "rows": 2})


def own(path: Path, *rows: tuple[str, str | None], **settings: Any) -> JsonlConfig:
    """A config of rows given as prompt and source."""
    lines = [
        json.dumps({"prompt": prompt, "completion": f"{path.stem} {n}", "source": source})
        for n, (prompt, source) in enumerate(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return build(JsonlConfig, {"path": str(path), "held_out": 0.0, **settings})


def test_the_same_prompt(tmp_path: Path) -> None:
    one = own(tmp_path / "one.jsonl", ("a?", None), ("b?", None), ("c?", None))
    two = own(tmp_path / "two.jsonl", ("d?", None), ("c?", None), ("b?", None), test=1)
    with pytest.raises(UserError) as error:
        check_apart(one, two, "test")
    assert str(error.value) == (
        f"evaluate.data: {tmp_path}/two.jsonl, line 2 has the prompt of {tmp_path}/one.jsonl, "
        "line 3, which is learned from: take such rows out of one of the two (2 in all)"
    )


def test_the_same_source(tmp_path: Path) -> None:
    one = own(tmp_path / "one.jsonl", ("a?", "paper 1"), ("b?", "paper 2"))
    two = own(tmp_path / "two.jsonl", ("c?", "paper 3"), ("d?", "paper 2"), test=1)
    with pytest.raises(UserError, match=r"two.jsonl, line 2 has the source of .*one.jsonl, line 2"):
        check_apart(one, two, "test")


def test_the_same_prompt_under_other_sources_of_one_file(tmp_path: Path) -> None:
    rows = [("a?", f"paper {n}") for n in range(40)]
    config = own(tmp_path / "one.jsonl", *rows, test=0.5)
    with pytest.raises(UserError, match="has the prompt of"):
        check_apart(config, config, "test")


def test_what_is_apart(tmp_path: Path) -> None:
    one = own(tmp_path / "one.jsonl", ("a?", "paper 1"), ("b?", None))
    check_apart(one, own(tmp_path / "two.jsonl", ("c?", "paper 3"), test=1), "test")
    check_apart(one, CONFLICTS, "test")
    check_apart(CONFLICTS, one, "test")
    many = own(tmp_path / "many.jsonl", *((f"{n}?", f"s{n % 9}") for n in range(90)), test=0.3)
    many = many.model_copy(update={"held_out": 0.3})
    check_apart(many, many, "test")
    check_apart(many, many, "held-out")


def test_rows_that_are_not_used_do_not_count(tmp_path: Path) -> None:
    same = (("a?", None), ("b?", None))
    kept = own(tmp_path / "one.jsonl", *same, test=1)
    check_apart(kept, own(tmp_path / "two.jsonl", *same, test=1), "test")
    unused = own(tmp_path / "two.jsonl", *same)
    check_apart(own(tmp_path / "three.jsonl", *same), unused, "test")


def test_rows_to_choose_by_must_not_be_test_rows(tmp_path: Path) -> None:
    same = (("a?", None), ("b?", None))
    one = own(tmp_path / "one.jsonl", *same, held_out=1)
    with pytest.raises(UserError, match="has the prompt of"):
        check_apart(one, own(tmp_path / "two.jsonl", *same, test=1), "test")
    check_apart(one, own(tmp_path / "three.jsonl", *same, held_out=1), "held-out")
    with pytest.raises(UserError, match="has the prompt of"):
        check_apart(
            own(tmp_path / "one.jsonl", *same),
            own(tmp_path / "two.jsonl", *same, held_out=1),
            "held-out",
        )


def test_what_is_checkable_later(tmp_path: Path) -> None:
    config = own(tmp_path / "one.jsonl", ("a?", None))
    assert is_checkable(config)
    assert not is_checkable(CONFLICTS)
    assert not is_checkable(config.model_copy(update={"path": str(tmp_path / "gone.jsonl")}))
    assert not is_checkable(config.model_copy(update={"path": "owner/name"}))


def test_training_and_evaluation_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(tmp_path)
    same = f"evaluate.data.path={write_rows(tmp_path / 'same.jsonl')}"
    sentence = "same.jsonl, line 1 has the prompt of"
    assert command(monkeypatch, "train", path, same) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    train(load_recipe(path, ["train.max_steps=1"]))
    recipe = tmp_path / "run" / "recipe.yaml"
    with pytest.raises(UserError, match=sentence):
        evaluate(load_recipe(recipe, [same]))
    # An adapter may be evaluated where its training rows are not.
    (tmp_path / "rows.jsonl").unlink()
    evaluate(load_recipe(recipe, [same]))
    assert (tmp_path / "run" / "evaluation" / "scores.jsonl").is_file()


def test_a_comparison_refuses_it_before_its_first_cell(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path), []).model_dump(mode="json")
    recipe["evaluate"]["data"]["path"] = str(write_rows(tmp_path / "same.jsonl"))
    grid = {key: recipe[key] for key in ("model", "train", "evaluate", "output")}
    more = {"method": {"factor": 2}, "tasks": {"rooms": {}}, "seeds": [0]}
    untrained = build(GridRecipe, {**grid, **more, "methods": {"zero-shot": {}}})
    Survey().check(cells(untrained, {}))
    trained = build(GridRecipe, {**grid, **more, "methods": {"zero-shot": {}, "lora": {}}})
    with pytest.raises(UserError, match=r"^rooms / lora / seed 0: evaluate.data: .* has the pr"):
        Survey().check(cells(trained, {}))


def test_a_score_that_is_not_there_is_found_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(tmp_path)
    assert command(monkeypatch, "train", path, "evaluate.data.score=not_there:grade") == 2
    assert "there is no module 'not_there'" in capsys.readouterr().err
