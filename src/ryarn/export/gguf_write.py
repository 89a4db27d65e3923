"""Write a merged model as one GGUF file, a tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ryarn.errors import SelfTestError, UserError
from ryarn.export.gguf_keys import (
    ARCHITECTURES,
    add_model_keys,
    add_rope_keys,
)
from ryarn.export.gguf_tokenizer import Words
from ryarn.export.served import Served

_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
_BLOCK = 32
"""Values of a row that q8_0 packs together."""


def write_gguf(path: Path, model: Any, words: Words, served: Served, stored: str) -> None:
    """Write a GGUF file.

    Args:
        path: The file.
        model: A merged model that `check_model` has let pass.
        words: Its tokenizer.
        served: Its RoPE.
        stored: f32, f16 or q8_0, for matrices; vectors are f32.

    Raises:
        UserError: GGUF has no name for a tensor.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    add_model_keys(writer, config, path.stem, stored)
    add_rope_keys(writer, served)
    words.add_keys(writer, config.vocab_size)
    named = list(_named(model, architecture))
    for name, tensor in named:
        kind = _kind(tensor, stored)
        shape, dtype = tuple(tensor.shape), _NUMPY[kind]
        if kind == gguf.GGMLQuantizationType.Q8_0:
            shape = gguf.quant_shape_to_byte_shape(shape, kind)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        writer.add_tensor_info(name, shape, np.dtype(dtype), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor in named:
        writer.write_tensor_data(_values(name, tensor, config, stored))
    writer.close()


_NUMPY = {
    gguf.GGMLQuantizationType.F32: np.float32,
    gguf.GGMLQuantizationType.F16: np.float16,
    gguf.GGMLQuantizationType.Q8_0: np.uint8,
}


def _named(model: Any, architecture: gguf.MODEL_ARCH) -> Iterator[tuple[str, torch.Tensor]]:
    """GGUF name and tensor, in the model's order."""
    names = gguf.get_tensor_name_map(architecture, model.config.num_hidden_layers)
    # llama.cpp's Olmo graph wants the output matrix in any case.
    leave_out = model.config.tie_word_embeddings and architecture != gguf.MODEL_ARCH.OLMO2
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and leave_out:
            continue
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise UserError(f"--gguf: GGUF has no name for the tensor {key!r}; export it merged")
        yield name, tensor


def _kind(tensor: torch.Tensor, stored: str) -> gguf.GGMLQuantizationType:
    if tensor.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    if stored == "q8_0" and tensor.shape[-1] % _BLOCK:
        return gguf.GGMLQuantizationType.F16
    return _TYPES[stored]


def _values(name: str, tensor: torch.Tensor, config: Any, stored: str) -> Any:
    values = tensor.detach().float().cpu()
    if config.model_type == "llama":
        part = name.split(".")[-2]
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        if part in heads:
            values = interleave(values, heads[part])
    return gguf.quants.quantize(values.contiguous().numpy(), _kind(tensor, stored))


def read_back(path: Path, model: Any, stored: str) -> None:
    """See that a file holds a model's tensors, where no other reader of the format can.

    Raises:
        SelfTestError: One is missing or has other values.
    """
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, tensor in _named(model, ARCHITECTURES[model.config.model_type]):
        wanted = tensor.detach().float().cpu().numpy()
        found = written.get(name)
        loss = {"f32": 0.0, "f16": 1e-3, "q8_0": 1e-2}[stored] * float(np.abs(wanted).max())
        values = None if found is None else gguf.quants.dequantize(found.data, found.tensor_type)
        if values is None or not np.allclose(values.reshape(wanted.shape), wanted, 0, loss):
            raise SelfTestError(f"{path}: the tensor {name!r} is not what was to be written")


def interleave(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a llama query or key projection.

    transformers rotates dimension d with d + half of a head, llama.cpp with its neighbour.

    Args:
        values: Shape [heads * head_size, ...].
        heads: Heads of the projection.
    """
    halves: torch.Tensor = values.unflatten(0, (heads, 2, -1))
    return halves.transpose(1, 2).flatten(0, 2)
