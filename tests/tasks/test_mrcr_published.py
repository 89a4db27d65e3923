"""Published MRCR rows: what loads from files in the published layout, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from mrcr_rows import published_row, undated, write_copy, write_old_copy, write_parquet

from ryarn.errors import UserError
from ryarn.tasks import mrcr_published
from ryarn.tasks.mrcr_published import FIELDS, REVISION, UNCORRECTED, Published, Row, load


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rows_of(folder: Path, needles: list[int] | None = None, **settings: Any) -> list[Row]:
    published = load(str(folder), needles or [2], **settings)
    return [published.row(entry) for entry in published.entries(10**9, needles or [2])]


def with_messages(row: dict[str, Any], change: Any) -> dict[str, Any]:
    messages = json.loads(row["prompt"])
    change(messages)
    return row | {"prompt": json.dumps(messages)}


def refusal(folder: Path, needles: list[int] | None = None, **settings: Any) -> str:
    with pytest.raises(UserError) as error:
        rows_of(folder, needles, **settings)
    return str(error.value)


def row_refusal(*rows: dict[str, Any]) -> str:
    """What is said of rows whose columns may have any type."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    published = Published("copy", {"rows.parquet": _Rows(columns)}, "r", dated=True)
    with pytest.raises(UserError) as error:
        published.entries(10**9, [2])
    return str(error.value)


class _Rows:
    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        return {name: values[key] for name, values in self._columns.items()}


def test_rows_come_as_published_from_both_halves_in_order(tmp_path: Path) -> None:
    eights = [published_row(8, needles=8, asked=5), published_row(9, needles=8, asked=8)]
    raw = {2: [published_row(n) for n in range(3)], 8: eights}
    write_copy(tmp_path, raw)
    found = rows_of(tmp_path, [2, 8])
    assert [list(row.messages) for row in found] == [
        json.loads(row["prompt"]) for row in (*raw[2], *raw[8])
    ]
    assert [row.answer for row in found] == [row["answer"] for row in (*raw[2], *raw[8])]
    assert [row.place for row in found] == [
        *("2needle/2needle_0.parquet, row 1", "2needle/2needle_0.parquet, row 2"),
        *("2needle/2needle_1.parquet, row 1", "8needle/8needle_0.parquet, row 1"),
        "8needle/8needle_1.parquet, row 1",
    ]
    last = found[-2]
    assert (last.needles, last.asked, last.date_added) == (8, 5, "04-12-2025")
    assert last.prefix == raw[8][0]["random_string_to_prepend"]
    assert last.text == raw[8][0]["answer"][10:]


def test_text_is_unchanged_to_the_character(tmp_path: Path) -> None:
    odd = " \u00e9\u2003\U0001f319 <|endoftext|>\r\n\ttail  "
    row = with_messages(published_row(1), lambda m: m[4].update(content=odd))
    row["n_chars"] = sum(len(m["content"]) for m in json.loads(row["prompt"]))
    write_copy(tmp_path, {2: [row, published_row(2)]})
    assert rows_of(tmp_path)[0].messages[4] == {"role": "assistant", "content": odd}


def test_one_file_is_a_copy_too_and_needles_choose_among_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "some.parquet"
    write_parquet(file, [published_row(1), published_row(2, needles=4), published_row(3)])
    assert [row.needles for row in rows_of(file, [4])] == [4]
    assert [row.needles for row in rows_of(file, [2])] == [2, 2]


def test_longer_rows_are_left_unread(tmp_path: Path) -> None:
    broken = published_row(2, 9000, answer="nothing")
    write_copy(tmp_path, {2: [published_row(1), broken]})
    published = load(str(tmp_path), [2])
    assert [entry.number for entry in published.entries(8000, [2])] == [0]
    with pytest.raises(UserError, match="answer does not begin"):
        published.entries(10_000, [2])


def test_source_is_the_conversation_without_example_and_question(tmp_path: Path) -> None:
    first = published_row(1, asked=1)
    again = with_messages(first, lambda m: m[-1].update(content=m[-1]["content"].replace("P", "p")))
    elsewhere = with_messages(first, lambda m: m[0].update(content="y" * len(m[0]["content"])))
    write_copy(tmp_path, {2: [first, again, elsewhere, published_row(2)]})
    one, two, three, other = rows_of(tmp_path)
    assert one.source == two.source == three.source != other.source
    assert len({one.id, two.id, three.id, other.id}) == 4


# Editions


def test_data_of_before_the_correction_is_refused_by_its_layout_and_by_its_columns(
    tmp_path: Path,
) -> None:
    old = write_old_copy(tmp_path / "old", {2: [published_row(1)]})
    assert "before the correction of December 2025" in refusal(old)
    assert "set uncorrected: true" in refusal(old)
    renamed = write_copy(tmp_path / "renamed", {2: undated([published_row(1), published_row(2)])})
    text = refusal(renamed)
    assert "2needle/2needle_0.parquet" in text
    assert "before the correction of December 2025" in text
    one = tmp_path / "one.parquet"
    write_parquet(one, undated([published_row(1)]))
    assert "before the correction of December 2025" in refusal(one)


def test_the_old_data_loads_when_asked_for_and_says_what_it_is(tmp_path: Path) -> None:
    # Its answers may be wrong and its needles too many: nothing of that is checked there.
    wrong = published_row(1, n_needles=2, desired_msg_index=3)
    write_old_copy(tmp_path, {2: [wrong]})
    published = load(str(tmp_path), [2], uncorrected=True)
    (entry,) = published.entries(10**9, [2])
    assert published.row(entry).date_added is None
    assert published.revision.startswith("files sha256:")
    assert published.revision.endswith("(before the correction of December 2025)")


def test_corrected_data_is_not_taken_for_the_old(tmp_path: Path) -> None:
    new = write_copy(tmp_path / "new", {2: [published_row(1), published_row(2)]})
    assert "this is the corrected data" in refusal(new, uncorrected=True)
    one = tmp_path / "one.parquet"
    write_parquet(one, [published_row(1)])
    assert "this is the corrected data" in refusal(one, uncorrected=True)


def test_the_old_revision_is_refused_before_anything_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("loaded"))
    for revision in (UNCORRECTED, UNCORRECTED[:7]):
        with pytest.raises(UserError, match=f"revision = '{revision}': .*set uncorrected: true"):
            load("openai/mrcr", [2], revision)


def test_a_published_file_is_known_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    write_copy(tmp_path, {2: [published_row(1), published_row(2)]})
    unknown = load(str(tmp_path), [2]).revision
    assert unknown.startswith("files sha256:")
    known = {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("2needle/2needle_0.parquet", "2needle/2needle_1.parquet")
    }
    monkeypatch.setattr(mrcr_published, "SHA256", known)
    assert load(str(tmp_path), [2]).revision == f"openai/mrcr {REVISION}"
    write_parquet(tmp_path / "2needle" / "2needle_1.parquet", [published_row(3)])
    assert load(str(tmp_path), [2]).revision not in (unknown, f"openai/mrcr {REVISION}")


# The hub


@pytest.mark.parametrize(
    ("settings", "files", "revision"),
    [
        ({}, ["2needle/2needle_0.parquet", "2needle/2needle_1.parquet"], REVISION),
        ({"revision": "main"}, ["2needle/2needle_0.parquet", "2needle/2needle_1.parquet"], "main"),
        ({"uncorrected": True}, ["2needle.parquet"], UNCORRECTED),
    ],
)
def test_the_hub_is_asked_for_the_pinned_revision_and_its_layout(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], files: list[str], revision: str
) -> None:
    asked: list[tuple[Any, ...]] = []

    def load_dataset(
        path: str, data_files: list[str], split: str, revision: str
    ) -> datasets.Dataset:
        asked.append((path, *data_files, split, revision))
        rows = [published_row(len(asked))]
        return datasets.Dataset.from_list(undated(rows) if len(files) == 1 else rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    published = load("openai/mrcr", [2], **settings)
    assert asked == [("openai/mrcr", name, "train", revision) for name in files]
    assert published.revision.startswith(f"openai/mrcr {revision}")


def test_with_no_network_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: Any, **settings: Any) -> None:
        raise ConnectionError("Couldn't reach\n the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError) as error:
        load("openai/mrcr", [2])
    text = str(error.value)
    assert "\n" not in text
    assert "2needle/2needle_0.parquet" in text
    assert REVISION in text
    assert "give the folder that holds them as source" in text


def test_a_revision_is_for_the_hub(tmp_path: Path) -> None:
    write_copy(tmp_path, {2: [published_row(1), published_row(2)]})
    assert "it is for the hub" in refusal(tmp_path, revision="main")


# Files that are not whole


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "none")
    assert "no such file" in refusal(tmp_path / "none.parquet")
    write_copy(tmp_path / "copy", {2: [published_row(1), published_row(2)]})
    (tmp_path / "copy" / "2needle" / "2needle_1.parquet").unlink()
    text = refusal(tmp_path / "copy", [2, 4])
    assert "lacks 2needle/2needle_1.parquet, 4needle/4needle_0.parquet, 4needle/" in text


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    write_copy(tmp_path, {2: [published_row(1), published_row(2)]})
    file = tmp_path / "2needle" / "2needle_1.parquet"
    file.write_text("hello")
    assert "2needle/2needle_1.parquet does not load" in refusal(tmp_path)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "git lfs pull" in refusal(tmp_path)


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_column_is_named(tmp_path: Path, field: str) -> None:
    row = published_row(1)
    row[f"{field}_"] = row.pop(field)
    write_copy(tmp_path, {2: [row, published_row(2)]})
    text = refusal(tmp_path)
    assert f"2needle_0.parquet has no column {field}, only" in text
    assert f"{field}_" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": None}, "prompt must be a text, not NoneType"),
        ({"answer": 3}, "answer must be a text, not int"),
        ({"n_needles": "2"}, "n_needles must be a whole number, not str"),
        ({"n_chars": 1.5}, "n_chars must be a whole number, not float"),
        ({"n_needles": 3}, "n_needles = 3: must be 2, 4 or 8"),
        ({"prompt": "[{"}, "prompt is no JSON"),
        ({"prompt": "{}"}, "must be a JSON list of messages"),
        ({"prompt": "[]"}, "must be a JSON list of messages"),
        ({"prompt": '["a", "b", "c"]'}, "must have a role, a text content and no more"),
        ({"random_string_to_prepend": "zz"}, "does not begin with random_string_to_prepend 'zz'"),
        ({"random_string_to_prepend": ""}, "does not begin with random_string_to_prepend ''"),
        ({"total_messages": 5}, "total_messages = 5, but the prompt has 8"),
        ({"n_chars": 100}, "n_chars = 100, but the prompt has 41"),
        ({"desired_msg_index": 5}, "the answer is not the message after desired_msg_index = 5"),
        ({"desired_msg_index": 99}, "desired_msg_index = 99: there is no such message"),
        ({"desired_msg_index": -1}, "desired_msg_index = -1: there is no such message"),
        ({"n_needles": 4}, "n_needles = 4, but 2 messages ask for the same piece"),
    ],
)
def test_a_changed_field_is_named_with_its_row(changes: dict[str, Any], message: str) -> None:
    text = row_refusal(published_row(1), published_row(2) | changes)
    assert text.startswith("source = 'copy': rows.parquet, row 2: ")
    assert message in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m[2].update(name="tapir"), "a text content and no more"),
        (lambda m: m[2].update(role="tool"), "must have a role"),
        (lambda m: m[2].update(content=None), "must have a role, a text content"),
        (lambda m: m[-1].update(role="assistant"), "the last message of prompt must be the user's"),
        (lambda m: m[4].update(content="\ud83c" + m[4]["content"][1:]), "half a UTF-16 surrogate"),
        (lambda m: m[3].update(content="write a poem about tapirs"), "prompt has"),
    ],
)
def test_a_changed_message_is_named_with_its_row(change: Any, message: str) -> None:
    text = row_refusal(published_row(1), with_messages(published_row(2), change))
    assert text.startswith("source = 'copy': rows.parquet, row 2: ")
    assert message in text


def test_too_many_needles_are_found_as_before_the_correction() -> None:
    def one_more(messages: list[dict[str, str]]) -> None:
        messages[3]["content"] = messages[1]["content"]

    row = with_messages(published_row(1), one_more)
    row["n_chars"] = sum(len(m["content"]) for m in json.loads(row["prompt"]))
    text = row_refusal(row)
    assert "n_needles = 2, but 3 messages ask for the same piece" in text
    assert REVISION in text


def test_a_row_that_is_there_twice_is_named_with_both_places(tmp_path: Path) -> None:
    rows = [published_row(1), published_row(2), published_row(3), published_row(1)]
    write_copy(tmp_path, {2: rows})
    text = refusal(tmp_path)
    assert "2needle_1.parquet, row 2 is the same row as 2needle/2needle_0.parquet, row 1" in text
