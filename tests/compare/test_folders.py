"""Folders of a grid: finished cells stay, other recipes and other people's files are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from grids import CHOOSE, Reported, contents, finish, make, write_grid

from inline_pool import InlinePool
from ryarn.compare.cells import check_owner
from ryarn.compare.grid import Cell, cells, load_grid
from ryarn.compare.stage import compare
from ryarn.errors import UserError


def test_a_finished_cell_is_never_done_again(
    tmp_path: Path, inline: InlinePool, reported: Reported
) -> None:
    grid = make(tmp_path, choose=CHOOSE)
    first = compare(grid)
    before, reported.runs = contents(tmp_path / "out" / "cells"), {}
    inline.order.clear()
    assert compare(grid) == first
    assert inline.order == []
    assert contents(tmp_path / "out" / "cells") == before
    assert len(reported.runs["rooms"]) == 5


def test_only_what_is_missing_is_run(tmp_path: Path, inline: InlinePool) -> None:
    grid = make(tmp_path)
    compare(grid)
    inline.order.clear()
    (tmp_path / "out/cells/rooms/lora/seed-1/evaluation/scores.jsonl").unlink()
    compare(make(tmp_path, seeds=[0, 1, 2]))
    assert inline.order == [
        "rooms / lora / seed 1",
        "rooms / lora / seed 2",
        "rooms / randomized-yarn / seed 2",
    ]


@pytest.mark.parametrize(
    ("changes", "cell", "named"),
    [
        ({"learning_rate": 2e-3}, "lora / seed 0", "train.learning_rate = 0.0001, not 0.002"),
        ({"max_length": 32}, "zero-shot / seed 0", "train.max_length = 64, not 32"),
    ],
)
def test_a_cell_of_another_recipe_stops_before_anything_runs(
    tmp_path: Path, inline: InlinePool, changes: dict[str, Any], cell: str, named: str
) -> None:
    grid = make(tmp_path)
    compare(grid)
    inline.order.clear()
    (tmp_path / "out/cells/rooms/lora/seed-1/evaluation/scores.jsonl").unlink()
    base = yaml.safe_load((tmp_path / "grid.yaml").read_text())["train"]
    with pytest.raises(UserError) as error:
        compare(make(tmp_path, train=base | changes))
    assert str(error.value).startswith(f"rooms / {cell}: ")
    assert f"was made with {named}: choose another output" in str(error.value)
    assert inline.order == []


def test_changed_answers_are_another_recipe_and_changed_logging_is_not(
    tmp_path: Path, inline: InlinePool
) -> None:
    compare(make(tmp_path))
    path = write_grid(tmp_path)
    check_owner(cells(load_grid(path, ["train.log_steps=5", "evaluate.batch_tokens=9"]))[1])
    with pytest.raises(UserError, match=r"evaluate\.max_new_tokens = 2, not 3"):
        compare(load_grid(path, ["evaluate.max_new_tokens=3"]))
    # What is not trained does not depend on how training goes.
    check_owner(cells(load_grid(path, ["train.learning_rate=9"]))[0])


def test_a_folder_older_than_a_key_is_still_the_cells_own(
    tmp_path: Path, inline: InlinePool
) -> None:
    grid = make(tmp_path)
    compare(grid)
    cell = cells(grid)[1]
    path = cell.recipe.output / "recipe.yaml"
    data = yaml.safe_load(path.read_text())
    del data["evaluate"]["backend"], data["train"]["weight_decay"]
    path.write_text(yaml.safe_dump(data))
    check_owner(cell)
    data["evaluate"]["window"] = 7
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UserError, match=r"evaluate\.window = 7, not"):
        check_owner(cell)


def test_a_choice_that_changes_leaves_finished_cells_where_they_are(
    tmp_path: Path, inline: InlinePool
) -> None:
    values = {1: 0.25, 2: 0.5, 3: 0.0}
    inline.run = lambda cell: finish(cell, {128: [values[cell.setting or 1]]})
    grid = make(tmp_path, choose=CHOOSE)
    assert compare(grid).chosen["rooms", "lora"] == 2
    tuned = tmp_path / "out/cells/rooms/lora/setting-2"
    before = contents(tuned)
    assert len(before) == 2 * 2

    def choose(second: float) -> int:
        (tmp_path / "out/choose/rooms/lora/2/evaluation/scores.jsonl").unlink()
        values[2] = second
        inline.order.clear()
        outcome = compare(grid)
        assert outcome.failed == {}
        assert {c.recipe.train.learning_rate for c in outcome.done if c.label == "lora"} == {
            {1: 1e-4, 2: 2e-4}[outcome.chosen["rooms", "lora"]]
        }
        return outcome.chosen["rooms", "lora"]

    assert choose(0.0) == 1
    assert inline.order == [f"rooms / lora / {run}" for run in ("setting 2", "seed 0", "seed 1")]
    assert contents(tuned) == before
    assert choose(0.5) == 2
    assert inline.order == ["rooms / lora / setting 2"]  # and its cells are as they were


def test_folders_of_others_are_left_alone(tmp_path: Path, inline: InlinePool) -> None:
    grid = make(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not empty and holds no comparison"):
        compare(grid)
    (out / "thesis.tex").unlink()
    theirs = out / "cells" / "rooms" / "lora" / "seed-0"
    theirs.mkdir(parents=True)
    (out / "grid.yaml").write_text("")
    (theirs / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"seed 0: .* is not empty and is no run of ryarn"):
        compare(grid)
    (theirs / "thesis.tex").rename(theirs / "recipe.yaml.partial")
    compare(grid)


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path, inline: InlinePool) -> None:
    grid = make(tmp_path)

    def run(cell: Cell) -> str | None:
        with pytest.raises(UserError, match="another ryarn compare is at work there"):
            compare(grid)
        return finish(cell, {128: [1.0]})

    inline.run = run
    assert not compare(grid).failed


# Before anything runs
