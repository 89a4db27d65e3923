"""Small runs to export: a base in a folder, and an adapter on it that was drawn, not trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from ryarn import extend, make_method
from ryarn.contract import make_contract
from ryarn.models import load_model
from ryarn.recipe import ModelConfig
from ryarn.runs import write_json

WINDOW = 256


@dataclass(frozen=True)
class Shape:
    """A tiny model, large enough that a wrong RoPE shows in its logits."""

    family: str = "llama"
    settings: dict[str, Any] = field(default_factory=dict)


SHAPES = {
    "llama": Shape("llama", {"tie_word_embeddings": True}),
    "llama-untied": Shape("llama", {"tie_word_embeddings": False, "attention_bias": True}),
    "qwen2": Shape("qwen2", {"tie_word_embeddings": False}),
    "qwen3": Shape("qwen3", {"head_dim": 128, "tie_word_embeddings": True}),
    "olmo3": Shape("olmo3", {"num_hidden_layers": 4, "sliding_window": 64}),
}


def make_base(folder: Path, shape: Shape, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A base model with random weights in a folder."""
    settings = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": WINDOW,
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": None
        if shape.family == "olmo3"
        else {"rope_type": "default", "rope_theta": 5000.0},
        # Plain initialization attends to all tokens alike: no RoPE would show.
        "initializer_range": 0.3,
        **shape.settings,
    }
    config = AutoConfig.for_model(shape.family, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_run(
    folder: Path, base: str | Path, *, dtype: str = "float32", scale: float = 1.0, **method: Any
) -> Path:
    """An adapter with random weights and its contract, in a run folder."""
    model, _ = load_model(ModelConfig(name=str(base), dtype=dtype))
    chosen = {"name": "randomized-yarn", "factor": 4, "spans": [512, 1024], **method}
    extension = extend(model, make_method(chosen.pop("name"), **chosen))
    contract = make_contract(model, extension.rope_map, extension.method)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        adapted = get_peft_model(
            model,
            LoraConfig(
                r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
            ),
        )
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            weights.data.mul_(scale)
    adapter = folder / "adapter"
    adapted.save_pretrained(str(adapter), save_embedding_layers=False)
    contract.save(adapter)
    rows = {"rows": 8, "tokens": 80, "longest": 12, "fingerprint": "f" * 64}
    write_json(folder / "run.json", {"dtype": dtype, "seed": 3, "steps": 2, "data": rows})
    return folder
