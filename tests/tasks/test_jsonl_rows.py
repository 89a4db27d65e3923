"""The user's own rows: optional columns, order of roles, bins, repeated rows, odd files."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ryarn.chat import completion_ids, prompt_ids
from ryarn.config import build
from ryarn.data import write_rows
from ryarn.errors import UserError
from ryarn.evaluate import evaluate
from ryarn.recipe import load_recipe
from ryarn.records import Completion, Example
from ryarn.tasks.jsonl import SCORES, Jsonl, JsonlConfig
from tiny_run import write_recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def ask(prompt: Any = "Where?", completion: Any = "Here.", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "completion": completion, **more}


def say(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(roles)]


def read(
    tokenizer: PreTrainedTokenizerBase, path: str, split: str = "train", **settings: Any
) -> list[Example]:
    config = build(JsonlConfig, {"path": path, "held_out": 0.0, **settings})
    return list(Jsonl(config).examples(tokenizer, split))


def refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, *rows: dict[str, Any], **settings: Any
) -> str:
    with pytest.raises(UserError) as error:
        read(tokenizer, write(tmp_path / "a.jsonl", *rows), **settings)
    return str(error.value).removeprefix(f"{tmp_path}/a.jsonl, ")


def test_columns_that_say_more(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [
        ask("1?", id="first", source="paper", target="H", unit={"m": [1]}, split="test"),
        ask("2?", id=7, source=3, target=["H", "Here"]),
        ask("3?", id=None, source=None, target=None),
    ]
    one, two, three = read(tokenizer, write(tmp_path / "a.jsonl", *rows))
    assert (one.id, one.source, one.target) == ("first", "paper", "H")
    # A column "split" of a file of one's own is not what decides the split.
    assert one.info == {"unit": {"m": [1]}, "split": "test"}
    assert (two.id, two.source, two.target, two.info["target"]) == ("7", "3", "H", ["H", "Here"])
    assert (three.id, three.target, three.info) == ("row-000002", "Here.", {})
    assert len(three.source) == 16


def test_what_json_can_not_hold_is_left_out_of_info(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    import pyarrow
    from pyarrow import parquet

    row = ask(when=datetime.datetime(2026, 1, 1), raw=b"\xff", nan=float("nan"), n=1)
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    (example,) = read(tokenizer, str(tmp_path / "a.parquet"))
    assert example.info == {"n": 1}
    (example,) = read(
        tokenizer, write(tmp_path / "b.jsonl", {**ask(half="\ud83d", n=1), "\udc00": 1})
    )
    assert example.info == {"n": 1}


def test_rows_of_one_source_stay_in_one_split(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = [ask(f"{n}?", source=f"paper {n % 60}") for n in range(300)]
    path = write(tmp_path / "a.jsonl", *rows)
    shares = {"held_out": 0.2, "test": 0.3}
    parts = [read(tokenizer, path, split, **shares) for split in ("train", "held-out", "test")]
    assert sum(map(len, parts)) == 300
    sources = [{example.source for example in part} for part in parts]
    assert sum(map(len, sources)) == 60
    assert all(sources)
    assert all(len(part) == 5 * len(own) for part, own in zip(parts, sources, strict=True))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"id": " "}, "column id = ' ': must be a text or a whole number"),
        ({"id": 1.0}, "column id = '1.0': must be a text or a whole number"),
        ({"id": True}, "column id = 'True': must be"),
        ({"source": ["a"]}, "column source = \"['a']\": must be"),
        ({"source": "\ud83d"}, "column source: half a UTF-16 surrogate pair"),
        ({"target": ""}, "column target = '': must be a text, or a list of texts"),
        ({"target": []}, "column target = '[]': must be"),
        ({"target": ["a", " "]}, "column target = \"['a', ' ']\": must be"),
        ({"target": 3}, "column target = '3': must be"),
        ({"target": "\udc00"}, "column target: half a UTF-16 surrogate pair"),
        ({"prompt": " \n"}, "the row has no question: the last turn of its prompt is empty"),
        ({"prompt": []}, "the row has an answer but no prompt before it"),
        ({"prompt": {"a": 1}}, "column prompt must be a string or a list of messages, not dict"),
        ({"completion": ["Here."]}, "column completion, message 1: every message needs a role"),
        (
            {"prompt": [*say("user"), {"role": "assistant", "content": None}]},
            "column prompt, message 2: its content is empty, must be a text",
        ),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "?"}]}]},
            "column prompt, message 1: its content is of type list, must be a text",
        ),
        (
            {"prompt": [{"from": "human", "value": "?"}]},
            "column prompt, message 1: every message needs a role and a text content",
        ),
        ({"prompt": [{"role": "\ud83d", "content": "?"}]}, "column prompt: half a UTF-16"),
    ],
)
def test_a_broken_column_is_named(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, change: dict[str, Any], sentence: str
) -> None:
    message = refused(tmp_path, tokenizer, ask("before"), {**ask(), **change})
    assert message.startswith(f"line 2: {sentence}")


@pytest.mark.parametrize(
    "roles",
    [
        ("assistant",),
        ("user", "user"),
        ("user", "assistant"),
        ("user", "system", "user"),
        ("system",),
        ("system", "assistant", "user"),
        ("system", "system", "user"),
        ("user", "assistant", "tool"),
        ("human",),
    ],
)
def test_roles_in_a_wrong_order(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, roles: tuple[str, ...]
) -> None:
    sentence = (
        f"line 1: the prompt's roles are {', '.join(roles)}: after a system turn, where there is "
        "one, user and assistant must take turns, the user first and last"
    )
    row = {"messages": say(*roles, "assistant")}
    assert refused(tmp_path, tokenizer, row) == sentence
    assert refused(tmp_path, tokenizer, ask(say(*roles))) == sentence


@pytest.mark.parametrize(
    "roles", [("user",), ("system", "user"), ("developer", "user", "assistant", "user")]
)
def test_roles_in_order(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, roles: tuple[str, ...]
) -> None:
    (example,) = read(tokenizer, write(tmp_path / "a.jsonl", ask(say(*roles))))
    assert list(example.prompt) == say(*roles)


def test_a_row_that_is_there_twice_is_named_with_both_lines(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = tmp_path / "a.jsonl"
    one, two = json.dumps(ask("1?")), json.dumps(ask("2?"))
    path.write_text(f"{one}\n\n{two}\n{one}\n")
    for split in ("train", "held-out", "test"):
        with pytest.raises(UserError) as error:
            read(tokenizer, str(path), split)
        assert str(error.value) == (
            f"{path}, line 4: the same prompt and completion as {path}, line 1: take one of them "
            "out"
        )
    # As messages it is the same row.
    turns = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "Here."}]
    assert "the same prompt" in refused(tmp_path, tokenizer, ask("1?"), {"messages": turns})
    # Another answer, or another prompt, is another row.
    rows = [ask("1?"), ask("1?", "There."), ask("1? "), ask([{"role": "user", "content": "1"}])]
    assert len(read(tokenizer, write(path, *rows))) == 4


def test_an_id_that_is_there_twice(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    message = refused(tmp_path, tokenizer, ask("1?", id="a"), ask("2?"), ask("3?", id="a"))
    assert message.startswith("line 3: id 'a' is that of ")
    assert message.endswith("a.jsonl, line 1, too: make every id unique")


def length(tokenizer: PreTrainedTokenizerBase, example: Example) -> int:
    ids = prompt_ids(tokenizer, example.prompt)
    return len(ids) + len(completion_ids(tokenizer, example.completion))


def test_given_bins(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    path = write(tmp_path / "a.jsonl", *(ask("word " * n) for n in (1, 5, 20, 60)))
    lengths = [length(tokenizer, example) for example in read(tokenizer, path)]
    assert sorted(lengths) == lengths
    edges = [lengths[0], lengths[2] - 1, lengths[2], lengths[3] + 50]
    found = [example.bin for example in read(tokenizer, path, bins=edges)]
    assert found == [edges[0], edges[1], edges[2], edges[3]]
    with pytest.raises(UserError) as error:
        read(tokenizer, path, bins=edges[:2])
    assert str(error.value) == (
        f"{path}, line 3: its {lengths[2]} tokens are more than the largest of bins = "
        f"{edges[:2]}: add a larger one"
    )


@pytest.mark.parametrize(
    ("bins", "sentence"),
    [
        ([2, 1], "bins = [2, 1]: must ascend, each length once"),
        ([1, 1], "bins = [1, 1]: must ascend, each length once"),
        ([], "bins = []: "),
        ([0], "bins.0 = 0: "),
    ],
)
def test_bins_that_are_none(bins: list[int], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        build(JsonlConfig, {"path": "a.jsonl", "bins": bins})
    assert str(error.value).startswith(sentence)


def test_a_very_long_row_is_a_row(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [ask("far " * 100_000), ask("far " * 100_000 + "away", id="x" * 10_000)]
    one, two = read(tokenizer, write(tmp_path / "a.jsonl", *rows))
    assert one.bin == two.bin >= 131_072
    message = refused(tmp_path, tokenizer, rows[1], {**rows[0], "id": "x" * 10_000})
    assert len(message) < 300


def made(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, **settings: Any) -> list[Any]:
    """Rows of one's own, written by `ryarn data`."""
    rows = [ask(f"{n}?", "B", target=["B", "C"], unit=n) for n in range(40)]
    config = build(JsonlConfig, {"path": write(tmp_path / "a.jsonl", *rows), "test": 0.5})
    write_rows(config, tokenizer, "test", tmp_path / "made.jsonl")
    return read(tokenizer, str(tmp_path / "made.jsonl"), "test", **settings)


def test_rows_of_ones_own_through_ryarn_data(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = made(tokenizer, tmp_path)
    assert 5 < len(rows) < 35
    assert rows == made(tokenizer, tmp_path, test=0.0)
    assert all(row.bin == 1 << (length(tokenizer, row) - 1).bit_length() for row in rows)
    assert {row.bin for row in made(tokenizer, tmp_path, bins=[500])} == {500}
    assert rows[0].info["target"] == ["B", "C"]
    task = Jsonl(build(JsonlConfig, {"path": "a.jsonl", "score": "multiple-choice"}))
    score = task.score(rows[0], Completion(rows[0].id, "(c)", 1, "stop"))
    assert score.scores == {"multiple-choice": 1.0}
    plain = SCORES["jsonl"](rows[0], Completion(rows[0].id, "C", 1, "stop"))
    assert plain.scores == {"exact": 1.0, "contains": 1.0}


def test_ryarn_data_does_not_write_over_what_it_reads(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = tmp_path / "a.jsonl"
    config = build(JsonlConfig, {"path": write(path, ask()), "held_out": 0})
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match="the rows are read from this file; choose another"):
        write_rows(config, tokenizer, "train", tmp_path / "x" / ".." / "a.jsonl")
    assert json.loads(path.read_text()) == ask()


def made_row(**change: Any) -> dict[str, Any]:
    example = Example(
        "a", tuple(say("user")), "park", "park", "lookalikes", 8, "s", "Where?", {"prefix": "x"}
    )
    return {**example.to_json(), **change}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bin": "8"}, "column bin = '8' is not what was written"),
        ({"bin": -1}, "column bin = '-1' is not what was written"),
        ({"id": 3}, "column id = '3' is not what was written"),
        ({"info": []}, "column info = '[]' is not what was written"),
        ({"question": None}, "column question = 'None' is not what was written"),
        ({"task": ["a"]}, "task = ['a']: known tasks are jsonl, "),
        ({"source": "\ud83d"}, "a column holds what JSON in UTF-8 can't"),
        ({"info": {"x": float("nan")}}, "a column holds what JSON in UTF-8 can't"),
        ({"completion": []}, "the row has no answer"),
        ({"info": {}}, "the row lacks what the score of task 'lookalikes' needs in info: KeyError"),
        ({"info": {"prefix": 3}}, "the row lacks what the score of task 'lookalikes' needs in "),
    ],
)
def test_a_made_row_that_was_changed(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, change: dict[str, Any], sentence: str
) -> None:
    assert len(read(tokenizer, write(tmp_path / "a.jsonl", made_row()))) == 1
    message = refused(tmp_path, tokenizer, made_row(**change))
    assert message.startswith(f"line 1: {sentence}")


def test_a_made_row_keeps_its_own_score(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    message = refused(tmp_path, tokenizer, made_row(), score="contains")
    assert message == (
        "line 1: score = 'contains': the row was made by the task 'lookalikes', which has its own "
        "score: leave score out"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[{"prompt": "a", "completion": "b"}]', " holds a JSON array: write one object a line"),
        ('\n\ufeff [\n{"prompt"', " holds a JSON array: write one object a line"),
        ('{"id": ' + "1" * 5000 + "}", ", line 1: not valid JSON (Exceeds the limit"),
        ('{"id": ' + "[" * 100_000 + "}", ", line 1: not valid JSON (maximum recursion"),
        ('\ufeff{"a": 1}', ", line 1: not valid JSON (Unexpected UTF-8 BOM"),
    ],
)
def test_files_that_are_no_jsonl(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, text: str, sentence: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read(tokenizer, str(path))
    assert sentence in str(error.value)


def test_a_broken_parquet_file(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([ask("word " * 500)] * 9), path)
    whole = path.read_bytes()
    for broken in (whole[:-20], whole[:40] + whole[60:], whole[:4] + b"\xff" * 60 + whole[64:]):
        path.write_bytes(broken)
        with pytest.raises(UserError, match="not a Parquet file"):
            read(tokenizer, str(path))


def test_a_broken_row_is_placed_in_a_file_that_breaks_later_too(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n{"prompt": "?"}\n\x80\n')
    with pytest.raises(UserError, match="line 2: no column prompt and completion"):
        read(tokenizer, str(path))


def test_a_column_revision_is_no_edition_of_published_data(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path), ["method.name=zero-shot"])
    path = tmp_path / "test.jsonl"
    rows = [
        json.loads(line) | {"revision": n} for n, line in enumerate(path.read_text().splitlines())
    ]
    write(path, *rows)
    folder = evaluate(recipe)
    assert "data_revision" not in json.loads((folder / "manifest.json").read_text())
    lines = (folder / "examples.jsonl").read_text().splitlines()
    kept = [json.loads(line)["info"] for line in lines]
    assert kept == [{"revision": n} for n in range(len(rows))]
