"""Other Python environments that slow tests ask: `make serve-env`, `make transformers4-env`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python_of(name: str) -> str:
    """The Python of an environment, or the test is skipped.

    It lies in `.venv-NAME`, or where the variable RYARN_NAME_PYTHON says.
    """
    there = os.environ.get(
        f"RYARN_{name.upper().replace('-', '_')}_PYTHON", ROOT / f".venv-{name}" / "bin" / "python"
    )
    if not Path(there).exists():
        pytest.skip(f"make {name}-env")
    return str(there)


def run_in(name: str, script: Path, *arguments: Path | str) -> str:
    """Run a script there; what it printed."""
    python = python_of(name)
    command = [python, str(script), *map(str, arguments)]
    # Some trainers start others of their environment's commands.
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    offline = {"HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1", "PATH": path}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1800, env=os.environ | offline
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
