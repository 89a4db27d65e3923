"""The tokenizer of a GGUF file: tokens, merges, pre-tokenizer, special ids, chat template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from ryarn.chat import end_of_turn
from ryarn.errors import UserError
from ryarn.export.gguf_from import copy_field

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBERS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {
    _WORDS.replace("NUMBERS", r"\p{N}{1,3}"): {True: "llama-bpe", False: "dbrx"},
    _WORDS.replace("NUMBERS", r"\p{N}"): {False: "qwen2"},
}
"""Split pattern, and whether whole words skip the merges, to llama.cpp's name for both."""
_RULES = {"olmo": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "smaug-bpe": "dbrx"}
"""Other names that llama.cpp has for the same rule."""


@dataclass(frozen=True)
class Words:
    """A tokenizer as a GGUF file says it.

    Attributes:
        tokenizer: The tokenizer that the model was trained with.
        source: The base's GGUF file, whose tokens are taken over as they are; None for other bases.
        split: llama.cpp's name for how it splits text before the merges.
        note: What to know about it, if anything.
    """

    tokenizer: Any
    source: Path | None
    split: str
    note: str | None = None

    def add_keys(self, writer: gguf.GGUFWriter, vocabulary: int) -> None:
        """Write it.

        Args:
            writer: The file.
            vocabulary: Rows of the embedding; those without a token become unused ones.
        """
        writer.add_tokenizer_pre(self.split)
        if self.source is None:
            _add_tokens(writer, self.tokenizer, vocabulary)
            return
        for key, field in gguf.GGUFReader(self.source).fields.items():
            if key.startswith("tokenizer.") and key != gguf.Keys.Tokenizer.PRE:
                copy_field(writer, key, field)


def read_words(tokenizer: Any, files: Path | None) -> Words:
    """See how llama.cpp can be told to tokenize as in training.

    Args:
        tokenizer: The tokenizer that the model was trained with.
        files: The base's own files.

    Raises:
        UserError: It can't; what is in the way is named.
    """
    if files is None or files.is_dir():
        return Words(tokenizer, None, pre_tokenizer(_spec(tokenizer)))
    field = gguf.GGUFReader(files).fields.get(gguf.Keys.Tokenizer.PRE)
    given = "default" if field is None else str(field.contents())
    try:
        name = pre_tokenizer(_spec(tokenizer))
    except UserError:
        return Words(tokenizer, files, given)
    if _RULES.get(name, name) == _RULES.get(given, given):
        return Words(tokenizer, files, given)
    # transformers takes tokens and merges from the file, but has its own split for some families.
    note = (
        f"The base's file splits text as {given!r}, transformers split it as {name!r} in training: "
        f"this file says {name!r}, so that the tokens are those of training."
    )
    return Words(tokenizer, files, name, note)


def pre_tokenizer(spec: dict[str, Any]) -> str:
    """llama.cpp's name for how a tokenizer splits text before the merges.

    Args:
        spec: The tokenizer as the tokenizers library writes it.

    Raises:
        UserError: llama.cpp has no name for it that is known here.
    """
    model = spec["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise UserError(
            "--gguf: the tokenizer is no byte-level BPE; export it merged and convert it with "
            "llama.cpp's own script"
        )
    if not model["merges"]:
        raise UserError("--gguf: the tokenizer has no merges, and llama.cpp needs some")
    normalizer = spec.get("normalizer")
    if normalizer is not None and normalizer["type"] != "NFC":
        raise UserError(
            f"--gguf: the tokenizer normalizes with {normalizer['type']!r}, llama.cpp does not"
        )
    parts = _parts(spec.get("pre_tokenizer"))
    kinds = [part["type"] for part in parts]
    if any(part.get("add_prefix_space") for part in parts):
        raise UserError(
            "--gguf: the tokenizer puts a space before the text (add_prefix_space), llama.cpp does "
            "not; export it merged"
        )
    ignores = bool(model.get("ignore_merges"))
    name = None
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True) and not ignores:
        name = "gpt-2"
    elif kinds == ["Digits", "ByteLevel"] and parts[0]["individual_digits"] and not ignores:
        name = "smollm" if parts[1].get("use_regex", True) else None
    elif kinds == ["Split", "ByteLevel"] and not parts[1].get("use_regex", True):
        name = _PATTERNS.get(parts[0]["pattern"].get("Regex", ""), {}).get(ignores)
    if name is None:
        raise UserError(
            f"--gguf: how the tokenizer splits text ({' then '.join(kinds) or 'not at all'}) has "
            "no known name in llama.cpp, and another one would make other tokens; export it merged "
            "and convert it with llama.cpp's own script"
        )
    return name


def _parts(node: dict[str, Any] | None) -> list[dict[str, Any]]:
    if node is None:
        return []
    return list(node["pretokenizers"]) if node["type"] == "Sequence" else [node]


def _spec(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError("--gguf: the tokenizer has no tokenizer.json form; export it merged")
    spec: dict[str, Any] = json.loads(backend.to_str())
    return spec


def _add_tokens(writer: gguf.GGUFWriter, tokenizer: Any, vocabulary: int) -> None:
    spec = _spec(tokenizer)
    writer.add_tokenizer_model("gpt2")
    tokens = [f"[PAD{i}]" for i in range(vocabulary)]
    types = [gguf.TokenType.UNUSED] * vocabulary
    for token, i in spec["model"]["vocab"].items():
        tokens[i], types[i] = token, gguf.TokenType.NORMAL
    for added in spec["added_tokens"]:
        if added["id"] >= vocabulary:
            continue  # no row of the embedding, so no text can have it
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]], types[added["id"]] = added["content"], kind
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = spec["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    _add_special_ids(writer, tokenizer, vocabulary)
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _add_special_ids(writer: gguf.GGUFWriter, tokenizer: Any, vocabulary: int) -> None:
    ids = {
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "unk": tokenizer.unk_token_id,
        "pad": tokenizer.pad_token_id,
    }
    for name, value in ids.items():
        if value is not None and value < vocabulary:
            getattr(writer, f"add_{name}_token_id")(value)
    if tokenizer.chat_template and (end := end_of_turn(tokenizer)) != tokenizer.eos_token_id:
        writer.add_eot_token_id(end)
    # Said in any case: for some pre-tokenizers llama.cpp's default is to add one.
    around = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(ids["bos"] is not None and around[0] == ids["bos"])
    writer.add_add_eos_token(ids["eos"] is not None and around[-1] == ids["eos"])
    writer.add_add_space_prefix(False)
