"""Models that come scaled: nothing stacked, nothing replaced without the word, all of it said."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from small_models import build, small_config
from transformers import AutoConfig, LlamaConfig

from ryarn import extend, make_method
from ryarn.errors import SelfTestError, UserError
from ryarn.rope import check_frequencies, describe_rope, inspect_rope, plan_yarn, switch_yarn
from ryarn.yarn import Yarn

THETA, ORIGINAL, SIZE = 500_000.0, 128, 16
SCALED: dict[str, dict[str, Any]] = {
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "linear": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "dynamic": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "longrope": {
        "factor": 4.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
        "original_max_position_embeddings": ORIGINAL,
    },
}


def scaled(rope_type: str, **extra: Any) -> Any:
    own = {"rope_type": rope_type, "rope_theta": THETA, **SCALED.get(rope_type, {}), **extra}
    return build(small_config("llama", rope_parameters=own))


@pytest.mark.parametrize("rope_type", list(SCALED))
def test_another_scaling_is_replaced_only_with_the_word(rope_type: str) -> None:
    model = scaled(rope_type)
    before = model.config.to_dict()
    with pytest.raises(
        UserError, match=rf"scaled by '{rope_type}'; set method.replace_scaling=true"
    ):
        extend(model, make_method("trained-yarn", factor=4))
    with pytest.raises(UserError, match=r"method\.replace_scaling=true"):
        extend(model, make_method("rpe", factor=4, spans=[512]))  # trains without YaRN, runs with
    assert model.config.to_dict() == before
    extension = extend(model, make_method("trained-yarn", factor=4, replace_scaling=True))
    extension.verify()
    yarn = Yarn(THETA, SIZE, ORIGINAL, 4.0)
    live = model.model.rotary_emb.inv_freq.double().numpy()
    np.testing.assert_allclose(live, yarn.inv_freq(), rtol=5e-6)
    assert model.model.rotary_emb.attention_scaling == pytest.approx(yarn.attention_scaling)
    assert model.config.max_position_embeddings == 4 * ORIGINAL
    assert model.config.rope_parameters == {
        "rope_type": "yarn",
        "rope_theta": THETA,
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    }
    assert f"{rope_type} scaling of {ORIGINAL} by" in extension.description
    assert f"-> YaRN of {ORIGINAL} by 4, reaching {4 * ORIGINAL}" in extension.description
    extension.remove()
    assert model.config.to_dict() == before


@pytest.mark.parametrize("rope_type", list(SCALED))
def test_a_method_without_yarn_leaves_any_scaling_as_it_is_and_checks_it(rope_type: str) -> None:
    model = scaled(rope_type)
    before = model.model.rotary_emb.inv_freq.clone()
    extension = extend(model, make_method("lora"))
    extension.verify()
    assert torch.equal(model.model.rotary_emb.original_inv_freq, before)
    assert extension.description.startswith(f"rotary_emb: {rope_type} scaling of {ORIGINAL} by")
    for name in ("inv_freq", "original_inv_freq"):
        setattr(model.model.rotary_emb, name, before * 1.0001)
    with pytest.raises(SelfTestError, match=r"off the formula by up to 1\.0e-04"):
        check_frequencies(extension.rope_map, None)


def test_a_linear_factor_whose_window_is_not_written_is_not_guessed() -> None:
    model = scaled("linear", original_max_position_embeddings=None)
    assert inspect_rope(model).original_length == 512
    with pytest.raises(UserError, match=r"may or may not count the factor 4\.0"):
        extend(model, make_method("trained-yarn", replace_scaling=True))


def test_frequencies_that_the_config_does_not_account_for_are_not_replaced() -> None:
    """HunYuan's `alpha` raises the base; YaRN from the written theta would drop that."""
    own = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 1000.0}
    model = build(small_config("hunyuan_v1_dense", rope_parameters=own))
    before = model.config.to_dict()
    with pytest.raises(UserError, match="live frequencies are not those of its config"):
        extend(model, make_method("trained-yarn", replace_scaling=True))
    assert model.config.to_dict() == before


def yarn_model(family: str = "llama", **extra: Any) -> Any:
    own = {"rope_type": "yarn", "rope_theta": THETA, "factor": 8.0, **extra}
    own.setdefault("original_max_position_embeddings", ORIGINAL)
    return build(small_config(family, rope_parameters=own))


def test_betas_and_truncation_are_kept_and_said() -> None:
    model = yarn_model(beta_fast=16.0, beta_slow=2.0, truncate=False)
    extension = extend(model, make_method("trained-yarn", factor=4))
    extension.verify()
    wanted = Yarn(THETA, SIZE, ORIGINAL, 4.0, beta_fast=16, beta_slow=2, truncate=False)
    live = model.model.rotary_emb.inv_freq.double().numpy()
    np.testing.assert_allclose(live, wanted.inv_freq(), rtol=5e-6)
    text = extension.description
    assert "betas 16 and 2 (the model's own)" in text
    assert "not rounded to whole dimensions (the model's own)" in text


@pytest.mark.parametrize(("factor", "kept"), [(8.0, True), (16.0, False)])
def test_an_attention_factor_of_the_configs_own(factor: float, kept: bool) -> None:
    model = yarn_model(attention_factor=1.5)
    if not kept:
        with pytest.raises(UserError, match=r"fixes attention_factor = 1\.5"):
            extend(model, make_method("trained-yarn", factor=factor))
        return
    extension = extend(model, make_method("trained-yarn", factor=factor))
    extension.verify()
    assert model.model.rotary_emb.attention_scaling == 1.5
    assert "attention factor 1.5 (kept)" in extension.description


def test_a_written_default_of_the_old_factor_is_computed_anew_with_mscale() -> None:
    written = (0.1 * math.log(8) + 1) / (0.1 * 0.5 * math.log(8) + 1)
    model = yarn_model(mscale=1.0, mscale_all_dim=0.5, attention_factor=written)
    extend(model, make_method("trained-yarn", factor=16)).verify()
    wanted = (0.1 * math.log(16) + 1) / (0.1 * 0.5 * math.log(16) + 1)
    assert model.model.rotary_emb.attention_scaling == pytest.approx(wanted)
    assert "attention_factor" not in model.config.rope_parameters


def test_a_factor_that_only_the_two_windows_imply() -> None:
    model = yarn_model(factor=None)
    rope_map = inspect_rope(model)
    assert rope_map.native_factor == 512 / ORIGINAL
    check_frequencies(rope_map, None)


def test_both_dialects_are_read_alike() -> None:
    """transformers 4: rope_theta at the top, rope_scaling with a `type`."""
    size = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    size |= {"intermediate_size": 32, "vocab_size": 96, "max_position_embeddings": 512}
    scaling = {key: value for key, value in SCALED["llama3"].items()}
    old = LlamaConfig.from_dict(
        {**size, "rope_theta": THETA, "rope_scaling": {"type": "llama3", **scaling}}
    )
    new = LlamaConfig(
        **size, rope_parameters={"rope_type": "llama3", "rope_theta": THETA, **scaling}
    )
    plans = [
        plan_yarn(inspect_rope(build(c, device="meta")), 4.0, replace=True) for c in (old, new)
    ]
    assert plans[0].description == plans[1].description
    for plan in plans:
        assert plan.parameters["rope_theta"] == THETA
        assert plan.parameters["rope_type"] == "yarn"
        assert plan.window == 4 * ORIGINAL


def test_nested_parameters_are_read_and_written_by_layer_type(tmp_path: Any) -> None:
    model = build(small_config("gemma3_text"))
    extend(model, make_method("trained-yarn", factor=4))
    model.config.save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert read["sliding_attention"] == {"rope_type": "default", "rope_theta": 10_000.0}
    assert read["full_attention"]["rope_type"] == "yarn"
    assert read["full_attention"]["rope_theta"] == 1e6
    assert read["full_attention"]["factor"] == 4.0


def test_a_plan_needs_no_weights_and_changes_nothing() -> None:
    model = build(small_config("gpt_oss"), device="meta")
    untouched = model.config.to_dict()
    plan = plan_yarn(inspect_rope(model), 64.0)
    assert model.config.to_dict() == untouched
    before, _, after = plan.description.partition(" -> ")
    assert before == "rotary_emb: yarn scaling of 4096 by 32, theta 150000"
    assert after.startswith("YaRN of 4096 by 64, reaching 262144; attention factor 1.41589")
    assert "ramp not rounded" in plan.description
    assert "2 windowed layers share this RoPE" in plan.description
    assert describe_rope(inspect_rope(model)).endswith("yarn scaling of 4096 by 32, theta 150000")


def test_a_failed_switch_leaves_the_config_as_it_was() -> None:
    own = {"rope_type": "default", "rope_theta": 1e4, "short_mscale": 1.0, "long_mscale": 1.0}
    model = build(small_config("phimoe", rope_parameters=own))
    before = model.config.to_dict()
    with pytest.raises(UserError, match="does not become YaRN when its config says so"):
        switch_yarn(inspect_rope(model), 4.0)
    assert model.config.to_dict() == before


def test_a_config_class_that_refuses_yarn_is_refused() -> None:
    """Phi-3 loads with LongRoPE alone: a YaRN config of it could be saved, never loaded."""
    model = build(small_config("phi3"))
    with pytest.raises(UserError, match="Phi3Config does not accept YaRN"):
        extend(model, make_method("trained-yarn"))
    extend(model, make_method("lora")).verify()
