"""The RoPE that an export says: s', the two config dialects, and what engines can't be told."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from export_runs import SHAPES, WINDOW, make_base, make_run
from ryarn.contract import Contract
from ryarn.errors import UserError
from ryarn.export import export, report_lines
from ryarn.export.served import (
    Served,
    check_factor,
    choose_factor,
    dialects,
    engine_notes,
    read_served,
    serve_line,
    vllm_refusal,
)
from ryarn.loading import set_inference_rope
from ryarn.models import load_model
from ryarn.recipe import ModelConfig
from ryarn.rope import RopeMap, inspect_rope
from ryarn.yarn import Yarn

SERVED = Served(256, 4.0, 1024, 5000.0, 16, 32, 1, True, 0.1 * math.log(4) + 1, False, "yarn")


@pytest.fixture(scope="module")
def contract(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase
) -> Contract:
    folder = tmp_path_factory.mktemp("contract")
    base = make_base(folder / "base", SHAPES["llama"], tokenizer)
    return Contract.load(make_run(folder / "run", base, factor=2, eval_factor=4) / "adapter")


def test_the_factor_is_the_runs_unless_a_larger_one_is_asked_for(contract: Contract) -> None:
    assert choose_factor(contract, None) == 4
    assert choose_factor(contract, 8) == 8
    assert choose_factor(contract, 2) == 2


def test_a_factor_below_training_is_refused(contract: Contract) -> None:
    with pytest.raises(UserError, match=r"--factor 1.5 is below the factor of training, 2"):
        choose_factor(contract, 1.5)


def test_a_method_without_yarn_is_served_without_it(contract: Contract) -> None:
    plain = replace(contract, method="lora", train_factor=None, eval_factor=None)
    assert choose_factor(plain, None) is None
    with pytest.raises(UserError, match="'lora' runs without YaRN"):
        choose_factor(plain, 4)


def test_a_method_trained_without_yarn_may_be_served_with_any_factor(contract: Contract) -> None:
    assert choose_factor(replace(contract, method="rpe", train_factor=None), 1.25) == 1.25


def test_a_broken_window_is_refused_and_a_whole_one_named() -> None:
    with pytest.raises(UserError, match="engines round differently") as caught:
        check_factor(4000.2, 256)
    named = float(str(caught.value).split("give ")[1].split(",")[0])
    check_factor(named, 256)
    assert 4000.2 < named < 4000.3


@pytest.mark.parametrize("factor", [0.5, math.inf, math.nan])
def test_a_factor_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(UserError, match="at least 1"):
        check_factor(factor, 256)


def live(folder: Path, name: str, tokenizer: PreTrainedTokenizerBase) -> RopeMap:
    model, _ = load_model(
        ModelConfig(name=str(make_base(folder / name, SHAPES[name], tokenizer)), dtype="float32")
    )
    set_inference_rope(model, 4.0)
    return inspect_rope(model)


def read_old(config: dict[str, Any], rotary_size: int) -> Yarn:
    """What a reader of transformers 4's keys makes of a config, and vLLM before 0.12 with it."""
    scaling = config["rope_scaling"]
    assert scaling["rope_type"] == "yarn"
    assert "attention_factor" not in scaling
    return Yarn(
        theta=config["rope_theta"],
        rotary_size=rotary_size,
        original_length=scaling["original_max_position_embeddings"],
        factor=scaling["factor"],
    )


@pytest.mark.parametrize("name", ["llama", "olmo3"])
def test_both_dialects_say_the_live_rope(
    name: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    rope_map = live(tmp_path, name, tokenizer)
    served = read_served(rope_map)
    keys = dialects(rope_map, served)
    new = keys["rope_parameters"]
    full = new.get("full_attention", new)
    rope = rope_map.extended[0]
    old = read_old(keys, served.rotary_size)
    assert np.allclose(old.inv_freq(), rope.inv_freq, rtol=1e-6, atol=0)
    assert old.attention_scaling == pytest.approx(rope.attention_factor)
    assert {**keys["rope_scaling"], "rope_theta": keys["rope_theta"]} == full
    if name == "olmo3":
        assert new["sliding_attention"] == {"rope_type": "default", "rope_theta": 500000.0}
    # vLLM takes the window as it stands, or, in older releases, original times factor.
    assert keys["max_position_embeddings"] == served.window == 4 * WINDOW
    assert full["original_max_position_embeddings"] * full["factor"] == served.window


def test_an_attention_factor_is_said_only_where_it_is_not_the_default(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    rope_map = live(tmp_path, "llama", tokenizer)
    served = read_served(rope_map)
    for value, said in ((served.attention_factor, False), (1.5, True)):
        rope_map.config.rope_parameters["attention_factor"] = value
        keys = dialects(rope_map, replace(served, attention_factor=value))
        assert ("attention_factor" in keys["rope_scaling"]) is said
        assert ("attention_factor" in keys["rope_parameters"]) is said


def test_engines_that_would_serve_something_else_are_named() -> None:
    assert engine_notes("llama", SERVED) == []
    assert engine_notes("olmo3", replace(SERVED, factor=None, by_layer_type=True)) == []
    [note] = engine_notes("olmo3", replace(SERVED, by_layer_type=True))
    assert "transformers 5.0 to 5.12" in note
    [note] = engine_notes("gemma3", replace(SERVED, by_layer_type=True))
    assert "one theta alone" in note
    [note] = engine_notes("llama", replace(SERVED, attention_factor=1.5))
    assert "1.5" in note
    assert "vLLM before 0.30" in note
    [note] = engine_notes("gpt_oss", replace(SERVED, truncate=False))
    assert "vLLM before 0.12" in note


LOUD = replace(SERVED, attention_factor=1.5)
LAYERED = replace(SERVED, by_layer_type=True)


@pytest.mark.parametrize(
    ("vllm", "transformers", "model_type", "served", "sentence"),
    [
        ("0.29.0", "5.24.0", "llama", LOUD, "ignores the attention factor 1.5 and takes 1.13863"),
        ("0.30.0", "5.24.0", "llama", LOUD, None),
        ("0.29.0", "5.24.0", "llama", SERVED, None),
        ("0.11.0", "4.57.0", "llama", replace(SERVED, truncate=False), "use 0.12 or later"),
        ("0.12.0", "4.57.0", "llama", replace(SERVED, truncate=False), None),
        ("0.32.0", "5.12.0", "olmo3", LAYERED, "puts YaRN on all layers of Olmo 3"),
        ("0.32.0", "5.13.0", "olmo3", LAYERED, None),
        ("0.32.0", "4.57.6", "olmo3", LAYERED, None),
        ("0.28.0", "5.12.0", "olmo3", LAYERED, None),
        ("0.32.0", "5.12.0", "gemma3", LAYERED, None),
        ("0.29.0", "5.24.0", "llama", replace(LOUD, factor=None), None),
        ("0.32.0+cpu", "5.24.0", "llama", LOUD, None),
    ],
)
def test_a_release_of_vllm_with_another_rope_is_refused(
    vllm: str, transformers: str, model_type: str, served: Served, sentence: str | None
) -> None:
    found = vllm_refusal(vllm, transformers, model_type, served)
    assert (found is None) if sentence is None else (found and sentence in found)


def test_the_serve_line_needs_no_flag_for_the_rope(tmp_path: Path) -> None:
    there = Path("my exports/a")
    assert serve_line(there, "merged", "bfloat16", 16384, 16) == (
        "vllm serve 'my exports/a' --max-model-len 16384"
    )
    assert serve_line(Path("out"), "unmerged", "float32", 512, 12) == (
        "vllm serve out/base --max-model-len 512 --dtype float32 --enable-lora --max-lora-rank 16 "
        "--lora-modules out=out/adapter"
    )


def test_an_export_says_how_it_is_served_or_why_not(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_base(tmp_path / "base", SHAPES["llama"], tokenizer)
    run = make_run(tmp_path / "run", base)
    monkeypatch.setattr("ryarn.export.stage.check", lambda *_: [])
    line = f"serve it: vllm serve {tmp_path / 'out'} --max-model-len 1024 --dtype float32"
    assert report_lines(export(run, tmp_path / "out"))[-1] == line
    monkeypatch.setattr("ryarn.export.stage.vllm_here", lambda: "0.32.0")
    assert report_lines(export(run, tmp_path / "out"))[-1] == f"{line} (vLLM 0.32.0)"
    monkeypatch.setattr("ryarn.export.stage.vllm_refusal", lambda *_: "it rounds")
    refused = report_lines(export(run, tmp_path / "out"))[-1]
    assert refused == "not for the vLLM installed here: it rounds"
    gguf = report_lines(export(run, tmp_path / "gguf", form="f32"))
    assert "written: YaRN" in gguf[-1]


def test_the_multiplier_is_one_for_the_default() -> None:
    assert SERVED.attention_multiplier == pytest.approx(1)
    assert replace(SERVED, factor=1.0, attention_factor=1.2).attention_multiplier == 1.2
    assert not replace(SERVED, attention_factor=1.0).plain_attention
