"""SIGKILL at twenty random moments of a training: each run goes on as if it had not been killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ryarn.recipe import load_recipe
from ryarn.records import read_jsonl
from test_faults import CHANGES, assert_same
from tiny_run import write_recipe

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("RYARN_KILLS", "20"))


def batches(tape: Path) -> dict[int, list[Any]]:
    """Step to what its batches were given, the last time that they were."""
    found: dict[int, list[Any]] = {}
    last = None
    for line in tape.read_text().splitlines():
        try:
            entry = json.loads(line or "null")
        except ValueError:  # torn by the kill; the step is done again
            entry = None
        if entry is None:
            last = None
            continue
        step, tokens, positions = entry
        if step != last:
            found[step] = []
        last = step
        found[step].append((tokens, positions))
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("kills")
    write_recipe(folder)
    # A checkpoint a step: more than half of a run is saving.
    (folder / "changes.json").write_text(json.dumps([*CHANGES, "train.save_steps=1"]))
    script = Path(__file__).with_name("kill_runs.py")
    told = subprocess.run(
        [sys.executable, script, folder, str(KILLS)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr[-3000:]
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    return folder, lines


def test_the_kills_fell_into_training_and_into_saving(
    done: tuple[Path, list[dict[str, Any]]],
) -> None:
    _, (about, *kills) = done
    assert len(kills) == KILLS
    assert about["events"] > 100
    killed = [kill for kill in kills if kill["first"] == -signal.SIGKILL]
    assert len(killed) >= 0.9 * KILLS
    assert len({kill["last"] for kill in killed}) >= min(4, KILLS // 3)
    torn = [kill for kill in killed if set(kill["there"]) - {kill["last"]}]
    assert torn
    assert all(kill.get("second", 0) == 0 for kill in kills)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_run_goes_on_as_if_it_had_not_been_killed(
    done: tuple[Path, list[dict[str, Any]]], seed: int
) -> None:
    folder, (_, *kills) = done
    straight = load_recipe(folder / "straight" / "recipe.yaml", [])
    killed = load_recipe(folder / f"killed-{seed}" / "recipe.yaml", [])
    assert killed.output.name == f"killed-{seed}"
    assert_same(straight, killed)
    # A kill between the last step and the adapter's name leaves nothing to train again.
    mine, theirs = (batches(folder / f"{name}.tape") for name in (killed.output.name, "straight"))
    assert mine == theirs
    resumed = json.loads((killed.output / "run.json").read_text())["resumed_from"]
    assert resumed == (kills[seed]["last"] if kills[seed]["first"] else None)
    steps = [entry["step"] for entry in read_jsonl(killed.output / "log.jsonl") if "loss" in entry]
    assert steps == sorted(set(steps))
