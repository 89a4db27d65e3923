"""What was found in published BABILong rows: counts of one question type and length, in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ryarn.tasks.babilong_published import Place, Row

PAPER_ROWS = {
    "0k": 305,
    "1k": 264,
    "2k": 304,
    **dict.fromkeys(("4k", "8k", "16k", "32k", "64k", "128k"), 305),
}
"""Rows of the paper's evaluation by length (appendix A.2)."""


@dataclass
class Tally:
    """Counts of the rows of one question type and length.

    Attributes:
        place: Which rows.
        commit: Their hub commit, where it is known.
        read: All of them.
        served: Those that became examples.
        multi_entry: Those whose object came to the asked place at least twice, from told places.
        different: Those of them with at least two different told places before.
        moved: Those whose object came there at least twice, wherever from.
        unsolved: Those whose facts don't give the target.
        excluded: Source of excluded stories to how many rows were left out for it.
    """

    place: Place
    commit: str | None
    read: int = 0
    served: int = 0
    multi_entry: int = 0
    different: int = 0
    moved: int = 0
    unsolved: int = 0
    excluded: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        """Count one row that was read."""
        self.read += 1
        self.multi_entry += row.story.multi_entry
        self.different += len({before for before in row.befores if before is not None}) > 1
        self.moved += len(row.befores) > 1
        self.unsolved += not row.solved

    def exclude(self, source: str) -> None:
        """Count one row whose story stands in another set."""
        self.excluded[source] += 1

    def notes(self, split: str, multi_entry: bool, wanted: int) -> list[str]:
        """The counts as sentences.

        Args:
            split: What the rows serve as.
            multi_entry: Whether only multi-entry rows serve.
            wanted: How many were asked for.
        """
        at = f" at {self.commit[:12]}" if self.commit else ""
        head = f"{self.place.kind} {self.place.length}"
        notes = [
            f"{head}: {self.read:,} rows read from {self.place.source}{at}, {self.served:,} serve "
            f"as {split}"
            + (f" ({wanted:,} were asked for)" if split != "test" and self.served < wanted else "")
        ]
        if multi_entry:
            notes.append(f"{head}: {self._found()}{self._paper() if split == 'test' else ''}")
        for source, count in self.excluded.items():
            notes.append(f"{head}: {count:,} rows left out: their stories stand in {source}, too")
        if self.unsolved:
            notes.append(
                f"{head}: in {self.unsolved:,} rows the facts found in the context don't give the "
                "target: a sentence of the prose reads like one"
            )
        return notes

    def _found(self) -> str:
        return (
            f"{self.multi_entry:,} multi-entry rows, {self.different:,} of them from different "
            f"places ({self.moved:,} with untold places)"
        )

    def _paper(self) -> str:
        paper = PAPER_ROWS.get(self.place.length)
        if paper is None:
            return ""
        same = "too" if self.multi_entry == paper else f"not {self.multi_entry:,}"
        return f"; the paper has {paper}, {same}"
