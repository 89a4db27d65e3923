"""Randomized YaRN in LLaMA-Factory: its training command, with a section `ryarn` in the YAML.

LLaMA-Factory has no plugins, but its trainer takes callbacks from Python. So this module reads the
same YAML, takes the section out, and hands over a callback that extends the model when training
begins, after LLaMA-Factory has loaded, patched and wrapped it.

    python -m ryarn.integrations.llamafactory train.yaml [key=value ...]
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ryarn.callback import ExtensionCallback
from ryarn.config import parse_yaml
from ryarn.errors import UserError
from ryarn.integrations.section import method_section
from ryarn.method import Method
from ryarn.recipe import recipe_method
from ryarn.rope import extend

_USAGE = "usage: python -m ryarn.integrations.llamafactory train.yaml [key=value ...]"
_STAGES = ("pt", "sft", "dpo")
_WITHOUT_REFERENCE = ("orpo", "simpo")


class LateExtension(TrainerCallback):
    """Extends the model that a trainer has when training begins, and goes on as its callback.

    Args:
        method: What to put on.
        seed: Of the draws.
        paired: Batches are [chosen ..., rejected ...].
        reference: Pairs are read by a reference model, too.
    """

    def __init__(
        self, method: Method, *, seed: int = 0, paired: bool = False, reference: bool = True
    ) -> None:
        self.method = method
        self.seed = seed
        self.paired = paired
        self.reference = reference
        self.callback: ExtensionCallback | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Extend, then as `ExtensionCallback`."""
        extension = extend(kwargs["model"], self.method, seed=self.seed)
        self.callback = ExtensionCallback(extension)
        if self.paired:
            self.callback.pair_rows(kwargs["model"], reference=self.reference)
        self.callback.on_train_begin(args, state, control, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        """Every later event is `ExtensionCallback`'s."""
        if name.startswith("on_") and name != "on_train_begin":
            callback = object.__getattribute__(self, "callback")
            if callback is not None:
                return getattr(callback, name)
        return object.__getattribute__(self, name)


def read_config(path: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], LateExtension]:
    """LLaMA-Factory's arguments without the section `ryarn`, and the callback that it describes.

    Raises:
        UserError: The file can't be read, or the section is missing or wrong, or the run can't have
            drawn positions.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; {_USAGE}")
    try:
        arguments = parse_yaml(path.read_text(encoding="utf-8"))
        changes = [(key, parse_yaml(value)) for key, value in map(_pair, overrides)]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(arguments, dict):
        raise UserError(f"{path}: expected a mapping of keys to values at the top level")
    for key, value in changes:
        if key.startswith("ryarn."):
            arguments.setdefault("ryarn", {})[key.removeprefix("ryarn.")] = value
        else:
            arguments[key] = value
    try:
        method = recipe_method(method_section(arguments.pop("ryarn", None)))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    _check(arguments)
    callback = LateExtension(
        method,
        seed=int(arguments.get("seed", 42)),
        paired=arguments.get("stage") == "dpo",
        reference=arguments.get("pref_loss") not in _WITHOUT_REFERENCE,
    )
    return arguments, callback


def _pair(override: str) -> tuple[str, str]:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise UserError(f"override {override!r}: expected key=value, e.g. learning_rate=1e-4")
    return key, value


def _check(arguments: dict[str, Any]) -> None:
    stage = arguments.get("stage", "sft")
    if stage not in _STAGES:
        raise UserError(f"stage = {stage!r}: ryarn has been tried with {', '.join(_STAGES)}")
    if stage == "dpo" and arguments.get("finetuning_type", "lora") == "full":
        raise UserError(
            "stage = dpo with finetuning_type = full has a reference model of its own, which would "
            "be read at other positions: use finetuning_type = lora"
        )
    for key in ("rope_scaling", "shift_attn", "use_unsloth", "use_mca", "use_ray", "ref_model"):
        if arguments.get(key):
            raise UserError(f"{key} = {arguments[key]!r} and a section ryarn: drop one of them")


def main(arguments: Sequence[str]) -> None:
    """Train as `llamafactory-cli train` does."""
    if not arguments:
        raise UserError(_USAGE)
    config, callback = read_config(Path(arguments[0]), arguments[1:])
    if importlib.util.find_spec("llamafactory") is None:
        raise UserError(
            f"{sys.executable} has no LLaMA-Factory: run this with the Python that has it, and "
            "ryarn beside it (pip install --no-deps ryarn)"
        )
    from llamafactory.train.tuner import run_exp

    run_exp(config, [callback])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"ryarn: {error}")
