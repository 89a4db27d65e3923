"""What training leaves beside its checkpoints: the log, the adapter, the end of `run.json`."""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ryarn.adapter_readme import write_readme
from ryarn.checkpoints import last_checkpoint
from ryarn.contract import Contract
from ryarn.disk import writing
from ryarn.errors import TrainingError
from ryarn.recipe import Recipe
from ryarn.runs import ADAPTER, CHECKPOINTS, LOG, RUN, read_json, write_json

_AFTER = "then go on with --resume"


class LogCallback(TrainerCallback):
    """Appends each entry to a JSONL file; after a resume, steps that were undone are dropped."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin with what the checkpoint's steps logged."""
        if state.is_world_process_zero:
            kept = [entry for entry in state.log_history if entry["step"] <= state.global_step]
            with writing(self._path, _AFTER):
                self._path.write_text("".join(map(_line, kept)), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Append the newest entry."""
        if state.is_world_process_zero:
            with writing(self._path, _AFTER), self._path.open("a", encoding="utf-8") as log:
                log.write(_line(state.log_history[-1]))


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry) + "\n"


def lacks_held_out(checkpoint: Path | None) -> bool:
    """Whether an epoch's held-out loss, which follows its last step's checkpoint, is still to come.

    Resumed from such a checkpoint, the trainer would go on with the next epoch.
    """
    if checkpoint is None:
        return False
    state = read_json(checkpoint / "trainer_state.json")
    step = state["global_step"]
    if any("eval_loss" in entry and entry["step"] == step for entry in state["log_history"]):
        return False
    return step >= state["max_steps"] or float(state["epoch"]).is_integer()


@contextlib.contextmanager
def noting_faults(recipe: Recipe, trainer: Any) -> Iterator[None]:
    """Where training stops for a fault, keep what was trained and say why in `run.json`."""
    try:
        yield
    except Exception as error:
        # The sentence would stand behind it, in the same line.
        for callback in trainer.callback_handler.callbacks:
            if getattr(callback, "training_bar", None) is not None:
                callback.training_bar.close()
        if not isinstance(error, TrainingError | OSError):
            raise
        if trainer.accelerator.num_processes == 1:
            trainer.keep()
        if trainer.is_world_process_zero():
            last = last_checkpoint(recipe.output / CHECKPOINTS)
            reason = getattr(error, "strerror", None) or str(error)
            kept = {"status": "stopped", "reason": reason, "kept": last and last.name}
            with contextlib.suppress(OSError):
                write_json(recipe.output / RUN, {**read_json(recipe.output / RUN), **kept})
        raise


def finish(recipe: Recipe, trainer: Any) -> Path:
    """Write the adapter and the end of `run.json`; the adapter gets its name last of all.

    Returns:
        The adapter's folder.
    """
    adapter = recipe.output / ADAPTER
    partial = adapter.with_name(f"{ADAPTER}.partial")
    is_first = trainer.is_world_process_zero()
    with writing(adapter, _AFTER):
        if is_first:
            shutil.rmtree(partial, ignore_errors=True)
            Contract.load(recipe.output / CHECKPOINTS).save(partial)
        trainer.save_model(str(partial))
        if is_first:
            # A pickle that nothing reads.
            (partial / "training_args.bin").unlink(missing_ok=True)
            write_readme(partial, adapter)
            _note_end(recipe, trainer)
            partial.rename(adapter)
    trainer.accelerator.wait_for_everyone()
    return adapter


def _note_end(recipe: Recipe, trainer: Any) -> None:
    history = trainer.state.log_history
    # The trainer's own mean leaves out the steps before a resume.
    losses = [entry["loss"] for entry in history if "loss" in entry]
    held_out = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    run = read_json(recipe.output / RUN)
    run |= {
        "status": "finished",
        "steps": trainer.state.global_step,
        "train_loss": statistics.fmean(losses) if losses else None,
        "train_seconds": history[-1]["train_runtime"],
        "held_out_loss": held_out[-1] if held_out else None,
    }
    write_json(recipe.output / RUN, run)
