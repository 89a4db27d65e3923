"""Worker processes that run cells: long-lived, one cell at a time, replaced when one dies."""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from ryarn.checkpoints import last_checkpoint
from ryarn.compare.cells import ERROR, OUTPUT, TIMES, check_owner, is_done, is_trained
from ryarn.compare.grid import Cell
from ryarn.compare.sharing import adopt
from ryarn.errors import SelfTestError, TrainingError, UserError
from ryarn.evaluate import COMPLETIONS
from ryarn.recipe import Recipe
from ryarn.runs import CHECKPOINTS, EVALUATION, read_json, save_recipe, write_json

_LIBRARIES = ("datasets", "peft", "trl", "ryarn.callback", "ryarn.loading", "ryarn.rope")
"""What every cell needs: loaded before the first one, so that its time is its own."""


@dataclass(frozen=True)
class Result:
    """How a cell ended: `error` is one sentence, None for a good end."""

    cell: Cell
    error: str | None


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(cells: int, processes: int | None) -> tuple[int, int]:
    """How many workers there are, and how many threads each has.

    It depends on the grid and the machine alone, not on how much is left to do: the number of
    threads can change a sum's last bit.

    Args:
        cells: Of the whole grid.
        processes: What was asked for.
    """
    cores = usable_cores()
    count = max(1, min(processes or cores, cells))
    return count, max(1, cores // count)


@dataclass
class _Worker:
    process: SpawnProcess
    link: Connection
    is_ready: bool = False
    cell: Cell | None = None


class Pool:
    """Workers to give cells to; use as a context manager, so that none outlives it.

    Args:
        count: How many at most.
        threads: Of each.
        notes: File for what a worker prints before its first cell.
        run: What is done with a cell, a function of a module; None for `run_cell`.
    """

    def __init__(
        self, count: int, threads: int, notes: Path, run: Callable[[Cell], None] | None = None
    ) -> None:
        self._count, self._threads, self._notes, self._run = count, threads, notes, run
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """End every worker at once: a cell may be killed anywhere and be taken up again."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.link.close()

    @property
    def running(self) -> list[Cell]:
        """Cells in hand."""
        return [worker.cell for worker in self._workers if worker.cell is not None]

    @property
    def pids(self) -> dict[str, int | None]:
        """Name of the cell in hand to the worker's process id."""
        return {w.cell.name: w.process.pid for w in self._workers if w.cell is not None}

    def fill(self, wanted: int) -> None:
        """Start workers, also for those that died, until there are enough for so many cells."""
        while len(self._workers) < min(self._count, wanted):
            self._workers.append(self._start())

    @property
    def has_room(self) -> bool:
        """Whether a worker is ready for a cell."""
        return any(worker.is_ready and worker.cell is None for worker in self._workers)

    def submit(self, cell: Cell) -> None:
        """Give a cell to a worker that is ready for one."""
        worker = next(w for w in self._workers if w.is_ready and w.cell is None)
        worker.cell = cell
        # A worker that died in this moment is found by `wait`.
        with contextlib.suppress(OSError):
            worker.link.send(cell)

    def wait(self, seconds: float) -> list[Result]:
        """Wait until something happens, for so long at most, and give the cells that ended.

        Raises:
            UserError: A worker ended before it was ready.
        """
        # The sentinels, too: a worker's own children may hold its end of the link open.
        ends: list[Any] = [(w.link, w.process.sentinel) for w in self._workers]
        heard = connection.wait([end for pair in ends for end in pair], seconds)
        results = []
        for worker, pair in zip(tuple(self._workers), ends, strict=True):
            if not any(end in heard for end in pair):
                continue
            try:
                if not worker.link.poll():
                    raise EOFError
                answer: str | None = worker.link.recv()
            except (EOFError, OSError):
                results += self._bury(worker)
                continue
            if worker.cell is not None:
                results.append(Result(worker.cell, answer))
            worker.is_ready, worker.cell = True, None
        return results

    def _bury(self, worker: _Worker) -> list[Result]:
        worker.process.join()
        worker.link.close()
        reason = _why(worker.process.exitcode)
        if not worker.is_ready:
            raise UserError(
                f"a worker process {reason} before it could begin: see {self._notes}; a script "
                "must call compare() under `if __name__ == '__main__':`"
            )
        self._workers.remove(worker)
        if worker.cell is None:
            return []
        log = worker.cell.recipe.output / OUTPUT
        return [Result(worker.cell, f"its worker process {reason}; see {log}")]

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(
            target=_work, args=(theirs, self._threads, self._notes, self._run)
        )
        with _deaf_to_interrupts(), _environment(OMP_NUM_THREADS=str(self._threads)):
            process.start()
        theirs.close()
        return _Worker(process, mine)


def _why(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"ended with exit code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set for the child to inherit: libraries read it when they are loaded."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A child starts without ears for Ctrl-C, which a terminal sends to all: the parent ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(link: Connection, threads: int, notes: Path, run: Callable[[Cell], None] | None) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _print_to(notes)
    import torch

    # Bars of several processes don't share these files, and the lock that tqdm would make for them
    # outlives a killed worker, which Python then complains of on the terminal.
    importlib.import_module("tqdm").tqdm.set_lock(threading.RLock())

    torch.set_num_threads(threads)
    for name in _LIBRARIES:
        importlib.import_module(name)
    link.send(None)
    while True:
        try:
            cell = link.recv()
        except EOFError:
            return
        error = attempt(cell, run)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        link.send(error)


def _end_with_parent() -> None:
    """A worker whose parent was killed must not go on writing into a folder that is free again."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _print_to(path: Path) -> None:
    """Send all that this process prints, and its libraries, to the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def attempt(cell: Cell, run: Callable[[Cell], None] | None = None) -> str | None:
    """Run a cell in a worker process.

    Args:
        cell: The cell.
        run: What is done with it; None for `run_cell`.

    Returns:
        None, or in one sentence why it failed.
    """
    folder = cell.recipe.output
    try:
        check_owner(cell)
        save_recipe(cell.recipe)
        _print_to(folder / OUTPUT)
        (folder / ERROR).unlink(missing_ok=True)
        (run or run_cell)(cell)
    except (UserError, SelfTestError, TrainingError) as error:
        return str(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        with contextlib.suppress(OSError):
            (folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        return f"{type(error).__name__}: {first}; its traceback is in {folder / ERROR}"
    return None


def run_cell(cell: Cell, callbacks: Sequence[Any] = ()) -> None:
    """Do what is left of a cell: train or go on training, or take its adapter over; then evaluate.

    Args:
        cell: The cell.
        callbacks: As for `ryarn.train.train`.

    Raises:
        UserError: See `ryarn.train.train` and `ryarn.evaluate.evaluate`.
    """
    from ryarn.evaluate import evaluate
    from ryarn.train import train

    if is_done(cell):
        return
    recipe = cell.recipe
    if cell.donor is not None and not is_trained(recipe):
        adopt(recipe, cell.donor)
        print(f"the adapter is that of {cell.donor}: the training is the same", flush=True)
    elif cell.trains and not is_trained(recipe):
        resume = last_checkpoint(recipe.output / CHECKPOINTS) is not None
        with _timed(recipe, "train", whole=not resume):
            train(recipe, resume=resume, callbacks=callbacks)
    whole = not (recipe.output / EVALUATION / COMPLETIONS).is_file()
    with _timed(recipe, "evaluate", whole=whole):
        evaluate(recipe)


@contextlib.contextmanager
def _timed(recipe: Recipe, stage: str, *, whole: bool) -> Iterator[None]:
    """Note how long a stage took; one that was taken up again would tell too little."""
    start = time.perf_counter()
    yield
    if whole:
        path = recipe.output / TIMES
        known = read_json(path) if path.is_file() else {}
        write_json(path, {**known, stage: time.perf_counter() - start})
