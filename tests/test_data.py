"""The data stage: what it writes trains and evaluates as it is, and the summary is true of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ryarn.chat import completion_ids, prompt_ids
from ryarn.data import write_rows
from ryarn.errors import UserError
from ryarn.records import Example, read_jsonl
from ryarn.tasks.babilong import BabilongConfig
from ryarn.tasks.jsonl import JsonlConfig
from ryarn.tasks.registry import make_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONFIG = BabilongConfig(questions=["qa1", "qa2"], lengths=[800, "0k"], rows=4)


def test_file_and_summary_agree(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    out = tmp_path / "new" / "rows.jsonl"
    summary = write_rows(CONFIG, tokenizer, "held-out", out)
    rows = list(read_jsonl(out))
    assert summary.path == out
    assert summary.rows == len(rows) == 16
    assert list(summary.bins) == [0, 800]
    for bin_, found in summary.bins.items():
        examples = [Example.from_json(row) for row in rows if row["bin"] == bin_]
        lengths = [
            len(prompt_ids(tokenizer, e.prompt)) + len(completion_ids(tokenizer, e.completion))
            for e in examples
        ]
        assert (found.rows, found.sources) == (8, 8)
        assert (found.shortest, found.longest) == (min(lengths), max(lengths))
        assert found.mean == pytest.approx(sum(lengths) / 8)
    assert all(row["info"]["split"] == "held-out" for row in rows)


def test_what_is_written_is_what_the_task_yields(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    write_rows(CONFIG, tokenizer, "test", tmp_path / "rows.jsonl")
    again = make_task(JsonlConfig(path=str(tmp_path / "rows.jsonl"))).examples(tokenizer, "test")
    first = make_task(CONFIG).examples(tokenizer, "test")
    assert [(e.id, e.prompt, e.completion, e.bin, e.source, e.task) for e in again] == [
        (e.id, e.prompt, e.completion, e.bin, e.source, e.task) for e in first
    ]


def test_nothing_is_left_when_rows_are_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(UserError, match="no such file"):
        write_rows(
            JsonlConfig(path=str(tmp_path / "no.jsonl")), tokenizer, "train", tmp_path / "o.jsonl"
        )
    assert not (tmp_path / "o.jsonl").exists()
