"""`accelerate launch` with two processes against one process with as many rows a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from environments import python_of
from ryarn import load, tiny
from ryarn.recipe import Recipe, load_recipe
from ryarn.records import read_jsonl
from tiny_run import write_recipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="its two processes would want two GPUs"),
]
RANK = Path(__file__).with_name("rank.py")
STEPS = 3
CHANGES = ["train.lora_dropout=0", f"train.max_steps={STEPS}", "train.save_steps=2"]
LOSS, WEIGHT = 2e-6, 1e-4
"""How far a loss and a weight may be from those of one process: sums in another order, and Adam,
which makes a whole step of a gradient however small."""

FSDP2 = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_state_dict_type": "FULL_STATE_DICT",
}
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"distributed_type": "MULTI_GPU"},
    "fsdp2": {
        "distributed_type": "FSDP",
        "fsdp_config": {**FSDP2, "fsdp_reshard_after_forward": True},
    },
    # As ZeRO-2: weights stay gathered after the forward pass; one process alone loads them.
    "fsdp2-loading-once": {
        "distributed_type": "FSDP",
        "fsdp_config": {
            **FSDP2,
            "fsdp_reshard_after_forward": False,
            "fsdp_cpu_ram_efficient_loading": True,
        },
    },
    "zero-2": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}},
    "zero-3": {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 3, "zero3_save_16bit_model": True},
    },
}


@dataclass(frozen=True)
class Done:
    """A training that has ended: its recipe, what each process kept, and what was printed."""

    recipe: Recipe
    ranks: list[dict[str, Any]]
    said: str

    @property
    def losses(self) -> list[float]:
        entries = read_jsonl(self.recipe.output / "log.jsonl")
        return [entry["loss"] for entry in entries if "loss" in entry]


def run(folder: Path, name: str, way: dict[str, Any] | None, *changes: str) -> Done:
    """Train: in one process where there is no way to launch."""
    path, kept = folder / "recipe.yaml", folder / f"{name}-ranks"
    kept.mkdir()
    python, launch, environment = sys.executable, [], {"KEPT": str(kept)}
    if way is not None:
        config = folder / f"{name}.yaml"
        cpu = way["distributed_type"] == "DEEPSPEED"
        config.write_text(yaml.safe_dump({**way, "num_processes": 2, "use_cpu": cpu}))
        launch = ["-m", "accelerate.commands.launch", f"--config_file={config}"]
        if cpu:
            python, environment["DS_ACCELERATOR"] = python_of("deepspeed"), "cpu"
    arguments = [*CHANGES, *changes, f"output={folder / name}"]
    # DeepSpeed builds an extension with a ninja that lies beside its Python.
    environment["PATH"] = f"{Path(python).parent}:{os.environ['PATH']}"
    environment["PYTHONPATH"] = str(RANK.parents[2] / "src")
    done = subprocess.run(
        [python, *launch, str(RANK), "train", str(path), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [torch.load(file) for file in sorted(kept.iterdir())]
    return Done(load_recipe(path, arguments), ranks, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose model lies in a folder, to be loaded as a real one is."""
    there = tmp_path_factory.mktemp("processes")
    write_recipe(there)
    model, tokenizer = tiny.build("olmo3")
    model.save_pretrained(there / "base")
    tokenizer.save_pretrained(there / "base")
    recipe = yaml.safe_load((there / "recipe.yaml").read_text())
    recipe["model"] = {"name": str(there / "base"), "dtype": "float32"}
    (there / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return there


@pytest.fixture(scope="module")
def one(folder: Path) -> Done:
    return run(folder, "one", None)


@pytest.fixture(scope="module", params=WAYS)
def two(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Done]:
    way: str = request.param
    return way, run(folder, way, WAYS[way], "train.batch_size=2")


def test_the_weights_are_held_as_the_config_says(two: tuple[str, Done]) -> None:
    """Else two processes of plain DDP would pass all that follows."""
    way, done = two
    assert len(done.ranks) == 2
    for rank in done.ranks:
        assert ("DTensor" in rank["weights"]) == way.startswith("fsdp2")
        assert rank["partitioned"] == (way == "zero-3")
        assert ("DeepSpeed" in rank["optimizer"]) == way.startswith("zero")


def test_the_losses_are_those_of_one_process(one: Done, two: tuple[str, Done]) -> None:
    _, done = two
    assert len(one.losses) == STEPS
    assert done.losses == pytest.approx(one.losses, abs=LOSS)
    info = json.loads((done.recipe.output / "run.json").read_text())
    assert (info["processes"], info["status"]) == (2, "finished")


def test_a_row_draws_what_it_draws_in_one_process(one: Done, two: tuple[str, Done]) -> None:
    _, done = two
    first, second = (rank["drawn"] for rank in done.ranks)
    assert first
    assert second
    assert not first.keys() & second.keys()
    assert {**first, **second} == one.ranks[0]["drawn"]


def test_all_processes_hold_the_same_adapter_and_frequencies(two: tuple[str, Done]) -> None:
    _, done = two
    first, second = done.ranks
    for part in ("adapter", "ropes"):
        assert first[part].keys() == second[part].keys() != set()
        for name, value in first[part].items():
            assert value.dtype == torch.float32
            assert torch.equal(value, second[part][name]), name


def test_the_adapter_is_that_of_one_process_and_loads(one: Done, two: tuple[str, Done]) -> None:
    _, done = two
    file = "adapter/adapter_model.safetensors"
    ours, theirs = (load_file(run.recipe.output / file) for run in (done, one))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, atol=WEIGHT, rtol=0)
    load(done.recipe.output)
    assert done.said.count("adapter in ") == 1


def test_the_contract_is_that_of_one_process(one: Done, two: tuple[str, Done]) -> None:
    _, done = two
    for place in ("adapter", "checkpoints/checkpoint-2"):
        ours, theirs = (
            json.loads((run.recipe.output / place / "ryarn.json").read_text())
            for run in (done, one)
        )
        assert ours["base"] == theirs["base"]
        assert ours == {**theirs, "versions": ours["versions"]}
