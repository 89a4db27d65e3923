"""A count on the terminal while rows are made: no task knows beforehand how long that takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def counting(rows: Iterable[T], what: str, *, shown: bool = True) -> Iterator[T]:
    """Yield the rows as they come; on a terminal, their count and the time stand there meanwhile.

    Args:
        rows: Made one by one.
        what: What is done, e.g. "making training rows".
        shown: Whether this process is the one that speaks.
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield from rows
        return
    count = TextColumn("{task.description}: {task.completed:,.0f}")
    columns = (SpinnerColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield from bar.track(rows, description=what)
