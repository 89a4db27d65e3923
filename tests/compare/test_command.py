"""`ryarn compare` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grids import write_grid

from inline_pool import InlinePool
from ryarn.compare.grid import Cell
from tiny_run import command


def test_the_command_line_runs_a_grid_and_fails_where_a_cell_does(
    tmp_path: Path,
    inline: InlinePool,
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
    inline: InlinePool,
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
    inline: InlinePool,
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
