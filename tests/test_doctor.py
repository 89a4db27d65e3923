"""The doctor passes what is whole, and fails on each thing that is silently off."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.models.llama import modeling_llama

from export_runs import Shape, make_base, make_run
from ryarn import extend, make_method, tiny
from ryarn.doctor.diagnosis import Diagnosis, lines, ranges, table
from ryarn.doctor.stage import doctor, examine
from tiny_run import command


def build(family: str = "llama") -> Any:
    return tiny.build(family)[0]


def failure(model: Any) -> str:
    """The first failure's sentence; there must be one, with a remedy."""
    found = examine(model)
    assert not found.passed
    assert found.failures[0].remedy
    assert lines(found)[-1].startswith(f"fail ({len(found.failures)}). Remedy: ")
    return found.failures[0].text


@pytest.mark.parametrize("family", [*tiny.FAMILIES, *tiny.STAND_INS])
def test_whole_models_pass(family: str) -> None:
    model, tokenizer = tiny.build(family)
    state = {key: value.clone() for key, value in model.named_buffers()}
    found = examine(model, tokenizer)
    assert found.passed, found.failures
    assert len(found.layers) == model.config.num_hidden_layers
    assert all(torch.equal(value, state[key]) for key, value in model.named_buffers())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_each_layer_has_the_rope_that_moves_it() -> None:
    model = build("olmo3-7b")
    sliding, full = examine(model).layers
    assert (sliding.attention, sliding.rope.rope_type, sliding.drawn) == (
        "last 512",
        "default",
        False,
    )
    assert (full.attention, full.rope.rope_type, full.drawn) == ("all", "yarn", True)
    assert (full.rope.theta, full.rope.rotary_size, full.rope.factor) == (5e5, 16, 8.0)
    assert full.rope.window == 8192
    assert full.rope.attention_factor == pytest.approx(1.2079441541679836)


def test_a_layer_without_rope_is_told_apart() -> None:
    config = AutoConfig.for_model(
        "smollm3",
        **{**tiny._SIZE, "num_hidden_layers": 4},
        no_rope_layers=[1, 1, 0, 1],
        vocab_size=261,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    found = examine(AutoModelForCausalLM.from_config(config))
    assert [layer.rope.rope_type for layer in found.layers] == [
        *("default", "default", "none", "default")
    ]
    assert [layer.drawn for layer in found.layers] == [True, True, False, True]
    assert [row for row in table(found).columns[0].cells] == ["0-1, 3", "2"]


@pytest.mark.parametrize("method", ["trained-yarn", "randomized-yarn"])
def test_a_model_under_yarn_passes_and_says_its_factor(method: str) -> None:
    model = build()
    extend(model, make_method(method, factor=4, spans=[512]))
    model.train()
    found = examine(model)
    assert found.passed, found.failures
    assert {(layer.rope.rope_type, layer.rope.factor) for layer in found.layers} == {("yarn", 4.0)}
    assert found.lengths["RoPE, original window times factor"] == 4 * 4096
    assert all(module.training for module in model.modules())


class _Other(modeling_llama.LlamaRotaryEmbedding):
    """Computes the very same: today, on six tokens."""


def test_a_patched_rotary_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_llama, "LlamaRotaryEmbedding", _Other)
    assert "its class _Other was patched: code from test_doctor" in failure(build())


def test_a_patched_forward_that_wears_the_name_of_the_old(monkeypatch: pytest.MonkeyPatch) -> None:
    old = modeling_llama.LlamaRotaryEmbedding.forward

    @functools.wraps(old)
    def forward(self: Any, x: Any, position_ids: Any) -> Any:
        return old(self, x, position_ids)

    monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", forward)
    assert "was patched: code from test_doctor" in failure(build())


def test_a_forward_patched_on_the_object() -> None:
    model = build()
    rotary = model.model.rotary_emb
    rotary.forward = rotary.forward
    assert "was patched: code from the live object" in failure(model)


def test_a_hook_that_moves_positions() -> None:
    model = build()
    model.model.rotary_emb.register_forward_pre_hook(lambda module, args: None, prepend=True)
    assert examine(model).passed
    model.model.rotary_emb.register_forward_hook(lambda m, args, out: (out[0].flip(1), out[1]))
    assert "its phases are not those of positions" in failure(model)


def test_a_rotary_that_raises() -> None:
    model = build()
    model.model.rotary_emb.register_forward_hook(lambda m, args, out: 1 / 0)
    assert "does not run six tokens (ZeroDivisionError: " in failure(model)


@pytest.mark.parametrize(
    ("change", "looks"),
    [
        (lambda f: f / 4, "live is linear by 4, theta 10000"),
        (lambda f: 500.0 ** -(torch.arange(8) / 8), "live is default by 1, theta 500"),
        (lambda f: f + 0.01, "no formula gives what is live"),
        (lambda f: f.bfloat16(), "no formula gives what is live"),
    ],
)
def test_corrupted_buffers(change: Any, looks: str) -> None:
    model = build()
    rotary = model.model.rotary_emb
    rotary.inv_freq = change(rotary.inv_freq)
    text = failure(model)
    assert "its live inv_freq" in text
    assert text.endswith(looks)


def test_a_corrupted_buffer_of_windowed_layers_alone() -> None:
    model = build("olmo3")
    model.model.rotary_emb.sliding_attention_inv_freq *= 2
    assert "(sliding_attention): its live inv_freq" in failure(model)


def test_a_lost_attention_factor() -> None:
    model = build("olmo3-7b")
    model.model.rotary_emb.full_attention_attention_scaling = 1.0
    assert "its live attention factor is 1.000000" in failure(model)


def test_buffers_left_on_the_meta_device() -> None:
    model = build()
    model.model.rotary_emb.to("meta")
    assert "on the meta device, without values" in failure(model)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("rope_parameters", YARN, "the config says yarn by 4, live is default by 1, theta 10000"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 5e5}, "live is default by 1"),
        ("rope_parameters", {"rope_type": "default"}, "can't be read (KeyError: 'rope_theta')"),
        ("rope_parameters", None, "the config's RoPE can't be read"),
        ("max_position_embeddings", 16384, "is 4096, but the config now gives 16384"),
        ("head_dim", 32, "the config was edited after loading"),
    ],
)
def test_a_config_edited_after_loading(key: str, value: Any, says: str) -> None:
    model = build()
    setattr(model.config, key, value)
    assert says in failure(model)


def test_a_window_edited_after_loading() -> None:
    model = build("olmo3")
    model.config.sliding_window = 32
    assert "its sliding_window is 64, but the config now gives 32" in failure(model)


def test_a_config_put_in_the_place_of_another() -> None:
    model = build()
    model.config = copy.deepcopy(model.config)
    assert examine(model).passed
    model.config.rope_parameters["rope_theta"] = 5e5
    assert "the rotary modules were built from" in failure(model)


def test_yarn_in_the_buffers_alone() -> None:
    model = build()
    before = copy.deepcopy(model.config.rope_parameters)
    extend(model, make_method("trained-yarn", factor=4))
    model.config.rope_parameters = before
    model.config.max_position_embeddings = 4096
    assert "the config says default, live is yarn by 4" in failure(model)


def test_a_model_without_rope_fails_with_the_reason() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64))
    assert "has no RoPE" in failure(model)


def test_claims_of_length() -> None:
    model, tokenizer = tiny.build("olmo3-7b")
    tokenizer.model_max_length, model.generation_config.max_length = 1000, 2000
    model.config.max_position_embeddings = model.model.rotary_emb.original_max_seq_len = 4096
    model.model.rotary_emb.max_seq_len_cached = 4096
    found = examine(model, tokenizer)
    assert found.lengths == {
        "original window": 1024,
        "config max_position_embeddings": 4096,
        "RoPE, original window times factor": 8192,
        "tokenizer model_max_length": 1000,
        "generation config max_length": 2000,
    }
    warnings = [finding.text for finding in found.findings if finding.level == "warning"]
    assert warnings == [
        "the config claims 4096 tokens, its RoPE reaches 8192: engines serve 4096",
        "tokenizer model_max_length is 1000, the config claims 4096",
        "generation config max_length is 2000, the config claims 4096",
    ]
    assert found.passed


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), Shape(), tiny.byte_tokenizer())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), base)


def text_of(found: Diagnosis) -> str:
    return "\n".join(lines(found))


@pytest.mark.parametrize("where", [".", "adapter"])
def test_an_adapter(run: Path, where: str) -> None:
    found = doctor(str(run / where))
    assert found.passed, found.failures
    assert {layer.rope.factor for layer in found.layers} == {4.0}
    told = text_of(found)
    assert (
        "trained with randomized-yarn, positions drawn (uniform-subset) from spans 512 to 1024"
        in told
    )
    assert "warning: plain PEFT would lose YaRN by 4" in told


def test_an_adapter_that_plain_peft_loads_right(tmp_path: Path, base: Path) -> None:
    told = text_of(doctor(str(make_run(tmp_path / "run", base, name="lora", factor=1, spans=None))))
    assert "plain PEFT loads it, too" in told
    (tmp_path / "scaled").mkdir()
    scaled = {"rope_parameters": {**YARN, "original_max_position_embeddings": 256}}
    shape = Shape("llama", {**scaled, "max_position_embeddings": 1024})
    where = make_base(tmp_path / "scaled", shape, tiny.byte_tokenizer())
    assert "plain PEFT keeps it" in text_of(doctor(str(make_run(tmp_path / "run2", where))))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("eval_factor", 2.0, "ryarn.json says s' = 2, below the s = 4"),
        ("layers", ["elsewhere"], "extended RoPEs: the adapter's ryarn.json says"),
    ],
)
def test_a_contract_that_was_edited(
    tmp_path: Path, base: Path, key: str, value: Any, says: str
) -> None:
    path = make_run(tmp_path, base) / "adapter" / "ryarn.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}), encoding="utf-8")
    assert says in doctor(str(tmp_path)).failures[0].text


def test_a_model_that_lost_its_contracts_yarn(run: Path, base: Path) -> None:
    from ryarn.contract import Contract
    from ryarn.models import load_model
    from ryarn.recipe import ModelConfig

    model, _ = load_model(ModelConfig(name=str(base)))
    found = examine(model, contract=Contract.load(run / "adapter"))
    assert "YaRN factor s': the adapter's ryarn.json says 4, the model has None" in (
        found.failures[0].text
    )


def test_an_export_and_one_whose_config_was_edited(tmp_path: Path, run: Path) -> None:
    from ryarn.export import export

    export(run, tmp_path / "out")
    found = doctor(str(tmp_path / "out"))
    assert found.passed, found.failures
    assert {layer.rope.factor for layer in found.layers} == {4.0}
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    for key in ("rope_scaling", "rope_parameters"):
        config[key]["factor"] = 2.0
    path.write_text(json.dumps(config), encoding="utf-8")
    assert "says factor = 4, the model has 2.0" in doctor(str(tmp_path / "out")).failures[0].text


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, base: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert command(monkeypatch, "doctor", "tiny:olmo3") == 0
    told = capsys.readouterr().out
    assert "0-2" in told
    assert told.splitlines()[-1] == "pass: what is live is what the config says"
    monkeypatch.chdir(base.parent)
    assert command(monkeypatch, "doctor", base.name) == 0
    assert command(monkeypatch, "doctor", tmp_path) == 2
    assert "holds neither a model" in capsys.readouterr().err
    assert command(monkeypatch, "doctor", "tiny:nothing") == 2
    monkeypatch.setattr(modeling_llama, "LlamaRotaryEmbedding", _Other)
    assert command(monkeypatch, "doctor", "tiny:llama") == 1
    assert "fail (1). Remedy: load it in a process" in capsys.readouterr().out


def test_ranges() -> None:
    assert ranges([0, 1, 2, 4, 6, 7]) == "0-2, 4, 6-7"
    assert ranges([]) == ""
