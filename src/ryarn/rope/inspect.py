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
from ryarn.rope.fast_path import refuse_fast_path
from ryarn.rope.scaling import KNOWN_TYPES, make_yarn, native_yarn_factor, original_window
from ryarn.yarn import Yarn

FULL_ATTENTION = "full_attention"
"""transformers' name for the layers whose RoPE is extended; the others keep theirs (paper, B.1)."""
LONG_RANGE = frozenset({FULL_ATTENTION, "indexed_attention", "hybrid", "minimax_m3_sparse"})
"""transformers' names of layers that see the whole row, all of it or a choice from it."""
LOCAL = frozenset(
    {
        "sliding_attention",
        "chunked_attention",
        "window_attention",
        "reference_sliding_attention",
        "hybrid_sliding",
    }
)
"""transformers' names of layers that never look further than a window."""
RECURRENT = frozenset(
    {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"}
)
"""transformers' names of layers that carry a state along the row: they know order without RoPE."""


@dataclass(frozen=True)
class Rope:
    """One RoPE of a rotary module: the module's only one, or the one of a layer type.

    Attributes:
        path: Where the module stands in the decoder, for messages.
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
    def rope_type(self) -> str:
        """Its scaling as transformers calls it: default, yarn, llama3, ..."""
        return str(self.parameters.get("rope_type", "default"))

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
        native_factor: YaRN factor that the model came with, None where it came without YaRN.
        local: Attention modules of windowed layers that are handed the embedding of an extended
            RoPE; they must go on at ordinary positions.
        recurrent: Whether some layers carry a state along the row.
        entry: What to call for a forward pass; the decoder itself, or a wrapper around it that
            gathers its weights first (FSDP).
    """

    decoder: nn.Module
    config: Any
    extended: tuple[Rope, ...]
    untouched: tuple[Rope, ...]
    original_length: int
    native_factor: float | None
    local: tuple[nn.Module, ...] = ()
    recurrent: bool = False
    entry: nn.Module | None = None

    @property
    def rope_type(self) -> str:
        """How the extended RoPEs are scaled by the config: default, yarn, llama3, ..."""
        return self.extended[0].rope_type

    @property
    def device(self) -> torch.device:
        """Where the decoder computes; its weights may wait elsewhere (offloading)."""
        device = self.extended[0].inv_freq.device
        return next(self.decoder.parameters()).device if device.type == "meta" else device

    def yarn(self, rope: Rope, factor: float) -> Yarn:
        """The equations for one RoPE at a factor, from the config's theta, betas and truncation."""
        truncate = self.config.rope_parameters.get("truncate", True)
        size = 2 * rope.inv_freq.numel()
        return make_yarn(rope.parameters, size, self.original_length, factor, bool(truncate))


def inspect_rope(model: nn.Module) -> RopeMap:
    """Find what RoPE a model has.

    Args:
        model: A transformers causal language model, wrapped by PEFT or not.

    Raises:
        UserError: The model has no RoPE, or one that ryarn can't extend; the reason is named.
    """
    name = type(_unwrapped(model)).__name__
    decoders = _decoders(model)
    if not decoders:
        raise UserError(
            f"{name}: no decoder found; ryarn needs a transformers causal language model"
        )
    found = ((decoder, _find_ropes(decoder)) for decoder in decoders)
    decoder, ropes = next(((d, r) for d, r in found if r), (decoders[0], []))
    refuse_fast_path(decoder, [rope.module for rope in ropes])
    if not ropes:
        raise UserError(
            f"{name} has no RoPE (no rotary module with inv_freq): YaRN can't extend it"
        )
    config = ropes[0].config
    if any(rope.config is not config for rope in ropes):
        raise UserError(
            f"{name}: its rotary modules read different configs, so no one config could carry the "
            "extension; ryarn extends models with one"
        )
    extended, untouched = _split_by_layer_type(name, config, ropes)
    for rope in extended:
        if rope.rope_type not in KNOWN_TYPES:
            raise UserError(
                f"{name}: the RoPE of {rope.label} is of type {rope.rope_type!r}, which ryarn does "
                f"not know; it knows {', '.join(KNOWN_TYPES)}"
            )
    if len({rope.rope_type for rope in extended}) > 1:
        raise UserError(f"{name}: its full-attention layers have RoPE of different types")
    kinds = _layer_kinds(config)
    return RopeMap(
        decoder=decoder,
        config=config,
        extended=extended,
        untouched=untouched,
        original_length=original_window(config, extended[0].parameters),
        native_factor=native_yarn_factor(config, extended[0].parameters),
        local=_find_local(name, decoder, kinds) if extended[0].layer_type is None else (),
        recurrent=bool(RECURRENT.intersection(kinds)),
    )


def _unwrapped(model: nn.Module) -> nn.Module:
    get_base_model = getattr(model, "get_base_model", None)
    base = get_base_model() if callable(get_base_model) else model
    assert isinstance(base, nn.Module)
    return base


def _decoders(model: nn.Module) -> list[nn.Module]:
    """Where the decoder may be: what `get_decoder` says, or the base (a head can be "decoder")."""
    get_decoder = getattr(model, "get_decoder", None)
    base = getattr(_unwrapped(model), "base_model", None)
    candidates = (get_decoder() if callable(get_decoder) else None, base)
    return [module for module in candidates if isinstance(module, nn.Module)]


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


def _layer_kinds(config: Any) -> list[str]:
    """The attention type of each layer, in transformers' words; full where the config is silent."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return [str(kind) for kind in kinds]
    window = getattr(config, "sliding_window", None)
    parameters = config.rope_parameters
    bounded = isinstance(window, int) and window <= original_window(config, parameters)
    return ["sliding_attention" if bounded else FULL_ATTENTION]


def _split_by_layer_type(
    name: str, config: Any, ropes: list[Rope]
) -> tuple[tuple[Rope, ...], tuple[Rope, ...]]:
    kinds = _layer_kinds(config)
    if not set(kinds) - RECURRENT and "hybrid" not in kinds:
        raise UserError(f"{name}: none of its layers has attention ({kinds[0]} alone)")
    if not set(kinds) - LOCAL - RECURRENT and "hybrid" not in kinds:
        raise UserError(
            f"{name}: every attention layer sees a window alone (sliding_window = "
            f"{getattr(config, 'sliding_window', None)}), so there is no long range to extend; set "
            "the window to null in its config if the layers should see everything"
        )
    by_type = [rope for rope in ropes if rope.layer_type is not None]
    if by_type:
        extended = tuple(rope for rope in ropes if rope.layer_type in LONG_RANGE)
        if not extended:
            types = ", ".join(sorted({str(rope.layer_type) for rope in by_type}))
            raise UserError(
                f"{name}: its config has RoPE for {types} and none for {FULL_ATTENTION}, so there "
                "is no long-range RoPE to extend"
            )
        return extended, tuple(rope for rope in ropes if rope not in extended)
    nested = [key for key, value in config.rope_parameters.items() if isinstance(value, dict)]
    if nested:
        raise UserError(
            f"{name}: its config has RoPE for {', '.join(nested)}, but its rotary modules don't "
            "say which is whose; ryarn can't tell what to extend"
        )
    return tuple(ropes), ()


def _find_local(name: str, decoder: nn.Module, kinds: list[str]) -> tuple[nn.Module, ...]:
    """The attention modules of windowed layers, where all layers share one rotary module."""
    wanted = {index for index, kind in enumerate(kinds) if kind in LOCAL}
    if not wanted:
        return ()
    found: dict[int, nn.Module] = {}
    for module in decoder.modules():
        index = getattr(module, "layer_idx", None)
        takes = inspect.signature(module.forward).parameters
        # Modules come parents first: the last one with the layer's number is the attention itself.
        if index in wanted and "position_embeddings" in takes:
            found[index] = module
    if found.keys() != wanted:
        raise UserError(
            f"{name}: its windowed layers share a rotary module with the others and are not told "
            "apart by a layer_idx, so drawn positions would reach them, too"
        )
    return tuple(found.values())
