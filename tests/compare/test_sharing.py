"""Cells with the same training have it once, and the same numbers as with one each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grids import Reported, contents, finish, make, write_grid
from safetensors.torch import load_file

from inline_pool import InlinePool
from ryarn import train as train_module
from ryarn.compare.cells import is_trained
from ryarn.compare.forecast import forecast
from ryarn.compare.grid import Cell, candidates, cells, load_grid
from ryarn.compare.schedule import Schedule
from ryarn.compare.sharing import spared, training
from ryarn.compare.stage import compare
from ryarn.compare.workers import attempt, run_cell
from ryarn.contract import Contract
from ryarn.loading import load
from ryarn.recipe import Recipe

FARTHER: dict[str, Any] = {
    "methods": {
        "zero-shot+yarn": {},
        "randomized-yarn": {},
        "at s' 8": {"method": {"name": "randomized-yarn", "eval_factor": 8}},
        "at s 4": {"method": {"name": "randomized-yarn", "factor": 4}},
    },
    "seeds": [0],
}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where something was trained."""
    seen: list[Path] = []
    real = train_module.train

    def watched(recipe: Recipe, **options: Any) -> Path:
        seen.append(recipe.output)
        return real(recipe, **options)

    monkeypatch.setattr(train_module, "train", watched)
    return seen


def adapter_of(cell: Cell) -> None:
    """Leave what a finished training leaves, as far as the schedule looks."""
    adapter = cell.recipe.output / "adapter"
    adapter.mkdir(parents=True)
    for path in (adapter / "adapter_config.json", adapter.parent / "run.json"):
        path.write_text("{}")
    (adapter.parent / "log.jsonl").write_text("")


@pytest.mark.usefixtures("quiet", "one_thread")
def test_one_training_gives_the_numbers_of_one_each(
    tmp_path: Path, inline: InlinePool, trained: list[Path]
) -> None:
    inline.run = attempt
    grid = make(tmp_path, **FARTHER)
    assert compare(grid).failed == {}
    _, near, far, other = cells(grid)
    assert trained == [other.recipe.output, near.recipe.output] or trained == [
        near.recipe.output,
        other.recipe.output,
    ]
    alone = cells(load_grid(tmp_path / "grid.yaml", [f"output={tmp_path / 'alone'}"]))[2]
    run_cell(alone)
    for name in ("adapter/adapter_model.safetensors", "adapter/ryarn.json"):
        assert (far.recipe.output / name).read_bytes() == (alone.recipe.output / name).read_bytes()
    for name in ("completions.jsonl", "scores.jsonl"):
        theirs = (alone.recipe.output / "evaluation" / name).read_text()
        assert (far.recipe.output / "evaluation" / name).read_text() == theirs

    run = json.loads((far.recipe.output / "run.json").read_text())
    assert run["trained_in"] == str(near.recipe.output)
    assert run["status"] == "finished"
    assert set(json.loads((far.recipe.output / "times.json").read_text())) == {"evaluate"}
    assert "factor 8 on a window" in (far.recipe.output / "adapter" / "README.md").read_text()
    assert Contract.load(near.recipe.output / "adapter").eval_factor == 2
    assert Contract.load(far.recipe.output / "adapter").eval_factor == 8
    model, _ = load(far.recipe.output)
    assert model.config.rope_parameters["factor"] == 8


@pytest.mark.usefixtures("quiet")
def test_a_cell_that_was_trained_keeps_its_own_adapter(
    tmp_path: Path, inline: InlinePool, trained: list[Path]
) -> None:
    grid = make(tmp_path, **FARTHER)
    far = cells(grid)[2]
    run_cell(far)
    before = contents(far.recipe.output / "adapter")
    (tmp_path / "out/grid.yaml").write_text("")
    inline.run = attempt
    assert compare(grid).failed == {}
    assert contents(far.recipe.output / "adapter") == before
    assert len(trained) == 2
    near = json.loads((cells(grid)[1].recipe.output / "run.json").read_text())
    assert near["trained_in"] == str(far.recipe.output)


def test_a_cell_waits_for_the_training_that_it_shares_and_for_no_more(tmp_path: Path) -> None:
    grid = make(tmp_path, **FARTHER)
    schedule = Schedule(grid, lambda cell: 1.0, lambda *_: None)
    [near] = [cell for cell in schedule.waiting if cell.label == "randomized-yarn"]
    schedule.waiting = [c for c in schedule.waiting if "s'" in c.label or c is near]
    assert schedule.next() == near
    assert schedule.next() is None  # though one is waiting
    adapter_of(near)  # the other goes on to its rows meanwhile
    far = schedule.next()
    assert far is not None
    assert far.donor == near.recipe.output


def test_where_a_shared_training_fails_the_next_cell_trains_itself(tmp_path: Path) -> None:
    grid = make(tmp_path, **FARTHER)
    schedule = Schedule(grid, lambda cell: 1.0, lambda *_: None)
    schedule.waiting = [c for c in schedule.waiting if c.label != "at s 4" and c.trains]
    near = schedule.next()
    assert near is not None
    schedule.settle(near, "out of luck")
    far = schedule.next()
    assert far is not None
    assert (far.label, far.donor) == ("at s' 8", None)


@pytest.mark.usefixtures("quiet")
def test_a_kill_while_an_adapter_is_taken_over_leaves_nothing_wrong(
    tmp_path: Path, inline: InlinePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = make(tmp_path, **FARTHER)
    _, near, far, _ = cells(grid)
    run_cell(near)
    # A tokenizer with several chat templates leaves a folder in the adapter.
    more = near.recipe.output / "adapter" / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("{{ messages }}")
    (tmp_path / "out/grid.yaml").write_text("")

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    inline.run = attempt
    with monkeypatch.context() as patch:
        patch.setattr("ryarn.compare.sharing.write_json", kill)
        with pytest.raises(Killed):
            compare(grid)
    assert not is_trained(far.recipe)
    assert (far.recipe.output / "adapter.partial").is_dir()
    assert compare(grid).failed == {}
    assert not (far.recipe.output / "adapter.partial").exists()
    copied = far.recipe.output / "adapter" / more.name / "tool_use.jinja"
    assert copied.read_text() == "{{ messages }}"


@pytest.mark.usefixtures("quiet")
def test_an_adapter_that_went_through_several_hands_names_where_it_was_trained(
    tmp_path: Path, inline: InlinePool, trained: list[Path]
) -> None:
    more = {"at s' 16": {"method": {"name": "randomized-yarn", "eval_factor": 16}}}
    grid = make(tmp_path, **{**FARTHER, "methods": {**FARTHER["methods"], **more}})
    third = cells(grid)[-1]
    run_cell(third)
    (tmp_path / "out/grid.yaml").write_text("")
    inline.run = attempt
    assert compare(grid).failed == {}
    for cell in cells(grid)[1:3]:
        run = json.loads((cell.recipe.output / "run.json").read_text())
        assert run["trained_in"] == str(third.recipe.output)


def test_what_is_spared_follows_what_is_there(tmp_path: Path) -> None:
    grid = make(tmp_path, **FARTHER)
    _, near, far, other = cells(grid)
    assert spared(cells(grid), cells(grid)) == {far.recipe.output}
    assert spared([near, other], cells(grid)) == set()
    adapter_of(far)
    assert spared(cells(grid), cells(grid)) == {near.recipe.output}
    assert spared([near, other], [far]) == {near.recipe.output}
    adapter_of(near)
    assert spared(cells(grid), cells(grid)) == set()


def test_methods_that_share_a_training_are_named(
    tmp_path: Path, inline: InlinePool, reported: Reported
) -> None:
    compare(make(tmp_path, **FARTHER))
    assert (
        "One training serves all of what differs in s' or in the evaluation alone: randomized-yarn "
        "and at s' 8." in reported.about
    )


SETTINGS = {
    "seed": 1000,
    "settings": {
        "randomized-yarn": [{}, {"method": {"eval_factor": 8}}, {"method": {"factor": 4}}]
    },
}


@pytest.mark.usefixtures("quiet")
def test_settings_share_and_the_report_says_so(
    tmp_path: Path, inline: InlinePool, reported: Reported, trained: list[Path]
) -> None:
    methods = {"randomized-yarn": {}}
    grid = make(tmp_path, choose=SETTINGS, methods=methods, seeds=[0])
    expected = forecast(grid)
    assert "adapters taken over from a cell with the same training: 1" in expected.notes
    inline.run = attempt
    assert compare(grid).failed == {}
    assert len(trained) == 3  # settings 1 and 3, and the seed
    first, second, _ = candidates(grid)
    weights = [
        load_file(cell.recipe.output / "adapter" / "adapter_model.safetensors")
        for cell in (first, second)
    ]
    assert all(weights[0][key].equal(weights[1][key]) for key in weights[0])
    assert (
        "One training serves all of what differs in s' or in the evaluation alone: setting 1 of "
        "randomized-yarn and setting 2 of randomized-yarn." in reported.about
    )


@pytest.mark.usefixtures("quiet")
def test_a_choice_that_changes_takes_over_what_it_can(
    tmp_path: Path, inline: InlinePool, trained: list[Path]
) -> None:
    values = {1: 0.5, 2: 0.25, 3: 0.0}

    def run(cell: Cell) -> str | None:
        if not cell.candidate:
            return attempt(cell)
        return finish(cell, {128: [values[cell.setting or 1]]})

    inline.run = run
    grid = make(tmp_path, choose=SETTINGS, methods={"randomized-yarn": {}}, seeds=[0])
    assert compare(grid).chosen == {("rooms", "randomized-yarn"): 1}
    (tmp_path / "out/choose/rooms/randomized-yarn/2/evaluation/scores.jsonl").unlink()
    values[2] = 1.0
    outcome = compare(grid)
    assert outcome.chosen == {("rooms", "randomized-yarn"): 2}
    assert len(trained) == 1
    [done] = outcome.done
    assert done.recipe.method.eval_factor == 8
    assert done.recipe.output.parts[-2:] == ("setting-2", "seed-0")
    assert is_trained(done.recipe)


@pytest.mark.parametrize(
    ("changes", "is_shared"),
    [
        (["method.eval_factor=16"], True),
        (["evaluate.max_new_tokens=3"], True),
        (["train.log_steps=7"], True),
        (["output=elsewhere"], True),
        (["method.factor=4"], False),
        (["method.draw=batch"], False),
        (["method.spans=[64]"], False),
        (["train.learning_rate=1e-3"], False),
        (["train.data.held_out=0.25"], False),
        (["model.dtype=bfloat16"], False),
        (["seeds=[7]"], False),
    ],
)
def test_what_makes_a_training(tmp_path: Path, changes: list[str], is_shared: bool) -> None:
    path = write_grid(tmp_path, seeds=[0])
    first, second = (cells(load_grid(path, made))[2] for made in ([], changes))
    assert (training(first.recipe) == training(second.recipe)) == is_shared
