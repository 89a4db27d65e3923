"""Thinking blocks: where an answer ended, and what follows the block."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from report_runs import PlaceTask, WordTokenizer, examples
from ryarn.backends import Generated
from ryarn.backends.echo import EchoBackend
from ryarn.evaluate import Budget, run_evaluation
from ryarn.records import read_jsonl
from ryarn.report import tables
from ryarn.report.stage import report
from ryarn.runs import EVALUATION
from ryarn.thinking import THINKING, after_thinking, is_open


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("", False),
        ("kitchen", False),
        ("<think>", True),
        ("<think>so the kitchen", True),
        ("<think>so</think>kitchen", False),
        ("so</think>kitchen", False),
        ("<think>so</think><think>again", True),
        ("<think>a</think><think>b</think>", False),
        ("<think>the mark is <think> itself", True),
        ("<Think>kitchen", False),
    ],
)
def test_where_a_text_ends(text: str, inside: bool) -> None:
    assert is_open(text) == inside


@pytest.mark.parametrize(
    ("text", "finish", "answer"),
    [
        ("kitchen", "stop", "kitchen"),
        ("kitchen", "length", "kitchen"),
        ("<think>so</think> kitchen", "stop", " kitchen"),
        ("so</think>kitchen", "stop", "kitchen"),
        ("<think>a</think>no<think>b</think>yes", "stop", "yes"),
        ("<think>a</think>no<think>b", THINKING, ""),
        ("so it is the kitchen", THINKING, ""),
    ],
)
def test_what_follows_the_thinking(text: str, finish: str, answer: str) -> None:
    assert after_thinking(text, finish) == answer


class Reasoning(EchoBackend):
    """Answers of a reasoning model: some are cut in their thinking, which the text may not show."""

    def generate(self, prompts: Any, max_new_tokens: int) -> Any:
        for key, answer in super().generate(prompts, max_new_tokens):
            number = int(key.rpartition("-")[2])
            if number < 3:
                yield key, Generated(f"<think>the {answer.text}", "length")
            elif number < 5:
                yield key, Generated("", THINKING)
            elif number < 6:
                yield key, Generated(answer.text, "length")
            else:
                yield key, Generated(f"<think>well</think>{answer.text}", "stop")


def evaluated(folder: Path, label: str, backend: type[EchoBackend]) -> Path:
    rows = examples((512, 1024), 10)
    summary = run_evaluation(
        rows,
        PlaceTask(),  # type: ignore[arg-type]
        backend(rows),
        WordTokenizer(),  # type: ignore[arg-type]
        folder / EVALUATION,
        budget=Budget(1000, 20),
        fingerprint={
            "label": label,
            "seed": 0,
            "task": "places",
            "train_length": 512,
            "method": {"name": label},
        },
    )
    thinks = backend is Reasoning
    assert (summary.thinking, summary.cut) == ((10, 2) if thinks else (0, 0))
    assert (summary.rows, summary.scored) == (20, 20)
    return folder


def test_answers_cut_in_their_thinking_are_counted_apart_from_the_files_to_the_report(
    tmp_path: Path,
) -> None:
    thinking = evaluated(tmp_path / "thinking", "lora", Reasoning)
    plain = evaluated(tmp_path / "plain", "pose", EchoBackend)
    for name in ("completions.jsonl", "scores.jsonl"):
        finished = [row["finish"] for row in read_jsonl(thinking / EVALUATION / name)]
        assert sorted(set(finished)) == ["length", "stop", THINKING]
        assert finished.count(THINKING) == 10
    result = report([thinking, plain], tmp_path / "report")
    one, two = result.methods
    assert [(cell.thinking, cell.cut, cell.skipped) for cell in one.cells] == [(5, 1, 0)] * 2
    assert [(cell.thinking, cell.cut, cell.skipped) for cell in two.cells] == [(0, 0, 0)] * 2
    header = tables.COUNT_HEADER
    lines = [dict(zip(header, row, strict=True)) for row in tables.count_rows(result)]
    assert [line["thinking"] for line in lines] == ["5", "5", "0", "0"]
    assert [line["cut"] for line in lines] == ["1", "1", "0", "0"]
    notes = [note for note in result.notes if "thinking block" in note]
    assert [note.partition(":")[0] for note in notes] == ["lora", "lora"]
    assert "5 of 10 rows at 512 ended inside a thinking block" in notes[0]
    with (tmp_path / "report" / "report.csv").open(encoding="utf-8", newline="") as file:
        numbers = list(csv.DictReader(file))
    counted = {(line["method"], line["bin"]): line["thinking"] for line in numbers}
    assert counted["lora", "512"] == "5"
    assert counted["pose", "512"] == "0"
    assert counted["lora", "ood"] == ""


def test_the_column_is_shown_to_those_who_think(tmp_path: Path) -> None:
    def columns(name: str, backend: type[EchoBackend]) -> list[str]:
        run = evaluated(tmp_path / name, "lora", backend)
        table = tables.one_run(report([run], tmp_path / f"{name}-report"))
        assert all(len(list(column.cells)) == 2 for column in table.columns)
        return [str(column.header) for column in table.columns]

    assert columns("plain", EchoBackend)[-1] == "cut"
    assert columns("thinking", Reasoning)[-1] == "thinking"


def test_folders_of_before_there_was_thinking_are_read(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "old", "lora", EchoBackend)
    rows = list(read_jsonl(run / EVALUATION / "scores.jsonl"))
    assert {row["finish"] for row in rows} == {"stop"}
    assert set(rows[0]) == {"id", "bin", "source", "scores", "parsed", "finish"}
    cells = report([run], tmp_path / "report").methods[0].cells
    assert [cell.thinking for cell in cells] == [0, 0]
