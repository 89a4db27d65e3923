"""The RoPE that an engine has live, against the one that its model was made for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ryarn.errors import UserError
from ryarn.rope import RopeMap

STEP, FAR = 0.005, 0.02
"""What a table in bfloat16 may be off by at position 0, where cos is the attention factor, and at
the others; in float32 phases at 10^5 are good to 0.01. Another RoPE is off by 1 at long range."""


@dataclass(frozen=True)
class Wanted:
    """One RoPE that must be live.

    Attributes:
        inv_freq: Radians a token, float64, shape [rotary_size / 2].
        attention_factor: What cos and sin are multiplied by.
    """

    inv_freq: NDArray[np.float64]
    attention_factor: float

    def table(self, positions: Sequence[int]) -> NDArray[np.float64]:
        """Cos, then sin, shape [positions, rotary size]."""
        phases = np.outer(np.asarray(positions, dtype=np.float64), self.inv_freq)
        return np.concatenate([np.cos(phases), np.sin(phases)], axis=1) * self.attention_factor


@dataclass(frozen=True)
class WantedRopes:
    """The RoPEs of a model, by layer type.

    Attributes:
        by_type: Layer type to RoPE; the key is None where all layers have the same.
        layer_types: The type of each layer, empty where all layers have the same RoPE.
        positions: Where tables are compared.
    """

    by_type: Mapping[str | None, Wanted]
    layer_types: tuple[str, ...]
    positions: tuple[int, ...]

    def of_layer(self, path: str) -> tuple[str, Wanted]:
        """The RoPE of the layer that a module stands in, and what to call it."""
        if None in self.by_type:
            return path, self.by_type[None]
        layer = re.search(r"\blayers\.(\d+)\.", path)
        if layer is None:
            raise UserError(f"vLLM's {path} belongs to no layer, so its RoPE can't be checked")
        kind = self.layer_types[int(layer[1])]
        return f"{path} ({kind})", self.by_type[kind]


def wanted_ropes(rope_map: RopeMap, window: int) -> WantedRopes:
    """What an engine must have live to be equal to a live model of transformers.

    Args:
        rope_map: The model's RoPEs, set for inference.
        window: Longest input in tokens.
    """
    ropes = {
        rope.layer_type: Wanted(
            rope.inv_freq.detach().double().cpu().numpy(), float(rope.attention_factor)
        )
        for rope in (*rope_map.extended, *rope_map.untouched)
    }
    original = rope_map.original_length
    places = {0, 1, original - 1, original, window // 2, window - 1}
    return WantedRopes(
        ropes,
        () if None in ropes else tuple(rope_map.config.layer_types),
        tuple(sorted(place for place in places if 0 <= place < window)),
    )


def check_live(ropes: Sequence[Sequence[Mapping[str, Any]]], wanted: WantedRopes) -> None:
    """See that an engine computes with the RoPE that its model was made for.

    Args:
        ropes: What each of its workers reports, see `ryarn.backends.engine.vllm_worker`.
        wanted: What must be live.

    Raises:
        UserError: It computes with another one, or can't be seen; module and position are named.
    """
    for modules in ropes:
        if not modules:
            raise UserError(
                "this release of vLLM shows no cos and sin tables of the model, so nobody can tell "
                "which RoPE answers: evaluate with another release, or with backend hf"
            )
        for module in modules:
            for fault in _faults(module, wanted):
                raise UserError(
                    f"this release of vLLM would serve another RoPE than was trained: {fault}; use "
                    "another release, or backend hf"
                )


def _faults(module: Mapping[str, Any], wanted: WantedRopes) -> Iterator[str]:
    if "inv_freq" in module:
        [path] = module["paths"]
        prefix = path.rpartition(".")[2].removesuffix("inv_freq").rstrip("_") or None
        rope = wanted.by_type.get(prefix) or wanted.by_type.get(None)
        if rope is None:
            yield f"{path} is none of the layer types {', '.join(map(str, wanted.by_type))}"
        elif not _close(rope.inv_freq, module["inv_freq"], rtol=1e-5):
            yield f"{path} has other frequencies"
        elif not _close(rope.attention_factor, module["attention_factor"], rtol=1e-5):
            yield _attention(path, module["attention_factor"], rope)
        return
    for path in module["paths"]:
        name, rope = wanted.of_layer(path)
        yield from _table_faults(name, module, rope, wanted.positions)


def _table_faults(
    name: str, module: Mapping[str, Any], rope: Wanted, positions: Sequence[int]
) -> Iterator[str]:
    for position, seen, row in zip(positions, module["rows"], rope.table(positions), strict=True):
        if seen is None:
            yield f"the table of {name} ends at {module['size']}, before position {position}"
        elif len(seen) != len(row):
            yield f"{name} rotates {len(seen)} dimensions, not {len(row)}"
        elif position == 0 and not _close(row, seen, atol=STEP):
            yield _attention(name, seen[0], rope)
        elif not _close(row, seen, atol=FAR):
            yield f"{name} has other cos and sin at position {position}"


def _attention(name: str, seen: float, rope: Wanted) -> str:
    return f"{name} has the attention factor {seen:.4f}, not {rope.attention_factor:.4f}"


def _close(one: Any, two: Any, *, rtol: float = 0.0, atol: float = 0.0) -> bool:
    return np.shape(one) == np.shape(two) and bool(np.allclose(one, two, rtol=rtol, atol=atol))
