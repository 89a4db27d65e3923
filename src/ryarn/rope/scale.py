"""Switch YaRN on in a loaded model, in config and live modules, and off again bit-exactly.

transformers reads the config once, when a module is built: writing YaRN into the config of a loaded
model changes nothing. So the config is written, and what transformers builds from it is laid into
the live model (`ryarn.rope.blank`), after it has passed against the independent equations of
`ryarn.yarn`. The factor always counts from the original window; nothing is ever stacked.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ryarn.errors import UserError
from ryarn.rope import blank as blanks
from ryarn.rope.describe import describe_native, describe_yarn
from ryarn.rope.inspect import Rope, RopeMap
from ryarn.rope.phases import FAR, phases_differ
from ryarn.rope.scaling import OWN_KEYS, expected
from ryarn.yarn import attention_factor


@dataclass(frozen=True)
class YarnPlan:
    """What switching YaRN on will do; made from the config alone.

    Attributes:
        factor: s, relative to the original window.
        parameters: The config's new `rope_parameters`.
        window: The config's new `max_position_embeddings`.
        description: What becomes of each RoPE, and what is kept, dropped and recomputed.
    """

    factor: float
    parameters: dict[str, Any]
    window: int
    description: str


def plan_yarn(rope_map: RopeMap, factor: float, *, replace: bool = False) -> YarnPlan:
    """Work out what YaRN at a factor means for a model; the model may be one without weights.

    A YaRN factor that the model came with is replaced. theta, partial rotation, betas, truncation,
    mscale and unknown keys stay; an attention factor that was the default of the old factor is
    recomputed.

    Args:
        rope_map: The model's RoPEs.
        factor: YaRN factor s >= 1.
        replace: Whether scaling of another type may be replaced.

    Raises:
        UserError: The scaling is of another type and may not, or can't, be replaced; or the config
            fixes an attention factor that the new factor contradicts.
    """
    config = rope_map.config
    _check_type(rope_map, replace)
    parameters = copy.deepcopy(config.rope_parameters)
    notes = []
    for rope in rope_map.extended:
        inner = parameters if rope.layer_type is None else parameters[rope.layer_type]
        before = describe_native(rope_map, rope)
        if rope.rope_type == "yarn":
            _drop_stale_attention_factor(inner, rope_map.native_factor, factor)
        for key in OWN_KEYS.get(rope.rope_type, ()):
            inner.pop(key, None)
        inner.update(
            rope_type="yarn",
            factor=float(factor),
            original_max_position_embeddings=rope_map.original_length,
        )
        notes.append(f"{rope.label}: {before} -> {describe_yarn(rope_map, rope, inner)}")
    notes += [f"{rope.label}: {describe_native(rope_map, rope)}" for rope in rope_map.untouched]
    if rope_map.local:
        notes.append(
            f"{len(rope_map.local)} windowed layers share this RoPE: they get its frequencies, "
            "at ordinary positions"
        )
    window = math.ceil(rope_map.original_length * factor)
    _check_loadable(config, parameters, window)
    return YarnPlan(float(factor), parameters, window, "; ".join(notes))


def describe_rope(rope_map: RopeMap) -> str:
    """What RoPE a model has by its own config, for methods that leave it as it is."""
    ropes = (*rope_map.extended, *rope_map.untouched)
    return "; ".join(f"{rope.label}: {describe_native(rope_map, rope)}" for rope in ropes)


def switch_yarn(rope_map: RopeMap, factor: float, *, replace: bool = False) -> Callable[[], None]:
    """Put the extended RoPEs of a model under YaRN; see `plan_yarn`.

    Args:
        rope_map: The model's RoPEs.
        factor: YaRN factor s >= 1, relative to the original window.
        replace: Whether scaling of another type may be replaced.

    Returns:
        A function that gives everything back as it was, bit for bit.

    Raises:
        UserError: As for `plan_yarn`; or what transformers builds from such a config is not YaRN.
    """
    plan = plan_yarn(rope_map, factor, replace=replace)
    _check_live(rope_map)
    before = blanks.build_blank(rope_map.decoder)
    with _written(rope_map.config, plan) as take_back:
        after = blanks.build_blank(rope_map.decoder)
        for rope in rope_map.extended:
            _check_blank(rope_map, rope, after, factor)
        found = blanks.changes(before, after)
        _check_untouched(rope_map, found)
        restore = blanks.apply(
            rope_map.decoder, _with_ropes(rope_map, after, found), rope_map.device
        )

    def give_back() -> None:
        take_back()
        restore()

    return give_back


def _check_type(rope_map: RopeMap, replace: bool) -> None:
    name, rope_type = type(rope_map.decoder).__name__, rope_map.rope_type
    if rope_type == "yarn":
        return
    parameters = rope_map.extended[0].parameters
    if rope_type not in OWN_KEYS:
        raise UserError(
            f"{name}: its RoPE is of type {rope_type!r}, which YaRN can't take the place of: use a "
            "method without YaRN (zero-shot, lora)"
        )
    if rope_type != "default" and not replace:
        raise UserError(
            f"{name}: its RoPE is already scaled by {rope_type!r}; set method.replace_scaling=true "
            f"to put YaRN in its place (the factor then counts from the original window of "
            f"{rope_map.original_length} tokens), or use a method without YaRN"
        )
    if rope_type == "linear" and not parameters.get("original_max_position_embeddings"):
        raise UserError(
            f"{name}: its config says rope_type 'linear' with max_position_embeddings = "
            f"{rope_map.config.max_position_embeddings}, which may or may not count the factor "
            f"{parameters['factor']}: write original_max_position_embeddings beside the factor"
        )


def _check_loadable(config: Any, parameters: dict[str, Any], window: int) -> None:
    """See that the config's own class accepts YaRN: a config that it refuses can't be loaded."""
    trial = copy.deepcopy(config)
    trial.rope_parameters, trial.max_position_embeddings = copy.deepcopy(parameters), window
    try:
        type(config).from_dict(trial.to_dict())
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{type(config).__name__} does not accept YaRN, so a model saved with it could not be "
            f"loaded again ({reason}): use a method without YaRN (zero-shot, lora)"
        ) from error


def _drop_stale_attention_factor(
    parameters: dict[str, Any], native_factor: float | None, factor: float
) -> None:
    """Forget a written attention factor that was the default for the old factor."""
    written = parameters.get("attention_factor")
    if written is None or native_factor is None:
        return
    default = attention_factor(
        native_factor, parameters.get("mscale"), parameters.get("mscale_all_dim")
    )
    if math.isclose(written, default, rel_tol=1e-6):
        del parameters["attention_factor"]
    elif not math.isclose(native_factor, factor, rel_tol=1e-9):
        raise UserError(
            f"the model's config fixes attention_factor = {written:g}, not the default {default:g} "
            f"of its factor {native_factor:g}: remove it from the config, or keep that factor"
        )


def _check_live(rope_map: RopeMap) -> None:
    """Refuse frequencies that the config does not account for: another base may hide in them."""
    for rope in rope_map.extended:
        if rope.inv_freq.is_meta:
            continue
        wanted = expected(rope.config, rope.parameters, 2 * rope.inv_freq.numel())
        live = rope.inv_freq.detach().double().cpu().numpy()
        # 1%: a buffer that was cast to bfloat16 is made anew from the config.
        if not any(np.allclose(live, inv_freq, rtol=1e-2, atol=0) for inv_freq in wanted.inv_freq):
            raise UserError(
                f"{rope.label}: its live frequencies are not those of its config "
                f"({rope.rope_type}, theta {rope.parameters['rope_theta']:g}), so YaRN would "
                "replace what nobody wrote down; ryarn can't extend it"
            )


@contextmanager
def _written(config: Any, plan: YarnPlan) -> Iterator[Callable[[], None]]:
    """The plan in the live config; taken back at once if what follows fails."""
    before, window = config.rope_parameters, config.max_position_embeddings
    keep = copy.deepcopy(before)

    def take_back() -> None:
        config.rope_parameters = keep
        config.max_position_embeddings = window

    config.rope_parameters = plan.parameters
    config.max_position_embeddings = plan.window
    try:
        yield take_back
    except BaseException:
        take_back()
        raise


def _check_blank(rope_map: RopeMap, rope: Rope, after: nn.Module, factor: float) -> None:
    """See that transformers builds YaRN from this config: a saved model is loaded that way."""
    built = Rope(rope.path, after.get_submodule(rope.path), rope.layer_type)
    name, failed = type(built.module).__name__, None
    yarn = rope_map.yarn(rope, factor)
    wanted = yarn.inv_freq()
    live = built.inv_freq.double().numpy()
    if live.shape != wanted.shape or not np.allclose(live, wanted, rtol=5e-6, atol=0):
        failed = "frequencies"
    elif not math.isclose(built.attention_factor, yarn.attention_scaling, rel_tol=1e-6):
        failed = "attention factor"
    else:
        positions = torch.tensor(FAR)
        arguments: dict[str, Any] = {"position_ids": positions[None]}
        if "layer_type" in inspect.signature(built.module.forward).parameters:
            arguments["layer_type"] = rope.layer_type
        try:
            out = built.module(torch.zeros(1, len(FAR), 2 * wanted.size), **arguments)
            failed = phases_differ(out, positions, built)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            failed = f"forward pass ({type(error).__name__}: {error})"
    if failed is not None:
        raise UserError(
            f"{rope.label}: {name} does not become YaRN when its config says so ({failed}), and a "
            "saved model would be wrong wherever it is loaded; ryarn can't extend it"
        )


def _check_untouched(rope_map: RopeMap, found: list[blanks.Change]) -> None:
    for rope in rope_map.untouched:
        name = f"{rope.prefix}inv_freq"
        if any(change.path == rope.path and change.name == name for change in found):
            raise UserError(
                f"{rope.label}: YaRN for {rope_map.extended[0].label} would change its "
                "frequencies, too; ryarn can't extend this model"
            )


def _with_ropes(
    rope_map: RopeMap, after: nn.Module, found: list[blanks.Change]
) -> list[blanks.Change]:
    """The changes, and the extended RoPEs whole: a live buffer may have been cast meanwhile."""
    known = {(change.path, change.name) for change in found}
    whole = list(found)
    for rope in rope_map.extended:
        module = after.get_submodule(rope.path)
        for stem in ("inv_freq", "original_inv_freq", "attention_scaling"):
            name = rope.prefix + stem
            if (rope.path, name) not in known and hasattr(module, name):
                whole.append(blanks.Change(rope.path, name, getattr(module, name)))
    return whole
