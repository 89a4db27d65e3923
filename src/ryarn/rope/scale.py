"""Switch YaRN on in a loaded model, in config and live buffers, and off again bit-exactly.

transformers reads the config once, when the rotary module is built: writing YaRN into the config of
a loaded model changes nothing. So both are written here, the buffers through transformers' own
function (the independent equations of `ryarn.yarn` then check them, see `ryarn.rope.verify`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch

from ryarn.errors import UserError
from ryarn.rope.inspect import Rope, RopeMap
from ryarn.yarn import attention_factor


def switch_yarn(rope_map: RopeMap, factor: float) -> Callable[[], None]:
    """Put the extended RoPEs of a model under YaRN; the factor is relative to the original window.

    A factor that the model came with is replaced, never stacked. theta and every other key stay.

    Args:
        rope_map: The model's RoPEs.
        factor: YaRN factor s >= 1.

    Returns:
        A function that gives everything back as it was, bit for bit.

    Raises:
        UserError: The config fixes an attention factor that the new factor contradicts.
    """
    config = rope_map.config
    before = copy.deepcopy(config.rope_parameters)
    window = config.max_position_embeddings
    undo = [_remember(rope) for rope in rope_map.extended]

    def restore() -> None:
        config.rope_parameters = before
        config.max_position_embeddings = window
        for give_back in undo:
            give_back()

    parameters = copy.deepcopy(config.rope_parameters)
    for rope in rope_map.extended:
        inner = parameters if rope.layer_type is None else parameters[rope.layer_type]
        inner.update(
            rope_type="yarn",
            factor=float(factor),
            original_max_position_embeddings=rope_map.original_length,
        )
        _drop_stale_attention_factor(inner, rope_map.native_factor)
    config.rope_parameters = parameters
    config.max_position_embeddings = math.ceil(rope_map.original_length * factor)
    for rope in rope_map.extended:
        _rebuild(rope)
    return restore


def _drop_stale_attention_factor(parameters: dict[str, Any], native_factor: float | None) -> None:
    """Forget a written attention factor that was the default for the old factor."""
    written = parameters.get("attention_factor")
    if written is None or native_factor is None:
        return
    default = attention_factor(native_factor)
    if not math.isclose(written, default, rel_tol=1e-6):
        raise UserError(
            f"the model's config fixes attention_factor = {written:g}, not the default {default:g} "
            f"of its factor {native_factor:g}: remove it from the config, or keep that factor"
        )
    del parameters["attention_factor"]


def _remember(rope: Rope) -> Callable[[], None]:
    module: Any = rope.module
    prefix = rope.prefix
    names = ("inv_freq", "original_inv_freq")
    buffers = {
        key: getattr(module, key).clone()
        for key in (prefix + name for name in names)
        if hasattr(module, key)
    }
    scaling = getattr(module, f"{prefix}attention_scaling", None)
    rope_type = copy.deepcopy(getattr(module, "rope_type", None))

    def give_back() -> None:
        for key, value in buffers.items():
            # The model may have moved to another device meanwhile.
            module.register_buffer(key, value.to(getattr(module, key).device), persistent=False)
        if scaling is not None:
            setattr(module, f"{prefix}attention_scaling", scaling)
        if rope_type is not None:
            module.rope_type = rope_type

    return give_back


def _rebuild(rope: Rope) -> None:
    """Fill a rotary module's buffers as transformers would for a model built from this config."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    module: Any = rope.module
    prefix = rope.prefix
    device = rope.inv_freq.device
    inv_freq, scaling = ROPE_INIT_FUNCTIONS["yarn"](
        module.config, device, layer_type=rope.layer_type
    )
    # float32 whatever the model's dtype: a bfloat16 frequency is off by whole turns at long range.
    inv_freq = inv_freq.to(device=device, dtype=torch.float32)
    module.register_buffer(f"{prefix}inv_freq", inv_freq, persistent=False)
    module.register_buffer(f"{prefix}original_inv_freq", inv_freq.clone(), persistent=False)
    setattr(module, f"{prefix}attention_scaling", scaling)
    if isinstance(getattr(module, "rope_type", None), dict):
        module.rope_type = {**module.rope_type, rope.layer_type: "yarn"}
    else:
        module.rope_type = "yarn"
