"""What is seen of a grid while it runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

from grids import make, write_grid
from rich.console import Console

from ryarn.compare.cells import Progress, progress, steps
from ryarn.compare.grid import cells, load_grid
from ryarn.compare.watch import Board, duration
from ryarn.runs import write_json
from ryarn.train import train


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
