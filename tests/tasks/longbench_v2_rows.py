"""Rows in the published layout of LongBench v2, and local copies of them, with tiny documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
FOLDER_README = "---\nlicense: apache-2.0\n---\n\nLongBench v2\n"


def published_row(number: int, words: int = 10, **changes: Any) -> dict[str, Any]:
    """A row with a document of so many words, all fields in the published order."""
    row = {
        "_id": f"66f36490821e116aacb2{number:04x}",
        "domain": "Single-Document QA",
        "sub_domain": "Academic",
        "difficulty": "easy" if number % 2 else "hard",
        "length": "short",
        "question": f"What is number {number} about?",
        "choice_A": "Rivers",
        "choice_B": "Clocks ",
        "choice_C": "Bread",
        "choice_D": "Winter",
        "answer": "ABCD"[number % 4],
        "context": " ".join([f"Document {number}.", *["word"] * words]),
    }
    return {**row, **changes}


def write_json(path: Path, rows: Rows) -> str:
    """As the dataset's `data.json`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=4), encoding="utf-8")
    return str(path)


def write_parquet(path: Path, rows: Rows) -> str:
    """As the hub's own conversion."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def write_clone(folder: Path, rows: Rows) -> str:
    """As a clone of the dataset's repository."""
    write_json(folder / "data.json", rows)
    (folder / "README.md").write_text(FOLDER_README, encoding="utf-8")
    return str(folder)
