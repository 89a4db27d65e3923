"""The keys of a GGUF file: what the model is, and its RoPE as llama.cpp reads it."""

from __future__ import annotations

from typing import Any

import gguf

from ryarn.errors import UserError
from ryarn.export.served import Served

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
}
"""transformers' model type to llama.cpp's architecture, for those whose graph applies YaRN."""

FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


def check_type(model_type: str) -> None:
    """See that there is a GGUF architecture for a model type.

    Raises:
        UserError: There is none.
    """
    if model_type not in ARCHITECTURES:
        raise UserError(
            f"--gguf: no GGUF for model type {model_type!r}, only for {', '.join(ARCHITECTURES)}; "
            "export it merged and convert it with llama.cpp's own script"
        )


def check_model(config: Any, served: Served) -> None:
    """See that llama.cpp would compute this model and this RoPE.

    Raises:
        UserError: It would compute another; what is in the way is named.
    """
    if getattr(config, "hidden_act", "silu") != "silu":
        raise UserError(f"--gguf: hidden_act is {config.hidden_act!r}, llama.cpp runs 'silu' alone")
    for key in ("attention_bias", "mlp_bias"):
        if config.model_type == "llama" and getattr(config, key, False):
            raise UserError(
                f"--gguf: {key} is true, and such a file can't be checked: transformers drops the "
                "biases; export it merged and convert it with llama.cpp's own script"
            )
    if getattr(config, "use_sliding_window", False):
        raise UserError(
            f"--gguf: llama.cpp runs {config.model_type} without its sliding window; export it "
            "merged"
        )
    if served.rope_type not in ("default", "yarn"):
        raise UserError(
            f"--gguf: the base's {served.rope_type!r} RoPE is not written; export it merged "
            "and convert it with llama.cpp's own script"
        )
    if served.rotary_size != head_size(config):
        raise UserError(
            f"--gguf: {served.rotary_size} of {head_size(config)} dimensions of a head are "
            "rotated, and llama.cpp rotates all of them for this architecture; export it merged"
        )
    if served.factor is None:
        return
    if (served.beta_fast, served.beta_slow) != (32, 1) or not served.truncate:
        raise UserError(
            f"--gguf: beta_fast = {served.beta_fast:g}, beta_slow = {served.beta_slow:g}, truncate "
            f"= {served.truncate}: llama.cpp computes YaRN with 32, 1 and true for this "
            "architecture, whatever the file says; export it merged"
        )


def head_size(config: Any) -> int:
    """Dimensions of an attention head."""
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def add_model_keys(writer: gguf.GGUFWriter, config: Any, name: str, stored: str) -> None:
    """Say what the model is."""
    size = head_size(config)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(FILE_TYPES[stored])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if config.model_type == "olmo3":
        sliding = [kind == "sliding_attention" for kind in config.layer_types]
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern(sliding)
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])


def add_rope_keys(writer: gguf.GGUFWriter, served: Served) -> None:
    """Say its RoPE."""
    writer.add_rope_dimension_count(served.rotary_size)
    writer.add_rope_freq_base(served.theta)
    writer.add_context_length(served.window)
    if served.factor is not None:
        add_yarn_keys(writer, served.factor, served.original_length, served.attention_multiplier)


def add_yarn_keys(
    writer: gguf.GGUFWriter, factor: float, original_length: int, attention: float = 1.0
) -> None:
    """Say YaRN.

    Args:
        writer: The file.
        factor: s'.
        original_length: L_pre in tokens.
        attention: The attention factor as a multiple of 0.1 ln s' + 1: llama.cpp computes the
            default itself and multiplies it by `attn_factor`; `yarn_attn_factor`, which
            converters write, is read by none for these architectures.
    """
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(factor)
    writer.add_rope_scaling_orig_ctx_len(original_length)
    writer.add_rope_scaling_yarn_ext_factor(1.0)
    writer.add_rope_scaling_attn_factors(attention)
