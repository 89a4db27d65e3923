"""What several processes may not do to a row or a model: refused at the start, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import ParallelismConfig
from accelerate.state import AcceleratorState
from torch import distributed
from transformers import TrainerControl, TrainerState, TrainingArguments

from ryarn import ExtensionCallback, extend, make_method, tiny
from ryarn.errors import UserError
from ryarn.processes import check_parallelism
from ryarn.train import train
from tiny_run import make_recipe

METHOD = make_method("randomized-yarn", factor=2, spans=[128])
CUT = [("cp_size", "context"), ("sp_size", "sequence")]


@pytest.mark.parametrize(("name", "kind"), CUT)
def test_pieces_of_rows_are_refused(name: str, kind: str) -> None:
    with pytest.raises(UserError, match=f"{name} = 2: {kind} parallelism cuts each row in pieces"):
        check_parallelism(ParallelismConfig(**{name: 2}))


@pytest.mark.parametrize("sizes", [{"dp_shard_size": 4}, {"dp_replicate_size": 2}, {"tp_size": 2}])
def test_whole_rows_are_not(sizes: dict[str, int]) -> None:
    check_parallelism(ParallelismConfig(**sizes))


def test_no_config_is_no_parallelism() -> None:
    check_parallelism(None)


@pytest.mark.parametrize(("name", "kind"), CUT)
def test_ryarn_train_refuses_before_it_loads_anything(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `accelerate launch` tells its processes of a `parallelism_config`."""
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    monkeypatch.setenv(f"PARALLELISM_CONFIG_{name.upper()}", "2")
    recipe = make_recipe(tmp_path, "model.name=/no/such/model")
    with pytest.raises(UserError, match=f"{name} = 2: {kind} parallelism"):
        train(recipe)
    assert not recipe.output.exists()


@pytest.mark.parametrize(("name", "kind"), CUT)
def test_the_callback_refuses_in_other_trainers(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = tiny.build("llama")
    callback = ExtensionCallback(extend(model, METHOD))
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    monkeypatch.setitem(
        AcceleratorState._shared_state, "parallelism_config", ParallelismConfig(**{name: 2})
    )
    monkeypatch.setattr("accelerate.state.is_initialized", lambda: True)
    monkeypatch.setattr(AcceleratorState, "__init__", use_shared)
    with pytest.raises(UserError, match=f"{name} = 2: {kind} parallelism"):
        callback.on_train_begin(arguments, TrainerState(), TrainerControl(), model=model)


def use_shared(self: Any) -> None:
    self.__dict__ = self._shared_state


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`:UserWarning")
@pytest.mark.filterwarnings("ignore:The `NO_SHARD` sharding strategy is deprecated:FutureWarning")
def test_fsdp_of_version_1_is_refused(process_group: None) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model, _ = tiny.build("llama")
    extension = extend(model, METHOD)
    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    with pytest.raises(UserError, match="FSDP version 1: set fsdp_version: 2"):
        extension.verify(wrapped)
