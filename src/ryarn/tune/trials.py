"""A trial in its worker: train with the held-out loss looked at, stop where that is hopeless."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ryarn.compare.grid import Cell
from ryarn.compare.workers import run_cell
from ryarn.runs import read_json, write_json
from ryarn.tune.search import PruneConfig, Setting, TuneRecipe, trial_recipe
from ryarn.tune.study import is_hopeless

CHECKS, PRUNED = "checks.json", "pruned.json"
"""Files of a trial's run folder: its held-out losses, and how it was pruned if it was."""


class Pruned(Exception):
    """Ends the training of a trial that was given up."""


@dataclass(frozen=True)
class Trial(Cell):
    """A cell that is there to choose by, with how it may be pruned.

    Attributes:
        folder: The tuning's output.
        prune: When it is given up; None for never.
        all_bins: Whether its score is the mean of all bins, not of the longer ones.
    """

    folder: Path
    prune: PruneConfig | None
    all_bins: bool

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"trial {self.setting}"


def make_trial(recipe: TuneRecipe, number: int, setting: Setting) -> Trial:
    """The trial of that number.

    Raises:
        UserError: The setting makes no recipe.
    """
    made = trial_recipe(recipe, number, setting)
    return Trial(
        task=made.evaluate.data.task,
        label=made.label or made.method.name,
        seed=made.seed,
        setting=number,
        candidate=True,
        recipe=made,
        folder=recipe.output,
        prune=recipe.prune,
        all_bins=recipe.tune.bins == "all",
    )


def check_steps(total: int, checks: int) -> dict[int, int]:
    """Optimizer step after which the held-out loss is taken, to the check's number from 1.

    With fewer steps than checks the later check of a step counts.
    """
    return {math.ceil(check * total / checks): check for check in range(1, checks + 1)}


def run_trial(cell: Cell) -> None:
    """Do what is left of a trial; a pruned one leaves `pruned.json` and no evaluation.

    Raises:
        UserError: See `ryarn.compare.workers.run_cell`.
    """
    assert isinstance(cell, Trial)
    if (cell.recipe.output / PRUNED).is_file():
        return
    watchers = [] if cell.prune is None else [_watcher(cell, cell.prune)]
    try:
        run_cell(cell, watchers)
    except Pruned:
        return


def curve_of(trial: Trial) -> dict[int, float]:
    """Check to held-out loss, from the trial's folder."""
    path = trial.recipe.output / CHECKS
    known: Mapping[str, Any] = read_json(path) if path.is_file() else {}
    return {int(check): entry["loss"] for check, entry in known.items()}


def _watcher(trial: Trial, prune: PruneConfig) -> Any:
    """The trainer callback that takes the held-out loss at each check and ends the training."""
    from transformers import TrainerCallback

    output = trial.recipe.output
    start = time.monotonic()

    class Watcher(TrainerCallback):
        def __init__(self) -> None:
            self.steps: dict[int, int] = {}
            self.taken: dict[str, dict[str, float]] = {}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.steps = check_steps(state.max_steps, prune.checks)
            known = read_json(output / CHECKS) if (output / CHECKS).is_file() else {}
            # Steps after the checkpoint are done again, their checks, too.
            self.taken = {k: v for k, v in known.items() if v["step"] <= state.global_step}

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in self.steps:
                control.should_evaluate = True

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
        ) -> None:
            check = self.steps.get(state.global_step)
            # An epoch that ends at a check evaluates there a second time.
            if check is None or str(check) in self.taken:
                return
            self.taken[str(check)] = {"step": state.global_step, "loss": metrics["eval_loss"]}
            write_json(output / CHECKS, self.taken)
            curve = {int(k): entry["loss"] for k, entry in self.taken.items()}
            if is_hopeless(trial.folder, prune, curve):
                stopped = {"check": check, "step": state.global_step, "steps": state.max_steps}
                write_json(output / PRUNED, {**stopped, "seconds": time.monotonic() - start})
                raise Pruned

    return Watcher()
