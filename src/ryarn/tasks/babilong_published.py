"""BABILong's published rows: read from the hub or a local copy, and checked before they serve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ryarn.errors import UserError
from ryarn.tasks import babi
from ryarn.tasks.babi import PLACES, QuestionType, Story
from ryarn.tasks.splits import content_hash

if TYPE_CHECKING:
    from datasets import Dataset

FIELDS = ("input", "question", "target")
FACTS_ALONE = "0k"
"""The length without prose. Longer ones lack the stories that are too long for them."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_LOOSE = ("data/{kind}/{length}.json", "{kind}/{length}.json", "{length}/{kind}-*.parquet")
"""Where the files lie in the published sets and in what the official generator writes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which published rows.

    Attributes:
        source: Hub id, or folder of a local copy.
        kind: Question type.
        length: Official length, such as 4k.
        revision: Commit, tag or branch on the hub.
        key: Where the config names the source.
    """

    source: str
    kind: QuestionType
    length: str
    revision: str | None = None
    key: str = "source"

    @property
    def named(self) -> str:
        """The config's key and its value."""
        return f"{self.key} = {self.source!r}"

    def __str__(self) -> str:
        return f"{self.named}: {self.kind} rows of length {self.length}"


@dataclass(frozen=True, slots=True)
class Row:
    """One published row.

    Attributes:
        context: The facts in their prose, as published.
        story: What the facts tell; without `support`.
        befores: Where a qa3 object was before each of its entries, see `ryarn.tasks.babi.entries`.
        solved: Whether the facts give the target. A sentence of the prose may read like a fact.
    """

    context: str
    story: Story
    befores: tuple[str | None, ...]
    solved: bool


@dataclass(frozen=True, slots=True)
class Published:
    """The rows of one question type and length.

    Attributes:
        place: Where they are from.
        commit: The hub commit that they are of, where that can be told.
        table: The loaded columns.
    """

    place: Place
    commit: str | None
    table: Dataset

    def __iter__(self) -> Iterator[Row]:
        """Yield the checked rows in published order.

        Raises:
            UserError: A row is not usable, or is there twice, or most targets are not what the
                facts tell.
        """
        seen: dict[str, int] = {}
        unsolved = 0
        for number, values in enumerate(self.table, start=1):
            row = self._row(values, number)
            first = seen.setdefault(content_hash((row.context, row.story.question)), number)
            # Stories of two facts are few: as facts alone they may be there twice by chance.
            if first != number and (self.place.length != FACTS_ALONE or self.place.kind == "qa3"):
                raise UserError(
                    f"{self.place}: rows {first} and {number} are the same: the copy or revision "
                    "is broken, get the files again"
                )
            unsolved += not row.solved
            yield row
        if 2 * unsolved > len(self.table):
            raise UserError(
                f"{self.place}: in {unsolved} of {len(self.table)} the target is not what the "
                "facts in input tell: another revision or other data, check revision and source"
            )

    def _row(self, values: dict[str, Any], number: int) -> Row:
        where = f"{self.place}, row {number}"
        for field in FIELDS:
            if not isinstance(values[field], str) or not values[field].strip():
                shown = repr(values[field])[:40]
                raise UserError(f"{where}: {field} = {shown}: must be a text that is not empty")
        question, target = values["question"].strip(), values["target"].strip()
        facts = babi.find_facts(values["input"])
        if not facts:
            raise UserError(f"{where}: input has no fact of bAbI, such as 'Mary took the milk.'")
        if target.lower() not in PLACES:
            known = ", ".join(PLACES)
            raise UserError(f"{where}: target = {target[:40]!r}: must be one of {known}")
        try:
            of_kind = babi.question_type(question) == self.place.kind
        except ValueError:
            of_kind = False
        if not of_kind:
            raise UserError(f"{where}: question = {question[:60]!r} is none of {self.place.kind}")
        befores = tuple(babi.entries(facts, question))
        story = Story(facts, question, target, (), babi.is_multi_entry(facts, question))
        return Row(values["input"], story, befores, _answer(facts, question) == target.lower())


def read_published(place: Place) -> Published:
    """Load the rows of one question type and length.

    A local copy is a folder as `hf download` makes it, with its README.md; or one with the data
    files alone, where the published sets or the official generator put them.

    Raises:
        UserError: They can't be loaded, are of another revision, or lack a field.
    """
    folder = _local_folder(place)
    try:
        table = _load(place, folder)
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{place.named}: no {place.kind} rows of length {place.length} load from "
            f"there ({reason}): {_remedy(place, folder)}"
        ) from error
    missing = [field for field in FIELDS if field not in table.column_names]
    if missing:
        raise UserError(
            f"{place}: no column {', '.join(missing)} among {', '.join(table.column_names)}: "
            "another revision or other data, check revision and source"
        )
    return Published(place, None if folder else _check_commit(table, place), table)


def story_id(story: Story) -> str:
    """What tells stories apart: 16 hex digits of a hash of the facts and the question."""
    return content_hash((*story.facts, story.question))[:16]


def _answer(facts: tuple[str, ...], question: str) -> str | None:
    try:
        return babi.solve(facts, question)
    except ValueError:
        return None


def _local_folder(place: Place) -> Path | None:
    """The folder that `source` names; None for a hub id."""
    folder = Path(place.source).expanduser()
    if not folder.is_dir():
        if place.source.startswith((".", "/", "~")) or place.source.count("/") > 1:
            raise UserError(f"{place.named}: no such folder")
        return None
    if place.revision is not None:
        raise UserError(
            f"revision = {place.revision!r}: {place.named} is a local folder, whose "
            "revision can't be told: drop revision, or give the hub id"
        )
    return folder


def _load(place: Place, folder: Path | None) -> Dataset:
    from datasets import load_dataset

    if folder is None:
        return load_dataset(place.source, place.length, split=place.kind, revision=place.revision)
    files, rows = _local_files(place, folder)
    form = "parquet" if files[0].endswith(".parquet") else "json"
    table = load_dataset(form, data_files=files, split="train")
    if rows not in (None, len(table)):
        raise UserError(
            f"{place}: {len(table)} where README.md there counts {rows}: the copy is incomplete, "
            "or of more than one revision; get the files again"
        )
    return table


def _local_files(place: Place, folder: Path) -> tuple[list[str], int | None]:
    """The data files of a local copy, and how many rows its README.md counts in them.

    The files are then loaded by themselves: of a folder, `datasets` would go on with what it once
    cached, whatever the files hold now.
    """
    from datasets import load_dataset_builder

    if (folder / "README.md").is_file():
        # Else the counts would be those of the cache, too.
        with TemporaryDirectory() as empty:
            builder = load_dataset_builder(str(folder), place.length, cache_dir=empty)
        named = builder.config.data_files or {}
        if place.kind not in named:
            raise FileNotFoundError(f"README.md there has {', '.join(named) or 'no files'} only")
        split = (builder.info.splits or {}).get(place.kind)
        return list(named[place.kind]), split and split.num_examples
    for pattern in _LOOSE:
        files = sorted(folder.glob(pattern.format(kind=place.kind, length=place.length)))
        if files:
            return [str(file) for file in files], None
    raise FileNotFoundError("no README.md, and no such file")


def _remedy(place: Place, folder: Path | None) -> str:
    if folder is None:
        return (
            f"this needs the Hugging Face hub or its cache; without, set {place.key} to a local "
            f"copy, made by `hf download {place.source} --repo-type dataset --local-dir FOLDER`"
        )
    paths = [path.format(kind=place.kind, length=place.length) for path in _LOOSE]
    return f"a local copy has the dataset's README.md and files, or {' or '.join(paths)} alone"


def _check_commit(table: Dataset, place: Place) -> str | None:
    """The commit that the rows are of; offline, the cache is searched without asking for it."""
    parts = [part for file in table.cache_files for part in Path(file["filename"]).parts]
    commit = next(filter(_COMMIT.fullmatch, reversed(parts)), None)
    asked = place.revision
    if commit and asked and _COMMIT.fullmatch(asked) and commit != asked:
        raise UserError(
            f"revision = {asked!r}: the hub can't be reached and the cache holds "
            f"{place.source} at {commit} instead: go online once, or set revision to that"
        )
    return commit
