"""The sizes of the paper's models, so that a recipe can be looked at without the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-7B-Instruct": {
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
    },
    "allenai/Olmo-3-7B-Instruct": {
        "model_type": "olmo3",
        "vocab_size": 100278,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 65536,
        "sliding_window": 4096,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-14B": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
    },
}
"""Hub id to the values of its published configuration that sizes and RoPE depend on."""


def known_skeleton(name: str) -> Any:
    """A model of the paper without weights, on the meta device; None for any other name."""
    if name not in ARCHITECTURES:
        return None
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = dict(ARCHITECTURES[name])
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)
