"""Every causal-LM family of transformers: supported, refused with the reason, or without RoPE."""

from __future__ import annotations

import re
from typing import Any

import matrix
import pytest
import torch
from small_models import EXCEPTIONS, FAMILIES, build, small_config

from ryarn import extend
from ryarn.errors import SelfTestError, UserError

LISTED = dict(re.findall(r"^(\| `([\w-]+)` \| .* \|)$", matrix.PAGE.read_text("utf-8"), re.M))
ROWS = {family: row for row, family in LISTED.items()}

NAMED = [
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "olmo2", "olmo3"),
    *("gemma2", "gemma3_text", "phi3", "phi", "gpt_neox", "stablelm", "glm4", "granite", "cohere"),
    *(
        "cohere2",
        "smollm3",
        "gpt_oss",
        "deepseek_v3",
        "qwen3_next",
        "qwen3_5_text",
        "jamba",
        "mimo_v2_flash",
    ),
    *("ministral3", "gemma4_text", "phimoe", "modernbert-decoder", "lfm2"),
]
"""Each kind of RoPE once or more, in the default tier; the sweep over all is `slow`."""


@pytest.fixture(autouse=True)
def _quiet_transformers() -> Any:
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def listed(family: str) -> str:
    """The family's line in docs/models.md; those without RoPE share a paragraph."""
    return ROWS.get(family) or matrix.Result(family, "no RoPE").row()


@pytest.mark.parametrize("family", NAMED)
def test_a_family_does_what_the_page_says(family: str) -> None:
    assert matrix.examine(family).row() == listed(family), "run python tests/rope/matrix.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_page_of_models_is_not_stale() -> None:
    results = [matrix.examine(family) for family in FAMILIES]
    assert matrix.page(results) == matrix.PAGE.read_text("utf-8"), "run python tests/rope/matrix.py"


def test_every_family_of_transformers_is_on_the_page() -> None:
    text = matrix.PAGE.read_text("utf-8")
    assert [family for family in FAMILIES if f"`{family}`" not in text] == []
    assert set(ROWS) | set(matrix.NOT_BUILT) | set(EXCEPTIONS) <= set(FAMILIES)


def variant(family: str, **extra: Any) -> str:
    return matrix.examine(family, **extra).row().split("|", 3)[2].strip()


def test_released_configs_that_differ_from_their_familys_default() -> None:
    llama3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    llama3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    assert variant("llama", rope_parameters=llama3) == "supported"
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0}
    yarn |= {"mscale_all_dim": 1.0, "original_max_position_embeddings": 64, "beta_fast": 32}
    assert variant("deepseek_v3", rope_parameters=yarn) == "supported"
    assert variant("mistral", sliding_window=8) == "refused"
    assert (
        variant("exaone4", sliding_window=None, layer_types=["full_attention"] * 4) == "supported"
    )
    assert (
        variant(
            "qwen2",
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=2,
            layer_types=["full_attention"] * 2 + ["sliding_attention"] * 2,
        )
        == "supported"
    )


def test_windowed_layers_of_a_shared_rotary_module_stay_at_ordinary_positions() -> None:
    """Gradient checkpointing runs a layer again after the next batch was drawn."""
    gradients = []
    for checkpointing in (None, True, False):
        model = build(small_config("gemma2"))
        extension = extend(model, matrix.METHOD)
        extension.set_progress(0, 1)
        if checkpointing is not None:
            model.enable_input_require_grads()
            model.activation_checkpointing_enable({"use_reentrant": checkpointing})
        model.train()
        first = model(input_ids=torch.arange(5, 17)[None], use_cache=False).logits
        second = model(input_ids=torch.arange(9, 21)[None], use_cache=False).logits
        (first.square().mean() + second.square().mean()).backward()
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(gradients[2], gradients[0], atol=1e-6, rtol=1e-5)


def test_drawn_positions_that_reach_a_windowed_layer() -> None:
    model = build(small_config("gemma2"))
    extension = extend(model, matrix.METHOD)
    local = extension.rope_map.local[0]
    local._forward_pre_hooks.clear()
    with pytest.raises(SelfTestError, match="drawn positions reach a layer that must not have"):
        extension.verify()


def test_packed_rows_are_refused_where_the_model_mixes_documents() -> None:
    model = build(small_config("minimax"))
    extension = extend(model, matrix.METHOD)
    extension.set_progress(0, 1)
    tokens, packed = torch.arange(5, 17)[None], torch.arange(12)[None] % 6
    model.train()(input_ids=tokens, use_cache=False)
    for _ in range(2):
        with pytest.raises(UserError, match="rows are packed, but this model can't keep"):
            model(input_ids=tokens, position_ids=packed, use_cache=False)
        extension.verify()


def test_a_softmax_scale_that_yarn_changes_is_changed_and_given_back() -> None:
    """DeepSeek reads mscale_all_dim and the factor when its attention is built, never again."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0}
    yarn |= {"mscale_all_dim": 1.0, "original_max_position_embeddings": 64}
    model = build(small_config("deepseek_v3", rope_parameters=yarn))
    attention, size = model.model.layers[0].self_attn, 16
    before = attention.scaling
    assert before == pytest.approx(size**-0.5 * (0.1 * 3.6888794541 + 1) ** 2)
    extension = extend(model, matrix.METHOD)
    assert attention.scaling == pytest.approx(size**-0.5 * (0.1 * 1.3862943611 + 1) ** 2)
    assert "from mscale 1 over 1, kept" in extension.description
    extension.remove()
    assert attention.scaling == before
