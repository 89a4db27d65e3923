"""Set the YaRN keys of an existing GGUF file, into a copy; the tensors are streamed as they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from ryarn.errors import UserError
from ryarn.export.gguf_keys import add_yarn_keys
from ryarn.export.ollama import write_modelfile
from ryarn.export.served import check_factor
from ryarn.runs import check_writable

_TAKE_YARN = ("llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "olmo2")
"""Architectures whose graph in llama.cpp applies the YaRN keys, to full-attention layers alone."""


@dataclass(frozen=True)
class Keys:
    """What was set.

    Attributes:
        path: The new file.
        original_length: L_pre in tokens.
        window: Context length in tokens.
        before: YaRN factor that the file had, None for plain RoPE.
    """

    path: Path
    original_length: int
    window: int
    before: float | None


def set_yarn_keys(source: str | Path, factor: float, to: str | Path) -> Keys:
    """Copy a GGUF file with other YaRN keys; nothing is quantized anew.

    Args:
        source: A GGUF file.
        factor: YaRN factor s', relative to the original window.
        to: The file to make; a `Modelfile` for Ollama goes beside it.

    Raises:
        UserError: The file is none, its RoPE is scaled by something else, or llama.cpp would not
            apply YaRN to its architecture.
    """
    source, to = Path(source), Path(to)
    if not source.is_file():
        raise UserError(f"--gguf-from {str(source)!r}: no such file")
    if to.suffix != ".gguf":
        raise UserError(f"--to {str(to)!r}: give the file to make, with the ending .gguf")
    if to.exists():
        raise UserError(f"--to {str(to)!r} exists: choose another name")
    check_writable(to.parent)
    try:
        reader = gguf.GGUFReader(source)
    except ValueError as error:
        raise UserError(f"--gguf-from {str(source)!r}: no GGUF file: {error}") from error
    architecture = str(_value(reader, "general.architecture"))
    original, before = _original(reader, source, architecture)
    check_factor(factor, original)
    window = int(factor * original)
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = to.with_name(to.name + ".partial")
    attention = _attention(reader, architecture)
    _copy(reader, partial, architecture, (factor, original, window, attention))
    partial.rename(to)
    write_modelfile(to, window, _end_text(reader))
    return Keys(to, original, window, before)


def _value(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.fields.get(key)
    return default if field is None else field.contents()


def _original(reader: gguf.GGUFReader, source: Path, architecture: str) -> tuple[int, float | None]:
    """The original window of a file, and the YaRN factor that it has."""
    where = f"--gguf-from {str(source)!r}"
    if architecture not in _TAKE_YARN:
        raise UserError(
            f"{where}: architecture {architecture!r}; YaRN is known to reach the right layers in "
            f"llama.cpp for {', '.join(_TAKE_YARN)} alone"
        )
    if _value(reader, "split.count", 1) > 1:
        raise UserError(f"{where} is one of several parts: join them with llama-gguf-split first")
    kind = _value(reader, f"{architecture}.rope.scaling.type", "none")
    factor = _value(reader, f"{architecture}.rope.scaling.factor")
    context = int(_value(reader, f"{architecture}.context_length"))
    if kind == "yarn":
        key = f"{architecture}.rope.scaling.original_context_length"
        return int(_value(reader, key, context)), float(factor)
    scaled = kind not in ("none", "linear") or (factor or 1.0) != 1.0
    if scaled or any(tensor.name.startswith("rope_") for tensor in reader.tensors):
        raise UserError(
            f"{where}: its RoPE is already scaled, by something else than YaRN; YaRN goes on plain "
            "RoPE"
        )
    return context, None


def _end_text(reader: gguf.GGUFReader) -> str | None:
    """The token that ends an answer, as text."""
    end, tokens = (reader.fields.get(f"tokenizer.ggml.{key}") for key in ("eos_token_id", "tokens"))
    return None if end is None or tokens is None else str(tokens.contents(int(end.contents())))


def _attention(reader: gguf.GGUFReader, architecture: str) -> float:
    """What a file multiplies the default attention factor by; it is kept."""
    return float(_value(reader, f"{architecture}.rope.scaling.attn_factor", 1.0))


def _copy(
    reader: gguf.GGUFReader, to: Path, architecture: str, rope: tuple[float, int, int, float]
) -> None:
    factor, original, window, attention = rope
    writer = gguf.GGUFWriter(to, architecture, endianess=reader.endianess)
    for key, field in reader.fields.items():
        replaced = key.startswith(f"{architecture}.rope.scaling.")
        if replaced or key.startswith("GGUF.") or key == "general.architecture":
            continue
        if key == gguf.Keys.General.ALIGNMENT:
            writer.add_custom_alignment(field.contents())
        elif key == f"{architecture}.context_length":
            writer.add_context_length(window)
        else:
            copy_field(writer, key, field)
    add_yarn_keys(writer, factor, original, attention)
    for tensor in reader.tensors:
        data = tensor.data
        writer.add_tensor_info(
            tensor.name, data.shape, data.dtype, data.nbytes, raw_dtype=tensor.tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        # The reader has mapped the file: a tensor at a time goes through memory.
        writer.write_tensor_data(tensor.data, tensor_endianess=reader.endianess)
    writer.close()


def copy_field(writer: gguf.GGUFWriter, key: str, field: Any) -> None:
    """Copy one key with its value and type."""
    inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
    value = field.contents()
    if inner is None or len(value):
        writer.add_key_value(key, value, field.types[0], sub_type=inner)
