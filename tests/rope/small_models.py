"""A small random model of every causal-LM family that the installed transformers has.

Families come from transformers' own mapping, and sizes are shrunk by the names that configs share,
so a family that a new release brings is in the tests by itself. `EXCEPTIONS` holds what a family's
own rules need beyond that.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
WINDOW = 512

_SIZES: dict[str, int] = {
    "vocab_size": 96,
    "vocab_size_per_layer_input": 96,
    "max_position_embeddings": WINDOW,
    "original_max_position_embeddings": WINDOW,
    "hidden_size": 64,
    "hidden_size_per_layer_input": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 8,
    "attention_window_size": 8,
    "attention_chunk_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # decoders of other naming
    "d_model": 64,
    "n_embd": 64,
    "n_head": 4,
    "n_heads": 4,
    "ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_ffn_dim": 32,
    "ffn_hidden_size": 32,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    # latent attention
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 16,
    # experts
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "moe_num_experts": 4,
    "zero_expert_num": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "expert_ffn_hidden_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    # recurrent layers
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_d_ssm": 128,
    "mamba_n_groups": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
}
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")

_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_INDEXER = {
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
}
_RECURRENT_AND_FULL = ["linear_attention", "full_attention"] * 2
EXCEPTIONS: dict[str, dict[str, Any]] = {
    # The default config has no full attention at all, or no layer types.
    "bamba": {"attn_layer_indices": [1, 3]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4},
    # Windowed by default (Mistral 7B v0.1); every later release is not.
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    # RoPE is off in the default config; the released models with it say so.
    "granitemoehybrid": {
        "position_embedding_type": "rope",
        "layer_types": _RECURRENT_AND_FULL,
        "num_hidden_layers": 4,
    },
    "zamba2": {"use_mem_rope": True},
    # The default config leaves out what the class needs.
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": {f"text_config.{key}": value for key, value in _INDEXER.items()},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}
    },
    # Rules that the shrunk sizes break.
    "zaya": {"num_experts_per_tok": 1},
    "dots3_note_text": {"num_key_value_heads": 4},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "mimo_v2_flash": {"head_dim": 24},
    "mamba2": {"num_heads": 8, "head_dim": 16, "hidden_size": 64},
    "reformer": {"is_decoder": True, "hidden_size": 256},
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "kv_n_heads": 2, "clip_qkv": 8}},
}
"""Family to config keys; a key of a nested config is written "text_config.key"."""


def small_config(family: str, **extra: Any) -> Any:
    """The default config of a family, shrunk; every kind of layer that it has is kept.

    Args:
        family: transformers' model type.
        extra: Keys that replace what would be there.
    """
    kind = CONFIG_MAPPING[family]
    own = {**EXCEPTIONS.get(family, {}), **extra}
    top = {key: value for key, value in own.items() if "." not in key}
    try:
        default = kind()
    except ValueError:  # the family's own rules refuse its defaults
        default = kind(**top)
    arguments = _shrunk(default)
    for name in getattr(kind, "sub_configs", {}):
        sub = getattr(default, name, None)
        if sub is not None and not isinstance(sub, dict):
            inner = {
                key.partition(".")[2]: value
                for key, value in own.items()
                if key.startswith(f"{name}.")
            }
            arguments[name] = {**_shrunk(sub), **inner}
    return kind(**{**arguments, **top})


def _shrunk(config: Any) -> dict[str, Any]:
    """What differs from a config's defaults: sizes, and a few layers for the many."""
    values = config.to_dict()
    small = {key: _SIZES[key] for key, value in values.items() if _is_size(key, value)}
    small |= {
        key: 32
        for key, value in values.items()
        if key.endswith("intermediate_size") and isinstance(value, int) and value
    }
    if "qk_rope_head_dim" in small:  # every head has keys of its own, expanded from the latent
        small["num_key_value_heads"] = small["num_attention_heads"]
        if "head_dim" in values:
            small["head_dim"] = small["qk_rope_head_dim"]
    for name in _LAYERS:
        if isinstance(values.get(name), int):
            small |= _fewer_layers(values, name)
            break
    if values.get("rope_parameters"):
        small["rope_parameters"] = values["rope_parameters"]
    return small


def _is_size(key: str, value: Any) -> bool:
    if value is None:
        return key in ("head_dim", "num_key_value_heads")
    return key in _SIZES and isinstance(value, int) and not isinstance(value, bool)


def _fewer_layers(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The number of layers, and each list with an entry a layer: one layer of every kind."""
    layers = values[name]
    lists = {k: v for k, v in values.items() if isinstance(v, list) and len(v) == layers > 2}
    kinds: dict[str, int] = {}
    for index in range(layers):
        kinds.setdefault(repr([entries[index] for entries in lists.values()]), index)
    chosen = sorted(kinds.values())[:6]
    chosen += [index for index in range(layers) if index not in chosen][: max(0, 4 - len(chosen))]
    chosen.sort()
    picked = {key: [entries[index] for index in chosen] for key, entries in lists.items()}
    return {name: len(chosen), **picked}


def build(config: Any, *, device: str = "cpu", kind: Any = None) -> Any:
    """A random model of a config; the same weights every time, none on the meta device.

    Args:
        config: The config.
        device: cpu or meta.
        kind: Model class, where the config alone does not say it.
    """
    make = AutoModelForCausalLM.from_config if kind is None else kind._from_config
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(0)
        model = make(config, attn_implementation="eager", dtype=torch.float32)
        if device == "cpu":
            _spread(model)
    return model.eval()


def _spread(model: Any) -> None:
    """Weights large enough that attention, and so a position, matters in a model so small."""
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim > 1 and float(value.std()) < 1.0:
                value.normal_(std=1 / math.sqrt(value.shape[-1]))
            elif not value.any():
                value.normal_(std=0.1)  # a gate that starts closed hides what is behind it
