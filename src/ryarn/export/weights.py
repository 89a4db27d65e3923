"""The weights of an export: merged into one model, or the adapter beside its base."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from ryarn.contract import FILE as CONTRACT
from ryarn.errors import UserError
from ryarn.export.target import Target

SHARD = "5GB"
"""Largest safetensors file, the usual size on the hub."""


def save(model: Any, folder: Path, dtype: str) -> None:
    """Write a model as safetensors, in shards where it is large.

    Args:
        model: The model; its parameters are rounded in place, its rotary buffers are not.
        folder: Where to.
        dtype: What to round to.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=SHARD)


def save_apart(model: Any, adapter: Path, target: Target, base: Path | None, dtype: str) -> None:
    """Write `adapter/` and a whole `base/` beside it.

    Weights of a base that lies in a folder are linked, not copied, where the disk allows it.

    Args:
        model: The PEFT model.
        adapter: The adapter's folder.
        target: Where to.
        base: The base model's folder, or None.
        dtype: What a base without a folder is saved in.

    Raises:
        UserError: The base's folder has no safetensors.
    """
    folder = target.partial
    for part in ("adapter", "base"):
        (folder / part).mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", CONTRACT):
        shutil.copyfile(adapter / name, folder / "adapter" / name)
    config = folder / "adapter" / "adapter_config.json"
    settings = json.loads(config.read_text("utf-8"))
    # PEFT loads the base from here: the plain one would run without YaRN and say nothing.
    settings["base_model_name_or_path"] = str((target.folder / "base").resolve())
    config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if base is None:
        save(model.unload(), folder / "base", dtype)
        return
    weights = sorted(base.glob("*.safetensors")) + sorted(base.glob("*.safetensors.index.json"))
    if not weights:
        raise UserError(f"{base}: no safetensors there; export it merged")
    for path in weights:
        _link(path.resolve(), folder / "base" / path.name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(source, target)
