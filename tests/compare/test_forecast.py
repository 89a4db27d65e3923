"""What is said of a grid before it runs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from grids import CHOOSE, finish, make
from rich.console import Console

from inline_pool import InlinePool
from ryarn import loading, models, tiny
from ryarn.compare import workers
from ryarn.compare.estimate import Survey, makespan
from ryarn.compare.forecast import forecast, table
from ryarn.compare.grid import candidates, cells
from ryarn.compare.stage import compare
from ryarn.compare.watch import duration
from ryarn.compare.workers import share
from ryarn.errors import UserError
from ryarn.runs import write_json
from ryarn.tasks.registry import make_task


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
    tmp_path: Path, inline: InlinePool, changes: dict[str, Any], sentence: str
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
    tmp_path: Path, inline: InlinePool
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


def test_the_forecast_knows_what_was_chosen(tmp_path: Path, inline: InlinePool) -> None:
    inline.run = lambda cell: finish(cell, {128: [0.5 + (cell.setting == 2) / 4]})
    grid = make(tmp_path, choose=CHOOSE)
    assert set(compare(grid).chosen.values()) == {2}
    seen = forecast(grid)
    assert all(line.done == line.cells for line in seen.lines)
    assert "nothing is left to run but the report" in seen.notes
    (tmp_path / "out/cells/rooms/lora/setting-2/seed-1/evaluation/scores.jsonl").unlink()
    inline.order.clear()
    compare(grid)
    assert inline.order == ["rooms / lora / seed 1"]


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
