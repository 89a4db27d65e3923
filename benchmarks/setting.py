"""The models, rows and trainer that the benchmarks have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FACTOR = 4.0
LABELLED = 16
"""Tokens at a row's end that carry a label: an answer of usual length."""


@dataclass(frozen=True)
class Shape:
    """A llama-type model with random weights.

    Attributes:
        layers: Decoder layers.
        hidden: Width of the residual stream.
        intermediate: Width of the MLP.
        heads: Attention heads.
        kv_heads: Heads of keys and values.
        vocabulary: Tokens of the vocabulary.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int

    def __str__(self) -> str:
        return f"llama, {self.layers} layers of {self.hidden}, vocabulary {self.vocabulary:,}"


SMOLLM2 = Shape(6, 576, 1536, 9, 3, 49_152)
"""SmolLM2-135M but for its depth: 6 of 30 layers, so that a step takes a CPU seconds."""
SMALL = Shape(2, 64, 128, 4, 2, 1024)
"""Cheap enough for 8,192 tokens on a CPU."""


def make_model(shape: Shape) -> Any:
    """Random weights, the same every time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(  # type: ignore[call-arg]
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def make_rows(count: int, length: int, vocabulary: int) -> list[dict[str, list[int]]]:
    """Rows of random tokens, all of one length, the last few labelled."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        tokens: list[int] = rng.integers(0, vocabulary, length).tolist()
        labels = [-100] * (length - LABELLED) + tokens[-LABELLED:]
        rows.append({"input_ids": tokens, "labels": labels})
    return rows


def make_trainer(kind: Any, model: Any, rows: list[dict[str, list[int]]], folder: str) -> Any:
    """LoRA on all linear layers, a step a row, and nothing of ryarn but what `kind` is.

    Args:
        kind: trl's SFTTrainer or what is made from it.
        model: What to train.
        rows: One a step.
        folder: For what the trainer writes.
    """
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PrinterCallback
    from trl import SFTConfig

    from ryarn.tiny import byte_tokenizer

    lora = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.1,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    trainer = kind(
        model=model,
        processing_class=byte_tokenizer(),
        train_dataset=Dataset.from_list(rows),
        peft_config=lora,
        args=SFTConfig(
            output_dir=folder,
            max_length=None,
            max_steps=len(rows),
            per_device_train_batch_size=1,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
        ),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
