"""Load what was trained, ready for inference: base, YaRN at s', adapter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ryarn.config import build
from ryarn.contract import Contract, fingerprint
from ryarn.errors import UserError
from ryarn.method import Method
from ryarn.models import load_model
from ryarn.recipe import ModelConfig, Recipe, recipe_method
from ryarn.rope import (
    RopeMap,
    check_frequencies,
    describe_method,
    inspect_rope,
    switch_yarn,
)
from ryarn.runs import ADAPTER
from ryarn.trust import trusting

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load(
    folder: str | Path,
    *,
    base: str | None = None,
    dtype: str = "auto",
    attention: str = "sdpa",
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """Load an adapter with the base and the YaRN that it was trained for.

    Args:
        folder: A run folder of `ryarn train`, or an adapter folder with its `ryarn.json`.
        base: Base model, if it is not where it was in training.
        dtype: auto, float32 or bfloat16.
        attention: transformers' `attn_implementation`.
        trust_remote_code: Run Python code that comes with the base.

    Returns:
        The model (in evaluation mode, adapter on, YaRN at s') and its tokenizer.

    Raises:
        UserError: There is no adapter, or the base does not match its contract.
    """
    path = Path(folder)
    adapter = path / ADAPTER if (path / ADAPTER).is_dir() else path
    contract = Contract.load(adapter)
    check_adapter(adapter)
    where = {"name": base} if base else {k: getattr(contract.base, k) for k in ("name", "revision")}
    config = build(ModelConfig, {**where, "dtype": dtype, "attention": attention})
    with trusting(trust_remote_code):
        model, tokenizer = load_model(config)
    return _put_on(model, adapter, contract, contract.eval_factor), tokenizer


def _put_on(model: Any, adapter: Path, contract: Contract, eval_factor: float | None) -> Any:
    from peft import PeftModel

    contract.check_base(model, inspect_rope(model))
    # Training under the contract needed the word that another scaling may be replaced.
    set_inference_rope(model, eval_factor, replace=True)
    return PeftModel.from_pretrained(model, str(adapter)).eval()


def check_adapter(folder: Path) -> None:
    """Refuse an adapter without safetensors: PEFT would read a pickle, or ask the hub.

    Raises:
        UserError: It has none.
    """
    if not (folder / "adapter_model.safetensors").is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        raise UserError(
            f"{folder}: no adapter_model.safetensors there"
            + (", only pickled weights, which are not read" if pickled else "")
            + ": give the folder of an adapter that ryarn trained"
        )


def set_inference_rope(model: Any, eval_factor: float | None, *, replace: bool = False) -> None:
    """Switch YaRN at s' on for inference and check it; None leaves the model's own RoPE."""
    rope_map = inspect_rope(model)
    if eval_factor is not None:
        switch_yarn(rope_map, eval_factor, replace=replace)
    check_frequencies(rope_map, eval_factor)


def check_method(model: Any, method: Method) -> RopeMap:
    """See that a method applies to a model, and tell what RoPE the model has.

    Raises:
        UserError: The model has no RoPE that can be extended, or the method does not apply to it.
    """
    rope_map = inspect_rope(model)
    describe_method(rope_map, method)
    return rope_map


def find_adapter(recipe: Recipe) -> Contract | None:
    """The contract of the adapter that a recipe evaluates; None for a zero-shot method.

    Raises:
        UserError: The run folder holds no adapter, or one that another recipe trained.
    """
    method = recipe_method(recipe.method)
    if not method.trains:
        return None
    adapter = recipe.output / ADAPTER
    if not (adapter / "adapter_config.json").is_file():
        raise UserError(
            f"{recipe.output}: no trained adapter for method {method.name!r}; run ryarn train first"
        )
    contract = Contract.load(adapter)
    check_adapter(adapter)
    if contract.method != method.name or contract.train_factor != method.train_factor:
        raise UserError(
            f"{adapter} was trained with method {contract.method!r} (factor "
            f"{contract.train_factor}), the recipe says {method.name!r} (factor "
            f"{method.train_factor}): evaluate it with its own recipe"
        )
    return contract


def load_for_inference(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase
) -> tuple[Any, dict[str, Any]]:
    """The model that a recipe evaluates: its run's adapter on its base, or the base alone.

    Returns:
        The model, on the accelerator where there is one, and what the evaluation notes about it:
        method, train_factor, eval_factor, original_length, base (a fingerprint of its weights).

    Raises:
        UserError: As for `find_adapter`, or the adapter does not fit the base.
    """
    method = recipe_method(recipe.method)
    contract = find_adapter(recipe)
    model, _ = load_model(recipe.model, tokenizer)
    rope_map = check_method(model, method)
    info = {
        "method": method.name,
        "train_factor": method.train_factor,
        "eval_factor": method.eval_factor,
        "original_length": rope_map.original_length,
        "base": fingerprint(rope_map.decoder),
    }
    if contract is not None:
        model = _put_on(model, recipe.output / ADAPTER, contract, method.eval_factor)
    else:
        set_inference_rope(model, method.eval_factor, replace=method.replace_scaling)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), info
