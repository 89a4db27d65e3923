"""Checkpoints: which of them are whole, which make room, and what is not read from one."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ryarn.errors import UserError

SEAL = "whole.json"
"""Lists every file of a checkpoint with its size; written last, so that it stands for all."""
_PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")


def seal(folder: Path) -> None:
    """Say that a checkpoint is whole, once all its files are on the disk.

    Raises:
        OSError: The disk refuses.
    """
    sizes = _sizes(folder)
    for name in sizes:
        _flush(folder / name)
    partial = folder / (SEAL + ".partial")
    partial.write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
    _flush(partial)
    partial.replace(folder / SEAL)
    _flush(folder)


def is_whole(folder: Path) -> bool:
    """Whether every file that was sealed is there, as long as it was."""
    try:
        sealed = json.loads((folder / SEAL).read_text("utf-8"))
        # The trainer may be removing this checkpoint while another process looks at it.
        there = _sizes(folder)
    except (OSError, ValueError):
        return False
    return isinstance(sealed, dict) and sealed.items() <= there.items()


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end; None where there is none."""
    return max(filter(is_whole, _checkpoints(folder)), key=_step, default=None)


def drop_torn(folder: Path) -> None:
    """Remove what a kill left half written: the trainer would count it when it removes old ones."""
    for checkpoint in _checkpoints(folder):
        if not is_whole(checkpoint):
            shutil.rmtree(checkpoint)


def make_room(folder: Path) -> bool:
    """Remove what is torn, and of the whole checkpoints all but the last; whether one was whole."""
    last = last_checkpoint(folder)
    others = [path for path in _checkpoints(folder) if path != last]
    freed = any(map(is_whole, others))
    for path in others:
        shutil.rmtree(path)
    return freed


def check_loadable(checkpoint: Path) -> None:
    """Refuse pickled weights, which the trainer would prefer to the adapter's own.

    Raises:
        UserError: There are some.
    """
    for name in _PICKLED_WEIGHTS:
        if (checkpoint / name).exists():
            raise UserError(
                f"--resume: {checkpoint} holds pickled weights ({name}), which are not ours: "
                "weights are read from safetensors alone, remove the file or the checkpoint"
            )


@contextmanager
def loading(checkpoint: Path | None) -> Iterator[None]:
    """Make one sentence of a pickle that holds more than numbers.

    The trainer reads the optimizer, the schedule and the random states with `weights_only`.

    Raises:
        UserError: A file holds something else, or is damaged.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        raise UserError(
            f"--resume: a file of {checkpoint} holds something else than numbers, or is damaged: "
            "nothing in it was run; remove that folder to go on from the checkpoint before it"
        ) from error


def _checkpoints(folder: Path) -> list[Path]:
    found = (path for path in folder.glob("checkpoint-*") if path.is_dir())
    return [path for path in found if path.name.rpartition("-")[2].isdecimal()]


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _sizes(folder: Path) -> dict[str, Any]:
    """Relative name to bytes of every file but the seal."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    found = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    return {name: size for name, size in found.items() if not name.startswith(SEAL)}


def _flush(path: Path) -> None:
    """Have the disk itself hold what was written, through a power cut, too."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
