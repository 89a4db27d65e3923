"""Tiny random-weight models of real architectures with a byte tokenizer, for trying things out.

They say nothing sensible, but they are transformers' own classes, so everything that runs on them
runs on the real ones.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ryarn.errors import UserError

WINDOW = 4096
"""Original window in tokens (bytes) of every tiny model."""

_SIZE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": WINDOW,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "olmo3": {"num_hidden_layers": 4, "sliding_window": 64},
}
"""`tiny:<family>`: transformers' model type, and what differs from the common size."""

_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build(
    family: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32
) -> tuple[Any, PreTrainedTokenizerFast]:
    """Make a tiny model and its tokenizer; the same weights every time.

    Args:
        family: Key of `FAMILIES`.
        attention: transformers' `attn_implementation`.
        dtype: Of the weights; rotary buffers are float32 in any case.

    Raises:
        UserError: The family is unknown.
    """
    if family not in FAMILIES:
        raise UserError(f"model.name = 'tiny:{family}': known families are {', '.join(FAMILIES)}")
    tokenizer = byte_tokenizer()
    config = AutoConfig.for_model(
        family,
        **{**_SIZE, **FAMILIES[family]},
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    model.config._name_or_path = f"tiny:{family}"
    return model, tokenizer


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a chat template; one token a byte of UTF-8."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        chat_template=_TEMPLATE,
    )
