"""Reading LongBench v2: every form of a local copy, and everything that can be wrong with one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ryarn.errors import UserError
from ryarn.records import write_jsonl
from ryarn.tasks import longbench_v2_data
from ryarn.tasks.longbench_v2_data import FIELDS, REVISION, ROWS, load
from tests.tasks.longbench_v2_rows import (
    Rows,
    published_row,
    write_clone,
    write_json,
    write_parquet,
)

THREE = [published_row(number) for number in range(3)]


def write_lines(path: Path, rows: Rows) -> str:
    write_jsonl(path, rows)
    return str(path)


def write_shards(path: Path, rows: Rows) -> str:
    for number, row in enumerate(rows):
        write_parquet(path / "data" / f"train-{number:05d}-of-00003.parquet", [row])
    return str(path)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_json, "data.json"),
        (write_lines, "rows.jsonl"),
        (write_parquet, "train.parquet"),
        (write_clone, "LongBench-v2"),
        (write_shards, "converted"),
    ],
)
def test_every_form_of_a_local_copy(
    tmp_path: Path, write: Callable[[Path, Rows], str], name: str
) -> None:
    rows = list(load(write(tmp_path / name, THREE), None).rows)
    assert [row.id for row in rows] == [raw["_id"] for raw in THREE]
    first = rows[0]
    assert first.choices == ("Rivers", "Clocks ", "Bread", "Winter")
    assert (first.answer, first.context) == ("A", THREE[0]["context"])
    assert (first.domain, first.sub_domain) == ("Single-Document QA", "Academic")
    assert (first.difficulty, first.length) == ("hard", "short")
    assert first.question == "What is number 0 about?"


def test_datasets_reads_the_published_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(longbench_v2_data, "ROWS", 3)
    clone = write_clone(tmp_path / "clone", THREE)
    loaded = datasets.load_dataset

    def from_the_clone(name: str, **settings: Any) -> Any:
        assert name == "zai-org/LongBench-v2"
        return loaded(clone, **settings)

    monkeypatch.setattr(datasets, "load_dataset", from_the_clone)
    from_hub = list(load("zai-org/LongBench-v2", None).rows)
    assert from_hub == list(load(clone, None).rows)


def test_fields_beside_the_published_ones_are_passed_over(tmp_path: Path) -> None:
    source = write_json(tmp_path / "data.json", [{**THREE[0], "__index_level_0__": 7}])
    assert len(list(load(source, None).rows)) == 1


def test_rows_of_one_document_share_its_hash(tmp_path: Path) -> None:
    twin = published_row(9, context=THREE[0]["context"])
    source = write_json(tmp_path / "data.json", [*THREE, twin])
    documents = [row.document for row in load(source, None).rows]
    assert documents[0] == documents[3]
    assert len(set(documents)) == 3


def test_the_published_file_is_known_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_json(tmp_path / "data.json", THREE)
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    assert load(source, None).revision == f"sha256:{digest}"
    monkeypatch.setattr(longbench_v2_data, "DATA_SHA256", digest)
    assert load(source, None).revision == REVISION


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("write", [write_json, write_parquet])
def test_a_missing_field_is_named(
    tmp_path: Path, write: Callable[[Path, Rows], str], field: str
) -> None:
    rows = [{key: value for key, value in row.items() if key != field} for row in THREE]
    name = "data.json" if write is write_json else "train.parquet"
    with pytest.raises(UserError, match=f"row 1: no field '{field}'; published rows have _id, "):
        list(load(write(tmp_path / name, rows), None).rows)


def changed(**changes: Any) -> Rows:
    return [THREE[0], {**THREE[1], **changes}, THREE[2]]


def renamed(old: str, new: str) -> Rows:
    return [{new if key == old else key: value for key, value in row.items()} for row in THREE]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (renamed("sub_domain", "subdomain"), r"no field 'sub_domain' \(is it 'subdomain' here\?\)"),
        (renamed("choice_C", "C"), "no field 'choice_C'; published"),
        (changed(answer="E"), "row 2: answer = 'E': must be one of A, B, C, D"),
        (changed(answer="b"), "row 2: answer = 'b': must be one of"),
        (changed(answer="B "), "row 2: answer = 'B ': must be one of"),
        (changed(answer=1), "row 2: answer must be a text, not int"),
        (changed(context=None), "row 2: context must be a text, not null"),
        (changed(context=" \n"), "row 2: context is empty"),
        (changed(question=""), "row 2: question is empty"),
        (changed(sub_domain=""), "row 2: sub_domain is empty"),
        (changed(_id=""), "row 2: _id is empty"),
        (changed(choice_D=["x"]), "row 2: choice_D must be a text, not list"),
        (changed(difficulty="medium"), "difficulty = 'medium': must be one of easy, hard"),
        (changed(length="32K"), "length = '32K': must be one of short, medium, long"),
        (changed(context="half \ud800"), "row 2: context has half a UTF-16 surrogate pair"),
        ([THREE[0], "row"], "row 2: expected a row with the fields _id, domain"),
        (changed(_id=THREE[0]["_id"]), "rows 1 and 2 have the same _id '66f3.*0000'"),
        (
            [*THREE, {**THREE[1], "_id": "another", "answer": "D"}],
            "rows '66f3.*0001' and 'another' are the same question under two ids",
        ),
        ([], f"0 rows, but the benchmark has {ROWS}"),
    ],
)
def test_what_is_wrong_with_a_row_is_named(tmp_path: Path, rows: Rows, message: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        list(load(str(path), None).rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.json", b'[{"_id": ', "not valid JSON"),
        ("data.json", b"\xff\xfe", "not valid JSON"),
        ("data.json", b'{"train": []}', "expected a JSON list of rows"),
        ("data.json", b"version https://git-lfs.github.com/spec/v1\noid", "run `git lfs pull`"),
        ("rows.parquet", b"nothing", "not a Parquet file"),
        ("rows.csv", b"a,b", r"must end in \.json, \.jsonl, \.parquet, or be a folder"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(load(str(tmp_path / name), None).rows)


def test_a_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds neither data\.json nor Parquet files"):
        load(str(tmp_path), None)


@pytest.mark.parametrize("source", ["./nowhere", "absent.json", "/nowhere/LongBench-v2"])
def test_an_absent_copy_says_what_to_give(source: str) -> None:
    with pytest.raises(UserError, match="no such file or folder; give a local copy of zai-org/"):
        load(source, None)


def test_a_revision_is_for_the_hub(tmp_path: Path) -> None:
    source = write_json(tmp_path / "data.json", THREE)
    with pytest.raises(UserError, match="revision = 'main': it is for the hub, and source = "):
        load(source, "main")


class Hub:
    """Stands for the hub: it remembers what it was asked for."""

    def __init__(self, answer: Rows | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, str]] = []

    def load_dataset(self, name: str, *, split: str, revision: str) -> Rows:
        self.asked.append((name, split, revision))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Rows | Exception], Hub]:
    def make(answer: Rows | Exception) -> Hub:
        made = Hub(answer)
        monkeypatch.setattr("datasets.load_dataset", made.load_dataset)
        return made

    return make


def test_the_hub_is_asked_for_the_pinned_revision(hub: Callable[..., Hub]) -> None:
    asked = hub([published_row(number) for number in range(ROWS)])
    published = load("zai-org/LongBench-v2", None)
    assert len(list(published.rows)) == ROWS
    assert published.revision == REVISION
    assert len(REVISION) == 40
    load("THUDM/LongBench-v2", "main")
    assert asked.asked == [
        ("zai-org/LongBench-v2", "train", REVISION),
        ("THUDM/LongBench-v2", "train", "main"),
    ]


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1])
def test_another_number_of_rows_is_another_revision(hub: Callable[..., Hub], rows: int) -> None:
    hub([published_row(number) for number in range(rows)])
    with pytest.raises(UserError, match=f"at main: {rows} rows, but the benchmark has {ROWS}"):
        list(load("zai-org/LongBench-v2", "main").rows)


def test_without_network_one_sentence_says_what_to_do(hub: Callable[..., Hub]) -> None:
    hub(ConnectionError("Couldn't reach\n 'zai-org/LongBench-v2' on the Hub"))
    with pytest.raises(UserError) as caught:
        load("zai-org/LongBench-v2", None)
    sentence = str(caught.value)
    assert sentence == (
        f"source = 'zai-org/LongBench-v2': revision {REVISION} does not load from the Hugging Face "
        "hub (Couldn't reach 'zai-org/LongBench-v2' on the Hub); without network, fetch data.json "
        "of zai-org/LongBench-v2 elsewhere and give its path as source"
    )


def test_a_revision_that_the_hub_has_not_is_named(hub: Callable[..., Hub]) -> None:
    hub(ValueError("Revision 'v9' doesn't exist for dataset"))
    with pytest.raises(UserError, match=r"revision v9 does not load from .* \(Revision 'v9' does"):
        load("zai-org/LongBench-v2", "v9")
