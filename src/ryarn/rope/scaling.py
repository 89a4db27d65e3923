"""The scalings that transformers knows, in float64: what a config says a RoPE should be.

Sources: linear, Chen et al. 2023 (arXiv 2306.15595); dynamic, bloc97's NTK-aware scaling; YaRN, see
`ryarn.yarn`; LongRoPE, Ding et al. 2024 (arXiv 2402.13753); llama3, Meta's Llama 3.1 release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ryarn.errors import UserError
from ryarn.yarn import Yarn, attention_factor, rope_inv_freq

Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Expected:
    """What a RoPE should be.

    Attributes:
        inv_freq: Radians a position, float64; one array, or the ones it may switch between.
        attention_factor: On cos and sin.
    """

    inv_freq: tuple[NDArray[np.float64], ...]
    attention_factor: float


def original_window(config: Any, parameters: Parameters) -> int:
    """L_pre: the window before any scaling, from the RoPE's own dict or the config's top level."""
    written = parameters.get("original_max_position_embeddings")
    top = getattr(config, "original_max_position_embeddings", None)
    return int(written or top or config.max_position_embeddings)


def native_yarn_factor(config: Any, parameters: Parameters) -> float | None:
    """The YaRN factor of a config, written or implied by its two windows; None without YaRN."""
    if parameters.get("rope_type") != "yarn":
        return None
    return scale_factor(config, parameters)


def scale_factor(config: Any, parameters: Parameters) -> float:
    """The factor of any scaling; where none is written, the ratio of the config's two windows."""
    written = parameters.get("factor")
    if written is not None:
        return float(written)
    return float(config.max_position_embeddings / original_window(config, parameters))


def make_yarn(
    parameters: Parameters, size: int, original_length: int, factor: float, truncate: bool
) -> Yarn:
    """YaRN's equations with a config's theta, betas, mscale and attention factor."""
    written = parameters.get("attention_factor")
    mscale, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return Yarn(
        theta=float(parameters["rope_theta"]),
        rotary_size=size,
        original_length=original_length,
        factor=factor,
        beta_fast=float(parameters.get("beta_fast") or 32),
        beta_slow=float(parameters.get("beta_slow") or 1),
        truncate=truncate,
        attention_factor=attention_factor(factor, mscale, all_dim) if written is None else written,
    )


def expected(config: Any, parameters: Parameters, size: int) -> Expected:
    """What a RoPE should be by its config alone.

    Args:
        config: The model's config.
        parameters: The config's dict of this RoPE.
        size: Rotated dimensions of a head.

    Raises:
        UserError: The type is unknown.
    """
    rope_type = str(parameters.get("rope_type", "default"))
    formula = _FORMULAS.get(rope_type)
    if formula is None:
        raise UserError(f"rope_type = {rope_type!r} is unknown: known are {', '.join(KNOWN_TYPES)}")
    return formula(config, parameters, size)


def _default(config: Any, parameters: Parameters, size: int) -> Expected:
    return Expected((rope_inv_freq(float(parameters["rope_theta"]), size),), 1.0)


def _linear(config: Any, parameters: Parameters, size: int) -> Expected:
    plain = rope_inv_freq(float(parameters["rope_theta"]), size)
    return Expected((plain / float(parameters["factor"]),), 1.0)


def _yarn(config: Any, parameters: Parameters, size: int) -> Expected:
    truncate = bool(config.rope_parameters.get("truncate", True))
    factor = scale_factor(config, parameters)
    yarn = make_yarn(parameters, size, original_window(config, parameters), factor, truncate)
    return Expected((yarn.inv_freq(),), yarn.attention_scaling)


def _llama3(config: Any, parameters: Parameters, size: int) -> Expected:
    """Slow dimensions divided by the factor, fast ones kept, a ramp in turns a window between."""
    plain = rope_inv_freq(float(parameters["rope_theta"]), size)
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    turns = original_window(config, parameters) * plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return Expected((plain * (kept + (1 - kept) / float(parameters["factor"])),), 1.0)


def _longrope(config: Any, parameters: Parameters, size: int) -> Expected:
    """A divisor a dimension, one set up to the original window and one beyond it."""
    plain = rope_inv_freq(float(parameters["rope_theta"]), size)
    both = tuple(plain / np.asarray(parameters[f"{k}_factor"], float) for k in ("short", "long"))
    written, factor = parameters.get("attention_factor"), scale_factor(config, parameters)
    if written is None:
        original = original_window(config, parameters)
        written = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Expected(both, float(written))


def _dynamic(config: Any, parameters: Parameters, size: int) -> Expected:
    """Plain up to the window; beyond it theta grows with the longest row seen, checked at rest."""
    return _default(config, parameters, size)


def _proportional(config: Any, parameters: Parameters, size: int) -> Expected:
    """Plain with the slowest dimensions standing still, all divided by a factor (1 if none)."""
    plain = rope_inv_freq(float(parameters["rope_theta"]), size)
    turning = int(float(parameters.get("partial_rotary_factor", 1.0)) * size // 2)
    plain[turning:] = 0.0
    return Expected((plain / float(parameters.get("factor", 1.0)),), 1.0)


_FORMULAS: dict[str, Callable[[Any, Parameters, int], Expected]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
}
KNOWN_TYPES = tuple(_FORMULAS)
OWN_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", "short_factor", "long_factor", "attention_factor"),
}
"""What YaRN replaces, by type, and the keys that mean nothing under it."""
