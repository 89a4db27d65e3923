"""A trainer that stops before a fault reaches the adapter, and goes on as if it had not stopped."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback
from trl import SFTTrainer

from ryarn import checkpoints
from ryarn.checkpoints import SEAL, is_whole, last_checkpoint
from ryarn.disk import writing
from ryarn.errors import TrainingError

NAMED = 8
"""Rows that a message names at most."""


class GuardedTrainer(SFTTrainer):
    """`SFTTrainer` whose optimizer sees finite losses and gradients alone.

    transformers leaves a loss that is no number out of the log and takes the step all the same:
    every weight of the adapter is then no number, and the run ends well. Here the step is not
    taken. Where something can't be kept, what was trained before it is.

    Args:
        rows: What `train_dataset` was made of, with `id` and `input_ids`, to name rows by.
        arguments: Those of `SFTTrainer`.
    """

    def __init__(self, *, rows: Sequence[Mapping[str, Any]], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._rows = rows
        self._batches: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._refused = False
        self._keeper = Keeper()
        self.add_callback(self._keeper)

    def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any) -> torch.Tensor:
        """One forward and backward pass; a batch without labels is refused, see `Trainer`."""
        # A label on the first token would have no token before it to be predicted from.
        if not (inputs["labels"][..., 1:] != -100).any():
            raise TrainingError(
                f"step {self.state.global_step + 1}: no token of rows "
                f"{self._names([inputs['input_ids']])} has a label, so there is nothing to learn "
                "from them: give every row an answer"
            )
        tokens = inputs["input_ids"]
        loss: torch.Tensor = super().training_step(model, inputs, *rest)  # type: ignore[no-untyped-call]
        self._batches.append((tokens, loss))
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The last that the trainer asks before the optimizer's step."""
        norm = super()._get_grad_norm(model, grad_norm)  # type: ignore[no-untyped-call]
        batches, self._batches = self._batches, []
        lost = [tokens for tokens, loss in batches if not loss.isfinite()]
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        is_bad = bool(lost) or (whole is not None and not math.isfinite(float(whole)))
        # With a scaler (fp16), an overflow is skipped and tried again on a smaller scale.
        if self.accelerator.scaler is None and self._anywhere(is_bad):
            value = "the loss" if self._anywhere(bool(lost)) else "the gradient"
            names = self._names(lost or [tokens for tokens, _ in batches])
            raise TrainingError(self._sentence(value, names))
        return norm

    def _sentence(self, value: str, names: str) -> str:
        step = self.state.global_step
        last = self.keep()
        kept = f"what was trained before it is in {last}" if last else "nothing was trained before"
        return (
            f"step {step + 1}: {value} is not finite in rows {names}; the optimizer did not see "
            f"it, and {kept}: look at these rows, or lower train.learning_rate"
        )

    def _anywhere(self, is_true: bool) -> bool:
        """Whether it is true in any process."""
        if self.accelerator.num_processes == 1:
            return is_true
        flag = torch.tensor(float(is_true), device=self.args.device)
        return bool(self.accelerator.reduce(flag, "sum") > 0)

    def _names(self, batches: Sequence[torch.Tensor]) -> str:
        """Ids of the rows whose tokens these are; looked for only when something went wrong."""
        lines = [line.tolist() for batch in batches for line in batch]
        names = [repr(self._row_of(line)[:80]) for line in lines]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return ", ".join(names[:NAMED]) + more

    def _row_of(self, line: list[int]) -> str:
        """The row that a line of a batch is, padded at its end or not."""
        for row in sorted(self._rows, key=lambda row: -len(row["input_ids"])):
            tokens = row["input_ids"]
            if line[: len(tokens)] == tokens and len(set(line[len(tokens) :])) <= 1:
                return str(row["id"])
        return "?"

    def keep(self) -> Path | None:
        """Save what the last finished step left, as it would have been saved at its end.

        Returns:
            The last whole checkpoint, of that step where it could be saved.
        """
        folder = Path(str(self.args.output_dir))
        step = self.state.global_step
        if step and not self._refused and not is_whole(folder / f"checkpoint-{step}"):
            self._keeper.restore()
            with contextlib.suppress(OSError):
                self._save_checkpoint(self.model, None)
                self.callback_handler.on_save(self.args, self.state, self.control)
        return last_checkpoint(folder)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint; on a full disk, the one before the last makes room."""
        folder = Path(str(self.args.output_dir))
        try:
            with writing(folder / f"checkpoint-{self.state.global_step}", self._after(folder)):
                super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
        except OSError:
            self._refused = self.accelerator.num_processes > 1 or not checkpoints.make_room(folder)
            if self._refused:
                raise
            self._save_checkpoint(model, trial)

    def _after(self, folder: Path) -> str:
        last = last_checkpoint(folder)
        again = f"go on from {last.name} with --resume" if last else "start it again"
        return f"then {again}"

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The held-out loss; training's random numbers are those of a run without it.

        A checkpoint of an epoch's last step is written before the evaluation that follows it.
        """
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            found: dict[str, float] = super().evaluate(*args, **kwargs)
        return found

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """An epoch; resumed from the last step's checkpoint, the trainer would take one more."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]


class Keeper(TrainerCallback):
    """Remembers the random states at the end of each step, and seals each checkpoint."""

    def __init__(self) -> None:
        self._states: tuple[Any, ...] | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What a checkpoint of this step has for random states."""
        cuda = torch.cuda.get_rng_state(args.device) if args.device.type == "cuda" else None
        # The global generators are what the trainer's own checkpoints hold.
        numpy = np.random.get_state()  # noqa: NPY002
        self._states = random.getstate(), numpy, torch.get_rng_state(), cuda, args.device

    def restore(self) -> None:
        """Put the random states back to the end of the last step."""
        if self._states is not None:
            python, numpy, cpu, cuda, device = self._states
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state(cuda, device)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seal the checkpoint, after every process has written its part."""
        from accelerate import PartialState

        PartialState().wait_for_everyone()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero:
            with writing(folder / SEAL, "then go on with --resume"):
                checkpoints.seal(folder)
