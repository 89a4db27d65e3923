"""The small files of an export: the base's own bytes, with only what must change changed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from ryarn.backends.reading import end_ids
from ryarn.export.json_edit import set_key
from ryarn.export.served import Served, dialects, read_served
from ryarn.rope import RopeMap

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER = "tokenizer_config.json"
_OWN = re.compile(
    r"(?!.*\.index\.json$)(?!adapter_|ryarn)"
    r"(.*\.(json|jinja|model|tiktoken)|(vocab|merges|added_tokens).*\.txt|(LICEN[SC]E|NOTICE).*)"
)
"""What belongs to a model besides its weights: configs, tokenizer, templates, licence."""


def write_small_files(
    folder: Path, base: Path | None, model: Any, tokenizer: Any, rope_map: RopeMap
) -> None:
    """Write config, tokenizer and generation settings into a folder.

    Args:
        folder: Where to; files that `save_pretrained` has put there are replaced by the base's own.
        base: The base model's folder; None where it has none (a GGUF file, a model made in memory).
        model: The live model, set for inference.
        tokenizer: Its tokenizer.
        rope_map: The model's RoPEs.
    """
    served = read_served(rope_map)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    if base is None:
        tokenizer.save_pretrained(folder)
    else:
        for path in sorted(base.iterdir()):
            if path.is_file() and _OWN.fullmatch(path.name):
                shutil.copyfile(path, folder / path.name)
    _edit(folder / CONFIG, _config_keys(folder / CONFIG, model, rope_map, served))
    _edit(folder / TOKENIZER, _tokenizer_keys(folder / TOKENIZER, served))
    ends = sorted(end_ids(model, tokenizer))
    _edit(folder / GENERATION, _generation_keys(folder / GENERATION, ends, served))


def _edit(path: Path, keys: dict[tuple[str, ...], Any]) -> None:
    text = path.read_text("utf-8") if path.is_file() else "{}\n"
    for where, value in keys.items():
        text = set_key(text, where, value)
    path.write_text(text, encoding="utf-8")


def _config_keys(
    path: Path, model: Any, rope_map: RopeMap, served: Served
) -> dict[tuple[str, ...], Any]:
    raw = json.loads(path.read_text("utf-8"))
    place = text_config_path(model, rope_map, raw)
    keys = {(*place, key): value for key, value in dialects(rope_map, served).items()}
    # The dtype that the weights are in: `torch_dtype` is its name before transformers 4.56.
    dtype = str(model.dtype).removeprefix("torch.")
    holder = raw
    for key in place:
        holder = holder[key]
    for where, section in {(): raw, place: holder}.items():
        for key in ("dtype", "torch_dtype"):
            if key in section or (key == "torch_dtype" and not where):
                keys[(*where, key)] = dtype
    return keys


def text_config_path(model: Any, rope_map: RopeMap, raw: dict[str, Any]) -> tuple[str, ...]:
    """Where in a config file the keys of the text model stand: on top, or in a section."""
    for name in getattr(model.config, "sub_configs", {}):
        if getattr(model.config, name, None) is rope_map.config and isinstance(raw.get(name), dict):
            return (name,)
    return ()


def _tokenizer_keys(path: Path, served: Served) -> dict[tuple[str, ...], Any]:
    raw = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    keys: dict[tuple[str, ...], Any] = {("model_max_length",): served.window}
    if raw.get("tokenizer_class") == "TokenizersBackend":
        # transformers 5 alone knows that name; this one means the same to both.
        keys[("tokenizer_class",)] = "PreTrainedTokenizerFast"
    extra = raw.get("extra_special_tokens")
    if isinstance(extra, list):
        # A list of transformers 5, where transformers 4 wants names to tokens.
        keys[("extra_special_tokens",)] = {}
        keys[("additional_special_tokens",)] = extra
    return keys


def _generation_keys(path: Path, ends: list[int], served: Served) -> dict[tuple[str, ...], Any]:
    raw = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    known = raw.get("eos_token_id")
    known = known if isinstance(known, list) else [known]
    keys: dict[tuple[str, ...], Any] = {}
    if not set(ends) <= set(known):
        # Evaluation ends at any of these; an engine that knows fewer would run on.
        keys[("eos_token_id",)] = ends if len(ends) > 1 else ends[0]
    if raw.get("max_length") is not None and raw["max_length"] > 20:
        keys[("max_length",)] = served.window
    return keys
