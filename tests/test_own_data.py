"""docs/own-data.md, run as it stands: its files written, its commands started, what they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "own-data.md"
PYTHON = shlex.quote(sys.executable)


def blocks() -> Iterator[tuple[str, str]]:
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block, with the lines that it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed.splitlines()


def shape(line: str) -> str:
    """A line without what another machine's arithmetic may change."""
    return re.sub(r"[\s─━┏┓┡┩┳╇└┘┴]+", " ", re.sub(r"[+-]?[\d.]+", "#", line)).strip()


def check(printed: str, wanted: list[str], command: str) -> None:
    """See that the lines stand there in this order; what `...` leaves out may be there too."""
    is_table = "┃" in printed
    lines = iter([shape(line) if is_table else line for line in printed.splitlines()])
    for line in wanted:
        if line != "...":
            assert (shape(line) if is_table else line) in lines, f"{command}: no line {line!r}"


@pytest.mark.slow
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    ran = 0
    for kind, text in blocks():
        name = re.match(r"# ([\w.]+\.(?:py|yaml))\n", text)
        if name is not None:
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
        elif kind == "sh":
            text = "".join(f"$ {line}\n" for line in text.splitlines())
        for command, wanted in commands(text) if name is None else ():
            line = re.sub(r"^ryarn ", f"{PYTHON} -m ryarn ", command)
            line = re.sub(r"^python ", f"{PYTHON} ", line)
            done = subprocess.run(
                line, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            refused = any(said.startswith("ryarn: ") for said in wanted)
            assert done.returncode == (2 if refused else 0), f"{command}\n{done.stderr[-2000:]}"
            check(done.stderr + done.stdout, wanted, command)
            ran += 1
    assert ran > 15
