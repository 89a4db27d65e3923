"""The self-test before the first step: on the real model, with its own attention backend.

A long-context recipe that silently does nothing trains just as well as one that works. So before a
step is taken, one short row shows that the live frequencies are YaRN's, that the rotary phases are
those of the drawn positions in the extended layers and plain elsewhere, that positions matter there
and enter nowhere else, and that each token still sees exactly the tokens before it in its own
document.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ryarn.errors import SelfTestError, UserError
from ryarn.rope.inspect import Rope, RopeMap
from ryarn.rope.phases import FAR, phases_differ
from ryarn.rope.remap import Remapper
from ryarn.rope.scaling import KNOWN_TYPES, Expected, expected

_LENGTH = 6
"""Tokens of the test row; packed, it is two documents of three."""


def verify(rope_map: RopeMap, remapper: Remapper, factor: float | None) -> None:
    """Run the self-test: some forward passes over six tokens, no gradients.

    Where only packed documents see each other, the test passes and the first packed row is refused.

    Args:
        rope_map: The model's RoPEs.
        remapper: The hooks under test.
        factor: YaRN factor that the extended RoPEs should have; None for what the model came with.

    Raises:
        SelfTestError: A check failed; it names the module and the numbers.
        UserError: The model is of a kind whose long range has no RoPE, or not RoPE alone.
    """
    check_frequencies(rope_map, factor)
    with quiet(rope_map.decoder):
        _check_phases(rope_map, remapper)
        _check_reach(rope_map, remapper)
        _check_influence(rope_map, remapper, packed=False)
        try:
            _check_influence(rope_map, remapper, packed=True)
            remapper.packing_fault = None
        except SelfTestError as error:
            # Many models can't keep packed documents apart. Rows that are not packed are fine.
            remapper.packing_fault = str(error)


def check_frequencies(rope_map: RopeMap, factor: float | None) -> None:
    """Compare every live `inv_freq` and attention factor with the equations.

    Args:
        rope_map: The model's RoPEs.
        factor: As in `verify`.

    Raises:
        SelfTestError: They differ; the module is named.
    """
    for rope in rope_map.extended:
        if factor is None:
            _compare(rope, expected(rope.config, rope.parameters, 2 * rope.inv_freq.numel()))
        else:
            yarn = rope_map.yarn(rope, factor)
            _compare(rope, Expected((yarn.inv_freq(),), yarn.attention_scaling))
    for rope in rope_map.untouched:
        if rope.rope_type in KNOWN_TYPES:
            _compare(rope, expected(rope.config, rope.parameters, 2 * rope.inv_freq.numel()))


def _compare(rope: Rope, wanted: Expected) -> None:
    if rope.inv_freq.is_meta:
        raise SelfTestError(
            f"{rope.label}: its inv_freq is on the meta device, without values: it was left out "
            "when the weights were loaded (load with include_buffers=False, or from_pretrained)"
        )
    live_buffer = rope.inv_freq
    if rope.rope_type == "dynamic":
        # The live one follows the longest row seen; this is where it starts from.
        live_buffer = getattr(rope.module, f"{rope.prefix}original_inv_freq")
    live = live_buffer.detach().double().cpu().numpy()
    # float32 arithmetic of theta ** (2i / d) is good to a few 1e-7; bfloat16 is off by 4e-3.
    worst = min(_worst(live, inv_freq) for inv_freq in wanted.inv_freq)
    if worst > 5e-6:
        raise SelfTestError(
            f"{rope.label}: its live inv_freq ({rope.inv_freq.dtype}) is off the formula by up to "
            f"{worst:.1e} (relative): it was not scaled, was scaled by something else, or was cast"
        )
    if abs(rope.attention_factor - wanted.attention_factor) > 1e-6:
        raise SelfTestError(
            f"{rope.label}: its live attention factor is {rope.attention_factor:.6f}, the formula "
            f"gives {wanted.attention_factor:.6f}"
        )


def _worst(live: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    turning = wanted != 0
    if live.shape != wanted.shape or np.any(live[~turning] != 0):
        return float("inf")
    return float(np.max(np.abs(live[turning] / wanted[turning] - 1)))


def _check_phases(rope_map: RopeMap, remapper: Remapper) -> None:
    """Phases are those of the given positions in extended RoPEs, plain in the others."""
    drawn = torch.tensor([FAR], device=rope_map.device)
    ropes = (*rope_map.extended, *rope_map.untouched)
    with _recorded(rope_map) as seen, remapper.forced(drawn):
        _hidden(rope_map, torch.arange(_LENGTH) + 1)
    plain = torch.arange(_LENGTH)
    for rope in ropes:
        out = seen.get((id(rope.module), rope.layer_type))
        if out is None:
            raise SelfTestError(f"{rope.label}: the decoder ran without calling it")
        wrong = phases_differ(out, drawn[0] if rope in rope_map.extended else plain, rope)
        if wrong is not None:
            raise SelfTestError(
                f"{rope.label}: {wrong}: something else decides its positions (a patched kernel or "
                "remote code)"
            )
    for module in rope_map.local:
        wrong = phases_differ(seen.get((id(module), None)), plain, rope_map.extended[0])
        if wrong is not None:
            raise SelfTestError(
                f"{type(module).__name__} (windowed layer {getattr(module, 'layer_idx', '?')}): "
                f"{wrong}: drawn positions reach a layer that must not have them"
            )


@contextlib.contextmanager
def _recorded(rope_map: RopeMap) -> Iterator[dict[tuple[int, str | None], object]]:
    """What rotary modules return and windowed layers are handed, by module and layer type."""
    seen: dict[tuple[int, str | None], object] = {}

    def rotary(module: nn.Module, args: tuple[object, ...], kwargs: Any, out: object) -> None:
        seen[id(module), kwargs.get("layer_type", args[2] if len(args) > 2 else None)] = out

    def local(module: nn.Module, args: tuple[object, ...], kwargs: Any) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        seen[id(module), None] = bound.arguments.get("position_embeddings")

    ropes = (*rope_map.extended, *rope_map.untouched)
    modules = {id(rope.module): rope.module for rope in ropes}.values()
    hooks = [m.register_forward_hook(rotary, with_kwargs=True) for m in modules]
    hooks += [m.register_forward_pre_hook(local, with_kwargs=True) for m in rope_map.local]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _check_reach(rope_map: RopeMap, remapper: Remapper) -> None:
    """Rotary positions move the output, and ordinary ones enter nowhere but in RoPE."""
    name = type(rope_map.decoder).__name__
    tokens, other = _test_rows(rope_map)
    near = torch.arange(_LENGTH, device=rope_map.device)[None]
    far = torch.tensor([FAR], device=rope_map.device)
    with remapper.forced(near):
        reference = _hidden(rope_map, tokens)
    with remapper.forced(far):
        if torch.equal(_hidden(rope_map, tokens), reference):
            raise UserError(
                f"{name}: rotary positions change nothing in its output, so its full-attention "
                "layers have no RoPE (NoPE) and there is nothing to extend"
            )
    rounding = _rounding(rope_map, tokens, other)
    shift = 4 * rope_map.original_length
    with _held_still(rope_map, near):
        still = _hidden(rope_map, tokens, near)
        moved = (_hidden(rope_map, tokens, near + shift) - still).abs().max()
    if float(moved) > rounding:
        raise UserError(
            f"{name}: positions enter it outside RoPE, too (a learned embedding, or an attention "
            "temperature that grows with position), where drawn positions would not reach; ryarn "
            "can't extend it"
        )


@contextlib.contextmanager
def _held_still(rope_map: RopeMap, positions: torch.Tensor) -> Iterator[None]:
    """All RoPEs at given positions, shape [1, T], whatever the decoder hands them."""

    def fix(module: nn.Module, args: Any, kwargs: Any) -> Any:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        given = bound.arguments["position_ids"]
        bound.arguments["position_ids"] = positions.expand(given.shape)
        return bound.args, bound.kwargs

    ropes = (*rope_map.extended, *rope_map.untouched)
    modules = {id(rope.module): rope.module for rope in ropes}.values()
    hooks = [m.register_forward_pre_hook(fix, with_kwargs=True) for m in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hidden(
    rope_map: RopeMap, tokens: torch.Tensor, position_ids: torch.Tensor | None = None
) -> torch.Tensor:
    """The decoder's last hidden states of a row of tokens, [T, size], or of rows, [B, T, size]."""
    rows = tokens.to(rope_map.device).reshape(-1, _LENGTH)
    given = {} if position_ids is None else {"position_ids": position_ids}
    caught: list[Any] = []
    hook = rope_map.decoder.register_forward_hook(lambda module, args, out: caught.append(out))
    try:
        (rope_map.entry or rope_map.decoder)(input_ids=rows, use_cache=False, **given)
    finally:
        hook.remove()
    hidden: torch.Tensor = caught[-1][0].float()
    return hidden if tokens.ndim == 2 else hidden[0]


def _check_influence(rope_map: RopeMap, remapper: Remapper, *, packed: bool) -> None:
    """Token j moves token i exactly when j <= i in the same document, under drawn positions."""
    device = rope_map.device
    base, other = _test_rows(rope_map)
    half = _LENGTH // 2
    ordinary = torch.arange(_LENGTH, device=device)[None] % (half if packed else _LENGTH)
    drawn = torch.tensor(
        [[2, 5, 40, 1, 7, 30] if packed else [3, 9, 10, 40, 57, 90]], device=device
    )
    rounding = _rounding(rope_map, base, other)
    with remapper.forced(drawn):
        # One row at a time: flash attention recognises packed rows at batch size 1 alone.
        reference = _hidden(rope_map, base, ordinary)
        for j in range(_LENGTH):
            changed = base.clone()
            changed[j] = other[j]
            moved = (_hidden(rope_map, changed, ordinary) - reference).abs().amax(-1)
            for i in range(_LENGTH):
                expected = j <= i and (not packed or i // half == j // half)
                if bool(moved[i] > (0 if expected else rounding)) != expected:
                    raise SelfTestError(
                        f"{type(rope_map.decoder).__name__}: with drawn positions, token {j} "
                        f"{'does not move' if expected else 'moves'} token {i} of "
                        f"{'two packed documents of three' if packed else 'one document'}: "
                        "its attention does not see what it should"
                    )


def _test_rows(rope_map: RopeMap) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows of ordinary tokens.

    The first ids are special ones, and those that were never trained share one embedding.
    """
    embedding = rope_map.decoder.get_input_embeddings()  # type: ignore[operator]
    # ZeRO-3 has taken the weight away, and its shape with it.
    vocabulary = getattr(embedding, "num_embeddings", None) or embedding.weight.shape[0]
    base = torch.arange(_LENGTH, device=rope_map.device) + vocabulary // 3
    return base, base + vocabulary // 3


def _rounding(rope_map: RopeMap, base: torch.Tensor, other: torch.Tensor) -> float:
    """How far a token may move that must not move: nothing, but for a mixture of experts.

    There it matters for the rounding of sums which tokens share an expert. How much, is seen where
    no attention can reach: one row of a batch, while the other row changes. Zero in dense models,
    in any dtype.
    """

    def first_row(second: torch.Tensor) -> torch.Tensor:
        return _hidden(rope_map, torch.stack([base, second]))[0]

    reference = first_row(base)
    changed = [
        torch.where(torch.arange(_LENGTH, device=base.device) == j, other, base)
        for j in range(_LENGTH)
    ]
    others = (other, other.flip(0), base.flip(0), *changed)
    worst = max(float((first_row(row) - reference).abs().max()) for row in others)
    experts = any(name.endswith("experts") for name, _ in rope_map.decoder.named_modules())
    if worst == 0 and not experts:
        return 0.0
    step = torch.finfo(next(rope_map.decoder.parameters()).dtype).eps
    return 8 * max(worst, step * float(reference.abs().max()))


@contextlib.contextmanager
def quiet(decoder: nn.Module) -> Iterator[None]:
    """No gradients, no dropout; each module's mode is given back."""
    modes = {module: module.training for module in decoder.modules()}
    decoder.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
