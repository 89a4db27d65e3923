"""The comparison: order, choices, restarts, failures, real workers, and what is seen of them."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from ryarn import loading, models, tiny
from ryarn.compare import stage, workers
from ryarn.compare.cells import Progress, check_owner, progress, steps
from ryarn.compare.estimate import Survey, makespan
from ryarn.compare.forecast import forecast, table
from ryarn.compare.grid import Cell, GridRecipe, candidates, cells, load_grid
from ryarn.compare.schedule import Schedule
from ryarn.compare.stage import compare
from ryarn.compare.watch import Board, duration
from ryarn.compare.workers import Pool, Result, attempt, run_cell, share
from ryarn.errors import UserError
from ryarn.records import write_jsonl
from ryarn.report.results import Report
from ryarn.runs import last_checkpoint, save_recipe, write_json
from ryarn.tasks.registry import make_task
from ryarn.train import train
from tiny_run import OTHER, command, write_rows

LONG = "Where, and where, and where, and where, and where, and where is number {}?"


def write_grid(folder: Path, **changes: Any) -> Path:
    """Two trained methods and one that is not, on rows in and beyond the training length."""
    train_rows = write_rows(folder / "train.jsonl", 12)
    rows = write_rows(folder / "short.jsonl", 8, OTHER).read_text()
    rows += write_rows(folder / "long.jsonl", 8, LONG).read_text()
    (folder / "test.jsonl").write_text(rows)
    data = {
        "model": {"name": "tiny:llama", "dtype": "float32"},
        "method": {"factor": 2, "spans": [128]},
        "train": {
            "data": {"task": "jsonl", "path": str(train_rows), "held_out": 0},
            "max_length": 64,
            "max_steps": 2,
            "batch_size": 2,
        },
        "evaluate": {
            "data": {
                "task": "jsonl",
                "path": str(folder / "test.jsonl"),
                "held_out": 0.5,
                "test": 0.5,
            },
            "max_new_tokens": 2,
        },
        "tasks": {"rooms": {}},
        "methods": {"zero-shot": {}, "lora": {}, "randomized-yarn": {}},
        "seeds": [0, 1],
        "output": str(folder / "out"),
    } | changes
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


CHOOSE = {
    "seed": 1000,
    "settings": {
        "lora": [{}, {"train": {"learning_rate": 2e-4}}, {"train": {"learning_rate": 3e-4}}],
        "randomized-yarn": [{}, {"method": {"factor": 4}}, {"method": {"factor": 8}}],
    },
}


def make(folder: Path, **changes: Any) -> GridRecipe:
    return load_grid(write_grid(folder, **changes), [])


def finish(cell: Cell, scores: Mapping[int, Sequence[float]]) -> None:
    """Leave what a finished cell leaves."""
    folder = cell.recipe.output
    save_recipe(cell.recipe)
    write_jsonl(
        folder / "evaluation" / "scores.jsonl",
        (
            {
                "id": f"{bin_}-{n}",
                "bin": bin_,
                "source": str(n),
                "scores": {"exact": value},
                "parsed": True,
                "finish": "stop",
            }
            for bin_, values in scores.items()
            for n, value in enumerate(values)
        ),
    )


Run = Callable[[Cell], str | None]


class Inline:
    """In place of the pool: each cell is run by a function of the test, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[str] = []
        self.run: Run = lambda cell: finish(cell, {128: [1.0]})
        self.running: list[Cell] = []
        self.sizes: list[tuple[int, int]] = []
        monkeypatch.setattr(stage, "Pool", self.start)

    def start(self, count: int, threads: int, notes: Path) -> Inline:
        self.sizes.append((count, threads))
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
        self.order.append(cell.name)
        self.running.append(cell)

    def wait(self, seconds: float) -> list[Result]:
        return [Result(cell, self.run(cell)) for cell in [self.running.pop()]]


class Reported:
    """In place of the report."""

    def __init__(self) -> None:
        self.runs: dict[str, list[Path]] = {}
        self.reference: str | None = "not called"
        self.about: list[str] = []

    def __call__(
        self,
        runs: dict[str, list[Path]],
        out: Path,
        reference: str | None,
        about: list[str],
        paper: str | None = None,
    ) -> list[Report]:
        self.runs, self.reference, self.about = runs, reference, about
        return [Report(task, "exact", "", 64, None, [], [], "", [], [], []) for task in runs]


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> Inline:
    return Inline(monkeypatch)


@pytest.fixture(autouse=True)
def reported(monkeypatch: pytest.MonkeyPatch) -> Reported:
    seen = Reported()
    monkeypatch.setattr("ryarn.report.stage.report_grid", seen)
    return seen


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run in this process: its output stays where it is."""
    monkeypatch.setattr(workers, "_print_to", lambda path: None)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# Order and choices


def test_candidates_run_first_and_the_longest_of_each_stage_before_the_others(
    tmp_path: Path, inline: Inline
) -> None:
    tasks = {"rooms": {}, "more": {"train": {"max_steps": 3}}}
    compare(make(tmp_path, tasks=tasks, choose=CHOOSE, seeds=[0]))
    tried, rest = inline.order[:12], inline.order[12:]
    assert all("setting" in name for name in tried)
    assert [name.split()[0] for name in tried] == ["more"] * 6 + ["rooms"] * 6
    # A method that trains nothing is the shortest, whatever its task.
    assert [name.partition(" / seed")[0] for name in rest] == [
        "more / lora",
        "more / randomized-yarn",
        "rooms / lora",
        "rooms / randomized-yarn",
        "rooms / zero-shot",
        "more / zero-shot",
    ]


def test_a_method_goes_on_as_soon_as_its_own_choice_is_made(tmp_path: Path) -> None:
    grid = make(tmp_path, choose=CHOOSE)
    schedule = Schedule(grid, lambda cell: 1.0, lambda *_: None)
    tried = [cell for cell in candidates(grid) if cell.label == "lora"]
    for cell in tried:
        assert not any(c.label == "lora" and not c.candidate for c in schedule.waiting)
        schedule.waiting.remove(cell)
        finish(cell, {128: [0.5]})
        schedule.settle(cell, None)
    ready = [(c.label, c.seed) for c in schedule.waiting if not c.candidate]
    assert sorted(ready) == [("lora", 0), ("lora", 1), ("zero-shot", 0)]


def test_the_best_mean_over_the_far_bins_wins_each_bin_with_equal_weight(
    tmp_path: Path, inline: Inline, reported: Reported
) -> None:
    # 32 is no longer than the training rows; 128 has more rows than 256.
    scores: dict[int, dict[int, list[float]]] = {
        1: {32: [1, 1, 1], 128: [1, 1, 1, 0], 256: [0]},
        2: {32: [0, 0, 0], 128: [0, 0, 0, 0], 256: [1]},
        3: {32: [1, 1, 1], 128: [1, 0, 0, 0], 256: [0]},
    }
    inline.run = lambda cell: finish(cell, scores[cell.setting or 1])
    outcome = compare(make(tmp_path, choose=CHOOSE))
    assert outcome.chosen == {("rooms", "lora"): 2, ("rooms", "randomized-yarn"): 2}
    assert {c.recipe.train.learning_rate for c in outcome.done if c.label == "lora"} == {2e-4}
    [lora, _] = json.loads((tmp_path / "out" / "chosen.json").read_text())["choices"]
    assert (lora["task"], lora["method"], lora["chosen"]) == ("rooms", "lora", 2)
    assert [s["ood_mean"] for s in lora["settings"]] == [0.375, 0.5, 0.125]
    assert lora["settings"][1]["changes"] == {"train": {"learning_rate": 2e-4}}
    assert any("3 settings each of lora and randomized-yarn" in text for text in reported.about)
    assert "Nothing was chosen for zero-shot." in reported.about


def test_the_first_of_equal_settings_wins(tmp_path: Path, inline: Inline) -> None:
    values = {1: 0.25, 2: 0.5, 3: 0.5}
    inline.run = lambda cell: finish(cell, {128: [values[cell.setting or 1]]})
    assert set(compare(make(tmp_path, choose=CHOOSE)).chosen.values()) == {2}


def test_candidates_that_answer_nothing_far_are_not_chosen(tmp_path: Path, inline: Inline) -> None:
    far = {1: {32: [1.0]}, 2: {128: [0.1]}, 3: {128: [0.0]}}
    inline.run = lambda cell: finish(cell, far[cell.setting or 1])
    compare(make(tmp_path, choose=CHOOSE))
    [lora, _] = json.loads((tmp_path / "out" / "chosen.json").read_text())["choices"]
    assert lora["chosen"] == 2
    assert "beyond train.max_length = 64" in lora["settings"][0]["reason"]


# Failures


def test_a_cell_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, inline: Inline, reported: Reported
) -> None:
    bad = "rooms / lora / seed 1"

    def run(cell: Cell) -> str | None:
        return "out of luck" if cell.name == bad else finish(cell, {128: [1.0]})

    inline.run = run
    outcome = compare(make(tmp_path, reference="lora"))
    assert outcome.failed == {bad: "out of luck"}
    assert [c.name for c in outcome.done] == [
        "rooms / zero-shot / seed 0",
        "rooms / lora / seed 0",
        "rooms / randomized-yarn / seed 0",
        "rooms / randomized-yarn / seed 1",
    ]
    assert reported.runs == {"rooms": [c.recipe.output for c in outcome.done]}
    assert reported.reference == "lora"
    assert f"Missing: {bad} (out of luck)." in reported.about
    assert "Nothing is trained in zero-shot, so it ran once." in reported.about


def test_a_method_whose_settings_all_failed_is_reported_and_the_others_go_on(
    tmp_path: Path, inline: Inline, reported: Reported
) -> None:
    def run(cell: Cell) -> str | None:
        fails = cell.label == "lora" or cell.name.endswith("yarn / setting 1")
        return "boom" if fails else finish(cell, {128: [0.5]})

    inline.run = run
    outcome = compare(make(tmp_path, choose=CHOOSE, reference="lora"))
    assert outcome.failed == {
        **{f"rooms / lora / setting {n}": "boom" for n in (1, 2, 3)},
        "rooms / randomized-yarn / setting 1": "boom",
        **{f"rooms / lora / seed {n}": "no setting of it could be chosen: boom" for n in (0, 1)},
    }
    assert not any("lora / seed" in name for name in inline.order)
    assert outcome.chosen == {("rooms", "randomized-yarn"): 2}
    assert {c.label for c in outcome.done} == {"zero-shot", "randomized-yarn"}
    assert reported.reference is None
    assert "rooms: setting 1 of randomized-yarn has no score: boom." in reported.about
    chosen = json.loads((tmp_path / "out" / "chosen.json").read_text())["choices"]
    assert chosen[0]["chosen"] is None


def test_nothing_finished_is_no_report(tmp_path: Path, inline: Inline, reported: Reported) -> None:
    inline.run = lambda cell: "boom"
    assert compare(make(tmp_path)).report is None
    assert reported.runs == {}


# Going on


def test_a_finished_cell_is_never_done_again(
    tmp_path: Path, inline: Inline, reported: Reported
) -> None:
    grid = make(tmp_path, choose=CHOOSE)
    first = compare(grid)
    before, reported.runs = contents(tmp_path / "out" / "cells"), {}
    inline.order.clear()
    assert compare(grid) == first
    assert inline.order == []
    assert contents(tmp_path / "out" / "cells") == before
    assert len(reported.runs["rooms"]) == 5


def test_only_what_is_missing_is_run(tmp_path: Path, inline: Inline) -> None:
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
    tmp_path: Path, inline: Inline, changes: dict[str, Any], cell: str, named: str
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
    tmp_path: Path, inline: Inline
) -> None:
    compare(make(tmp_path))
    path = write_grid(tmp_path)
    check_owner(cells(load_grid(path, ["train.log_steps=5", "evaluate.batch_tokens=9"]))[1])
    with pytest.raises(UserError, match=r"evaluate\.max_new_tokens = 2, not 3"):
        compare(load_grid(path, ["evaluate.max_new_tokens=3"]))
    # What is not trained does not depend on how training goes.
    check_owner(cells(load_grid(path, ["train.learning_rate=9"]))[0])


def test_a_folder_older_than_a_key_is_still_the_cells_own(tmp_path: Path, inline: Inline) -> None:
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


def test_a_tuned_cell_may_have_any_of_its_settings_until_the_choice_is_known(
    tmp_path: Path, inline: Inline
) -> None:
    values = {1: 0.25, 2: 0.5, 3: 0.0}
    inline.run = lambda cell: finish(cell, {128: [values[cell.setting or 1]]})
    grid = make(tmp_path, choose=CHOOSE)
    compare(grid)
    best = tmp_path / "out/choose/rooms/lora/2/evaluation/scores.jsonl"
    best.unlink()
    values[2] = 0.0
    outcome = compare(grid)
    assert outcome.chosen["rooms", "lora"] == 1
    assert set(outcome.failed) == {"rooms / lora / seed 0", "rooms / lora / seed 1"}
    assert "train.learning_rate = 0.0002, not 0.0001" in outcome.failed["rooms / lora / seed 0"]
    assert all(c.label != "lora" for c in outcome.done)


def test_folders_of_others_are_left_alone(tmp_path: Path, inline: Inline) -> None:
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


def test_two_comparisons_do_not_share_a_folder(tmp_path: Path, inline: Inline) -> None:
    grid = make(tmp_path)

    def run(cell: Cell) -> str | None:
        with pytest.raises(UserError, match="another ryarn compare is at work there"):
            compare(grid)
        return finish(cell, {128: [1.0]})

    inline.run = run
    assert not compare(grid).failed


# Before anything runs


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (loading, models):
        monkeypatch.setattr(module, "load_model", lambda *_: pytest.fail("weights were read"))


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model": {"name": "tiny:mamba"}},
            "rooms / zero-shot / seed 0: model.name = 'tiny:mamba': known families are ",
        ),
        (
            {"tasks": {"rooms": {"evaluate": {"data": {"path": "/absent.jsonl"}}}}},
            "rooms / zero-shot / seed 0: path = '/absent.jsonl': no such file",
        ),
        (
            {"tasks": {"rooms": {"train": {"data": {"path": "/absent.jsonl"}}}}},
            "rooms / lora / seed 0: path = '/absent.jsonl': no such file",
        ),
        (
            {
                "choose": CHOOSE,
                "tasks": {"rooms": {"evaluate": {"data": {"held_out": 0, "test": 1}}}},
            },
            "rooms / lora / setting 1: ",
        ),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_written(
    tmp_path: Path, inline: Inline, changes: dict[str, Any], sentence: str
) -> None:
    for ask in (compare, forecast):
        with pytest.raises(UserError) as error:
            ask(make(tmp_path, **changes))
        assert str(error.value).startswith(sentence)
    assert not (tmp_path / "out").exists()
    assert inline.sizes == []


@pytest.mark.usefixtures("no_weights")
def test_the_forecast_counts_and_writes_nothing(tmp_path: Path) -> None:
    data = {"task": "babilong", "questions": ["qa1"], "lengths": [1500, 2000], "rows": 3}
    train_data = {"task": "babilong", "questions": ["qa1"], "lengths": [1500], "rows": 10}
    grid = make(
        tmp_path,
        tasks={
            "rooms": {
                "train": {
                    "data": train_data,
                    "max_length": 1500,
                    "max_steps": None,
                    "epochs": 2,
                    "gradient_accumulation": 2,
                },
                "evaluate": {"data": data},
            },
            "short": {"evaluate": {"data": {"held_out": 0, "test": 1}}},
        },
    )
    seen = forecast(grid, processes=2)
    lines = {(line.task, line.label): line for line in seen.lines}
    line = lines["rooms", "lora"]
    assert (line.runs, line.cells, line.done) == ("seed 0 1", 2, 0)
    work = line.work
    # 10 rows in batches of 2, two batches a step: 3 steps an epoch.
    assert (work.rows, work.steps, work.train_tokens) == (10, 6, 2 * 10 * 1500)
    assert (work.answers, work.read_tokens) == (6, 3 * 3500)
    zero = lines["rooms", "zero-shot"]
    assert (zero.runs, zero.work.rows, zero.work.steps, zero.work.train_tokens) == (
        "seed 0",
        *[0] * 3,
    )
    short = lines["short", "lora"].work
    assert (short.steps, short.train_tokens, short.answers) == (2, 2 * 2 * 64, 16)
    assert short.read_tokens == 8 * 32 + 8 * 128
    assert seen.notes[0] == "10 cells, 0 of them finished"
    assert seen.notes[1] == "nothing is trained in zero-shot: once, with the first seed"
    assert "with 2 processes" in seen.notes[2]
    assert "GFLOP/s measured on this machine" in seen.notes[2]
    assert not (tmp_path / "out").exists()


def test_the_forecast_knows_what_is_finished_and_how_long_it_took(
    tmp_path: Path, inline: Inline
) -> None:
    grid = make(tmp_path, choose=CHOOSE)
    compare(grid)
    survey = Survey()
    for cell in cells(grid)[1:3]:
        (cell.recipe.output / "evaluation/scores.jsonl").unlink()
    for cell in (c for c in cells(grid) if c.label == "randomized-yarn"):
        work = survey.work(cell.recipe)
        seconds = {"train": 0.5 * work.train_tokens, "evaluate": 0.25 * work.read_tokens}
        write_json(cell.recipe.output / "times.json", seconds)
    seen = forecast(grid, processes=1)
    done = {(line.label, line.runs): (line.done, line.cells) for line in seen.lines}
    assert done["lora", "seed 0 1"] == (0, 2)
    assert done["lora", "setting 1 2 3"] == (3, 3)
    work = survey.work(cells(grid)[1].recipe)
    each = 0.5 * work.train_tokens + 0.25 * work.read_tokens
    [lora] = [line for line in seen.lines if (line.label, line.cells) == ("lora", 2)]
    assert lora.seconds == pytest.approx(each)
    assert f"time: about {duration(2 * each)} with 1 process" in seen.notes[-1]
    assert "from 2 finished cells" in seen.notes[-1]


def test_the_forecast_fits_a_terminal(tmp_path: Path) -> None:
    screen = io.StringIO()
    Console(file=screen, width=80).print(table(forecast(make(tmp_path, choose=CHOOSE))))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    [tuned] = [line.split() for line in lines if "randomized-yarn" in line and "setting" in line]
    assert tuned[:6] == ["randomized-yarn", "setting", "1", "2", "3", "0/3"]
    data = candidates(make(tmp_path, choose=CHOOSE))[0].recipe.evaluate.data
    bins = [e.bin for e in make_task(data).examples(tiny.byte_tokenizer(), "held-out")]
    assert tuned[6:-2] == ["12", "2", "256", str(len(bins)), str(sum(bins))]
    assert tuned[-1] == "s"


def test_the_longest_cells_are_packed_first() -> None:
    assert makespan([1, 1, 1, 3], 2) == 3
    assert makespan([2, 2, 2], 2) == 4
    assert makespan([], 3) == 0


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    assert share(100, None) == (8, 1)
    assert share(3, None) == (3, 2)
    assert share(100, 2) == (2, 4)
    assert share(100, 20) == (20, 1)


# What is seen


def test_progress_is_read_from_the_files(tmp_path: Path) -> None:
    [zero, cell, *_] = cells(make(tmp_path))
    folder = cell.recipe.output
    assert str(progress(cell)) == "starting"
    folder.mkdir(parents=True)
    write_json(folder / "run.json", {"data": {"rows": 12}})
    (folder / "log.jsonl").write_text('{"loss": 1, "step": 1}\n{"loss": 1, "st')
    assert progress(cell) == Progress("training step", 1, 2)
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    assert str(progress(cell)) == "making rows"
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "examples.jsonl").write_text("{}\n" * 8)
    (folder / "evaluation" / "completions.jsonl").write_text("{}\n" * 2)
    assert str(progress(cell)) == "answering row 2/8"
    assert str(progress(zero)) == "starting"


def test_steps_are_those_of_the_trainer(tmp_path: Path) -> None:
    changes = ["train.max_steps=null", "train.epochs=1.5", "train.gradient_accumulation=4"]
    cell = cells(load_grid(write_grid(tmp_path), changes))[1]
    train(cell.recipe)
    run = json.loads((cell.recipe.output / "run.json").read_text())
    assert run["steps"] == steps(cell.recipe.train, run["data"]["rows"]) == 3


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_at_each_start_and_end_and_every_half_minute(tmp_path: Path) -> None:
    [zero, cell, *_] = cells(make(tmp_path))
    out, clock = io.StringIO(), Clock()
    with Board(Console(file=out, width=40), 5, 1, 100.0, clock) as board:
        board.started(cell)
        for second in range(61):
            clock.now = second
            board.tick([(cell, Progress("training step", second, 100), second / 2)])
        board.ended(cell, 50.0, None)
        board.started(zero)
        board.ended(zero, 10.0, "no [luck]")
        clock.now = 120
        board.tick([])
    assert out.getvalue().splitlines() == [
        "start   rooms / lora / seed 0",
        "1 of 5 cells done; about 3 min left; rooms / lora / seed 0: training step 30/100",
        "1 of 5 cells done; about 2 min left; rooms / lora / seed 0: training step 60/100",
        "done    rooms / lora / seed 0 in 60 s",
        "start   rooms / zero-shot / seed 0",
        "failed  rooms / zero-shot / seed 0: no [luck]",
        "2 of 5 cells done, 1 failed; about 80 s left",
    ]


def test_a_live_view_on_a_terminal(tmp_path: Path) -> None:
    [_, cell, *_] = cells(make(tmp_path))
    out, clock = io.StringIO(), Clock()
    with Board(Console(file=out, width=100, force_terminal=True), 5, 1, 100.0, clock) as board:
        board.started(cell)
        clock.now = 30
        board.tick([(cell, Progress("training step", 3, 9), 25.0)])
    text = out.getvalue()
    assert "1 of 5 cells done" in text
    assert "about 90 s left" in text or "about 2 min left" in text
    assert "training step 3/9" in text
    assert "start " not in text


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 89, 90, 3600, 12000)] == [
        "0 s",
        "89 s",
        "2 min",
        "60 min",
        "3 h 20 min",
    ]


# In a worker


@pytest.mark.usefixtures("quiet")
def test_what_goes_wrong_in_a_cell_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cells(make(tmp_path))[1]
    folder = cell.recipe.output

    def fail(error: Exception) -> None:
        def failing(cell: Cell) -> None:
            raise error

        monkeypatch.setattr(workers, "run_cell", failing)

    fail(UserError("say please"))
    assert attempt(cell) == "say please"
    assert not (folder / "error.txt").exists()
    fail(RuntimeError("shapes\ndo not match"))
    assert attempt(cell) == f"RuntimeError: shapes; its traceback is in {folder / 'error.txt'}"
    assert "in failing" in (folder / "error.txt").read_text()
    fail(OSError(28, "No space left on device", "adapter.bin"))
    assert attempt(cell) == "adapter.bin: No space left on device"
    monkeypatch.setattr(workers, "run_cell", lambda cell: None)
    assert attempt(cell) is None
    assert not (folder / "error.txt").exists()
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"seed": 9}))
    assert "was made with" in str(attempt(cell))


def weights(cell: Cell) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(
        cell.recipe.output / "adapter" / "adapter_model.safetensors"
    )
    return found


def same(one: Cell, two: Cell) -> bool:
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def answers(cell: Cell) -> str:
    return (cell.recipe.output / "evaluation" / "completions.jsonl").read_text()


@pytest.mark.usefixtures("quiet")
def test_a_cell_is_the_same_whatever_ran_before_it(tmp_path: Path) -> None:
    path = write_grid(tmp_path)
    hard = ["train.learning_rate=1e-2"]
    one = cells(load_grid(path, [*hard, f"output={tmp_path / 'one'}"]))[3]
    two = cells(load_grid(path, [*hard, f"output={tmp_path / 'two'}"]))[3]
    other = cells(
        load_grid(path, ["train.gradient_accumulation=2", "model.name=tiny:qwen3", "seeds=[5]"])
    )[1]
    assert [attempt(cell) for cell in (one, other, two)] == [None] * 3
    assert same(one, two)
    assert answers(one) == answers(two)
    assert set(json.loads((one.recipe.output / "times.json").read_text())) == {"train", "evaluate"}


@pytest.mark.usefixtures("quiet")
def test_an_evaluation_that_is_missing_is_all_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cells(make(tmp_path))[1]
    save_recipe(cell.recipe)
    train(cell.recipe)
    before = weights(cell)
    monkeypatch.setattr("ryarn.train.train", lambda *_, **__: pytest.fail("trained again"))
    run_cell(cell)
    assert all(torch.equal(before[name], value) for name, value in weights(cell).items())
    (cell.recipe.output / "evaluation" / "summary.json").unlink()
    monkeypatch.setattr("ryarn.evaluate.evaluate", lambda *_: pytest.fail("evaluated again"))
    run_cell(cell)


KILLED = "rooms / randomized-yarn / seed 0"


class Killing(Pool):
    """Kills one worker while its cell is training."""

    killed: int | None = None

    def wait(self, seconds: float) -> list[Result]:
        for cell in self.running:
            begun = last_checkpoint(cell.recipe.output / "checkpoints")
            if cell.name == KILLED and begun is not None and self.killed is None:
                self.killed = self.pids[KILLED]
                assert self.killed is not None
                os.kill(self.killed, signal.SIGKILL)
        return super().wait(0.02)


@pytest.mark.usefixtures("quiet", "one_thread")
def test_two_workers_one_is_killed_and_the_grid_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: Reported
) -> None:
    path = write_grid(tmp_path, seeds=[0])
    changes = ["train.max_steps=24", "train.save_steps=4", "train.learning_rate=1e-2"]
    grid = load_grid(path, changes)
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    monkeypatch.setattr(stage, "Pool", Killing)
    screen = io.StringIO()
    outcome = compare(grid, processes=2, console=Console(file=screen, width=200))
    assert multiprocessing.active_children() == []
    log = tmp_path / "out/cells/rooms/randomized-yarn/seed-0/log.txt"
    reason = (
        "its worker process was ended by SIGKILL, as the system does when memory runs out; see "
        f"{log}"
    )
    assert outcome.failed == {KILLED: reason}
    assert {c.label for c in outcome.done} == {"zero-shot", "lora"}
    assert f"Missing: {KILLED} ({reason})." in reported.about
    assert "12 rows of" in log.read_text()
    assert f"failed  {KILLED}: {reason}" in screen.getvalue()
    assert screen.getvalue().count("done  ") == 2

    lora = json.loads((tmp_path / "out/cells/rooms/lora/seed-0/run.json").read_text())
    assert torch.cuda.is_available() or lora["device"].startswith("cpu, 1 threads")
    before = contents(tmp_path / "out/cells/rooms/lora")
    inline = Inline(monkeypatch)
    inline.run = attempt
    outcome = compare(grid)
    assert inline.order == [KILLED]
    assert outcome.failed == {}
    assert contents(tmp_path / "out/cells/rooms/lora") == before
    killed = cells(grid)[2]
    run = json.loads((killed.recipe.output / "run.json").read_text())
    assert run["resumed_from"].startswith("checkpoint-")
    assert set(json.loads((killed.recipe.output / "times.json").read_text())) == {"evaluate"}

    # In one go, and in this process instead of a worker: the same numbers.
    again = cells(load_grid(path, [*changes, f"output={tmp_path / 'again'}"]))
    for cell, straight in ((killed, again[2]), (cells(grid)[1], again[1])):
        assert attempt(straight) is None
        assert same(cell, straight)
        assert answers(cell) == answers(straight)


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_command(tmp_path: Path, way: signal.Signals) -> None:
    path = write_grid(tmp_path)
    arguments = [sys.executable, "-m", "ryarn", "compare", str(path), "--processes", "2"]
    with subprocess.Popen(
        arguments, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stderr is not None
        while not running.stderr.readline().startswith("start "):
            assert running.poll() is None
        if way == signal.SIGINT:
            os.killpg(running.pid, way)  # as a terminal does
            assert "goes on where it was" in running.stderr.read().splitlines()[-1]
        else:
            running.kill()
    assert running.returncode == (130 if way == signal.SIGINT else -signal.SIGKILL)
    end = time.monotonic() + 60
    while _is_alive(running.pid):
        assert time.monotonic() < end, "a worker is still there"
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report" / "report.html").is_file()


# The command line


def test_the_command_line_runs_a_grid_and_fails_where_a_cell_does(
    tmp_path: Path,
    inline: Inline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_grid(tmp_path)
    assert command(monkeypatch, "compare", path, "seeds=[0]", "--processes", 1) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("rooms")
    assert f"report in {tmp_path / 'out' / 'report'}; open" in printed
    assert len(inline.order) == 3
    assert inline.sizes[0][0] == 1
    inline.run = lambda cell: "boom"
    assert command(monkeypatch, "compare", path) == 1
    assert "failed: rooms / lora / seed 1: boom\n" in capsys.readouterr().err


def test_the_command_line_only_looks_on_a_dry_run(
    tmp_path: Path,
    inline: Inline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, "compare", write_grid(tmp_path), "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "5 cells, 0 of them finished" in printed
    assert inline.order == []
    assert not (tmp_path / "out").exists()


def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path,
    inline: Inline,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(cell: Cell) -> str | None:
        raise KeyboardInterrupt

    inline.run = run
    assert command(monkeypatch, "compare", write_grid(tmp_path)) == 130
    assert "stopped; the same command goes on where it was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--processes", 0], "--processes 0: give at least 1"),
        (["seeds=[0,0]"], "seeds = [0, 0]: name each only once"),
        (["methods.lora=3"], "override 'methods.lora=3': methods.lora is a section"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[Any],
    sentence: str,
) -> None:
    path = write_grid(tmp_path, methods={"zero-shot": {}, "lora": {"train": {"lora_rank": 4}}})
    assert command(monkeypatch, "compare", path, *arguments) == 2
    assert capsys.readouterr().err.startswith(f"ryarn: {sentence}")


def test_help_shows_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "compare", "--help") == 0
    assert "Example: ryarn compare " in capsys.readouterr().out
