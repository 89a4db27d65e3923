"""The folder that an export goes into: made beside itself, and only then given its name.

Everything is written to `NAME.partial`. A kill leaves that folder, never half a one under the name;
what was written to its end is not written again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ryarn.errors import UserError
from ryarn.runs import check_writable, read_json, write_json

MANIFEST = "ryarn_export.json"


@dataclass(frozen=True)
class Target:
    """Where an export goes.

    Attributes:
        folder: The name it gets when it is whole.
        request: What is exported; two exports with equal requests are the same.
        whole: The folder is there already, from an earlier call with this request.
        written: The partial folder is written, only not checked yet.
    """

    folder: Path
    request: Mapping[str, Any]
    whole: bool
    written: bool

    @property
    def partial(self) -> Path:
        """Where it is made."""
        return self.folder.with_name(self.folder.name + ".partial")

    def begin(self) -> Path:
        """Make the partial folder, empty."""
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        write_json(self.partial / MANIFEST, {"request": dict(self.request), "written": False})
        return self.partial

    def mark_written(self) -> None:
        """Say that all files are there, so that a later call need not write them again."""
        write_json(self.partial / MANIFEST, {"request": dict(self.request), "written": True})

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Give the folder its name."""
        write_json(self.partial / MANIFEST, {"request": dict(self.request), **facts})
        if self.folder.is_dir():
            self.folder.rmdir()
        self.partial.rename(self.folder)


def claim(folder: Path, request: Mapping[str, Any]) -> Target:
    """See that a folder is free, or this export's own; nothing is written.

    Raises:
        UserError: The folder or its partial neighbour holds something else.
    """
    check_writable(folder)
    target = Target(folder, request, _manifest(folder) == {"request": dict(request)}, False)
    if folder.is_dir() and any(folder.iterdir()) and not target.whole:
        raise UserError(
            f"--to {str(folder)!r} is not empty and holds another export, or none of ryarn's: "
            "choose another folder or delete it"
        )
    if not target.partial.exists():
        return target
    found = _manifest(target.partial)
    if found is None:
        raise UserError(
            f"--to {str(folder)!r}: {target.partial} is in the way and is no export of ryarn: "
            "move it away"
        )
    return Target(folder, request, target.whole, found == {"request": dict(request), "done": True})


def _manifest(folder: Path) -> dict[str, Any] | None:
    """The request of an export folder, and whether a partial one is written; None if it is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    manifest = read_json(path)
    done = {"done": True} if manifest.get("written") else {}
    return {"request": manifest.get("request"), **done}
