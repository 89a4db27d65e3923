"""The count while rows are made: seen on a terminal, nowhere else."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator

import pytest

from ryarn.counting import counting

ROWS = """
import time
from ryarn.counting import counting
def made():
    for row in range(1234):
        yield row
    time.sleep(0.3)
assert list(counting(made(), "making test rows", shown={shown})) == list(range(1234))
"""


def on_terminal(shown: bool) -> str:
    """What `counting` writes on a terminal."""
    seen = b""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.pop("TTY_COMPATIBLE", None)
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", ROWS.format(shown=shown)])
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # how Linux says that the other end is closed
            part = b""
        if not part:
            break
        seen += part
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0, seen.decode()
    return seen.decode()


def test_on_a_terminal_it_says_how_many_there_are() -> None:
    assert "making test rows: 1,234" in on_terminal(shown=True)


def test_a_process_that_does_not_speak_says_nothing() -> None:
    assert on_terminal(shown=False) == ""


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
