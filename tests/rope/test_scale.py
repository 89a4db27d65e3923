"""YaRN switched on in config and live buffers, and off again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ryarn import extend, make_method, tiny
from ryarn.errors import UserError
from ryarn.rope import inspect_rope, switch_yarn

TOKENS = torch.arange(1, 25)[None]


def state_of(model: Any) -> dict[str, Any]:
    rotary = model.model.rotary_emb
    return {
        "config": model.config.to_dict(),
        "buffers": {k: v.clone() for k, v in rotary.named_buffers()},
        "attributes": {
            k: copy.deepcopy(v)
            for k, v in vars(rotary).items()
            if not k.startswith("_") and k != "config"
        },
        "hooks": [dict(m._forward_pre_hooks) for m in model.modules()],
    }


@pytest.mark.parametrize("family", list(tiny.FAMILIES))
def test_remove_gives_back_the_model_bit_for_bit(family: str) -> None:
    model, _ = tiny.build(family)
    before, logits = state_of(model), model(TOKENS).logits
    extension = extend(model, make_method("randomized-yarn", factor=4, spans=[512]))
    extension.set_progress(0, 1)
    model.train()(TOKENS)
    assert not torch.equal(model.eval()(TOKENS).logits, logits)
    extension.remove()
    model.train()
    after = state_of(model)
    assert after["config"] == before["config"]
    assert after["attributes"] == before["attributes"]
    assert after["hooks"] == before["hooks"]
    assert after["buffers"].keys() == before["buffers"].keys()
    for key, value in before["buffers"].items():
        assert torch.equal(after["buffers"][key], value)
    assert torch.equal(model.train()(TOKENS).logits, logits)


@pytest.mark.parametrize("family", list(tiny.FAMILIES))
def test_live_buffers_equal_those_of_a_freshly_built_model(family: str) -> None:
    model, _ = tiny.build(family)
    extend(model, make_method("trained-yarn", factor=4))
    fresh = type(model)(model.config)
    for (name, live), (_, built) in zip(model.named_buffers(), fresh.named_buffers(), strict=True):
        assert torch.equal(live, built), name
    assert model.config.max_position_embeddings == 4 * tiny.WINDOW


def test_theta_and_every_other_key_survive() -> None:
    model, _ = tiny.build("qwen2")
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6, "mine": [1, 2]}
    model = type(model)(model.config)
    extend(model, make_method("trained-yarn", factor=4))
    assert model.config.rope_parameters == {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "mine": [1, 2],
        "factor": 4.0,
        "original_max_position_embeddings": tiny.WINDOW,
    }
    assert float(model.model.rotary_emb.inv_freq[1]) == pytest.approx(1e6 ** (-1 / 8), rel=1e-6)


def test_sliding_layers_keep_plain_rope() -> None:
    model, _ = tiny.build("olmo3")
    before = model.model.rotary_emb.sliding_attention_inv_freq.clone()
    extend(model, make_method("trained-yarn", factor=4))
    rotary = model.model.rotary_emb
    assert torch.equal(rotary.sliding_attention_inv_freq, before)
    assert rotary.sliding_attention_attention_scaling == 1.0
    assert rotary.full_attention_attention_scaling == pytest.approx(1.138629, abs=1e-6)
    assert model.config.rope_parameters["sliding_attention"]["rope_type"] == "default"


def pretrained_with_yarn(factor: float, **extra: Any) -> Any:
    model, _ = tiny.build("olmo3")
    config = model.config
    config.rope_parameters["full_attention"] |= {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": 512,
        **extra,
    }
    return type(model)(config)


def test_a_native_factor_is_replaced_never_stacked() -> None:
    model = pretrained_with_yarn(8.0, attention_factor=1.2079441541679836, beta_fast=24)
    assert inspect_rope(model).native_factor == 8.0
    extend(model, make_method("randomized-yarn", factor=16, spans=[512])).verify()
    parameters = model.config.rope_parameters["full_attention"]
    assert parameters["factor"] == 16.0
    assert parameters["original_max_position_embeddings"] == 512
    assert parameters["beta_fast"] == 24
    assert model.config.max_position_embeddings == 16 * 512
    scaling = model.model.rotary_emb.full_attention_attention_scaling
    assert scaling == pytest.approx(1.277259, abs=1e-6)


def test_an_attention_factor_of_its_own_is_refused() -> None:
    model = pretrained_with_yarn(8.0, attention_factor=1.5)
    with pytest.raises(UserError, match=r"attention_factor = 1.5, not the default 1.20794"):
        extend(model, make_method("trained-yarn", factor=16))


@pytest.mark.parametrize("name", ["lora", "rpe"])
def test_plain_rope_methods_do_not_apply_to_a_model_pretrained_with_yarn(name: str) -> None:
    with pytest.raises(UserError, match=r"pretrained with YaRN \(factor 8\)"):
        extend(pretrained_with_yarn(8.0), make_method(name, spans=[512]))


def test_a_model_without_rope_is_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=50))
    with pytest.raises(UserError, match="GPT2LMHeadModel has no RoPE"):
        extend(gpt2, make_method("trained-yarn"))
    with pytest.raises(UserError, match="no decoder found"):
        extend(nn.Linear(2, 2), make_method("trained-yarn"))


def test_frequencies_stay_float32_in_a_bfloat16_model() -> None:
    model, _ = tiny.build("llama")
    model = model.to(torch.bfloat16)  # rounds the buffer, too
    switch_yarn(inspect_rope(model), 4.0)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
