"""A disk that is really full, or read-only: one sentence, and the run goes on once it can."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ryarn.recipe import load_recipe
from ryarn.runs import read_json
from test_faults import CHANGES, assert_same
from tiny_run import write_recipe

pytestmark = pytest.mark.slow
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("disk")
    mount = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", folder]
    if not shutil.which("unshare") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    write_recipe(folder)
    (folder / "changes.json").write_text(json.dumps(CHANGES))
    script = Path(__file__).with_name("full_disk_runs.py")
    done = subprocess.run(
        [*UNSHARE, sys.executable, script, folder], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads((folder / "told.json").read_text())


def test_the_oldest_checkpoint_makes_room(runs: tuple[Path, dict[str, Any]]) -> None:
    assert runs[1]["three"] == ""


def test_a_full_disk_stops_the_run_and_keeps_its_checkpoint(
    runs: tuple[Path, dict[str, Any]],
) -> None:
    folder, told = runs
    run = folder / "disk" / "two"
    assert told["two"].startswith(f"{run / 'checkpoints' / 'checkpoint-6'} can't be written (")
    assert told["two"].endswith("free some space, then go on from checkpoint-3 with --resume")
    assert told["two left"] == ["checkpoint-3"]
    assert told["two again"] == ""
    assert_same(
        *(
            load_recipe(folder / name / "recipe.yaml", [f"output={folder / name}"])
            for name in ("large", "two")
        )
    )


def test_a_disk_that_turns_read_only(runs: tuple[Path, dict[str, Any]]) -> None:
    folder, told = runs
    log = folder / "disk" / "readonly" / "log.jsonl"
    assert told["readonly"] == (
        f"{log} can't be written (Read-only file system): make it writable, then go on with "
        "--resume"
    )
    assert told["readonly from the start"].endswith("disk may not be written to, choose another")
    assert told["readonly again"] == ""
    assert_same(
        *(
            load_recipe(folder / name / "recipe.yaml", [f"output={folder / name}"])
            for name in ("large", "readonly")
        )
    )


def test_a_disk_without_a_byte(runs: tuple[Path, dict[str, Any]]) -> None:
    folder, told = runs
    assert told["no byte"].endswith(
        "can't be written (No space left on device): free some space, then start the same command "
        "again"
    )
    assert "evaluation/" in told["evaluation"]
    assert "(No space left on device): free some space" in told["evaluation"]
    assert told["evaluation again"] == ""
    mine, theirs = (
        read_json(folder / name / "evaluation" / "summary.json") for name in ("two", "large")
    )
    assert {**mine, "reused": 0} == theirs
