"""What vLLM is to run for a recipe: an export of its run, or the base of a zero-shot method."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from ryarn.backends.vllm import Engine
from ryarn.config import build
from ryarn.errors import UserError
from ryarn.export.live import WantedRopes, wanted_ropes
from ryarn.export.served import dialects, read_served
from ryarn.export.target import MANIFEST
from ryarn.loading import check_method, set_inference_rope
from ryarn.models import PACKAGED, load_skeleton, model_files, resolve_dtype
from ryarn.recipe import ModelConfig, Recipe, recipe_method
from ryarn.rope import RopeMap, inspect_rope
from ryarn.rope.blank import build_blank
from ryarn.runs import ADAPTER, read_json


@dataclass(frozen=True)
class Planned:
    """What vLLM is to run, and what it must turn out to be.

    Attributes:
        engine: What to start.
        wanted: The RoPE that must be live in it.
        shipped: The model's generation settings, for its end tokens.
        original_length: L_pre in tokens.
        export: What was exported (form, adapter, base, ...); empty for a base alone.
    """

    engine: Engine
    wanted: WantedRopes
    shipped: GenerationConfig
    original_length: int
    export: dict[str, Any]


def check_source(recipe: Recipe, folder: str | None) -> dict[str, Any]:
    """See that a folder is an export of what the recipe describes; cheap.

    Where the run's adapter lies in the recipe's run folder, it must be the exported one.

    Returns:
        What its `ryarn_export.json` says; empty for a method that trains nothing.

    Raises:
        UserError: It is missing, no export, one of another run, or for another engine.
    """
    method = recipe_method(recipe.method)
    where = f"evaluate.backend.model = {folder!r}"
    if not method.trains:
        if folder is not None:
            raise UserError(
                f"{where}: method {method.name!r} trains nothing, so there is no export of it: "
                "leave the key out, the base is taken"
            )
        _check_base(recipe)
        return {}
    if folder is None:
        raise UserError(
            "evaluate.backend.model is missing: vLLM runs an export; make one with "
            f"`ryarn export {recipe.output} --to FOLDER` and give the folder"
        )
    if not (Path(folder) / MANIFEST).is_file():
        raise UserError(f"{where}: no {MANIFEST} there; give a folder that ryarn export made")
    manifest = read_json(Path(folder) / MANIFEST)
    request = manifest["request"]
    if request["form"] not in ("merged", "unmerged"):
        raise UserError(f"{where} holds GGUF for llama.cpp: export the run without --gguf for vLLM")
    trained = manifest.get("trained", {}).get("method", method.name)
    if trained != method.name:
        raise UserError(
            f"{where} was trained with method {trained!r}, the recipe says {method.name!r}: give "
            "the export of this recipe's run"
        )
    weights = recipe.output / ADAPTER / "adapter_model.safetensors"
    if weights.is_file() and request["adapter"] != _digest(weights):
        raise UserError(
            f"{where} was exported from another adapter than {recipe.output / ADAPTER}: export "
            "this run, or evaluate that one's"
        )
    if request["eval_factor"] != method.eval_factor:
        raise UserError(
            f"{where} serves s' = {request['eval_factor']}, the recipe says {method.eval_factor}: "
            "export it with --factor, or change method.eval_factor"
        )
    return manifest


def _check_base(recipe: Recipe) -> None:
    name = recipe.model.name
    if name.startswith("tiny:") or name == "smollm2" or name.endswith(".gguf"):
        raise UserError(
            f"model.name = {name!r} is no model in safetensors, which vLLM needs: evaluate it with "
            "backend hf, or save it into a folder and name that"
        )


def _digest(weights: Path) -> str:
    with weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plan_engine(recipe: Recipe, folder: str | None) -> Planned:
    """Work out what vLLM is to run.

    Raises:
        UserError: As for `check_source`; the window is longer than the model has positions for.
    """
    manifest = check_source(recipe, folder)
    dtype = str(resolve_dtype(recipe.model.dtype)).removeprefix("torch.")
    if manifest:
        assert folder is not None
        return _plan_export(recipe, Path(folder), manifest, dtype)
    return _plan_base(recipe, dtype)


def _plan_export(recipe: Recipe, folder: Path, manifest: dict[str, Any], dtype: str) -> Planned:
    unmerged = manifest["request"]["form"] == "unmerged"
    model = (folder / "base" if unmerged else folder).resolve()
    rope_map = _blank(build(ModelConfig, {"name": str(model)}))
    window, overrides = _window(recipe, rope_map)
    adapter = folder / "adapter" if unmerged else None
    rank = 0 if adapter is None else int(read_json(adapter / "adapter_config.json")["r"])
    return Planned(
        Engine(str(model), window, dtype, adapter, rank, overrides),
        wanted_ropes(rope_map, window),
        GenerationConfig.from_pretrained(model),
        rope_map.original_length,
        manifest["request"],
    )


def _plan_base(recipe: Recipe, dtype: str) -> Planned:
    method = recipe_method(recipe.method)
    rope_map = _blank(recipe.model)
    check_method(rope_map.decoder, method)
    # On a model without weights: what it becomes is what vLLM must have live.
    set_inference_rope(rope_map.decoder, method.eval_factor, replace=method.replace_scaling)
    rope_map = inspect_rope(rope_map.decoder)
    window, overrides = _window(recipe, rope_map)
    if method.eval_factor is not None:
        overrides = dialects(rope_map, read_served(rope_map)) | overrides
    files = model_files(recipe.model)
    assert files is not None
    local = Path(recipe.model.name).expanduser().is_dir() or recipe.model.name in PACKAGED
    return Planned(
        Engine(
            str(files) if local else recipe.model.name,
            window,
            dtype,
            overrides=overrides,
            revision=None if local else recipe.model.revision,
        ),
        wanted_ropes(rope_map, window),
        _shipped(files, rope_map),
        rope_map.original_length,
        {},
    )


def _shipped(files: Path, rope_map: RopeMap) -> GenerationConfig:
    if (files / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(files)
    return GenerationConfig.from_model_config(rope_map.config)


def _blank(config: ModelConfig) -> RopeMap:
    """The RoPEs of a model as transformers builds them from its config, without weights."""
    skeleton = load_skeleton(config)
    return inspect_rope(build_blank(inspect_rope(skeleton).decoder))


def _window(recipe: Recipe, rope_map: RopeMap) -> tuple[int, dict[str, Any]]:
    """The window to evaluate in, and what vLLM's reading of the config needs for it."""
    own = int(rope_map.config.max_position_embeddings)
    window = recipe.evaluate.window or own
    if window <= own:
        return window, {}
    if rope_map.rope_type != "default":
        raise UserError(
            f"evaluate.window = {window}: vLLM has positions up to the window of this model's "
            f"{rope_map.rope_type} RoPE alone, {own}: give at most that, or export it with a "
            "larger --factor"
        )
    # Plain RoPE goes on beyond the window; vLLM's tables end there unless the config says more.
    return window, {"max_position_embeddings": window}
