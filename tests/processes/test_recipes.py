"""recipes/accelerate: accelerate reads them, launches by them, and sets up what they say."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes" / "accelerate"
RECIPES = sorted(FOLDER.glob("*.yaml"))
# What a recipe is called, against what it must say: processes, machines, what shares the work.
SAYS: dict[str, tuple[int, int, str]] = {
    "nodes-fsdp2": (16, 2, "FSDP"),
    "one-gpu": (1, 1, "NO"),
    "one-node-ddp": (8, 1, "MULTI_GPU"),
    "one-node-fsdp2": (8, 1, "FSDP"),
    "one-node-zero3": (8, 1, "DEEPSPEED"),
}


def launched(recipe: Path) -> argparse.Namespace:
    """The arguments that `accelerate launch --config_file` goes on with."""
    arguments = launch_command_parser().parse_args(
        [f"--config_file={recipe}", "-m", "ryarn", "train", "recipe.yaml"]
    )
    checked: Any = _validate_launch_command(arguments)
    return checked[0]  # type: ignore[no-any-return]


def test_they_are_all_here() -> None:
    assert [recipe.stem for recipe in RECIPES] == list(SAYS)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_accelerate_reads_it(recipe: Path) -> None:
    """It refuses keys that it does not know."""
    config: Any = load_config_from_file(str(recipe))
    processes, machines, kind = SAYS[recipe.stem]
    assert (config.num_processes, config.num_machines) == (processes, machines)
    assert config.distributed_type == kind
    assert config.mixed_precision == "no"
    # Of its sections it refuses none.
    known = vars(launch_command_parser().parse_args(["-m", "ryarn"]))
    assert config.fsdp_config.keys() | config.deepspeed_config.keys() <= known.keys()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_its_comment_launches_it_by_its_own_name(recipe: Path) -> None:
    comment = re.findall(r"^#(.*)$", recipe.read_text(), re.MULTILINE)
    text = " ".join(comment)
    assert f"--config_file recipes/accelerate/{recipe.name} " in text
    assert "-m ryarn train RECIPE.yaml" in text


@pytest.mark.parametrize("name", ["one-node-fsdp2", "nodes-fsdp2"])
def test_fsdp_recipes_set_up_version_2(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that they give their processes makes the plugin that we want."""
    monkeypatch.setattr("accelerate.utils.launch.is_port_in_use", lambda port: False)
    environment = prepare_multi_gpu_env(launched(FOLDER / f"{name}.yaml"))
    for key, value in environment.items():
        if key.startswith(("FSDP", "ACCELERATE_USE_FSDP")):
            monkeypatch.setenv(key, value)
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.cpu_ram_efficient_loading
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert plugin.cpu_offload is not True
