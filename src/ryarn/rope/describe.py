"""A RoPE in words: what the config says it is, and what it becomes under YaRN."""

from __future__ import annotations

from typing import Any

from ryarn.rope.inspect import Rope, RopeMap
from ryarn.rope.scaling import make_yarn, original_window, scale_factor
from ryarn.yarn import attention_factor


def describe_native(rope_map: RopeMap, rope: Rope) -> str:
    """One RoPE as the model came, e.g. "llama3 scaling of 8192 by 8, theta 500000"."""
    parameters, theta = rope.parameters, f"theta {rope.parameters['rope_theta']:g}"
    if rope.rope_type == "default":
        return f"plain RoPE, {theta}"
    if rope.rope_type == "proportional":
        return f"proportional RoPE, {theta}"
    factor = scale_factor(rope_map.config, parameters)
    original = original_window(rope_map.config, parameters)
    return f"{rope.rope_type} scaling of {original} by {factor:g}, {theta}"


def describe_yarn(rope_map: RopeMap, rope: Rope, parameters: dict[str, Any]) -> str:
    """One RoPE under YaRN, with what is kept of the old config and what is computed anew.

    Args:
        rope_map: The model's RoPEs.
        rope: The RoPE as it was.
        parameters: Its new dict.
    """
    truncate = bool(rope_map.config.rope_parameters.get("truncate", True))
    size, factor = 2 * rope.inv_freq.numel(), float(parameters["factor"])
    yarn = make_yarn(parameters, size, rope_map.original_length, factor, truncate)
    return (
        f"YaRN of {yarn.original_length} by {factor:g}, reaching "
        f"{yarn.original_length * factor:g}; {_attention(rope, parameters, yarn.attention_scaling)}"
        f", betas {yarn.beta_fast:g} and {yarn.beta_slow:g}{_kept(rope, 'beta_fast')}, ramp "
        f"{'rounded' if truncate else 'not rounded'} to whole dimensions"
        f"{_kept(rope, 'truncate')}{_dropped(rope, parameters)}"
    )


def _attention(rope: Rope, parameters: dict[str, Any], value: float) -> str:
    if parameters.get("attention_factor") is not None:
        return f"attention factor {value:.6g} (kept)"
    mscale, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    plain = attention_factor(float(parameters["factor"]))
    if mscale and all_dim:
        return f"attention factor {value:.6g} (from mscale {mscale:g} over {all_dim:g}, kept)"
    assert value == plain
    return f"attention factor {value:.6g} (0.1 ln s + 1)"


def _kept(rope: Rope, key: str) -> str:
    where = rope.config.rope_parameters if key == "truncate" else rope.parameters
    return " (the model's own)" if where.get(key) is not None else ""


def _dropped(rope: Rope, parameters: dict[str, Any]) -> str:
    gone = [key for key in rope.parameters if key not in parameters]
    return f"; dropped {', '.join(gone)}" if gone else ""
