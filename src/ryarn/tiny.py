"""Tiny random-weight models of real architectures with a byte tokenizer, for trying things out.

They say nothing sensible, but they are transformers' own classes, so everything that runs on them
runs on the real ones.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Tokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)

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

SCALE = 8
"""By how much the stand-ins' windows are smaller than those of the models they stand for."""
STAND_INS: dict[str, dict[str, Any]] = {
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "max_position_embeddings": 32768 // SCALE,
        "rope_theta": 1e6,
    },
    "olmo3-7b": {
        "model_type": "olmo3",
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 65536 // SCALE,
        "sliding_window": 4096 // SCALE,
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 8192 // SCALE,
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    },
    "qwen3-14b": {
        "model_type": "qwen3",
        "max_position_embeddings": 40960 // SCALE,
        "rope_theta": 1e6,
    },
}
"""`tiny:<name>`: a model of the paper with its architecture and RoPE, its windows divided by
`SCALE`, and a tokenizer of its own class."""
_WORDS = 4096
_PROSE = Path(__file__).parent / "demo" / "prose"
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build(
    family: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Make a tiny model and its tokenizer; the same weights every time.

    Args:
        family: Key of `FAMILIES` or of `STAND_INS`.
        attention: transformers' `attn_implementation`.
        dtype: Of the weights; rotary buffers are float32 in any case.

    Raises:
        UserError: The family is unknown.
    """
    tokenizer = tokenizer_of(family)
    changes = {"model_type": family, **FAMILIES.get(family, STAND_INS.get(family, {}))}
    config = AutoConfig.for_model(
        **{**_SIZE, **changes},
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


def tokenizer_of(family: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a tiny model.

    Raises:
        UserError: The family is unknown.
    """
    if family in FAMILIES:
        return byte_tokenizer()
    if family not in STAND_INS:
        known = ", ".join([*FAMILIES, *STAND_INS])
        raise UserError(f"model.name = 'tiny:{family}': known families are {known}")
    vocabulary, merges = _byte_pairs()
    # Olmo's tokenizer is of GPT-2's class.
    kind = GPT2Tokenizer if STAND_INS[family]["model_type"] == "olmo3" else Qwen2Tokenizer
    tokenizer: PreTrainedTokenizerBase = kind(
        vocab=dict(vocabulary),
        merges=list(merges),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = _CHATML
    return tokenizer


@lru_cache(maxsize=1)
def _byte_pairs() -> tuple[dict[str, int], list[Any]]:
    """Byte-level BPE of the packaged prose: its vocabulary and merges."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_WORDS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train([str(path) for path in sorted(_PROSE.glob("*.txt"))], trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


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
