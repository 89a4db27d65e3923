"""Exports in safetensors: what others load computes what the adapter run computes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import ryarn
from export_runs import SHAPES, WINDOW, make_base, make_run
from ryarn.errors import SelfTestError, UserError
from ryarn.export import check as check_module
from ryarn.export import export, probe, report_lines, stage, weights
from ryarn.export.check import ANSWER, REFERENCE, compare
from tiny_run import command, write_recipe

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def _in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process takes seconds to import torch; one test has it, the others ask here."""
    if "new_process" not in request.fixturenames:
        monkeypatch.setattr(
            check_module,
            "ask_new_process",
            lambda folder: probe.main(folder, folder / REFERENCE, folder / ANSWER),
        )


@pytest.fixture
def new_process() -> None:
    """Mark of a test that starts one."""


@pytest.fixture
def make(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Make:
    """Makes a run on a base of a given shape."""

    def made(shape: str, **method: Any) -> Path:
        base = make_base(tmp_path / f"base-{shape}", SHAPES[shape], tokenizer)
        return make_run(tmp_path / f"run-{shape}", base, **method)

    return made


def logits(model: Any, length: int = 40) -> torch.Tensor:
    tokens = torch.arange(length)[None] * 7 % 250
    with torch.no_grad():
        found: torch.Tensor = model(tokens).logits
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_a_merged_export_is_the_adapter_run(name: str, make: Make, tmp_path: Path) -> None:
    run = make(name)
    out = export(run, tmp_path / "out")
    assert [row.reach for row in out.rows] == [63, WINDOW - 1, 4 * WINDOW - 1]
    assert all(row.difference < 1e-4 for row in out.rows)
    model = AutoModelForCausalLM.from_pretrained(out.folder)
    adapter, _ = ryarn.load(run, dtype="float32")
    assert torch.allclose(logits(model), logits(adapter), atol=1e-3)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / f"base-{name}")
    assert not torch.allclose(logits(model), logits(plain), atol=0.5)


@pytest.mark.parametrize("name", ["llama", "olmo3"])
def test_only_the_keys_of_the_rope_change(name: str, make: Make, tmp_path: Path) -> None:
    base, out = tmp_path / f"base-{name}", export(make(name), tmp_path / "out").folder
    mine, theirs = ((folder / "config.json").read_text() for folder in (out, base))
    changed = {"max_position_embeddings", "rope_parameters", "rope_scaling", "rope_theta"}
    for key, value in json.loads(theirs).items():
        if key not in changed:
            line = f'"{key}": {json.dumps(value, indent=2)}'.replace("\n", "\n  ")
            assert line in mine
    assert set(json.loads(mine)) - set(json.loads(theirs)) <= {*changed, "torch_dtype"}
    same = {"tokenizer.json", "chat_template.jinja", "generation_config.json"}
    for file in same:
        assert (out / file).read_bytes() == (base / file).read_bytes()


def test_the_lengths_agree(make: Make, tmp_path: Path) -> None:
    out = export(make("llama"), tmp_path / "out", factor=8).folder
    config = AutoConfig.from_pretrained(out)
    rope = config.rope_parameters
    assert config.max_position_embeddings == 8 * WINDOW
    assert rope["factor"] * rope["original_max_position_embeddings"] == 8 * WINDOW
    assert AutoTokenizer.from_pretrained(out).model_max_length == 8 * WINDOW
    assert f"| window | {8 * WINDOW} tokens |" in (out / "README.md").read_text()


def test_generation_ends_where_evaluation_ends(
    make: Make, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    run = make("llama")
    path = tmp_path / "base-llama" / "generation_config.json"
    path.write_text('{"eos_token_id": 5, "max_length": 256, "temperature": 0.60}\n')
    out = export(run, tmp_path / "out").folder
    written = (out / "generation_config.json").read_text()
    ends = sorted({5, tokenizer.eos_token_id})
    assert json.loads(written)["eos_token_id"] == ends
    assert json.loads(written)["max_length"] == 4 * WINDOW
    assert '"temperature": 0.60' in written


def test_weights_of_the_base_and_other_files_are_not_taken_along(
    make: Make, tmp_path: Path
) -> None:
    run, base = make("llama"), tmp_path / "base-llama"
    old = ("README.md", "pytorch_model.bin", "model.safetensors.index.json", "ryarn.json", "x.gguf")
    for name in old:
        (base / name).write_text("old")
    (base / "LICENSE").write_text("mine")
    out = export(run, tmp_path / "out").folder
    assert {path.name for path in out.iterdir()} == {
        *("README.md", "LICENSE", "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "ryarn_export.json"),
    }


def test_a_large_model_is_sharded(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SHARD", "100KB")
    out = export(make("qwen2"), tmp_path / "out").folder
    assert (out / "model.safetensors.index.json").is_file()
    assert len(list(out.glob("model-*.safetensors"))) > 1


@pytest.mark.parametrize("name", ["llama", "olmo3"])
def test_an_unmerged_export_is_the_adapter_run(name: str, make: Make, tmp_path: Path) -> None:
    run = make(name)
    out = export(run, tmp_path / "out", form="unmerged")
    assert all(row.difference < 1e-5 for row in out.rows)
    base = out.folder / "base"
    weights_file = base / "model.safetensors"
    assert weights_file.samefile(tmp_path / f"base-{name}" / "model.safetensors")
    assert {path.name for path in (out.folder / "adapter").iterdir()} == {
        *("adapter_config.json", "adapter_model.safetensors", "ryarn.json")
    }
    settings = json.loads((out.folder / "adapter" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(base.resolve())
    assert AutoConfig.from_pretrained(base).max_position_embeddings == 4 * WINDOW


def test_bfloat16_is_rounded_once_and_allowed_for(make: Make, tmp_path: Path) -> None:
    out = export(make("qwen2", dtype="bfloat16"), tmp_path / "out")
    assert 1e-4 < max(row.difference for row in out.rows) < out.tolerance == 0.1
    model = AutoModelForCausalLM.from_pretrained(out.folder, dtype="auto")
    assert model.dtype == torch.bfloat16
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_run_without_yarn_is_exported_without_it(make: Make, tmp_path: Path) -> None:
    run = make("llama", name="lora")
    out = export(run, tmp_path / "out")
    config = AutoConfig.from_pretrained(out.folder)
    assert config.rope_parameters["rope_type"] == "default"
    assert config.max_position_embeddings == WINDOW
    assert "rope_scaling" not in json.loads((out.folder / "config.json").read_text())
    assert report_lines(out)[-2] == f"{out.folder} written: plain RoPE, window {WINDOW}"


LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 5000.0, "factor": 2.0, "low_freq_factor": 1.0},
    **{"high_freq_factor": 4.0, "original_max_position_embeddings": 128},
}


@pytest.mark.parametrize("method", ["lora", "randomized-yarn"])
def test_another_scaling_of_the_base_is_kept_or_replaced(
    method: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    shape = replace(SHAPES["llama"], settings={"rope_parameters": LLAMA3})
    base = make_base(tmp_path / "base", shape, tokenizer)
    extra = {} if method == "lora" else {"replace_scaling": True}
    out = export(make_run(tmp_path / "run", base, name=method, **extra), tmp_path / "out")
    assert all(row.difference < 1e-4 for row in out.rows)
    written = json.loads((out.folder / "config.json").read_text())
    if method == "lora":
        # transformers 4 reads these, which the base's own file leaves out.
        assert {**written["rope_scaling"], "rope_theta": written["rope_theta"]} == LLAMA3
        assert written["max_position_embeddings"] == WINDOW
        assert "the base's llama3 RoPE" in report_lines(out)[-2]
    else:
        assert written["rope_scaling"] == {
            **{"rope_type": "yarn", "factor": 4.0},
            "original_max_position_embeddings": 128,
        }
        assert written["max_position_embeddings"] == 512


def nested(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A vision-language model whose text model has a config of its own."""
    text = {
        **{"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96},
        **{"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 64},
        "layer_types": ["sliding_attention", "full_attention"],
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"max_position_embeddings": WINDOW, "vocab_size": len(tokenizer)},
        **{"initializer_range": 0.3, "bos_token_id": None},
        **{"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id},
    }
    vision = {
        **{"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 32},
        **{"num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 32, "patch_size": 16},
    }
    config = AutoConfig.for_model(
        "gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_nested_text_config_is_changed_where_it_stands(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    base = nested(tmp_path / "base", tokenizer)
    out = export(make_run(tmp_path / "run", base), tmp_path / "out")
    written, before = (
        json.loads((folder / "config.json").read_text()) for folder in (out.folder, base)
    )
    text = written["text_config"]
    full = text["rope_parameters"]["full_attention"]
    assert text["rope_scaling"]["factor"] == full["factor"] == 4
    assert text["max_position_embeddings"] == 4 * WINDOW
    assert "rope_scaling" not in written
    assert "rope_theta" not in written
    assert written["vision_config"] == before["vision_config"]
    config = AutoConfig.from_pretrained(out.folder)
    assert config.text_config.rope_parameters["full_attention"]["rope_type"] == "yarn"
    assert all(row.difference < 1e-4 for row in out.rows)


def test_a_base_that_moved_is_named(make: Make, tmp_path: Path) -> None:
    run = make("llama")
    shutil.move(tmp_path / "base-llama", tmp_path / "moved")
    with pytest.raises(UserError, match="base-llama"):
        export(run, tmp_path / "out")
    assert export(run, tmp_path / "out", base=str(tmp_path / "moved")).folder.is_dir()


def test_a_folder_without_an_adapter_is_refused(make: Make, tmp_path: Path) -> None:
    run = make("llama")
    with pytest.raises(UserError, match=r"no ryarn.json"):
        export(tmp_path / "base-llama", tmp_path / "out")
    (run / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no adapter_model.safetensors"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# What goes wrong while it is made.


def test_an_export_that_computes_something_else_is_an_error(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("llama")

    def spoil(model: Any, folder: Path, dtype: str) -> None:
        model.model.layers[1].mlp.up_proj.weight.data.mul_(1.05)
        model.save_pretrained(folder)

    monkeypatch.setattr(weights, "save", spoil)
    with pytest.raises(SelfTestError, match="computes something else than the adapter"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_with_another_rope_is_an_error(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("llama")
    monkeypatch.setattr("ryarn.export.files.dialects", lambda *_: {"max_position_embeddings": 9})
    with pytest.raises(SelfTestError, match=r"RoPE differs .* rotary_emb.inv_freq"):
        export(run, tmp_path / "out")


def test_logits_that_are_no_numbers_are_an_error() -> None:
    good = {"positions": np.arange(3)[None], "logits": np.eye(3)[None]}
    [row] = compare(good, {**good, "logits": np.full((1, 3, 3), np.nan)})
    assert np.isnan(row.difference)
    assert not row.difference <= 1


@pytest.mark.usefixtures("new_process")
def test_an_export_that_does_not_load_is_an_error(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("llama")
    monkeypatch.setattr(weights, "save", lambda *_: None)
    with pytest.raises(SelfTestError, match=r"does not load in a new process: .*model.safetensors"):
        export(run, tmp_path / "out")


def test_a_killed_export_leaves_no_folder_and_goes_on(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("llama")

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ryarn.export.files.write_small_files", killed)
        with pytest.raises(KeyboardInterrupt):
            export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with monkeypatch.context() as patch:
        patch.setattr(stage, "check", killed)
        with pytest.raises(KeyboardInterrupt):
            export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # Written by now: only the check is made up for.
    with monkeypatch.context() as patch:
        patch.setattr(stage, "load", killed)
        assert export(run, tmp_path / "out").folder.is_dir()
    assert not (tmp_path / "out.partial").exists()


def test_the_same_export_again_does_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("llama")
    first = export(run, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    monkeypatch.setattr(stage, "load", lambda *_, **__: pytest.fail("loaded again"))
    again = export(run, tmp_path / "out")
    assert again == replace(first, again=True)
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == before
    assert "is there already" in report_lines(again)[-2]


@pytest.mark.parametrize("change", [{"factor": 8.0}, {"form": "unmerged"}])
def test_another_export_does_not_go_over_one(
    change: dict[str, Any], make: Make, tmp_path: Path
) -> None:
    run = make("llama")
    export(run, tmp_path / "out")
    with pytest.raises(UserError, match="is not empty and holds another export"):
        export(run, tmp_path / "out", **change)


def test_a_folder_with_other_files_is_refused(make: Make, tmp_path: Path) -> None:
    run = make("llama")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("")
    with pytest.raises(UserError, match=r"not empty .* none of ryarn's"):
        export(run, tmp_path / "out")
    (tmp_path / "other.partial").mkdir()
    with pytest.raises(UserError, match="is in the way"):
        export(run, tmp_path / "other")
    (tmp_path / "empty").mkdir()
    assert export(run, tmp_path / "empty").folder.is_dir()


# From the command line, from training on.


@pytest.mark.usefixtures("new_process")
def test_train_evaluate_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path)
    assert command(monkeypatch, "train", recipe) == 0
    assert command(monkeypatch, "evaluate", recipe) == 0
    run, out = tmp_path / "run", tmp_path / "out"
    capsys.readouterr()
    assert command(monkeypatch, "export", run, "--to", out) == 0
    printed = capsys.readouterr().out
    assert printed.count("differs from the adapter run by") == 3
    assert f"{out} written: YaRN factor 2, window 8192" in printed
    card = (out / "README.md").read_text()
    fingerprint = json.loads((run / "run.json").read_text())["data"]["fingerprint"]
    for text in (fingerprint, "name: randomized-yarn", "rule `exact`", "| 8191 |"):
        assert text in card
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.max_position_embeddings == 8192
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert "<|user|>" in tokenizer.all_special_tokens

    readme = (run / "adapter" / "README.md").read_text()
    line = next(line for line in readme.splitlines() if "ryarn.load" in line)
    assert line == f'model, tokenizer = ryarn.load("{(run / "adapter").as_posix()}")'
    assert f"ryarn export {run.as_posix()} --to" in readme
    loaded, _ = ryarn.load(run / "adapter", dtype="float32")
    assert torch.allclose(logits(loaded), logits(model), atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "--to is missing"),
        (["--to", "x"], "name the run folder"),
        (["run", "--to", "x", "--unmerged", "--gguf", "f16"], "exclude each other"),
        (["run", "--to", "x", "--gguf-from", "a.gguf"], "takes --factor and --to"),
        (["--to", "x", "--gguf-from", "a.gguf"], "takes --factor and --to"),
        (["--to", "x.gguf", "--gguf-from", "a.gguf", "--factor", "4"], "no such file"),
        (["run", "--to", "x", "--gguf", "q4"], "known types are f32, f16 and q8_0"),
        (["run", "--to", "x"], "no ryarn.json"),
    ],
)
def test_bad_arguments_are_one_sentence(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "export", *arguments) == 2
    assert said in capsys.readouterr().err
