"""Trains in children that can be killed anywhere; run as a script, so that the suite never forks.

`python kill_runs.py FOLDER KILLS` prints a JSON object a line. The libraries are loaded once; each
training is a fork. The first one is never killed and tells how long a run takes and how many
files it opens, renames and removes; a seed then picks a moment of that for each further one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ryarn.sft  # noqa: F401  # loaded before the forks
from ryarn.checkpoints import last_checkpoint
from ryarn.recipe import load_recipe
from ryarn.rope.remap import Remapper
from ryarn.train import train

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
"""What Python tells of (PEP 578) when files change."""


def taped(path: Path) -> None:
    """Note what each batch of a step is given, so that it outlives a kill."""
    draw = Remapper._draw
    with path.open("a", encoding="utf-8") as tape:
        tape.write("\nnull\n")  # a new process: the line before may be torn

    def drawn(self: Remapper, tokens: Any, mask: Any, ordinary: Any) -> Any:
        positions = draw(self, tokens, mask, ordinary)
        assert self._progress is not None
        entry = [self._progress[0], tokens.tolist(), positions.tolist()]
        with path.open("a", encoding="utf-8") as tape:
            tape.write(json.dumps(entry) + "\n")
        return positions

    Remapper._draw = drawn  # type: ignore[method-assign]


def watched(folder: Path, at: int | None) -> list[int]:
    """Count what happens to files of a run folder, and kill this process at one of those."""
    count = [0]

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and str(arguments[0]).startswith(str(folder)):
            count[0] += 1
            if count[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)
    return count


def in_a_child(action: Callable[[], None], after: float | None = None) -> int:
    """Run in a fork and kill it after so many seconds; its exit status, negative for a signal."""
    child = os.fork()
    if not child:
        code = 1
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
            action()
            code = 0
        finally:
            os._exit(code)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(recipe_file: Path, changes: list[str], folder: Path, at: int | None) -> None:
    """Train, or go on training; the number of events is left beside the run folder."""
    recipe = load_recipe(recipe_file, [*changes, f"output={folder}"])
    taped(folder.with_suffix(".tape"))
    count = watched(folder, at)
    train(recipe, resume=last_checkpoint(folder / "checkpoints") is not None)
    folder.with_suffix(".events").write_text(str(count[0]))


def main(folder: Path, kills: int) -> None:
    """Train once, then as often as there are kills, each killed once and then let through."""
    recipe, changes = folder / "recipe.yaml", json.loads((folder / "changes.json").read_text())
    straight = folder / "straight"
    begin = time.monotonic()
    assert in_a_child(lambda: run(recipe, changes, straight, None)) == 0
    seconds = time.monotonic() - begin
    events = int(straight.with_suffix(".events").read_text())
    print(json.dumps({"seconds": seconds, "events": events}), flush=True)
    for seed in range(kills):
        rng = random.Random(seed)
        killed = folder / f"killed-{seed}"
        # One half at any moment of the clock, the other at any moment of writing.
        at = rng.randint(1, events) if seed % 2 else None
        after = None if seed % 2 else rng.uniform(0, seconds)
        first = in_a_child(lambda killed=killed, at=at: run(recipe, changes, killed, at), after)
        last = last_checkpoint(killed / "checkpoints")
        found = {"seed": seed, "at": at, "after": after, "first": first}
        found["last"] = last and last.name
        found["there"] = sorted(p.name for p in (killed / "checkpoints").glob("checkpoint-*"))
        if first:
            found["second"] = in_a_child(lambda killed=killed: run(recipe, changes, killed, None))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
