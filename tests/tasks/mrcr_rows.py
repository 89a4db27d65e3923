"""MRCR rows in the published layout, small ones, and the files that hold them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiktoken import Encoding

EXAMPLE = "Here is a conversation with the question that follows it, answered rightly: ..."
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def byte_encoding() -> Encoding:
    """A tokenizer that counts bytes."""
    import tiktoken

    return tiktoken.Encoding(
        name="bytes",
        pat_str=r"[\s\S]{1,64}",
        mergeable_ranks={bytes([value]): value for value in range(256)},
        special_tokens={"<|endoftext|>": 256},
    )


def published_row(
    number: int, length: int = 4200, needles: int = 2, asked: int = 1, **changes: Any
) -> dict[str, Any]:
    """A row whose messages and answer have `length` characters; `asked` counts from 1."""
    draws = random.Random(number)
    code = "".join(draws.choices(LETTERS, k=10))
    pieces = [
        f"Tapir {number} {k} " + "".join(draws.choices(LETTERS, k=30)) for k in range(needles)
    ]
    request = {"role": "user", "content": "write a poem about tapirs"}
    filler = {"role": "assistant", "content": ""}
    messages = [{"role": "user", "content": EXAMPLE}]
    for place, piece in enumerate(pieces):
        messages += [request, {"role": "assistant", "content": piece}]
        if place == 0:
            messages += [{"role": "user", "content": "write a riddle about rocks"}, filler]
    question = f"Prepend {code} to number {asked} (1 indexed) poem about tapirs."
    messages.append({"role": "user", "content": question})
    answer = code + pieces[asked - 1]
    rest = length - len(answer) - sum(len(message["content"]) for message in messages)
    filler["content"] = "".join(draws.choices(LETTERS, k=rest))
    row = {
        "prompt": json.dumps(messages),
        "answer": answer,
        "random_string_to_prepend": code,
        "n_needles": needles,
        "desired_msg_index": 1 if asked == 1 else 1 + 2 * asked,
        "total_messages": len(messages),
        "n_chars": length - len(answer),
        "date_added": "04-12-2025",
    }
    return row | changes


def undated(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows as they were before the correction."""
    return [{name: row[name] for name in row if name != "date_added"} for row in rows]


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(map(dict, rows))), path)


def write_copy(folder: Path, rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> Path:
    """A local copy in the published layout: needle count to rows, halves in two files."""
    for needles, of_these in rows.items():
        half = (len(of_these) + 1) // 2
        for name, part in ((0, of_these[:half]), (1, of_these[half:])):
            write_parquet(folder / f"{needles}needle" / f"{needles}needle_{name}.parquet", part)
    return folder


def write_old_copy(folder: Path, rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> Path:
    """The same in the layout of before the correction."""
    for needles, of_these in rows.items():
        write_parquet(folder / f"{needles}needle.parquet", undated(of_these))
    return folder
