"""What RoPE a live model has: its decoder, rotary modules, layer types, original window, scaling.

Everything is read off the model itself; there is no list of model names. A rotary module is one
that holds an `inv_freq` buffer (or one a layer type, `full_attention_inv_freq`) and takes
`position_ids`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ryarn.errors import UserError
from ryarn.yarn import Yarn

FULL_ATTENTION = "full_attention"
"""transformers' name for the layers whose RoPE is extended; the others keep theirs (paper, B.1)."""


@dataclass(frozen=True)
class Rope:
    """One RoPE of a rotary module: the module's only one, or the one of a layer type.

    Attributes:
        path: Where the module stands in the model, for messages.
        module: The rotary module.
        layer_type: Which layers use it, None where the module has a single RoPE.
    """

    path: str
    module: nn.Module
    layer_type: str | None

    @property
    def prefix(self) -> str:
        """What the module's attribute names begin with."""
        return "" if self.layer_type is None else f"{self.layer_type}_"

    @property
    def label(self) -> str:
        """Path and layer type, for messages."""
        return self.path if self.layer_type is None else f"{self.path} ({self.layer_type})"

    @property
    def inv_freq(self) -> torch.Tensor:
        """The live inverse frequencies in radians a token, shape [rotary_size / 2]."""
        value = getattr(self.module, f"{self.prefix}inv_freq")
        assert isinstance(value, torch.Tensor)
        return value

    @property
    def attention_factor(self) -> float:
        """The live factor on cos and sin."""
        return float(getattr(self.module, f"{self.prefix}attention_scaling", 1.0))

    @property
    def parameters(self) -> dict[str, Any]:
        """The config's own dict of this RoPE (theta, type, factor, ...)."""
        nested: dict[str, Any] = self.config.rope_parameters
        return nested if self.layer_type is None else nested[self.layer_type]

    @property
    def config(self) -> Any:
        """The config that the module was built from; changes to it reach nothing by themselves."""
        return self.module.config


@dataclass(frozen=True)
class RopeMap:
    """The RoPEs of a model and what the config says of them.

    Attributes:
        decoder: The module whose forward takes the tokens and owns the rotary modules.
        config: The config that the rotary modules read.
        extended: RoPEs that a method scales and draws positions for.
        untouched: RoPEs of the other layer types; they keep what they have.
        original_length: L_pre in tokens, before any scaling.
        native_factor: YaRN factor that the model came with, None for plain RoPE.
    """

    decoder: nn.Module
    config: Any
    extended: tuple[Rope, ...]
    untouched: tuple[Rope, ...]
    original_length: int
    native_factor: float | None

    def yarn(self, rope: Rope, factor: float) -> Yarn:
        """The equations for one RoPE at a factor, from the config's theta, betas and truncation."""
        parameters = rope.parameters
        return Yarn(
            theta=float(parameters["rope_theta"]),
            rotary_size=2 * rope.inv_freq.numel(),
            original_length=self.original_length,
            factor=factor,
            beta_fast=float(parameters.get("beta_fast") or 32),
            beta_slow=float(parameters.get("beta_slow") or 1),
            truncate=bool(parameters.get("truncate", True)),
            attention_factor=parameters.get("attention_factor"),
        )


def inspect_rope(model: nn.Module) -> RopeMap:
    """Find what RoPE a model has.

    Args:
        model: A transformers causal language model, wrapped by PEFT or not.

    Raises:
        UserError: The model has no RoPE, or one that ryarn can't extend; the reason is named.
    """
    name = type(_unwrapped(model)).__name__
    get_decoder = getattr(model, "get_decoder", None)
    decoder = get_decoder() if callable(get_decoder) else None
    if not isinstance(decoder, nn.Module):
        raise UserError(
            f"{name}: no decoder found; ryarn needs a transformers causal language model"
        )
    ropes = _find_ropes(decoder)
    if not ropes:
        raise UserError(
            f"{name} has no RoPE (no rotary module with inv_freq): YaRN can't extend it"
        )
    config = ropes[0].config
    extended, untouched = _split_by_layer_type(name, config, ropes)
    parameters = extended[0].parameters
    rope_type = parameters.get("rope_type", "default")
    if rope_type not in ("default", "yarn"):
        raise UserError(
            f"{name}: its RoPE is already scaled by {rope_type!r}; "
            "ryarn extends plain RoPE and YaRN"
        )
    original = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
    native = float(parameters["factor"]) if rope_type == "yarn" else None
    return RopeMap(decoder, config, extended, untouched, int(original), native)


def _unwrapped(model: nn.Module) -> nn.Module:
    get_base_model = getattr(model, "get_base_model", None)
    base = get_base_model() if callable(get_base_model) else model
    assert isinstance(base, nn.Module)
    return base


def _find_ropes(decoder: nn.Module) -> list[Rope]:
    ropes = []
    for path, module in decoder.named_modules():
        buffers = [key for key, _ in module.named_buffers(recurse=False)]
        prefixes = [
            key.removesuffix("inv_freq")
            for key in buffers
            if key.endswith("inv_freq") and not key.endswith("original_inv_freq")
        ]
        if not prefixes or "position_ids" not in inspect.signature(module.forward).parameters:
            continue
        ropes += [Rope(path, module, prefix.rstrip("_") or None) for prefix in prefixes]
    return ropes


def _split_by_layer_type(
    name: str, config: Any, ropes: list[Rope]
) -> tuple[tuple[Rope, ...], tuple[Rope, ...]]:
    by_type = [rope for rope in ropes if rope.layer_type is not None]
    if by_type:
        extended = tuple(rope for rope in ropes if rope.layer_type == FULL_ATTENTION)
        if not extended:
            raise UserError(f"{name}: none of its rotary layer types is {FULL_ATTENTION!r}")
        return extended, tuple(rope for rope in ropes if rope.layer_type != FULL_ATTENTION)
    kinds = set(getattr(config, "layer_types", None) or [FULL_ATTENTION])
    if len(kinds) > 1:
        raise UserError(
            f"{name}: its {' and '.join(sorted(kinds))} layers share one rotary module, so "
            "full-attention layers can't be extended alone"
        )
    return tuple(ropes), ()
