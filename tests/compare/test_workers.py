"""Cells in worker processes: failures, kills, and the same result whatever ran before."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from grids import Reported, contents, make, write_grid
from rich.console import Console
from safetensors.torch import load_file

from inline_pool import InlinePool
from ryarn.checkpoints import last_checkpoint
from ryarn.compare import stage, workers
from ryarn.compare.grid import Cell, cells, load_grid
from ryarn.compare.stage import compare
from ryarn.compare.workers import Pool, Result, attempt, run_cell
from ryarn.errors import UserError
from ryarn.runs import save_recipe
from ryarn.train import train


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
    inline = InlinePool(attempt, lambda cell: cell.name)
    monkeypatch.setattr(stage, "Pool", inline.start)
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
