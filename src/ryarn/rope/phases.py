"""What a rotary module hands to attention, compared with cos and sin of the positions it should."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ryarn.rope.inspect import Rope

FAR = (3, 9, 10, 40, 57, 2**20 - 1)
"""Positions of the test row; the last is where a bfloat16 position is off by thousands."""


def phases_differ(out: object, positions: torch.Tensor, rope: Rope) -> str | None:
    """Say what is wrong with a rotary module's output for one row.

    Frequencies are taken as they are live (`check_frequencies` compares those with the formula).
    The bound, in radians of phase: a rounding of float32 of the phase itself (1.2e-7 m f at
    position m and frequency f), plus four steps of the output's dtype.

    Args:
        out: cos and sin, or one complex tensor; one row of T positions, in any layout in use.
        positions: The T positions that it should be for, shape [T].
        rope: The live RoPE.

    Returns:
        None where it agrees.
    """
    frequencies = rope.inv_freq.detach().float().cpu()
    phases = (positions.float().cpu()[:, None] * frequencies).double()
    parts = tuple(_parts(out))
    if len(parts) != 2:
        return "it returns no cos and sin"
    for part, exact in zip(parts, (phases.cos(), phases.sin()), strict=True):
        bound = 1.2e-7 * phases.abs() + 4 * torch.finfo(part.dtype).eps
        wanted = exact * rope.attention_factor
        if not any(
            bool(((columns - wanted).abs() <= bound * rope.attention_factor).all())
            for columns in _layouts(part.detach().double().cpu(), *phases.shape)
        ):
            return f"its phases are not those of positions {positions.tolist()}"
    return None


def _parts(out: object) -> Iterator[torch.Tensor]:
    if isinstance(out, torch.Tensor) and out.is_complex():
        yield from (out.real, out.imag)
    elif isinstance(out, tuple | list):
        yield from (part for part in out[:2] if isinstance(part, torch.Tensor))


def _layouts(part: torch.Tensor, length: int, size: int) -> Iterator[torch.Tensor]:
    """The columns of each frequency: once, twice in halves, or twice in pairs; [T, size]."""
    rows = part.reshape(-1, part.shape[-1])
    if rows.shape[0] % length or rows.shape[1] < size:
        return
    # Several axes of positions (multimodal RoPE) are equal for text: the first stands for all.
    row = rows[:length]
    yield row[:, :size]
    if row.shape[1] >= 2 * size:
        yield row[:, : 2 * size : 2]
