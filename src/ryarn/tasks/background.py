"""Background text that hides the facts: where it comes from, its sentences and their lengths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ryarn.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PACKAGED = Path(__file__).parents[1] / "demo" / "prose"
MIN_SENTENCE_TOKENS = 10
"""Shorter sentences are left out, as the official generator does."""
HUB_NAMES = {"pg19": "emozilla/pg19"}
"""The hub's own `pg19` is a loading script, which datasets no longer runs; this copy has files."""

_BLOCK = 64
_SENTENCE_END = re.compile(
    r"(?<!\bMr\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bMrs\.)(?<!\bVol\.)(?<!\b[A-Z]\.)"
    r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9])"  # noqa: RUF001
)


def load_documents(source: str) -> Sequence[str]:
    """The texts of a background source.

    Args:
        source: "packaged" (the prose that comes with ryarn), a `.txt` file, a folder of `.txt`
            files, or a hub dataset with a text column, such as "pg19".

    Raises:
        UserError: There is no such file or dataset, or no text in it.
    """
    path = PACKAGED if source == "packaged" else Path(source).expanduser()
    if path.is_dir():
        texts: Sequence[str] = [
            file.read_text(encoding="utf-8") for file in sorted(path.glob("*.txt"))
        ]
    elif path.is_file():
        texts = [path.read_text(encoding="utf-8")]
    elif path.suffix == ".txt" or source.startswith((".", "/", "~")):
        raise UserError(f"background = {source!r}: no such file or folder")
    else:
        texts = _hub_texts(source)
    if not len(texts):
        raise UserError(f"background = {source!r}: the folder holds no .txt file")
    return texts


def _hub_texts(source: str) -> Sequence[str]:
    from datasets import load_dataset

    try:
        splits = load_dataset(HUB_NAMES.get(source, source))
    except Exception as error:
        raise UserError(
            f"background = {source!r}: neither a file or folder here nor a hub dataset that loads "
            f"({' '.join(str(error).split())[:200]})"
        ) from error
    # The official sets take their background from PG-19's test split.
    rows = splits["test"] if "test" in splits else next(iter(splits.values()))
    if "text" not in rows.column_names:
        raise UserError(
            f"background = {source!r}: no column 'text' among {', '.join(rows.column_names)}"
        )
    return _TextColumn(rows)


class _TextColumn(Sequence[str]):
    """The text column of a dataset, read row by row: books needn't all be in memory."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]["text"]


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, white space made single; paragraphs end sentences.

    A light rule (end mark, space, capital), where the official generator uses NLTK's punkt: what
    is background need not be cut perfectly.
    """
    return [
        sentence
        for paragraph in re.split(r"\n\s*\n", text)
        for sentence in _cut(" ".join(paragraph.split()))
    ]


def _cut(paragraph: str) -> Iterator[str]:
    start = 0
    for match in _SENTENCE_END.finditer(paragraph):
        yield paragraph[start : match.end()].rstrip()
        start = match.end()
    if start < len(paragraph):
        yield paragraph[start:]


class Background:
    """Documents as an endless stream of sentences with their lengths in one tokenizer's tokens.

    Documents are split, and sentences counted, when first needed, so that a library of books costs
    no more than what is read of it.
    """

    def __init__(self, source: str, tokenizer: PreTrainedTokenizerBase) -> None:
        self.source = source
        self._documents = load_documents(source)
        self._tokenizer = tokenizer
        self._sentences = lru_cache(maxsize=32)(self._split)
        self._counted = lru_cache(maxsize=4096)(self._count)

    def stream(self, rng: np.random.Generator) -> Iterator[tuple[str, int]]:
        """Yield sentences in order from a random one, document after document, round and round.

        Yields:
            A sentence and its length in tokens with a space before it, at least
            `MIN_SENTENCE_TOKENS`.

        Raises:
            UserError: No sentence of the whole source is long enough.
        """
        document = int(rng.integers(len(self._documents)))
        place = int(rng.integers(max(1, len(self._sentences(document)))))
        first, empty = place, 0
        while empty <= len(self._documents):
            found = False
            for block in range(place // _BLOCK, -(-len(self._sentences(document)) // _BLOCK)):
                for number, item in enumerate(self._counted(document, block), block * _BLOCK):
                    if number >= first and item[1] >= MIN_SENTENCE_TOKENS:
                        found = True
                        yield item
            empty = 0 if found else empty + 1
            document = (document + 1) % len(self._documents)
            place = first = 0
        raise UserError(
            f"background = {self.source!r}: no sentence has {MIN_SENTENCE_TOKENS} tokens or more"
        )

    def _split(self, document: int) -> list[str]:
        return split_sentences(self._documents[document])

    def _count(self, document: int, block: int) -> list[tuple[str, int]]:
        sentences = self._sentences(document)[block * _BLOCK : (block + 1) * _BLOCK]
        ids = self._tokenizer([" " + s for s in sentences], add_special_tokens=False)["input_ids"]
        return [(s, len(tokens)) for s, tokens in zip(sentences, ids, strict=True)]
