"""What comes from outside stays data: models, adapters, checkpoints and recipes can run nothing."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ryarn import load, tiny, trust
from ryarn.checkpoints import seal
from ryarn.compare.grid import load_grid
from ryarn.errors import UserError
from ryarn.recipe import Recipe, load_recipe
from ryarn.train import train
from test_faults import CHANGES, Killed, KilledAt
from tiny_run import command, make_recipe, write_recipe

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM

Path({marker!r}).write_text("ran")


class OtherConfig(LlamaConfig):
    model_type = "other-llama"


class OtherForCausalLM(LlamaForCausalLM):
    config_class = OtherConfig
"""


class Bomb:
    """What runs when it is read from a pickle."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that code from outside would make."""
    return tmp_path / "ran"


@pytest.fixture
def with_code(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model whose config asks for Python code that lies beside it; the terminal says yes."""
    folder = tmp_path / "model"
    model, tokenizer = tiny.build("llama")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "other.py").write_text(CODE.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "other-llama",
        "architectures": ["OtherForCausalLM"],
        "auto_map": {
            "AutoConfig": "other.OtherConfig",
            "AutoModelForCausalLM": "other.OtherForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for module in ("transformers.dynamic_module_utils", "transformers.utils.hub"):
        monkeypatch.setattr(f"{module}.HF_MODULES_CACHE", str(tmp_path / "modules"), raising=False)
    yield folder
    assert not trust.is_trusted()


def commands(recipe: Path, model: Path) -> dict[str, list[object]]:
    name = f"model.name={model}"
    return {
        "train": [recipe, name, "train.max_steps=1"],
        "evaluate": [recipe, name, "method.name=zero-shot"],
        "doctor": [model],
        "plan": [recipe, name],
    }


@pytest.mark.parametrize("name", ["train", "evaluate", "doctor", "plan"])
def test_the_code_of_a_model_is_not_run(
    name: str,
    with_code: Path,
    marker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = commands(write_recipe(tmp_path), with_code)[name]
    assert command(monkeypatch, name, *arguments) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told == (
        f"ryarn: model.name = {str(with_code)!r} comes with Python code of its own, which is not "
        "run: read it, then give train, evaluate, export, doctor, plan or data --trust-remote-code"
    )
    assert not marker.exists()


def test_a_tokenizer_is_read_without_the_code_beside_it(
    with_code: Path, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((with_code / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": [None, "other.OtherTokenizer"]}
    (with_code / "tokenizer_config.json").write_text(json.dumps(config))
    write_recipe(tmp_path)
    rows = f"path={tmp_path / 'rows.jsonl'}"
    out = tmp_path / "out.jsonl"
    assert command(monkeypatch, "data", "jsonl", rows, "--model", with_code, "--out", out) == 0
    assert out.exists()
    assert not marker.exists()


def test_a_recipe_cannot_allow_it(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    with pytest.raises(UserError, match=r"unknown key 'model\.trust_remote_code'"):
        load_recipe(path, ["model.trust_remote_code=true"])


def test_the_code_of_a_model_runs_on_the_users_word(
    with_code: Path,
    marker: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, "doctor", with_code, "--trust-remote-code") == 0
    assert marker.exists()
    assert "OtherForCausalLM" in capsys.readouterr().out
    marker.unlink()
    # The word was for that command.
    assert command(monkeypatch, "doctor", with_code) == 2


@pytest.mark.slow
def test_a_model_with_code_is_trained_evaluated_loaded_and_exported(
    with_code: Path, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, word = write_recipe(tmp_path), "--trust-remote-code"
    changes = [f"model.name={with_code}", "train.max_steps=1"]
    assert command(monkeypatch, "train", recipe, *changes, word) == 0
    assert command(monkeypatch, "evaluate", recipe, *changes, word) == 0
    run, out = tmp_path / "run", tmp_path / "exported"
    marker.unlink()
    assert command(monkeypatch, "export", run, "--to", out) == 2
    with pytest.raises(UserError, match="Python code of its own"):
        load(run)
    assert not marker.exists()
    assert command(monkeypatch, "export", run, "--to", out, word) == 0
    assert marker.exists()
    model, _ = load(run, trust_remote_code=True)
    assert type(model.get_base_model()).__name__ == "OtherForCausalLM"


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_pickled_weights_of_a_model_are_refused(tmp_path: Path, marker: Path, form: str) -> None:
    folder = tmp_path / "model"
    model, tokenizer = tiny.build("llama")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = folder / "pytorch_model.bin"
    if form == "torch":
        torch.save(model.state_dict(), weights)
    else:
        weights.write_bytes(pickle.dumps(Bomb(marker)))
    (folder / "model.safetensors").unlink()
    recipe = make_recipe(tmp_path, f"model.name={folder}", "train.max_steps=1")
    with pytest.raises(UserError, match=r"can't be loaded: .*model\.safetensors") as caught:
        train(recipe)
    assert "\n" not in str(caught.value)
    assert not marker.exists()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """An interrupted run with a checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    recipe = make_recipe(folder, *CHANGES)
    with pytest.raises(Killed):
        train(recipe, callbacks=[KilledAt("on_step_begin", 3)])
    return recipe


@pytest.fixture
def copied(stopped: Recipe, tmp_path: Path) -> tuple[Recipe, Path]:
    """The same in a folder of its own, and its checkpoint."""
    shutil.copytree(stopped.output, tmp_path / "run")
    recipe = stopped.model_copy(update={"output": tmp_path / "run"})
    return recipe, recipe.output / "checkpoints" / "checkpoint-3"


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_pickle_in_a_checkpoint_is_not_run(
    copied: tuple[Recipe, Path], marker: Path, file: str
) -> None:
    recipe, checkpoint = copied
    (checkpoint / file).write_bytes(pickle.dumps(Bomb(marker), protocol=2))
    seal(checkpoint)
    with pytest.raises(UserError, match="something else than numbers, or is damaged"):
        train(recipe, resume=True)
    assert not marker.exists()


@pytest.mark.parametrize("file", ["pytorch_model.bin", "adapter_model.bin"])
def test_pickled_weights_in_a_checkpoint_are_refused(
    copied: tuple[Recipe, Path], marker: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, checkpoint = copied
    (checkpoint / file).write_bytes(pickle.dumps(Bomb(marker)))
    monkeypatch.setattr("ryarn.models.load_model", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(UserError, match=rf"holds pickled weights \({file}\), which are not ours"):
        train(recipe, resume=True)
    assert not marker.exists()


@pytest.mark.parametrize("stage", ["load", "evaluate"])
def test_a_pickled_adapter_is_refused(
    copied: tuple[Recipe, Path], marker: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, checkpoint = copied
    adapter = recipe.output / "adapter"
    shutil.copytree(checkpoint, adapter)
    (adapter / "adapter_model.safetensors").unlink()
    for module in ("ryarn.models", "ryarn.loading"):
        monkeypatch.setattr(f"{module}.load_model", lambda *_: pytest.fail("weights were read"))

    def act() -> None:
        if stage == "load":
            load(recipe.output)
        else:
            from ryarn.evaluate import evaluate

            evaluate(recipe)

    with pytest.raises(UserError, match=r"no adapter_model\.safetensors there: give"):
        act()
    (adapter / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(UserError, match="only pickled weights, which are not read: give"):
        act()
    assert not marker.exists()


def test_the_bombs_would_go_off(marker: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()


TAGS = [
    "!!python/object/apply:os.system ['touch {marker}']",
    "!!python/object/new:os.system ['touch {marker}']",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/tuple [1]",
]


@pytest.mark.parametrize("tag", TAGS)
def test_yaml_makes_no_python_objects(tag: str, tmp_path: Path, marker: Path) -> None:
    value = tag.format(marker=marker)
    path = write_recipe(tmp_path)
    with pytest.raises(UserError, match="its value is not YAML"):
        load_recipe(path, [f"label={value}"])
    path.write_text(path.read_text() + f"label: {value}\n")
    for read in (load_recipe, load_grid):
        with pytest.raises(UserError, match="not valid YAML"):
            read(path, [])
    assert not marker.exists()
