"""Where the user's own rows are read from: a JSONL or Parquet file, or a hub dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ryarn.errors import UserError
from ryarn.records import read_jsonl

FILES = (".jsonl", ".json", ".parquet")


def read_rows(path: str, split: str | None, revision: str | None) -> Iterable[Mapping[str, Any]]:
    """The rows in their order.

    Args:
        path: A file, or the name of a hub dataset.
        split: Of a hub dataset; None means train.
        revision: Of a hub dataset.

    Raises:
        UserError: There is no such data, or it is not readable.
    """
    file = Path(path).expanduser()
    if not is_local(path):
        return _hub_rows(path, split or "train", revision)
    if split or revision:
        raise UserError(f"path = {path!r}: split and revision are for hub datasets, not files")
    if not file.is_file():
        raise UserError(f"path = {path!r}: no such file")
    if file.suffix not in FILES:
        raise UserError(f"path = {path!r}: must end in {' or '.join(FILES)}")
    if file.suffix == ".parquet":
        return _parquet_rows(file)
    with file.open("rb") as text:
        if text.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
            raise UserError(f"path = {path!r} holds a JSON array: write one object a line instead")
    return read_jsonl(file)


def is_local(path: str) -> bool:
    """Whether a path means a file rather than a hub dataset."""
    file = Path(path).expanduser()
    return file.suffix in FILES or file.exists() or path.startswith((".", "/", "~"))


def place(path: str, number: int) -> str:
    """Where the row of that number (from 0) stands; a JSONL file's blank lines count as lines."""
    file = Path(path).expanduser()
    if file.suffix not in (".jsonl", ".json"):
        return f"{path}, row {number + 1}"
    # A later line may be no UTF-8.
    with file.open(encoding="utf-8", errors="replace") as lines:
        filled = (line for line, text in enumerate(lines, start=1) if text.strip())
        return f"{path}, line {next(line for row, line in enumerate(filled) if row == number)}"


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        for batch in ParquetFile(path).iter_batches(batch_size=256):
            yield from batch.to_pylist()
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"path = {str(path)!r}: not a Parquet file ({reason})") from error


def _hub_rows(path: str, split: str, revision: str | None) -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset

    try:
        rows: Iterable[Mapping[str, Any]] = load_dataset(path, split=split, revision=revision)
    except Exception as error:
        raise UserError(
            f"path = {path!r}: neither a file here nor a hub dataset with a split {split!r} "
            f"({' '.join(str(error).split())[:200]})"
        ) from error
    return rows
