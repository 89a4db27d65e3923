"""Which RoPE moves each layer of a live model: seen in a forward pass, named by its buffers."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from ryarn.doctor.diagnosis import NONE, UNKNOWN, Layer, LiveRope
from ryarn.rope.inspect import FULL_ATTENTION, LOCAL, RECURRENT, Rope, RopeMap
from ryarn.rope.scaling import expected, make_yarn, scale_factor
from ryarn.rope.verify import quiet
from ryarn.yarn import rope_inv_freq

_TOKENS = 6
_LONGER = ("yarn", "linear", "llama3", "longrope")
"""Types whose window is the original one times the factor."""


def name_rope(rope_map: RopeMap, rope: Rope) -> LiveRope:
    """Say what a RoPE's live buffers are: what the config says, or else what they look like."""
    parameters, size = rope.parameters, 2 * rope.inv_freq.numel()
    if rope.inv_freq.is_meta:
        return LiveRope(UNKNOWN, None, size, None, rope.attention_factor)
    live_buffer = rope.inv_freq
    if rope.rope_type == "dynamic":
        live_buffer = getattr(rope.module, f"{rope.prefix}original_inv_freq")
    live = live_buffer.detach().double().cpu().numpy()
    original, config_window = rope_map.original_length, rope_map.config.max_position_embeddings
    with contextlib.suppress(KeyError, TypeError, ValueError):
        if any(_alike(live, f) for f in expected(rope.config, parameters, size).inv_freq):
            scaled = rope.rope_type not in ("default", "proportional")
            factor = scale_factor(rope.config, parameters) if scaled else 1.0
            window = round(original * factor) if rope.rope_type in _LONGER else config_window
            theta = float(parameters["rope_theta"])
            return LiveRope(rope.rope_type, theta, size, factor, rope.attention_factor, int(window))
    return _guess(rope_map, rope, live)


def _guess(rope_map: RopeMap, rope: Rope, live: Any) -> LiveRope:
    """Plain RoPE of any base, or the config's base under linear scaling or YaRN; else unknown."""
    size, original = 2 * live.size, rope_map.original_length
    theta = float(rope.parameters.get("rope_theta", 0) or 0)
    with contextlib.suppress(KeyError, TypeError, ValueError, FloatingPointError):
        if live.size > 1 and 0 < live[-1] < live[0] and _alike(live[:1], np.ones(1)):
            base = float(live[-1] ** (-size / (size - 2)))
            if _alike(live, rope_inv_freq(base, size)):
                return LiveRope("default", base, size, 1.0, rope.attention_factor, original)
        plain = rope_inv_freq(theta, size)
        factor = float(plain[-1] / live[-1])
        candidates = {"linear": plain / factor}
        truncate = bool(rope_map.config.rope_parameters.get("truncate", True))
        if factor > 1:
            candidates["yarn"] = make_yarn(
                rope.parameters, size, original, factor, truncate
            ).inv_freq()
        for name, frequencies in candidates.items():
            if _alike(live, frequencies):
                window = round(original * factor)
                return LiveRope(name, theta, size, factor, rope.attention_factor, window)
    return LiveRope(UNKNOWN, None, size, None, rope.attention_factor)


def _alike(live: Any, wanted: Any) -> bool:
    return live.shape == wanted.shape and bool(np.allclose(live, wanted, rtol=5e-6, atol=0))


def see_layers(rope_map: RopeMap) -> tuple[Layer, ...]:
    """Run six tokens, and see which layer is handed which RoPE and whether its output turns on it.

    Recurrent layers, and layers that ignore what they are handed (NoPE), have none. Where a model's
    layers are not handed an embedding, the RoPE of their layer type stands for them.
    """
    with quiet(rope_map.decoder):
        handed, outputs = _watch(rope_map)
    kinds = _kinds(rope_map)
    ropes = {rope: name_rope(rope_map, rope) for rope in (*rope_map.extended, *rope_map.untouched)}
    local = {id(module) for module in rope_map.local}
    layers = []
    for index, kind in enumerate(kinds):
        rope: Rope | None = _rope_of(kind, list(ropes))
        windowed = kind in LOCAL
        if handed:
            module, given = handed.get(index, (None, None))
            rope = _same(outputs, given, rope, list(ropes)) if module is not None else None
            windowed = windowed or id(module) in local
        elif kind in RECURRENT - {"hybrid", "hybrid_sliding"}:
            rope = None
        live = LiveRope(NONE) if rope is None else ropes[rope]
        layers.append(
            Layer(_sees(rope_map, kind), live, rope in rope_map.extended and not windowed)
        )
    return tuple(layers)


def _watch(
    rope_map: RopeMap,
) -> tuple[dict[int, tuple[nn.Module, Any]], dict[tuple[int, str | None], Any]]:
    """What layers that RoPE moves are handed, by number; what rotary modules return."""
    taken: dict[nn.Module, tuple[int, Any]] = {}
    outputs: dict[tuple[int, str | None], Any] = {}

    def take(module: nn.Module, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        taken[module] = numbers[module], bound

    def rotary(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        outputs[id(module), kwargs.get("layer_type", args[2] if len(args) > 2 else None)] = out

    numbers = dict(_attention(rope_map.decoder))
    rotaries = {id(r.module): r.module for r in (*rope_map.extended, *rope_map.untouched)}
    hooks = [m.register_forward_pre_hook(take, with_kwargs=True) for m in numbers]
    hooks += [m.register_forward_hook(rotary, with_kwargs=True) for m in rotaries.values()]
    tokens = torch.arange(_TOKENS, device=rope_map.device)[None] + 3
    try:
        rope_map.decoder(input_ids=tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for module, (index, bound) in taken.items():
        given = bound.arguments.get("position_embeddings")
        if given is not None and _moves(module, bound):
            found[index] = (module, given)
    return found, outputs


def _attention(decoder: nn.Module) -> Iterator[tuple[nn.Module, int]]:
    """The innermost modules that are handed an embedding, and their layer's number."""

    def takes(module: nn.Module) -> bool:
        return "position_embeddings" in inspect.signature(module.forward).parameters

    for path, module in decoder.named_modules():
        inside = any(takes(child) for child in module.modules() if child is not module)
        number = re.search(r"\.(\d+)(\.|$)", path)
        if number is not None and takes(module) and not inside:
            yield module, int(number[1])


def _moves(module: nn.Module, bound: inspect.BoundArguments) -> bool:
    """Whether a layer's output depends on the embedding it is handed."""
    given = bound.arguments["position_embeddings"]

    def run(turn: float) -> Any:
        whole = isinstance(given, torch.Tensor)
        changed = given * turn if whole else tuple(part * turn for part in given)
        arguments = inspect.BoundArguments(
            bound.signature, type(bound.arguments)(bound.arguments, position_embeddings=changed)
        )
        out = module(*arguments.args, **arguments.kwargs)
        return out if isinstance(out, torch.Tensor) else out[0]

    return not torch.equal(run(1.0), run(0.5))


def _same(outputs: Any, given: Any, likely: Rope | None, ropes: list[Rope]) -> Rope | None:
    """The RoPE whose very output a layer is handed."""

    def first(value: Any) -> Any:
        return value if isinstance(value, torch.Tensor) else value[0]

    for rope in ropes:
        out = outputs.get((id(rope.module), rope.layer_type))
        if out is not None and first(out) is first(given):
            return rope
    return likely


def _kinds(rope_map: RopeMap) -> list[str]:
    config = rope_map.config
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return [str(kind) for kind in kinds]
    window = getattr(config, "sliding_window", None)
    narrow = isinstance(window, int) and window <= rope_map.original_length
    return ["sliding_attention" if narrow else FULL_ATTENTION] * int(config.num_hidden_layers)


def _rope_of(kind: str, ropes: list[Rope]) -> Rope:
    return next((rope for rope in ropes if rope.layer_type == kind), ropes[0])


def _sees(rope_map: RopeMap, kind: str) -> str:
    window = getattr(rope_map.config, "sliding_window", None)
    if kind == FULL_ATTENTION:
        return "all"
    return f"last {window}" if kind == "sliding_attention" and window else kind
