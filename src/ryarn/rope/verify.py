"""The self-test before the first step: on the real model, with its own attention backend.

A long-context recipe that silently does nothing trains just as well as one that works. So before a
step is taken, one short row shows that the live frequencies are YaRN's, that the rotary phases are
those of the drawn positions in the extended layers and plain elsewhere, and that each token still
sees exactly the tokens before it in its own document.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ryarn.errors import SelfTestError
from ryarn.rope.inspect import Rope, RopeMap
from ryarn.rope.remap import Remapper
from ryarn.yarn import rope_inv_freq

_LENGTH = 6
"""Tokens of the test row; packed, it is two documents of three."""


def verify(rope_map: RopeMap, remapper: Remapper, factor: float | None) -> None:
    """Run the self-test: some forward passes over six tokens, no gradients.

    Args:
        rope_map: The model's RoPEs.
        remapper: The hooks under test.
        factor: YaRN factor that the extended RoPEs should have; None for what the model came with.

    Raises:
        SelfTestError: A check failed; it names the module and the numbers.
    """
    check_frequencies(rope_map, factor)
    with _quiet(rope_map.decoder):
        _check_phases(rope_map, remapper)
        _check_influence(rope_map, remapper, packed=False)
        _check_influence(rope_map, remapper, packed=True)


def check_frequencies(rope_map: RopeMap, factor: float | None) -> None:
    """Compare every live `inv_freq` and attention factor with the equations of `ryarn.yarn`.

    Args:
        rope_map: The model's RoPEs.
        factor: As in `verify`.

    Raises:
        SelfTestError: They differ; the module is named.
    """
    factor = rope_map.native_factor if factor is None else factor
    for rope in rope_map.extended:
        yarn = rope_map.yarn(rope, factor or 1.0)
        _compare(rope, yarn.inv_freq(), yarn.attention_scaling)
    for rope in rope_map.untouched:
        if rope.parameters.get("rope_type", "default") == "default":
            theta = float(rope.parameters["rope_theta"])
            _compare(rope, rope_inv_freq(theta, 2 * rope.inv_freq.numel()), 1.0)


def _compare(rope: Rope, inv_freq: NDArray[np.float64], attention_factor: float) -> None:
    live = rope.inv_freq.detach().double().cpu().numpy()
    # float32 arithmetic of theta ** (2i / d) is good to a few 1e-7; bfloat16 is off by 4e-3.
    worst = float(np.max(np.abs(live / inv_freq - 1)))
    if worst > 5e-6:
        raise SelfTestError(
            f"{rope.label}: its live inv_freq ({rope.inv_freq.dtype}) is off the formula by up to "
            f"{worst:.1e} (relative): it was not scaled, was scaled by something else, or was cast"
        )
    if abs(rope.attention_factor - attention_factor) > 1e-6:
        raise SelfTestError(
            f"{rope.label}: its live attention factor is {rope.attention_factor:.6f}, the formula "
            f"gives {attention_factor:.6f}"
        )


def _check_phases(rope_map: RopeMap, remapper: Remapper) -> None:
    """Phases are those of the given positions in extended RoPEs, plain in the others."""
    device = next(rope_map.decoder.parameters()).device
    tokens = torch.arange(_LENGTH, device=device)[None] + 1
    drawn = torch.tensor([[3, 9, 10, 40, 57, 1000]], device=device)
    seen: dict[tuple[int, str | None], torch.Tensor] = {}

    def record(module: nn.Module, args: object, kwargs: dict[str, object], out: object) -> None:
        positional = args[2:] if isinstance(args, tuple) else ()
        layer_type = kwargs.get("layer_type", *positional)
        assert isinstance(out, tuple)
        assert layer_type is None or isinstance(layer_type, str)
        seen[id(module), layer_type] = out[0].detach().double().cpu()

    ropes = (*rope_map.extended, *rope_map.untouched)
    modules = {id(rope.module): rope.module for rope in ropes}
    hooks = [m.register_forward_hook(record, with_kwargs=True) for m in modules.values()]
    try:
        with remapper.forced(drawn):
            rope_map.decoder(input_ids=tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    plain = torch.arange(_LENGTH, dtype=torch.float64)
    for rope in ropes:
        cos = seen.get((id(rope.module), rope.layer_type))
        if cos is None:
            raise SelfTestError(f"{rope.label}: the decoder ran without calling it")
        wanted = drawn[0].double().cpu() if rope in rope_map.extended else plain
        phases = wanted[:, None] * rope.inv_freq.detach().double().cpu()
        expected = phases.cos() * rope.attention_factor
        if not torch.allclose(cos[0, :, : phases.shape[1]], expected, atol=2e-2, rtol=0):
            raise SelfTestError(
                f"{rope.label}: its phases are not those of positions {wanted.long().tolist()}: "
                "something else decides its positions (a patched kernel or remote code)"
            )


def _check_influence(rope_map: RopeMap, remapper: Remapper, *, packed: bool) -> None:
    """Token j moves token i exactly when j <= i in the same document, under drawn positions."""
    device = next(rope_map.decoder.parameters()).device
    # Two stretches of ordinary tokens: the first ids are special ones, and those that were never
    # trained share one embedding.
    vocabulary = rope_map.decoder.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    base = torch.arange(_LENGTH, device=device) + vocabulary // 3
    other = base + vocabulary // 3
    half = _LENGTH // 2
    ordinary = torch.arange(_LENGTH, device=device)[None] % (half if packed else _LENGTH)
    drawn = torch.tensor(
        [[2, 5, 40, 1, 7, 30] if packed else [3, 9, 10, 40, 57, 90]], device=device
    )

    def hidden(tokens: torch.Tensor) -> torch.Tensor:
        # One row at a time: flash attention recognises packed rows at batch size 1 alone.
        out = rope_map.decoder(input_ids=tokens[None], position_ids=ordinary, use_cache=False)
        return out.last_hidden_state[0].float()  # type: ignore[no-any-return]

    rounding = _rounding(rope_map.decoder, base, other)
    with remapper.forced(drawn):
        reference = hidden(base)
        for j in range(_LENGTH):
            changed = base.clone()
            changed[j] = other[j]
            moved = (hidden(changed) - reference).abs().amax(-1)
            for i in range(_LENGTH):
                expected = j <= i and (not packed or i // half == j // half)
                if bool(moved[i] > (0 if expected else rounding)) != expected:
                    raise SelfTestError(
                        f"{type(rope_map.decoder).__name__}: with drawn positions, token {j} "
                        f"{'does not move' if expected else 'moves'} token {i} of "
                        f"{'two packed documents of three' if packed else 'one document'}: "
                        "its attention does not see what it should"
                    )


def _rounding(decoder: nn.Module, base: torch.Tensor, other: torch.Tensor) -> float:
    """How far a token may move that must not move: nothing, but for a mixture of experts.

    There it matters for the rounding of sums which tokens share an expert. How much, is seen where
    no attention can reach: one row of a batch, while the other row changes. Zero in dense models,
    in any dtype.
    """

    def first_row(second: torch.Tensor) -> torch.Tensor:
        out = decoder(input_ids=torch.stack([base, second]), use_cache=False)
        return out.last_hidden_state[0].float()  # type: ignore[no-any-return]

    reference = first_row(base)
    others = (other, other.flip(0), base.flip(0))
    return 8 * max(float((first_row(row) - reference).abs().max()) for row in others)


@contextlib.contextmanager
def _quiet(decoder: nn.Module) -> Iterator[None]:
    """No gradients, no dropout; the model's mode is given back."""
    modes = {module: module.training for module in decoder.modules()}
    decoder.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
