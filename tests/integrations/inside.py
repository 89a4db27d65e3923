"""What a model really computes with in somebody else's trainer: tokens, mask, rotary positions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ryarn.draws import generator, row_key
from ryarn.rope import Extension


@dataclass
class Pass:
    """One forward pass in training mode.

    `positions` are worked out from the cos and sin that the rotary module returned, by nothing but
    their definition: the slowest frequencies turn less than once, so their angle is the position.
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    ordinary: torch.Tensor | None
    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor
    gradients: bool
    packing: str
    step: int

    def documents(self) -> list[tuple[list[int], list[int]]]:
        """Tokens and positions of each document, in reading order.

        A document ends where the padding, the number in the mask, or the ordinary positions say so;
        worked out token by token, as a check on what the library does.
        """
        found = []
        for row in range(len(self.tokens)):
            places: list[list[int]] = []
            last = None
            for place in range(self.tokens.shape[1]):
                number = int(self.mask[row, place])
                ordinary = place if self.ordinary is None else int(self.ordinary[row, place])
                if number and (number, ordinary - 1) == last:
                    places[-1].append(place)
                elif number:
                    places.append([place])
                last = (number, ordinary)
            found += [
                (self.tokens[row, ps].tolist(), self.positions[row, ps].tolist()) for ps in places
            ]
        return found


def positions_of(cos: torch.Tensor, sin: torch.Tensor, inv_freq: torch.Tensor) -> torch.Tensor:
    """Positions behind cos and sin, [B, T], from the slowest frequency."""
    size = inv_freq.numel()
    angle = torch.atan2(sin[..., size - 1].double(), cos[..., size - 1].double())
    return (angle.remainder(2 * torch.pi) / inv_freq[-1].double()).round().long()


@contextmanager
def watch(extension: Extension) -> Iterator[list[Pass]]:
    """Record the passes in training mode, from outside of the extension's own hooks."""
    [rope] = extension.rope_map.extended
    decoder = extension.rope_map.decoder
    signature = inspect.signature(decoder.forward)
    seen: list[Pass] = []
    given: dict[str, Any] = {}

    def before(module: Any, args: Any, kwargs: Any) -> None:
        bound = signature.bind_partial(*args, **kwargs).arguments
        given.clear()
        given.update({**bound, **bound.pop("kwargs", {})})

    def rotary(module: Any, args: Any, out: Any) -> None:
        tokens = given.get("input_ids")
        if not decoder.training or tokens is None:
            return
        mask = given.get("attention_mask")
        cos, sin = (part.detach().float().clone() for part in out)
        seen.append(
            Pass(
                tokens.clone(),
                _numbers(tokens, mask),
                None if given.get("position_ids") is None else given["position_ids"].clone(),
                cos,
                sin,
                positions_of(cos, sin, rope.inv_freq),
                torch.is_grad_enabled(),
                f"mask {None if mask is None else list(mask.shape)}",
                (extension._remapper._progress or (-1, 0))[0],
            )
        )

    handles = [
        decoder.register_forward_pre_hook(before, with_kwargs=True),
        rope.module.register_forward_hook(rotary),
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _numbers(tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Which document each token is of by the mask, 0 for padding; [B, T]."""
    if mask is None:
        return torch.ones_like(tokens)
    if mask.ndim == 2:
        return mask.clone()
    sees = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
    # The first token that one sees is where its document begins.
    first = sees.int().argmax(-1) + 1
    return torch.where(sees.diagonal(dim1=1, dim2=2), first, torch.zeros_like(first))


def expected_positions(tokens: list[int], span: int, seed: int, step: int) -> list[int]:
    """The draw of one document, straight from its address: a sorted uniform subset of the span."""
    rng = generator(seed, step, row_key(np.array(tokens)), 0)
    return sorted(rng.choice(span, size=len(tokens), replace=False).tolist())


def report(extension: Extension, seen: list[Pass], steps: int, seed: int) -> dict[str, Any]:
    """What there was to see in a run, for JSON.

    Attributes of the result: `documents` seen, `as_drawn` of them at exactly the positions of their
    address (in some step's span), `largest` position, `passes`, whether `yarn` is live (its
    frequencies, and its factor on cos and sin), how the `packing` reached the model, and the
    tokens after which positions jump.
    """
    [rope] = extension.rope_map.extended
    method = extension.method
    assert method.curriculum is not None
    yarn = extension.rope_map.yarn(rope, float(method.train_factor or 1))
    policy = [one for one in seen if one.gradients]
    total = as_drawn = 0
    jumps: set[int] = set()
    for one in policy:
        span = method.curriculum.span(one.step, steps)
        for tokens, positions in one.documents():
            total += 1
            as_drawn += positions == expected_positions(tokens, span, seed, one.step)
            jumps.update(np.array(tokens)[:-1][np.diff(positions) > 1].tolist())
    norms = [(one.cos**2 + one.sin**2).sqrt() for one in policy]
    return {
        "documents": total,
        "as_drawn": as_drawn,
        "largest": max(int(one.positions.max()) for one in policy),
        "steps": sorted({one.step for one in policy}),
        "packing": sorted({one.packing for one in policy}),
        "per_pass": [len(one.documents()) for one in policy],
        "yarn": bool(
            np.allclose(rope.inv_freq.double().numpy(), yarn.inv_freq(), rtol=1e-6)
            and all(torch.allclose(n, torch.tensor(yarn.attention_scaling)) for n in norms)
        ),
        "factor": extension.rope_map.config.rope_parameters["factor"],
        "jumps_after": sorted(jumps),
    }
