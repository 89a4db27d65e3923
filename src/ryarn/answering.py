"""Who answers a recipe's rows, how long they may be, and what the manifest says of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ryarn.backends import Backend
from ryarn.backends.config import OpenAIConfig, VllmConfig
from ryarn.errors import UserError
from ryarn.recipe import WITHOUT_EFFECT, Recipe, recipe_method
from ryarn.runs import ADAPTER, check_trained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NOT_OURS = "the server's own: not verified"
"""What the manifest says of a served model's RoPE: the recipe's method is a label there."""

VERIFIED = "the engine's live cos and sin, compared with those of the method"
"""What the manifest says of the RoPE in vLLM."""
VLLM_LOG = "vllm.log"
"""What vLLM printed, in the run folder."""


@dataclass(frozen=True, slots=True)
class Answerer:
    """A backend ready to answer.

    Attributes:
        backend: The backend.
        window: Longest prompt and answer together.
        about: What its answers depend on, for the manifest.
    """

    backend: Backend
    window: int
    about: dict[str, Any]


def check_answerer(recipe: Recipe) -> None:
    """See what is cheap to refuse, before rows are made or weights are read.

    Raises:
        UserError: There is no adapter that the recipe describes, or a backend's package is missing.
    """
    if isinstance(recipe.evaluate.backend, OpenAIConfig):
        from ryarn.backends.openai import check_installed

        check_installed()
        return
    if isinstance(recipe.evaluate.backend, VllmConfig):
        from ryarn.backends.vllm import check_installed as check_vllm
        from ryarn.export.engine import check_source

        check_source(recipe, recipe.evaluate.backend.model)
        check_vllm(recipe.evaluate.backend)
        if not (recipe.output / ADAPTER).is_dir():
            return  # the export says what it was made from
    from ryarn.loading import find_adapter

    find_adapter(recipe)
    check_trained(recipe)


def make_answerer(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Answerer:
    """The backend that a recipe names; of a server, no weights are loaded here.

    Raises:
        UserError: The adapter does not fit the base, the server is not there, or it can't be told
            how long its prompts may be.
    """
    if isinstance(recipe.evaluate.backend, OpenAIConfig):
        return _served(recipe, recipe.evaluate.backend, tokenizer)
    if isinstance(recipe.evaluate.backend, VllmConfig):
        return _vllm(recipe, recipe.evaluate.backend, tokenizer)
    return _local(recipe, tokenizer)


def _local(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Answerer:
    from ryarn.backends.hf import HfBackend
    from ryarn.loading import load_for_inference

    model, info = load_for_inference(recipe, tokenizer)
    return Answerer(
        HfBackend(model, tokenizer, batch_tokens=recipe.evaluate.batch_tokens),
        recipe.evaluate.window or model.config.get_text_config().max_position_embeddings,
        {
            **info,
            "model": recipe.model.model_dump(mode="json"),
            "dtype": str(model.dtype).removeprefix("torch."),
            "method": recipe.method.model_dump(mode="json"),
            "train": _training(recipe),
            "adapter": _adapter_hash(recipe.output / ADAPTER),
        },
    )


def _vllm(recipe: Recipe, config: VllmConfig, tokenizer: PreTrainedTokenizerBase) -> Answerer:
    from ryarn.backends.reading import Reader, all_ends
    from ryarn.backends.vllm import VllmBackend
    from ryarn.export.engine import plan_engine
    from ryarn.export.live import check_live

    plan = plan_engine(recipe, config.model)
    backend = VllmBackend(config, plan.engine, plan.wanted.positions, recipe.output / VLLM_LOG)
    try:
        check_live(backend.ropes, plan.wanted)
    except UserError:
        backend.close()
        raise
    ends = all_ends(plan.shipped, tokenizer)
    backend.read_with(Reader(tokenizer, ends), ends)
    method = recipe_method(recipe.method)
    return Answerer(
        backend,
        plan.engine.window,
        {
            "train_factor": method.train_factor,
            "eval_factor": method.eval_factor,
            "original_length": plan.original_length,
            "model": recipe.model.model_dump(mode="json"),
            "dtype": plan.engine.dtype,
            "method": recipe.method.model_dump(mode="json"),
            "train": _training(recipe),
            **{key: plan.export.get(key) for key in ("form", "adapter", "base")},
            "engine": {**backend.versions, "options": config.options},
            "rope": VERIFIED,
        },
    )


def _served(recipe: Recipe, config: OpenAIConfig, tokenizer: PreTrainedTokenizerBase) -> Answerer:
    from ryarn.backends.openai import OpenAIBackend

    backend = OpenAIBackend(config, tokenizer)
    window = recipe.evaluate.window or backend.window()
    if window is None:
        raise UserError(
            f"evaluate.window is missing: server {config.base_url} does not say how long prompt "
            "and answer may be; give the context length that it was started with"
        )
    method = recipe_method(recipe.method)
    return Answerer(
        backend,
        window,
        {
            "train_factor": method.train_factor,
            "eval_factor": method.eval_factor,
            "model": recipe.model.model_dump(mode="json"),
            "method": recipe.method.model_dump(mode="json"),
            "train": _training(recipe),
            "server": config.model_dump(include={"base_url", "model", "api", "prompt"}),
            "rope": NOT_OURS,
        },
    )


def _training(recipe: Recipe) -> dict[str, Any] | None:
    """What made the adapter, for telling runs apart; nothing for a zero-shot method."""
    if not recipe_method(recipe.method).trains:
        return None
    return recipe.train.model_dump(mode="json", exclude=set(WITHOUT_EFFECT))


def _adapter_hash(folder: Path) -> str | None:
    """SHA-256 of the trained weights: answers of an adapter trained anew are not mixed in."""
    weights = folder / "adapter_model.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else None
