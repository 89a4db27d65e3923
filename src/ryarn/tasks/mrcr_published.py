"""OpenAI MRCR as published (openai/mrcr): its files, its editions, and a check of every row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ryarn.errors import UserError
from ryarn.records import Message
from ryarn.tasks.splits import content_hash

HUB = "openai/mrcr"
REVISION = "f4c69fae7cf81f7ca26b9fee34b392a50f6b8a1d"
"""The hub commit that is read unless another is asked for: the data as corrected in December 2025.
About 10% of rows had had too many needles, and about 5% a wrong answer (the card's changelog)."""
UNCORRECTED = "204b0d4e8d9ca5c0a90bf942fdb2a5969094adc0"
"""A hub commit before that."""
NEEDLES = (2, 4, 8)
DATED = "date_added"
"""The column that came with the correction."""
FIELDS: dict[str, type] = {
    "prompt": str,
    "answer": str,
    "random_string_to_prepend": str,
    "n_needles": int,
    "desired_msg_index": int,
    "total_messages": int,
    "n_chars": int,
}
"""Column to the type of its values; `date_added` stands beside them."""
SHA256 = {
    "2needle/2needle_0.parquet": "1c297b254bf64a31856b74918cd7db889a214503e0b67daa834e84f20df6aa93",
    "2needle/2needle_1.parquet": "a5a1dc9ccc945623253d04d33c03d89aee2d676c88955ce368da2ab16a0ce94d",
    "4needle/4needle_0.parquet": "4d4fa3d11ce064749de3cd039eef1a621e30a81c2c9b3e64f1df37f8afeaf312",
    "4needle/4needle_1.parquet": "8dfdb94a208cf3eee73c4e7ac6ee8a5ccb7236c6934c13c6c5f67c0a9928cdf3",
    "8needle/8needle_0.parquet": "65df601a2e0ae4a3cfb56920a6ef99f26c0de37c6b1018695e8aed684e6a94c1",
    "8needle/8needle_1.parquet": "c80b19573bff1d38e1c157d6a0bdf9cfd1a8ab6372296174c9a7015e164189e3",
    "2needle.parquet": "1407da5375bc40f7620ce7353a092daa67768b046cae2cc4bbe1c9c791f8dec9",
    "4needle.parquet": "4a0c27383c6fd683a5e4dd34713fc7bfc101960930357d9c8c54809be4a77ffb",
    "8needle.parquet": "716ef7de8490796601f4b51da8c0171d474323a47f4123057cee280edf39bbd2",
}
"""The published files, those before the correction last: a local copy is known by them."""

_LFS = b"version https://git-lfs"
_BEFORE = "before the correction of December 2025"
_OLD = (
    f"this is the data from {_BEFORE}, with wrong needles or answers in about 15% of rows: take "
    f"revision {REVISION}, or set uncorrected: true to use it all the same"
)
_NEW = f"this is the corrected data, while uncorrected: true asks for that from {_BEFORE}"


@dataclass(frozen=True, slots=True)
class Row:
    """One published row.

    Attributes:
        place: Its file and number there, for messages.
        messages: The prompt.
        answer: The right answer, code included.
        prefix: The code that the answer begins with.
        needles: Look-alikes in the conversation.
        asked: Which of them is asked for, from 1.
        date_added: When it was published; None before the correction.
    """

    place: str
    messages: tuple[Message, ...]
    answer: str
    prefix: str
    needles: int
    asked: int
    date_added: str | None

    @property
    def text(self) -> str:
        """The piece that is asked for, without the code."""
        return self.answer.removeprefix(self.prefix)

    @property
    def source(self) -> str:
        """Hash of the conversation without its worked example and without the question."""
        return content_hash([_part(message) for message in self.messages[1:-1]])

    @property
    def id(self) -> str:
        """Hash of everything that is asked and answered."""
        return content_hash((*(_part(message) for message in self.messages), self.answer))


@dataclass(frozen=True, slots=True)
class Entry:
    """A row without its text, which is read again when needed."""

    file: int
    number: int
    id: str
    source: str
    text: str
    """Hash of the piece that is asked for."""
    needles: int
    characters: int


class Published:
    """The rows of some files.

    Attributes:
        name: The config's `source`.
        revision: The edition, as reports show it: a hub commit, or for files that are no published
            ones the hash of them all; said with it is whether it is from before the correction.
    """

    def __init__(self, name: str, files: Mapping[str, Any], revision: str, dated: bool) -> None:
        self.name = name
        self.revision = revision if dated else f"{revision} ({_BEFORE})"
        self._names = list(files)
        self._files = list(files.values())
        self._dated = dated

    def entries(self, characters: int, needles: Sequence[int]) -> list[Entry]:
        """The rows that are not longer than some characters, in published order.

        Raises:
            UserError: A row is not whole, or stands there twice.
        """
        found: list[Entry] = []
        places: dict[str, str] = {}
        for file, rows in enumerate(self._files):
            for number, length in enumerate(rows["n_chars"][:]):
                # A length that is none is for the check of the row to say.
                if isinstance(length, int) and length > characters:
                    continue
                row = self._row(file, number)
                key = row.id
                if key in places:
                    raise UserError(
                        f"source = {self.name!r}: {row.place} is the same row as {places[key]}; "
                        "take one of them out"
                    )
                places[key] = row.place
                if row.needles in needles:
                    text = content_hash((row.text,))
                    found.append(Entry(file, number, key, row.source, text, row.needles, length))
        return found

    def row(self, entry: Entry) -> Row:
        """Read a row."""
        return self._row(entry.file, entry.number)

    def _row(self, file: int, number: int) -> Row:
        try:
            return _parse(self._files[file][number], self._place(file, number), self._dated)
        except UserError as error:
            raise UserError(f"source = {self.name!r}: {error}") from error

    def _place(self, file: int, number: int) -> str:
        return f"{self._names[file]}, row {number + 1}"


def load(
    source: str, needles: Sequence[int], revision: str | None = None, uncorrected: bool = False
) -> Published:
    """Open the published rows.

    Args:
        source: A hub dataset, or a local copy: a folder in the published layout, or a `.parquet`
            file.
        needles: Some of `NEEDLES`.
        revision: Hub commit, tag or branch; None is the pinned one.
        uncorrected: Take the data from before December 2025, and no other.

    Raises:
        UserError: Nothing loads from there, a column is missing, or it is the other edition.
    """
    opened = _Source(source, revision, uncorrected)
    files = {name: opened.load(name) for name in opened.names(needles)}
    for name, rows in files.items():
        opened.check_columns(name, rows.column_names)
    return Published(source, files, opened.edition(list(files)), dated=not uncorrected)


class _Source:
    """Where files come from, and which edition they are asked to be."""

    def __init__(self, name: str, revision: str | None, uncorrected: bool) -> None:
        self._name = name
        self._path = Path(name).expanduser()
        self._local = self._path.exists() or name.startswith((".", "/", "~"))
        self._local = self._local or self._path.suffix == ".parquet"
        self._uncorrected = uncorrected
        self._revision = revision or (UNCORRECTED if uncorrected else REVISION)
        self._said = f"source = {name!r}"
        self._other = _NEW if uncorrected else _OLD
        if self._local and revision is not None:
            raise UserError(
                f"revision = {revision!r}: it is for the hub, and {self._said} is a local copy"
            )
        if not self._local and not uncorrected and UNCORRECTED.startswith(self._revision):
            raise UserError(f"revision = {revision!r}: {self._other}")

    def names(self, needles: Sequence[int]) -> list[str]:
        """Names of the files that hold the rows, in order."""
        old = [f"{count}needle.parquet" for count in needles]
        new = [f"{count}needle/{count}needle_{half}.parquet" for count in needles for half in "01"]
        if not self._local:
            return old if self._uncorrected else new
        if self._path.is_file():
            return [self._path.name]
        if not self._path.is_dir():
            raise UserError(f"{self._said}: no such file or folder")
        wanted, unwanted = (old, new) if self._uncorrected else (new, old)
        missing = [name for name in wanted if not (self._path / name).is_file()]
        if not missing:
            return wanted
        if any((self._path / name).is_file() for name in unwanted):
            raise UserError(f"{self._said}: {self._other}")
        raise UserError(
            f"{self._said}: the folder lacks {', '.join(missing)}; copy these files of {HUB}, or "
            "name fewer needles"
        )

    def load(self, name: str) -> Any:
        """The rows of a file."""
        from datasets import load_dataset

        try:
            if not self._local:
                return load_dataset(
                    self._name, data_files=[name], split="train", revision=self._revision
                )
            self._check_file(self._file(name))
            return load_dataset("parquet", data_files=[str(self._file(name))], split="train")
        except UserError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            if self._local:
                raise UserError(f"{self._said}: {name} does not load ({reason})") from error
            raise UserError(
                f"{self._said}: {name} of revision {self._revision} does not load from the Hugging "
                f"Face hub ({reason}); with no network, copy the folders 2needle, 4needle and "
                f"8needle of {HUB} from elsewhere and give the folder that holds them as source"
            ) from error

    def check_columns(self, name: str, columns: Sequence[str]) -> None:
        """See that a file has the published columns, and is of the edition asked for."""
        missing = [field for field in FIELDS if field not in columns]
        if missing:
            raise UserError(
                f"{self._said}: {name} has no column {', '.join(missing)}, only "
                f"{', '.join(columns)}; published files have {', '.join(FIELDS)} and {DATED}"
            )
        if (DATED in columns) == self._uncorrected:
            raise UserError(f"{self._said}: {name}: {self._other}")

    def edition(self, names: Sequence[str]) -> str:
        """Which edition the files are."""
        if not self._local:
            return f"{self._name} {self._revision}"
        digests = [self._digest(name) for name in names]
        if digests == [SHA256.get(name) for name in names]:
            return f"{HUB} {UNCORRECTED if self._uncorrected else REVISION}"
        return f"files sha256:{content_hash(digests)}"

    def _file(self, name: str) -> Path:
        return self._path if self._path.is_file() else self._path / name

    def _check_file(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"{self._said}: no such file")
        with path.open("rb") as data:
            if data.read(len(_LFS)) == _LFS:
                raise UserError(
                    f"{self._said}: {path.name} is only Git LFS's pointer to the file; run "
                    "`git lfs pull` there"
                )

    def _digest(self, name: str) -> str:
        with self._file(name).open("rb") as data:
            return hashlib.file_digest(data, "sha256").hexdigest()


def _parse(raw: Mapping[str, Any], place: str, corrected: bool) -> Row:
    """A row, checked.

    What the correction put right is asked of corrected rows alone: that the look-alikes are as
    many as said, and that the answer is the piece that is asked for.
    """
    for name, kind in FIELDS.items():
        if not isinstance(raw[name], kind):
            what = "a text" if kind is str else "a whole number"
            raise UserError(f"{place}: {name} must be {what}, not {type(raw[name]).__name__}")
    messages = _messages(raw["prompt"], place)
    needles, prefix = raw["n_needles"], raw["random_string_to_prepend"]
    if needles not in NEEDLES:
        raise UserError(f"{place}: n_needles = {needles}: must be 2, 4 or 8")
    if not prefix or not raw["answer"].startswith(prefix):
        raise UserError(f"{place}: answer does not begin with random_string_to_prepend {prefix!r}")
    asked = 0
    if corrected:
        asked = _check_needles(raw, messages, place)
    return Row(
        place=place,
        messages=messages,
        answer=raw["answer"],
        prefix=prefix,
        needles=needles,
        asked=asked,
        date_added=str(raw[DATED]) if corrected else None,
    )


def _messages(prompt: str, place: str) -> tuple[Message, ...]:
    try:
        messages = json.loads(prompt)
    except ValueError as error:
        raise UserError(f"{place}: prompt is no JSON ({error})") from error
    if not isinstance(messages, list) or len(messages) < 3:
        raise UserError(f"{place}: prompt must be a JSON list of messages")
    for message in messages:
        match message:
            case {"role": "user" | "assistant" | "system", "content": str(text)} if (
                len(message) == 2
            ):
                _check_text(text, place)
            case _:
                raise UserError(
                    f"{place}: every message of prompt must have a role, a text content and no more"
                )
    if messages[-1]["role"] != "user":
        raise UserError(f"{place}: the last message of prompt must be the user's question")
    return tuple(messages)


def _check_text(text: str, place: str) -> None:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"{place}: prompt has half a UTF-16 surrogate pair, which is no text")


def _check_needles(raw: Mapping[str, Any], messages: Sequence[Message], place: str) -> int:
    """See that look-alikes and answer are where the row says; which one is asked for, from 1."""
    characters = sum(len(message["content"]) for message in messages)
    for name, found in (("total_messages", len(messages)), ("n_chars", characters)):
        if raw[name] != found:
            raise UserError(f"{place}: {name} = {raw[name]}, but the prompt has {found}")
    index = raw["desired_msg_index"]
    if not 0 <= index < len(messages) - 2:
        raise UserError(f"{place}: desired_msg_index = {index}: there is no such message")
    request = messages[index]
    piece = raw["answer"].removeprefix(raw["random_string_to_prepend"])
    if messages[index + 1]["content"] != piece:
        raise UserError(
            f"{place}: the answer is not the message after desired_msg_index = {index}, as in "
            f"corrected data; take revision {REVISION}"
        )
    same = [n for n, message in enumerate(messages[:-1]) if message == request]
    if len(same) != raw["n_needles"]:
        raise UserError(
            f"{place}: n_needles = {raw['n_needles']}, but {len(same)} messages ask for the same "
            f"piece; corrected data have as many as they say: take revision {REVISION}"
        )
    return same.index(index) + 1


def _part(message: Message) -> str:
    return f"{message['role']}\n{message['content']}"
