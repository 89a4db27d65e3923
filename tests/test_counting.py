"""The count while rows are made: seen on a terminal, nowhere else."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ryarn.counting import counting

ROWS = """
from ryarn.counting import counting
assert list(counting(range(1234), "making test rows", shown={shown})) == list(range(1234))
"""


def on_terminal(*arguments: str) -> str:
    """What Python writes on a terminal, run with these arguments."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("TTY_COMPATIBLE", None)
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as child:
        os.close(theirs)
        seen = b""
        # Linux says by an error that nobody holds the other end any more, others by an empty read.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                seen += part
    os.close(ours)
    assert child.returncode == 0, seen.decode()
    return seen.decode()


def test_on_a_terminal_it_says_how_many_there_are() -> None:
    assert "making test rows: 1,234" in on_terminal("-c", ROWS.format(shown=True))


def test_a_process_that_does_not_speak_says_nothing() -> None:
    assert on_terminal("-c", ROWS.format(shown=False)) == ""


def test_a_command_shows_it(tmp_path: Path) -> None:
    task = ("conflicts", "lengths=[64]", "questions=[first]", "rows=20", "--model", "miniature")
    out = str(tmp_path / "rows.jsonl")
    assert "making train rows: 20" in on_terminal("-m", "ryarn", "data", *task, "--out", out)


def test_elsewhere_it_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(counting(range(5), "making rows")) == [0, 1, 2, 3, 4]
    assert capfd.readouterr() == ("", "")


def test_rows_come_one_by_one() -> None:
    """Rows are passed on as they are made: nothing is held back, nothing made ahead."""
    made: list[int] = []

    def rows() -> Iterator[int]:
        for row in range(3):
            made.append(row)
            yield row

    taken = counting(rows(), "making rows")
    assert next(taken) == 0
    assert made == [0]
