"""`ryarn doctor`: which RoPE is live in a model, and whether config and adapter say the same."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ryarn.config import build
from ryarn.contract import Contract
from ryarn.doctor.diagnosis import Diagnosis, Finding, Layer, LiveRope
from ryarn.doctor.live import name_rope, see_layers
from ryarn.errors import SelfTestError, UserError
from ryarn.loading import load, load_for_inference
from ryarn.method import make_method
from ryarn.models import PACKAGED, SMOLLM2, TINY, load_model, load_skeleton, load_tokenizer
from ryarn.recipe import ModelConfig, load_recipe
from ryarn.rope import RopeMap, check_frequencies, inspect_rope, verify
from ryarn.rope.blank import build_blank
from ryarn.rope.inspect import Rope
from ryarn.rope.remap import Remapper
from ryarn.runs import ADAPTER, RECIPE, read_json

_MANIFEST = "ryarn_export.json"
_RELOAD = "load the model anew, and change its RoPE with ryarn (extend, or method.factor)"
_UNPATCH = "load it in a process where nothing patches transformers"
_AT_RUN_TIME = ("training", "gradient_checkpointing", "max_seq_len_cached", "layer_idx")
"""Attributes that a config does not set, or that change with the rows seen."""
_UNLIMITED = 10**12
"""transformers writes 10^30 where a tokenizer has no limit."""


def doctor(name: str) -> Diagnosis:
    """Load a model as training and evaluation do, and examine it.

    Args:
        name: Hub id, folder of a model, `miniature`, `smollm2`, `tiny:<family>`, GGUF file, adapter
            folder with its `ryarn.json`, run folder, or folder of an export.

    Raises:
        UserError: There is no such model or adapter, or the adapter's base is another one.
    """
    folder = Path(name).expanduser()
    if name in PACKAGED or name == SMOLLM2 or name.startswith(TINY) or not folder.is_dir():
        return examine(*load_model(build(ModelConfig, {"name": name})), name=name)
    # With its full path: a relative one could be a hub id.
    folder = folder.resolve()
    if (folder / _MANIFEST).is_file():
        return _exported(folder, name)
    adapter = folder / ADAPTER if (folder / ADAPTER).is_dir() else folder
    if (adapter / "adapter_config.json").is_file():
        return _adapted(adapter, name)
    if (folder / RECIPE).is_file():
        recipe = load_recipe(folder / RECIPE, [])
        tokenizer = load_tokenizer(recipe.model)
        return examine(load_for_inference(recipe, tokenizer)[0], tokenizer, name=name)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{name!r} holds neither a model (config.json), nor an adapter (adapter_config.json), "
            "nor a run (recipe.yaml): give a hub id or one of those folders"
        )
    return examine(*load_model(build(ModelConfig, {"name": str(folder)})), name=name)


def _adapted(adapter: Path, name: str) -> Diagnosis:
    contract = Contract.load(adapter)
    try:
        model, tokenizer = load(adapter)
    except SelfTestError as error:
        return Diagnosis(name, "adapter", findings=(Finding("fail", str(error), _RELOAD),))
    found = examine(model, tokenizer, name=name, contract=contract)
    return replace(found, findings=(*found.findings, *_without_ryarn(contract)))


def _without_ryarn(contract: Contract) -> Iterator[Finding]:
    """Whether PEFT alone, on the base as it is, would run the adapter under its RoPE."""
    if contract.eval_factor is None:
        yield Finding("note", "the adapter runs on the base's own RoPE: plain PEFT loads it, too")
        return
    where = {key: getattr(contract.base, key) for key in ("name", "revision")}
    base = load_skeleton(build(ModelConfig, where))
    native = None if base is None else inspect_rope(base).native_factor
    if native == contract.eval_factor:
        yield Finding("note", f"the base's own config has YaRN by {native:g}: plain PEFT keeps it")
        return
    yield Finding(
        "warning",
        f"plain PEFT would lose YaRN by {contract.eval_factor:g}: the adapter's files don't say it",
        "load it with ryarn.load, or run ryarn export",
    )


def _exported(folder: Path, name: str) -> Diagnosis:
    inside = folder / "base" if (folder / "base" / "config.json").is_file() else folder
    packed = next(iter(sorted(folder.glob("*.gguf"))), inside)
    found = examine(*load_model(build(ModelConfig, {"name": str(packed)})), name=name)
    served = read_json(folder / _MANIFEST).get("served", {})
    live = next((layer.rope for layer in found.layers if layer.drawn), LiveRope("none"))
    facts = {"factor": served.get("factor") or 1.0, "attention_factor": served["attention_factor"]}
    wrong = [
        Finding(
            "fail",
            f"{_MANIFEST} says {key} = {value:g}, the model has {getattr(live, key)}",
            "export it again: its config.json is not the one that was exported",
        )
        for key, value in facts.items()
        if abs((getattr(live, key) or 0.0) - value) > 1e-6
    ]
    return replace(found, findings=(*wrong, *found.findings))


def examine(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    name: str | None = None,
    contract: Contract | None = None,
) -> Diagnosis:
    """Examine a live model; it is not changed.

    Args:
        model: A transformers causal language model, wrapped by PEFT or extended or not.
        tokenizer: Its tokenizer, for the length it claims.
        name: What to call it.
        contract: What its adapter was trained under.
    """
    inner: Any = getattr(model, "get_base_model", lambda: model)()
    title, kind = name or str(inner.config.name_or_path), type(inner).__name__
    try:
        rope_map = inspect_rope(model)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return Diagnosis(title, kind, findings=tuple(_unreadable(error)))
    findings = [*_provenance(rope_map), *_frequencies(rope_map)]
    findings += [*_edited(rope_map), *_two_configs(inner, rope_map)]
    layers: tuple[Layer, ...] = ()
    try:
        layers = see_layers(rope_map)
    except Exception as error:  # a forward pass of foreign code may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        findings.append(Finding("fail", f"the decoder does not run six tokens ({reason})", _RELOAD))
    if not findings:
        findings += _self_test(rope_map)
    if contract is not None:
        findings += _against_contract(rope_map, contract)
    lengths = _lengths(inner, tokenizer, rope_map)
    findings += _length_warnings(lengths)
    order = {"fail": 0, "warning": 1, "note": 2}
    findings.sort(key=lambda finding: order[finding.level])
    return Diagnosis(title, kind, layers, lengths, tuple(findings))


def _unreadable(error: Exception) -> Iterator[Finding]:
    if isinstance(error, UserError):
        yield Finding("fail", str(error), "use a model of the supported families")
    else:
        reason = f"{type(error).__name__}: {error}"
        yield Finding("fail", f"the config's RoPE can't be read ({reason})", _RELOAD)


def _provenance(rope_map: RopeMap) -> Iterator[Finding]:
    """Rotary code from elsewhere than the model's own package: equal today, or on short rows."""
    homes = {kind.__module__.partition(".")[0] for kind in type(rope_map.decoder).__mro__}
    for rope in _one_a_module(rope_map):
        kind, module = type(rope.module), rope.module
        sources = {kind.__module__, *_sources(kind.forward)}
        if "forward" in vars(module) and not hasattr(module, "_hf_hook"):
            sources |= {*_sources(vars(module)["forward"]), "the live object"}
        foreign = sorted(s for s in sources if s.partition(".")[0] not in {*homes, "torch"})
        if foreign:
            yield Finding(
                "fail",
                f"{rope.path}: its class {kind.__name__} was patched: code from "
                f"{', '.join(foreign)} decides its phases",
                _UNPATCH,
            )


def _sources(function: Any) -> Iterator[str]:
    """Modules whose code a function and all that it wraps was written in."""
    while function is not None:
        plain = inspect.unwrap(function, stop=lambda _: True)
        scope = getattr(getattr(plain, "__func__", plain), "__globals__", None)
        yield scope["__name__"] if scope is not None else type(plain).__module__
        function = getattr(function, "__wrapped__", None)


def _one_a_module(rope_map: RopeMap) -> Iterator[Rope]:
    ropes = (*rope_map.extended, *rope_map.untouched)
    yield from {id(rope.module): rope for rope in ropes}.values()


def _frequencies(rope_map: RopeMap) -> Iterator[Finding]:
    """Each live RoPE against the formula of its config."""
    single = [replace(rope_map, extended=(rope,), untouched=()) for rope in rope_map.extended]
    single += [replace(rope_map, extended=(), untouched=(rope,)) for rope in rope_map.untouched]
    for one in single:
        rope = (*one.extended, *one.untouched)[0]
        try:
            check_frequencies(one, None)
        except SelfTestError as error:
            yield Finding("fail", f"{error}; {_looks(rope_map, rope)}", _RELOAD)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            yield Finding("fail", f"{rope.label}: its config can't be read ({reason})", _RELOAD)


def _looks(rope_map: RopeMap, rope: Rope) -> str:
    live, factor = name_rope(rope_map, rope), rope.parameters.get("factor")
    says = rope.rope_type + ("" if factor is None else f" by {factor:g}")
    if live.theta is None:
        return f"the config says {says}, and no formula gives what is live"
    return (
        f"the config says {says}, live is {live.rope_type} by {live.factor:g}, theta {live.theta:g}"
    )


def _edited(rope_map: RopeMap) -> Iterator[Finding]:
    """What transformers builds from the config as it is now against the numbers in live modules."""
    try:
        blank = dict(build_blank(rope_map.decoder).named_modules())
    except UserError as error:
        yield Finding("fail", str(error), _RELOAD)
        return
    rotary = {id(rope.module) for rope in _one_a_module(rope_map)}
    for path, module in rope_map.decoder.named_modules():
        if path not in blank or not (id(module) in rotary or hasattr(module, "layer_idx")):
            continue
        now, then = _numbers(module), _numbers(blank[path])
        for key in now.keys() & then.keys():
            if now[key] != then[key] and not (id(module) in rotary and "attention_scal" in key):
                yield Finding(
                    "fail",
                    f"{path}: its {key} is {now[key]}, but the config now gives {then[key]}: the "
                    "config was edited after loading, and reached nothing",
                    _RELOAD,
                )
                return


def _numbers(module: nn.Module) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and key not in _AT_RUN_TIME
        if isinstance(value, int | float | str | dict)
    }


def _two_configs(model: Any, rope_map: RopeMap) -> Iterator[Finding]:
    """The config that is saved with a model is the one that its rotary modules read."""
    saved = model.config.get_text_config(decoder=True)
    for key in ("rope_parameters", "max_position_embeddings"):
        ours, theirs = getattr(rope_map.config, key, None), getattr(saved, key, None)
        if saved is not rope_map.config and ours != theirs:
            yield Finding(
                "fail",
                f"model.config says {key} = {theirs}, the rotary modules were built from {ours}",
                _RELOAD,
            )


def _self_test(rope_map: RopeMap) -> Iterator[Finding]:
    """The test before training: phases at given positions, their reach, what tokens see."""
    remapper = Remapper(rope_map, make_method("lora"), seed=0)
    try:
        verify(rope_map, remapper, None)
    except SelfTestError as error:
        yield Finding("fail", str(error), _UNPATCH)
    except UserError as error:
        yield Finding("fail", str(error), "use a model of the supported families")
    else:
        if remapper.packing_fault is not None:
            yield Finding("note", "packed rows would be refused: it can't keep documents apart")
    finally:
        remapper.remove()


def _against_contract(rope_map: RopeMap, contract: Contract) -> Iterator[Finding]:
    drawn = ""
    if contract.spans:
        first, last = contract.spans[0], contract.spans[-1]
        drawn = f", positions drawn ({contract.sampler}) from spans {first} to {last}"
    factors = " and ".join(
        f"{key} = {value:g}"
        for key, value in (("s", contract.train_factor), ("s'", contract.eval_factor))
        if value is not None
    )
    yield Finding("note", f"adapter trained with {contract.method}{drawn}, {factors or 'no YaRN'}")
    wanted = {
        "YaRN factor s'": (contract.eval_factor or rope_map.native_factor, rope_map.native_factor),
        "original window": (contract.base.original_length, rope_map.original_length),
        "extended RoPEs": (contract.layers, tuple(rope.label for rope in rope_map.extended)),
    }
    for key, (asked, live) in wanted.items():
        if asked != live:
            yield Finding(
                "fail",
                f"{key}: the adapter's ryarn.json says {asked}, the model has {live}",
                "load the adapter with ryarn.load on its own base",
            )
    if (contract.eval_factor or 1.0) < (contract.train_factor or 1.0):
        yield Finding(
            "fail",
            f"ryarn.json says s' = {contract.eval_factor or 1:g}, below the s = "
            f"{contract.train_factor:g} of training",
            "restore the ryarn.json that training wrote",
        )


_CONFIG, _REACH = "config max_position_embeddings", "RoPE, original window times factor"
_TOKENIZER, _GENERATION = "tokenizer model_max_length", "generation config max_length"


def _lengths(model: Any, tokenizer: Any, rope_map: RopeMap) -> dict[str, int | None]:
    live = name_rope(rope_map, rope_map.extended[0])
    lengths: dict[str, int | None] = {
        "original window": rope_map.original_length,
        _CONFIG: int(rope_map.config.max_position_embeddings),
    }
    if live.window is not None:
        lengths[_REACH] = live.window
    if tokenizer is not None:
        claimed = int(tokenizer.model_max_length)
        lengths[_TOKENIZER] = None if claimed > _UNLIMITED else claimed
    longest = getattr(getattr(model, "generation_config", None), "max_length", None)
    # 20 is what old generation configs have where nobody set it.
    lengths[_GENERATION] = None if longest in (None, 20) else int(longest)
    return lengths


def _length_warnings(lengths: dict[str, int | None]) -> Iterator[Finding]:
    config = lengths[_CONFIG]
    reach = lengths.get(_REACH, config)
    assert config is not None
    assert reach is not None
    if config < reach:
        yield Finding(
            "warning",
            f"the config claims {config} tokens, its RoPE reaches {reach}: engines serve {config}",
            f"set max_position_embeddings to {reach}",
        )
    for where in (_TOKENIZER, _GENERATION):
        claimed = lengths.get(where)
        if claimed is not None and claimed != config:
            yield Finding(
                "warning",
                f"{where} is {claimed}, the config claims {config}",
                "" if claimed > config else "longer texts may be cut there",
            )
