"""The memory in docs/several-processes.md is what the package works out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ryarn.config import build
from ryarn.cost.architectures import ARCHITECTURES
from ryarn.cost.memory import GIB, HALF, training_memory
from ryarn.cost.sizes import Sizes
from ryarn.recipe import Recipe

PAGE = Path(__file__).parents[2] / "docs" / "several-processes.md"
TOKENS = 8192
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen2.5 7B": dict(ARCHITECTURES["Qwen/Qwen2.5-7B-Instruct"]),
    "Qwen3 14B": dict(ARCHITECTURES["Qwen/Qwen3-14B"]),
    "Qwen3 32B": {
        **ARCHITECTURES["Qwen/Qwen3-14B"],
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
    },
    "Llama 3 70B": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
}


def recipe() -> Recipe:
    data = {"task": "jsonl", "path": "rows.jsonl"}
    train = {"data": data, "max_length": TOKENS, "gradient_checkpointing": True}
    test = {"data": {**data, "path": "test.jsonl", "test": 1}, "max_new_tokens": 256}
    method = {"name": "randomized-yarn", "spans": [16384]}
    parts = {"model": {"name": "base"}, "method": method, "train": train, "evaluate": test}
    return build(Recipe, {**parts, "output": "run"})


def sharded(sizes: Sizes, gpus: int) -> float:
    """Bytes on each GPU under FSDP2; see the page."""
    need = training_memory(sizes, recipe(), TOKENS)
    layer = HALF * sum(one * other for one, other in sizes.linears)
    ends = 2 * HALF * sizes.vocabulary * sizes.hidden
    shard = (need.weights + need.adapter) / gpus
    return shard + 2 * layer + ends + need.checkpointed + need.logits


@pytest.mark.parametrize("name", SHAPES)
def test_a_line_of_the_table(name: str) -> None:
    shape = dict(SHAPES[name])
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    with torch.device("meta"):
        sizes = Sizes.of(AutoModelForCausalLM.from_config(config))
    assert sizes is not None
    need = training_memory(sizes, recipe(), TOKENS)
    parts = (need.weights, need.adapter, need.checkpointed, need.logits, need.total(True))
    values = [*parts, sharded(sizes, 8), sharded(sizes, 16), need.kept]
    line = " | ".join([name, *(f"{value / GIB:.1f}" for value in values)])
    text = PAGE.read_text(encoding="utf-8")
    assert f"| {line} |" in text
    billions = re.search(r"2 bytes a parameter; ([^;]*?) billion", text)
    assert billions is not None
    assert f"{sizes.parameters / 1e9:.2f}" in billions[1]
    assert f"{sizes.adapter(16) / 1e6:.0f}" in text.split("moments in float32) of ")[1][:40]
