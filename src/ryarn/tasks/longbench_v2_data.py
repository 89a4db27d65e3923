"""LongBench v2's rows as published: read from the hub or a local copy, and checked."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ryarn.errors import UserError
from ryarn.records import read_jsonl
from ryarn.tasks.longbench_v2_prompt import LETTERS
from ryarn.tasks.splits import content_hash

HUB = ("zai-org/LongBench-v2", "THUDM/LongBench-v2")
"""The dataset's name, and the older one that leads to it."""
REVISION = "2b48e494f2c7a2f0af81aae178e05c7e1dde0fe9"
"""The hub commit that is read unless another is asked for."""
DATA_SHA256 = "15d61c22d92c96900b3c4948b6aeea218d3214b676a65df48e7b8555604c7fe2"
"""SHA-256 of `data.json` at that commit."""
DIGEST = "sha256:"
"""What the digest of other local files begins with, where a commit would stand."""
ROWS = 503

_FILES = (".json", ".jsonl", ".parquet")
_CHOICES = tuple(f"choice_{letter}" for letter in LETTERS)
FIELDS = (
    *("_id", "domain", "sub_domain", "difficulty", "length", "question"),
    *(*_CHOICES, "answer", "context"),
)
_VALUES = {"difficulty": ("easy", "hard"), "length": ("short", "medium", "long"), "answer": LETTERS}
_FILLED = ("_id", "domain", "sub_domain", "question", "context")


@dataclass(frozen=True, slots=True)
class Row:
    """One question as published.

    Attributes:
        id: The published `_id`.
        domain: Task category, one of six.
        sub_domain: What the paper's split goes by.
        difficulty: "easy" or "hard".
        length: "short", "medium" or "long": the published class, which counts words.
        question: The question.
        choices: The four choices.
        answer: "A" to "D".
        context: The document.
    """

    id: str
    domain: str
    sub_domain: str
    difficulty: str
    length: str
    question: str
    choices: tuple[str, ...]
    answer: str
    context: str

    @property
    def document(self) -> str:
        """Hash of the document: rows that share it are not independent."""
        return content_hash((self.context,))[:16]


@dataclass(frozen=True, slots=True)
class Published:
    """Where rows come from, and which edition of the data that is.

    Attributes:
        rows: The rows, checked as they are read, in published order.
        revision: The hub commit, or `DIGEST` and the SHA-256 of other local files.
    """

    rows: Iterator[Row]
    revision: str


def load(source: str, revision: str | None) -> Published:
    """Open the published rows.

    Args:
        source: The hub's name, or a local copy: a folder with `data.json` or Parquet files, or a
            `.json`, `.jsonl` or `.parquet` file.
        revision: Hub commit, tag or branch; None is the pinned one.

    Raises:
        UserError: Nothing loads from there. Reading the rows raises it, too: a field is missing or
            has a value that it can't have, a row is there twice, or the hub's rows are not 503.
    """
    path = Path(source).expanduser()
    local = path.suffix in _FILES or path.exists() or source.startswith((".", "/", "~"))
    if not local:
        commit = revision or REVISION
        rows = _hub_rows(source, commit)
        return Published(_checked(rows, f"source = {source!r} at {commit}", count=ROWS), commit)
    if revision is not None:
        raise UserError(
            f"revision = {revision!r}: it is for the hub, and source = {source!r} is a local copy"
        )
    files = _files(path, source)
    digest = _digest(files)
    edition = REVISION if digest == DATA_SHA256 else DIGEST + digest
    return Published(_checked(_file_rows(files), f"source = {source!r}"), edition)


def _hub_rows(source: str, revision: str) -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset

    try:
        rows: Iterable[Mapping[str, Any]] = load_dataset(source, split="train", revision=revision)
    except Exception as error:
        raise UserError(
            f"source = {source!r}: revision {revision} does not load from the Hugging Face hub "
            f"({' '.join(str(error).split())[:200]}); without network, fetch data.json of "
            f"{HUB[0]} elsewhere and give its path as source"
        ) from error
    return rows


def _files(path: Path, source: str) -> list[Path]:
    if path.is_file() and path.suffix in _FILES:
        return [path]
    if path.is_dir():
        files = [path / "data.json"] if (path / "data.json").is_file() else []
        files = files or sorted(path.rglob("*.parquet"))
        if files:
            return files
        raise UserError(
            f"source = {source!r}: the folder holds neither data.json nor Parquet files"
        )
    if path.is_file():
        raise UserError(f"source = {source!r}: must end in {', '.join(_FILES)}, or be a folder")
    raise UserError(
        f"source = {source!r}: no such file or folder; give a local copy of {HUB[0]} (data.json, a "
        "Parquet file or a folder), or that name to load it from the hub"
    )


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as data:
            while block := data.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _file_rows(files: list[Path]) -> Iterator[Any]:
    for file in files:
        if file.suffix == ".parquet":
            yield from _parquet_rows(file)
        elif file.suffix == ".jsonl":
            yield from read_jsonl(file)
        else:
            yield from _json_rows(file)


def _parquet_rows(file: Path) -> Iterator[Any]:
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        for batch in ParquetFile(file).iter_batches(batch_size=16):
            yield from batch.to_pylist()
    except ArrowInvalid as error:
        raise UserError(f"source = {str(file)!r}: not a Parquet file") from error


def _json_rows(file: Path) -> list[Any]:
    data = file.read_bytes()
    if data.startswith(b"version https://git-lfs"):
        raise UserError(
            f"source = {str(file)!r}: only Git LFS's pointer to the file; run `git lfs pull` there"
        )
    try:
        rows = json.loads(data)
    except ValueError as error:
        raise UserError(f"source = {str(file)!r}: not valid JSON ({error})") from error
    if not isinstance(rows, list):
        raise UserError(f"source = {str(file)!r}: expected a JSON list of rows, as in data.json")
    return rows


def _checked(rows: Iterable[Any], place: str, count: int | None = None) -> Iterator[Row]:
    """The rows, each seen to be whole and to be there once.

    Args:
        rows: As read.
        place: Where from, for messages.
        count: How many there must be; None for any number.
    """
    ids: dict[str, int] = {}
    questions: dict[str, str] = {}
    for number, raw in enumerate(rows, start=1):
        row = _row(raw, f"{place}, row {number}")
        if row.id in ids:
            raise UserError(
                f"{place}: rows {ids[row.id]} and {number} have the same _id {row.id!r}; each row "
                "must be there once"
            )
        content = content_hash((row.document, row.question.strip(), *row.choices))
        if content in questions:
            raise UserError(
                f"{place}: rows {questions[content]!r} and {row.id!r} are the same question under "
                "two ids; take one out"
            )
        ids[row.id], questions[content] = number, row.id
        yield row
    if not ids or (count is not None and len(ids) != count):
        raise UserError(
            f"{place}: {len(ids)} rows, but the benchmark has {ROWS}; load revision {REVISION} of "
            f"{HUB[0]}"
        )


def _row(raw: Any, place: str) -> Row:
    if not isinstance(raw, Mapping):
        raise UserError(f"{place}: expected a row with the fields {', '.join(FIELDS)}")
    for name in FIELDS:
        _check_field(raw, name, place)
    return Row(
        id=raw["_id"],
        domain=raw["domain"],
        sub_domain=raw["sub_domain"],
        difficulty=raw["difficulty"],
        length=raw["length"],
        question=raw["question"],
        choices=tuple(raw[name] for name in _CHOICES),
        answer=raw["answer"],
        context=raw["context"],
    )


def _check_field(raw: Mapping[str, Any], name: str, place: str) -> None:
    if name not in raw:
        others = [str(key) for key in raw if key not in FIELDS]
        close = difflib.get_close_matches(name, others, n=1)
        hint = f" (is it {close[0]!r} here?)" if close else ""
        raise UserError(
            f"{place}: no field {name!r}{hint}; published rows have {', '.join(FIELDS)}"
        )
    value = raw[name]
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise UserError(f"{place}: {name} must be a text, not {kind}")
    known = _VALUES.get(name)
    if known is not None and value not in known:
        raise UserError(f"{place}: {name} = {value!r}: must be one of {', '.join(known)}")
    if name in _FILLED and not value.strip():
        raise UserError(f"{place}: {name} is empty")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise UserError(f"{place}: {name} has half a UTF-16 surrogate pair, which is no text")
