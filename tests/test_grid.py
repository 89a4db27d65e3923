"""The grid recipe: what is laid over what, which cells there are, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ryarn.compare.grid import Cell, GridRecipe, candidates, cells, load_grid, merge, slug
from ryarn.errors import UserError

GRID: dict[str, Any] = {
    "model": {"name": "tiny:llama"},
    "method": {"factor": 2},
    "train": {
        "max_length": 64,
        "learning_rate": 1e-3,
        "data": {"task": "babilong", "questions": ["qa1"], "lengths": [1500], "rows": 8},
    },
    "evaluate": {
        "data": {"task": "babilong", "questions": ["qa1"], "lengths": [1500], "rows": 4},
    },
    "tasks": {
        "first": {"train": {"epochs": 2}},
        "second": {"train": {"epochs": 3, "learning_rate": 2e-3}},
    },
    "methods": {
        "zero-shot": None,
        "lora": {"train": {"learning_rate": 3e-3}},
        "randomized-yarn": {"method": {"spans": [2048]}},
        "Ours, no curriculum": {"method": {"name": "randomized-yarn", "spans": [64, 2048]}},
    },
    "seeds": [3, 4],
    "choose": {
        "seed": 1000,
        "evaluate": {"data": {"rows": 2}},
        "settings": {
            "lora": [{"train": {"learning_rate": 4e-3}}, {"train": {"learning_rate": 5e-3}}],
            "randomized-yarn": [{}, {"method": {"factor": 8}}],
        },
    },
    "reference": "randomized-yarn",
    "output": "runs/grid",
}


def write(folder: Path, *changes: tuple[str, Any]) -> Path:
    """The grid with changes by dotted key; `...` takes a key away."""
    data = copy.deepcopy(GRID)
    for key, value in changes:
        *parents, last = key.split("/")
        inner = data
        for parent in parents:
            inner = inner[parent]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def grid(tmp_path: Path) -> GridRecipe:
    return load_grid(write(tmp_path), [])


def found(of: list[Cell], task: str, label: str, seed: int) -> Cell:
    [cell] = [c for c in of if (c.task, c.label, c.seed) == (task, label, seed)]
    return cell


def test_the_cells_are_methods_by_seeds_by_tasks_and_zero_shot_once(grid: GridRecipe) -> None:
    seeds = {"zero-shot": [3]}
    assert [(c.task, c.label, c.seed) for c in cells(grid)] == [
        (task, label, seed)
        for task in ("first", "second")
        for label in GRID["methods"]
        for seed in seeds.get(label, [3, 4])
    ]


def test_a_later_part_lies_over_an_earlier_one(grid: GridRecipe) -> None:
    every = cells(grid, {("first", "lora"): 2})
    assert found(every, "first", "Ours, no curriculum", 3).recipe.train.learning_rate == 1e-3
    assert found(every, "second", "Ours, no curriculum", 3).recipe.train.learning_rate == 2e-3
    # task < method < setting
    assert found(every, "second", "lora", 3).recipe.train.learning_rate == 4e-3
    assert found(every, "first", "lora", 3).recipe.train.learning_rate == 5e-3
    assert [c.recipe.train.epochs for c in every if c.label == "lora"] == [2, 2, 3, 3]
    assert [c.recipe.seed for c in every if c.label == "lora"] == [3, 4, 3, 4]
    assert {c.recipe.method.factor for c in every} == {2}


def test_a_method_over_a_task_where_nothing_is_tuned(tmp_path: Path) -> None:
    grid = load_grid(write(tmp_path, ("choose", ...)), [])
    assert {c.recipe.train.learning_rate for c in cells(grid) if c.label == "lora"} == {3e-3}
    assert {c.setting for c in cells(grid)} == {None}
    assert candidates(grid) == []


def test_the_method_is_the_label_unless_it_is_named(grid: GridRecipe) -> None:
    names = {c.label: (c.recipe.method.name, c.recipe.label) for c in cells(grid)}
    assert names["lora"] == ("lora", "lora")
    assert names["Ours, no curriculum"] == ("randomized-yarn", "Ours, no curriculum")


def test_candidates_are_trained_with_their_own_seed_and_answer_held_out_rows(
    grid: GridRecipe,
) -> None:
    tried = candidates(grid)
    assert [(c.task, c.label, c.setting) for c in tried] == [
        (task, label, number)
        for task in ("first", "second")
        for label in ("lora", "randomized-yarn")
        for number in (1, 2)
    ]
    assert {c.recipe.seed for c in tried} == {1000}
    assert {(c.recipe.evaluate.split, c.recipe.evaluate.data.rows) for c in tried} == {
        ("held-out", 2)
    }
    assert {(c.recipe.evaluate.split, c.recipe.evaluate.data.rows) for c in cells(grid)} == {
        ("test", 4)
    }
    assert [c.recipe.method.factor for c in tried[:4]] == [2, 2, 2, 8]


def test_every_cell_has_a_folder_of_its_own(grid: GridRecipe) -> None:
    folders = [c.recipe.output for c in (*candidates(grid), *cells(grid))]
    assert len(set(folders)) == len(folders) == 8 + 2 * 7
    assert folders[1] == Path("runs/grid/choose/first/lora/2")
    assert folders[-1] == Path("runs/grid/cells/second/ours-no-curriculum/seed-4")


def test_all_methods_of_a_task_have_the_same_rows(grid: GridRecipe) -> None:
    for task in grid.tasks:
        mine = [c.recipe for c in cells(grid) if c.task == task]
        assert all(r.train.data == mine[0].train.data for r in mine)
        assert all(r.evaluate == mine[0].evaluate for r in mine)


def test_data_of_another_task_replaces_the_shared_one() -> None:
    base = {"data": {"task": "babilong", "rows": 3}, "epochs": 1}
    assert merge(base, {"data": {"rows": 4}}) == {
        "data": {"task": "babilong", "rows": 4},
        "epochs": 1,
    }
    other = {"data": {"task": "jsonl", "path": "x"}}
    assert merge(base, other) == {**other, "epochs": 1}
    assert base["data"] == {"task": "babilong", "rows": 3}


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("zero-shot+yarn", "zero-shot+yarn"),
        ("Ours, s' = 8", "ours-s-8"),
        ("../../etc", "etc"),
        ("a/b\\c", "a-b-c"),
        ("--out", "out"),
    ],
)
def test_names_become_folders(name: str, folder: str) -> None:
    assert slug(name) == folder


def test_overrides_reach_into_the_grid(tmp_path: Path) -> None:
    grid = load_grid(
        write(tmp_path), ["seeds=[7]", "methods.lora.train.lora_rank=4", "train.lora_alpha=8"]
    )
    cell = found(cells(grid), "first", "lora", 7)
    assert (cell.recipe.train.lora_rank, cell.recipe.train.lora_alpha) == (4, 8)


def test_a_key_that_stands_twice(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("seeds:", "reference: lora\nseeds:"))
    with pytest.raises(UserError, match="key 'reference' stands twice"):
        load_grid(path, [])


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("seeds", ..., "missing key 'seeds'"),
        ("seeds", [1, 1], "seeds = [1, 1]: name each only once"),
        ("seeds", [], "seeds = []: "),
        ("seeds", [-1], "seeds.0 = -1: "),
        ("tasks", {}, "tasks = {}: "),
        ("sedes", [1], "unknown key 'sedes': did you mean 'seeds'?"),
        ("processes", 0, "processes = 0: "),
        ("methods/lora", {"trian": {}}, "unknown key 'methods.lora.trian': did you mean 'train'?"),
        ("methods/lora", {"seed": 1}, "unknown key 'methods.lora.seed': known keys: "),
        ("reference", "ours", "reference = 'ours' is none of the methods: zero-shot, lora, "),
        ("methods/LORA", {}, "methods: 'lora' and 'LORA' would share the folder 'lora'"),
        ("methods/§", {}, "methods: '§' has no letter or digit"),
        ("tasks/First!", {}, "tasks: 'first' and 'First!' would share the folder 'first'"),
        ("method/name", "lora", "method.name would be that of every method"),
        ("tasks/first/method", {"name": "lora"}, "tasks.first.method.name would be that of every"),
        (
            "methods/lora",
            {"evaluate": {"data": {"rows": 9}}},
            "methods.lora.evaluate.data: all methods of a task share their rows",
        ),
        ("methods/lora", {"train": {"data": {}}}, "methods.lora.train.data: all methods"),
        ("methods/lora", {"evaluate": {"split": "test"}}, "methods.lora.evaluate.split: all"),
        ("choose/seed", 4, "choose.seed = 4 is among seeds"),
        ("choose/evaluate", {"split": "test"}, "choose.evaluate.split: candidates are"),
        ("evaluate/split", "held-out", "evaluate.split beside choose: the held-out rows"),
        ("tasks/first/evaluate", {"split": "held-out"}, "evaluate.split beside choose: "),
        ("choose/settings/lora", [], "choose.settings.lora = []: "),
        ("choose/settings/lora", [{}], "(lora 1, randomized-yarn 2): give each as many"),
        ("choose/settings/pose", [{}, {}], "choose.settings.pose is none of the methods"),
        (
            "choose/settings/lora",
            [{}, {"train": {"data": {"rows": 1}}}],
            "choose.settings.lora, setting 2.train.data: all methods of a task share their rows",
        ),
        (
            "train/learning_rat",
            1,
            "task 'first', method 'zero-shot': unknown key 'train.learning_rat': did you mean "
            "'learning_rate'?",
        ),
        ("model/name", ..., "task 'first', method 'zero-shot': missing key 'model.name'"),
        (
            "methods/lora",
            {"train": {"batch_size": 0}},
            "task 'first', method 'lora', setting 1: train.batch_size = 0: ",
        ),
        ("methods/ours", {}, "task 'first', method 'ours': method.name 'ours' is unknown"),
        (
            "methods/rpe",
            {},
            "task 'first', method 'rpe': method.spans is missing: 'rpe' draws positions",
        ),
        (
            "choose/settings/randomized-yarn",
            [{}, {"method": {"factor": 0.5}}],
            "task 'first', method 'randomized-yarn', setting 2: method.factor = 0.5 is below 1",
        ),
        (
            "tasks/second/method",
            {"factor": 0.5},
            "task 'second', method 'zero-shot': method.factor = 0.5 is below 1",
        ),
        (
            "train/max_length",
            1500,
            "first / lora / setting 1: no length of evaluate.data.lengths = [1500] is beyond "
            "train.max_length = 1500, so there is nothing to choose by",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    tmp_path: Path, key: str, value: Any, sentence: str
) -> None:
    with pytest.raises(UserError) as error:
        load_grid(write(tmp_path, (key, value)), [])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
