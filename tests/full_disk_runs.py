"""Trains and evaluates on a small disk of its own; run as a script where mounting is allowed.

`unshare --user --map-root-user --mount python full_disk_runs.py FOLDER` prints one JSON object:
what each run ended with, and whether it came to the same as the run on a large disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ryarn.evaluate import evaluate
from ryarn.recipe import load_recipe
from ryarn.train import train


class At(TrainerCallback):
    """Does something before a step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        def begin(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                action()

        self.on_step_begin = begin


class Disk:
    """A tmpfs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)

    def set(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", self.folder], check=True)

    def fill(self) -> None:
        """Leave not a byte."""
        free = os.statvfs(self.folder)
        with open(self.folder / "fill", "wb", buffering=0) as file:
            file.write(bytes(free.f_bavail * free.f_frsize))

    def free(self) -> None:
        (self.folder / "fill").unlink()


def ends(action: Callable[[], object]) -> str:
    """What a command would say; nothing for a good end."""
    try:
        action()
    except Exception as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def main(folder: Path) -> None:
    """Run it all."""
    changes = json.loads((folder / "changes.json").read_text())
    disk = Disk(folder / "disk")

    def made(output: Path) -> Any:
        return load_recipe(folder / "recipe.yaml", [*changes, f"output={output}"])

    large = made(folder / "large")
    train(large)
    evaluate(large)
    saved = large.output / "checkpoints" / "checkpoint-7"
    size = sum(-(-path.stat().st_size // 4096) * 4096 for path in saved.iterdir())
    told: dict[str, Any] = {"size": size}

    # Two checkpoints fit, not the three that are there before the oldest is removed.
    disk.set(f"size={int(2.7 * size)}")
    told["three"] = ends(lambda: train(made(disk.folder / "three")))

    subprocess.run(["rm", "-r", disk.folder / "three"], check=True)
    disk.set(f"size={int(1.5 * size)}")
    two = made(disk.folder / "two")
    told["two"] = ends(lambda: train(two))
    told["two left"] = sorted(path.name for path in (two.output / "checkpoints").glob("check*"))
    disk.set("size=64m")
    told["two again"] = ends(lambda: train(two, resume=True))

    readonly = made(disk.folder / "readonly")
    told["readonly"] = ends(lambda: train(readonly, callbacks=[At(4, lambda: disk.set("ro"))]))
    told["readonly from the start"] = ends(lambda: train(made(disk.folder / "new")))
    disk.set("rw")
    told["readonly again"] = ends(lambda: train(readonly, resume=True))

    disk.fill()
    told["no byte"] = ends(lambda: train(made(disk.folder / "new")))
    told["evaluation"] = ends(lambda: evaluate(two))
    disk.free()
    told["evaluation again"] = ends(lambda: evaluate(two))
    for name in ("two", "readonly"):
        subprocess.run(["cp", "-r", disk.folder / name, folder / name], check=True)
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
