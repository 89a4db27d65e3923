"""The user's own rows: formats, splits, bins, scores, and what is said of a bad row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ryarn.chat import completion_ids, prompt_ids
from ryarn.config import build
from ryarn.errors import UserError
from ryarn.records import Completion, Example
from ryarn.tasks.babilong import Babilong, BabilongConfig
from ryarn.tasks.jsonl import Jsonl, JsonlConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": "Here."},
]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def pairs(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"Question {n}?", "completion": f"Answer {n}"} for n in range(count)]


def read(
    tokenizer: PreTrainedTokenizerBase, path: str, split: str = "train", **settings: Any
) -> list[Example]:
    settings = {"task": "jsonl", "path": path, "held_out": 0.0, **settings}
    return list(Jsonl(build(JsonlConfig, settings)).examples(tokenizer, split))


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": "Where is it?", "completion": " Here. "}, MESSAGES[1:2]),
        ({"prompt": MESSAGES[:2], "completion": MESSAGES[2:]}, MESSAGES[:2]),
        ({"prompt": MESSAGES[:2], "completion": "Here."}, MESSAGES[:2]),
        ({"messages": MESSAGES, "extra": 1}, MESSAGES[:2]),
    ],
)
def test_formats(
    row: dict[str, Any],
    prompt: list[dict[str, str]],
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    (example,) = read(tokenizer, write(tmp_path / "a.jsonl", [row]))
    assert list(example.prompt) == prompt
    # What is learned is what the file says; the score compares stripped texts.
    answer = row.get("completion")
    assert example.completion == (answer if isinstance(answer, str) else "Here.")
    assert example.target == "Here."
    assert (example.task, example.question) == ("jsonl", "Where is it?")


def test_parquet_reads_like_jsonl(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    import pyarrow
    from pyarrow import parquet

    rows: list[dict[str, Any]] = [{"messages": MESSAGES}, {"messages": MESSAGES[1:]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    from_jsonl = read(tokenizer, write(tmp_path / "a.jsonl", rows))
    assert read(tokenizer, str(tmp_path / "a.parquet")) == from_jsonl


def test_bin_is_the_row_length_rounded_up_to_a_power_of_two(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = [{"prompt": "word " * n, "completion": "yes"} for n in (1, 20, 50, 100)]
    bins = set()
    for example in read(tokenizer, write(tmp_path / "a.jsonl", rows)):
        length = len(prompt_ids(tokenizer, example.prompt))
        length += len(completion_ids(tokenizer, example.completion))
        assert example.bin / 2 < length <= example.bin
        bins.add(example.bin)
    assert len(bins) > 1
    assert all(bin_ & (bin_ - 1) == 0 for bin_ in bins)


def test_splits_share_the_rows_out_by_prompt(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = write(tmp_path / "a.jsonl", pairs(400))
    shares = {"held_out": 0.2, "test": 0.3}
    found = {s: read(tokenizer, path, s, **shares) for s in ("train", "held-out", "test")}
    assert [len(rows) / 400 for rows in found.values()] == pytest.approx([0.5, 0.2, 0.3], abs=0.07)
    assert len({row.id for rows in found.values() for row in rows}) == 400
    # A row stays in its split wherever it stands in the file.
    turned = write(tmp_path / "b.jsonl", pairs(400)[::-1])
    prompts = [row.prompt for row in read(tokenizer, turned, "test", **shares)]
    assert prompts[::-1] == [row.prompt for row in found["test"]]


def test_equal_prompts_stay_together_and_are_one_source(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = [{"prompt": "The same?", "completion": f"Answer {n}"} for n in range(50)]
    path = write(tmp_path / "a.jsonl", rows)
    sizes = []
    for split in ("train", "held-out", "test"):
        try:
            examples = read(tokenizer, path, split, held_out=0.3, test=0.3)
        except UserError:
            continue
        sizes.append(len(examples))
        assert len({example.source for example in examples}) == 1
    assert sizes == [50]


def test_test_1_makes_the_whole_file_a_test_set(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = write(tmp_path / "a.jsonl", pairs(20))
    assert len(read(tokenizer, path, "test", test=1, held_out=0.05)) == 20
    with pytest.raises(UserError, match=r"no row falls into the test split .* set test: 1"):
        read(tokenizer, path, "test")


def made_rows(tokenizer: PreTrainedTokenizerBase, split: str) -> list[Example]:
    config = BabilongConfig(questions=["qa1"], lengths=["0k", 700], rows=3)
    return list(Babilong(config).examples(tokenizer, split))


def test_rows_of_ryarn_data_keep_bin_source_split_and_score(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = [
        {**row.to_json(), "info": {**row.info, "split": split}, "comment": "one column more"}
        for split in ("train", "test")
        for row in made_rows(tokenizer, split)
    ]
    path = write(tmp_path / "a.jsonl", rows)
    examples = read(tokenizer, path, "test")
    assert [e.id for e in examples] == [e.id for e in made_rows(tokenizer, "test")]
    assert {e.bin for e in examples} == {0, 700}
    example = examples[-1]
    task = Jsonl(JsonlConfig(path=path))
    score = task.score(example, Completion(example.id, example.target.upper(), 9, "stop"))
    assert next(iter(score.scores)) == "babilong"
    assert set(score.scores.values()) == {1.0}


def test_rows_of_an_unknown_task_are_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    row = {**made_rows(tokenizer, "test")[0].to_json(), "task": "mystery"}
    with pytest.raises(UserError, match=r"line 1: task = 'mystery': known tasks are jsonl, babil"):
        read(tokenizer, write(tmp_path / "a.jsonl", [row]))


@pytest.mark.parametrize(
    ("text", "exact", "contains"),
    [
        (" Answer 0\n", 1, 1),
        ("It is Answer 0, I think", 0, 1),
        ("answer 0", 0, 0),
        ("", 0, 0),
    ],
)
def test_plain_score(
    text: str, exact: float, contains: float, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = write(tmp_path / "a.jsonl", pairs(1))
    (example,) = read(tokenizer, path)
    score = Jsonl(JsonlConfig(path=path)).score(example, Completion(example.id, text, 9, "stop"))
    assert list(score.scores.items()) == [("exact", exact), ("contains", contains)]
    assert score.parsed == bool(text)
    skipped = Completion(example.id, "", 9, "skipped", "too long")
    assert Jsonl(JsonlConfig(path=path)).score(example, skipped).scores == {}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "?", "completion": " "}, "no answer: its completion is empty"),
        ({"prompt": "?", "completion": None}, "must be a string or a list of messages, not empty"),
        ({"prompt": "?", "completion": []}, "no answer: its last turn must be the assistant's"),
        ({"prompt": "?", "completion": MESSAGES[1:2]}, "its last turn must be the assistant's"),
        ({"prompt": "?", "completion": MESSAGES[1:]}, "its last turn must be the assistant's"),
        ({"messages": MESSAGES[:2]}, "no answer: its last turn must be the assistant's"),
        ({"messages": []}, "no answer: its last turn must be the assistant's"),
        ({"messages": MESSAGES[2:]}, "an answer but no prompt before it"),
        ({"messages": [{"role": "user"}]}, "every message needs a role and a text content"),
        ({"prompt": 3, "completion": "x"}, "column prompt must be a string or a list"),
        ({"text": "x", "label": 1}, "no column prompt and completion, or messages, only text, lab"),
    ],
)
def test_a_bad_row_is_named_by_its_line(
    row: dict[str, Any], message: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = tmp_path / "a.jsonl"
    good = json.dumps(pairs(1)[0])
    path.write_text(f"{good}\n\n\n{json.dumps(row)}\n{good}\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"line 4: .*{message}"):
        read(tokenizer, str(path))


def test_bad_files_are_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UserError, match="no such file"):
        read(tokenizer, str(tmp_path / "none.jsonl"))
    (tmp_path / "a.csv").write_text("prompt,completion\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"must end in \.jsonl"):
        read(tokenizer, str(tmp_path / "a.csv"))
    (tmp_path / "a.parquet").write_text("no", encoding="utf-8")
    with pytest.raises(UserError, match="not a Parquet file"):
        read(tokenizer, str(tmp_path / "a.parquet"))
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"\n', encoding="utf-8")
    with pytest.raises(UserError, match="line 1: not valid JSON"):
        read(tokenizer, str(tmp_path / "a.jsonl"))
    with pytest.raises(UserError, match="split and revision are for hub datasets"):
        read(tokenizer, write(tmp_path / "b.jsonl", pairs(1)), split="train", revision="main")
    with pytest.raises(UserError, match="more than all rows"):
        build(JsonlConfig, {"path": "a.jsonl", "held_out": 0.6, "test": 0.5})
