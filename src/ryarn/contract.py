"""The RoPE contract that an adapter carries: what its base must be and how its RoPE must be set.

PEFT saves an adapter's weights but not the YaRN it was trained under; loaded on the plain base it
answers fluent nonsense. So `ryarn.json` lies beside the adapter, and loading through ryarn sets the
RoPE from it and refuses a base that does not match.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ryarn.errors import UserError
from ryarn.method import Method
from ryarn.positions import SAMPLERS
from ryarn.rope.inspect import RopeMap
from ryarn.versions import versions

FILE = "ryarn.json"
_ADDED = ("lora_", "modules_to_save.", "token_adapter.trainable_tokens_")
"""What PEFT adds to a base model's own parameters."""


@dataclass(frozen=True)
class Base:
    """Which base model: what must be equal for an adapter to fit, and what it was called.

    Attributes:
        name: Hub id or path it was loaded from; where to find it, not compared.
        model_type: transformers' name of the architecture.
        theta: RoPE base of the extended layers.
        rotary_size: Rotated dimensions of a head.
        original_length: L_pre in tokens.
        fingerprint: SHA-256 over the shapes of all weights and over some of their values.
        revision: Hub commit it was loaded at, if any; where to find it, too.
    """

    name: str
    model_type: str
    theta: float
    rotary_size: int
    original_length: int
    fingerprint: str
    revision: str | None = None


@dataclass(frozen=True)
class Contract:
    """What an adapter was trained under.

    Attributes:
        method: Name of the method.
        train_factor: YaRN factor s, None for the base's own RoPE.
        eval_factor: YaRN factor s' to run it with, None for the base's own RoPE.
        sampler: Where its training positions came from.
        spans: The curriculum, empty for contiguous positions.
        layers: RoPEs that the factor applies to, by path and layer type.
        base: The base model.
        versions: Versions of what trained it.
    """

    method: str
    train_factor: float | None
    eval_factor: float | None
    sampler: str
    spans: tuple[int, ...]
    layers: tuple[str, ...]
    base: Base
    versions: dict[str, str]

    def save(self, folder: Path) -> None:
        """Write `ryarn.json` into an adapter's folder."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Contract:
        """Read an adapter's contract.

        Raises:
            UserError: The folder holds none, or one in another format.
        """
        path = folder / FILE
        if not path.is_file():
            raise UserError(
                f"{folder}: no {FILE}, so what RoPE this adapter was trained under is unknown; "
                "give the folder of an adapter that ryarn trained"
            )
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            data["spans"], data["layers"] = tuple(data["spans"]), tuple(data["layers"])
            return cls(**{**data, "base": Base(**data["base"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{path}: not a contract that this version of ryarn reads ({error}); load the "
                "adapter with the version that wrote it"
            ) from error

    def check_base(self, model: nn.Module, rope_map: RopeMap) -> None:
        """Refuse a base that the adapter was not trained on.

        Raises:
            UserError: Something differs; the first difference is named with both values.
        """
        found = describe_base(model, rope_map)
        for field, wanted in asdict(self.base).items():
            value = getattr(found, field)
            if field not in ("name", "revision") and value != wanted:
                raise UserError(
                    f"adapter trained on {self.base.name!r} does not fit the base {found.name!r}: "
                    f"{field} is {value!r}, it was {wanted!r} in training; load it on its own base"
                )


def make_contract(model: nn.Module, rope_map: RopeMap, method: Method) -> Contract:
    """The contract of a model in training."""
    sampler = next(name for name, kind in SAMPLERS.items() if isinstance(method.sampler, kind))
    return Contract(
        method=method.name,
        train_factor=method.train_factor,
        eval_factor=method.eval_factor,
        sampler=sampler,
        spans=method.curriculum.spans if method.curriculum else (),
        layers=tuple(rope.label for rope in rope_map.extended),
        base=describe_base(model, rope_map),
        versions=versions(),
    )


def describe_base(model: nn.Module, rope_map: RopeMap) -> Base:
    """Name and fingerprint of a base model, adapters not counted."""
    rope = rope_map.extended[0]
    config: Any = model.config
    return Base(
        name=str(config.name_or_path),
        revision=getattr(config, "_commit_hash", None),
        model_type=str(config.model_type),
        theta=float(rope.parameters["rope_theta"]),
        rotary_size=2 * rope.inv_freq.numel(),
        original_length=rope_map.original_length,
        fingerprint=fingerprint(rope_map.decoder),
    )


def fingerprint(decoder: nn.Module) -> str:
    """SHA-256 over every base weight's name and shape, and a few values of each.

    Base and instruct versions of a model share every shape, so values count; they are rounded to
    bfloat16 first, so that the dtype a model is loaded in does not matter. Adapters are left out.
    Where weights are sharded (FSDP2, ZeRO-3), all processes must ask at once.
    """
    digest = hashlib.sha256()
    for name, value in sorted(decoder.named_parameters()):
        if any(part in name for part in _ADDED):
            continue
        plain = name.replace("base_layer.", "").replace("original_module.", "")
        whole = _whole(value)
        sample = whole.flatten()[:8].to("cpu", torch.bfloat16).view(torch.int16)
        digest.update(f"{plain} {tuple(whole.shape)} {sample.tolist()}\n".encode())
    return digest.hexdigest()


def _whole(value: torch.Tensor) -> torch.Tensor:
    """A weight, gathered from all processes where each holds a part of it."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        whole: torch.Tensor = value.full_tensor()
        return whole.detach()
    if hasattr(value, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([value]):
            return value.detach().clone()
    return value.detach()
