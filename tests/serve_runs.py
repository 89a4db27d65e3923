"""SmolLM2 after a short training under YaRN, its exports, and a vLLM server, for slow tests."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environments import ROOT, python_of
from ryarn.export import export
from ryarn.recipe import Recipe, load_recipe
from ryarn.train import train

SETTINGS = (
    "method.name=trained-yarn",
    "model.dtype=float32",
    "train.data.lengths=[288]",
    "train.max_length=288",
    "train.max_steps=6",
    "train.held_out_rows=0",
    "evaluate.data.lengths=[288]",
)
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": "1"}
"""GiB of cache, and threads: what vLLM takes by itself is made for a machine of its own."""


def recipe_of(output: Path, *overrides: str) -> Recipe:
    """The recipe of the short training."""
    path = ROOT / "recipes" / "smollm2-babilong.yaml"
    return load_recipe(path, [*SETTINGS, f"output={output}", *overrides])


def make_trained(folder: Path) -> Path:
    """The run folder of the short training."""
    with warnings.catch_warnings():
        # PEFT looks for a config beside the GGUF file.
        warnings.filterwarnings("ignore", "Could not find a config file")
        train(recipe_of(folder))
    return folder


def make_exports(folder: Path) -> Path:
    """A trained run with its exports: `run`, `merged`, `apart`."""
    make_trained(folder / "run")
    export(folder / "run", folder / "merged")
    export(folder / "run", folder / "apart", form="unmerged")
    return folder


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """A vLLM server in a process of its own; the root of its API."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(python_of("serve-vllm")).with_name("vllm")
    command = [str(script), "serve", str(folder), "--port", str(port), "--enforce-eager", *options]
    with (folder.parent / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **ENVIRONMENT}, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + 1200
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, (folder.parent / "server.log").read_text()[-2000:]
            assert time.monotonic() < end, "the server did not start"
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(120)


def answers(address: str) -> bool:
    """Whether something listens there and is well."""
    try:
        with urllib.request.urlopen(address, timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
