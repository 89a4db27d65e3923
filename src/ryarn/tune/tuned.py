"""What a tuning leaves: the chosen recipe, the table of trials, what each key mattered."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ryarn.compare.watch import duration
from ryarn.config import dump
from ryarn.recipe import Recipe
from ryarn.report.markdown import table as markdown_table
from ryarn.report.tables import DASH
from ryarn.tune.search import TUNED, TuneRecipe, encode
from ryarn.tune.study import ENOUGH, Settled

if TYPE_CHECKING:
    from rich.table import Table

TRIALS_CSV, PAGE = "trials.csv", "tune.md"
FEW = 10
"""Finished trials below which the page says that shares are a hint."""


@dataclass(frozen=True)
class Outcome:
    """What a tuning found.

    Attributes:
        trials: By number.
        chosen: The best of them.
        recipe: The plain recipe with its values.
        importances: Searched key to the share of the scores' variance that it explains, most
            first; empty where there is too little to tell.
        used_up: Whether the search ended because no further setting was found.
    """

    trials: list[Settled]
    chosen: Settled
    recipe: Recipe
    importances: Mapping[str, float]
    used_up: bool

    @property
    def failed(self) -> dict[str, str]:
        """Name of a failed trial to why."""
        return {f"trial {t.number}": t.reason for t in self.trials if t.state == "failed"}


def best(trials: Sequence[Settled]) -> Settled | None:
    """The finished trial with the best score, the first of equals; None if none finished."""
    finished = [trial for trial in trials if trial.score is not None]
    return max(finished, key=lambda trial: (trial.score, -trial.number), default=None)


def show(value: Any) -> str:
    """A value of a setting in a table."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else encode(value).replace('"', "")


def write_trials(recipe: TuneRecipe, trials: Sequence[Settled]) -> None:
    """Write `trials.csv`: a line a trial, values as JSON."""
    keys = list(recipe.tune.search)
    measured = ("held_out_mean", "held_out_loss", "steps", "of_steps", "seconds", "reason")
    with (recipe.output / TRIALS_CSV).open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["trial", "state", *keys, *measured])
        for trial in trials:
            values = [encode(trial.setting[key]) for key in keys]
            cost = trial.steps, trial.of_steps, round(trial.seconds, 1)
            found = trial.score, _loss(trial), *cost, trial.reason
            out.writerow([trial.number, trial.state, *values, *found])


def write_outcome(recipe: TuneRecipe, outcome: Outcome) -> None:
    """Write `tuned.yaml`, which `ryarn train` takes, and `tune.md`."""
    chosen = outcome.chosen
    head = (
        f"# Chosen by ryarn tune: trial {chosen.number} of {len(outcome.trials)}, seed "
        f"{recipe.tune.seed}, held-out mean {chosen.score:.3f}.\n"
    )
    path = recipe.output / f"{TUNED}.yaml"
    path.write_text(head + dump(outcome.recipe), encoding="utf-8")
    parts = [
        "# Hyper-parameters chosen on held-out rows",
        "\n".join(f"- {line}" for line in sentences(recipe, outcome)),
        "## The chosen setting",
        markdown_table(["key", "value", "share of variance"], _keys(recipe, outcome)),
        "## All trials",
        markdown_table(_header(recipe), [_line(recipe, trial) for trial in outcome.trials]),
    ]
    (recipe.output / PAGE).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def sentences(recipe: TuneRecipe, outcome: Outcome) -> list[str]:
    """What the reader must know about how the choice came to be."""
    trials, chosen = outcome.trials, outcome.chosen
    counts = {
        state: [trial for trial in trials if trial.state == state]
        for state in ("finished", "pruned", "failed")
    }
    told = ", ".join(f"{len(of_state)} {state}" for state, of_state in counts.items())
    scores = [trial.score for trial in trials if trial.score is not None]
    finished = len(scores)
    beyond = f"the bins beyond train.max_length = {recipe.train.max_length}"
    bins = "all bins" if recipe.tune.bins == "all" else beyond
    lines = [
        f"{len(trials)} settings were tried ({told}); seed of the search and of every training: "
        f"{recipe.tune.seed}.",
        f"A score is the mean over {bins} of held-out rows, each bin weighing the same; no test "
        "row was answered.",
        f"Chosen: trial {chosen.number}, {chosen.score:.3f}; the {finished} scores lie between "
        f"{min(scores):.3f} and {max(scores):.3f}. The best of several is the best by chance, "
        "too: what it is worth, test rows say.",
        f"Time: {duration(sum(trial.seconds for trial in trials))}",
    ]
    if counts["pruned"]:
        lines[-1] += (
            f", of that {duration(sum(trial.seconds for trial in counts['pruned']))} in pruned "
            f"trials, which did {sum(trial.steps for trial in counts['pruned'])} of "
            f"{sum(trial.of_steps for trial in counts['pruned'])} steps"
        )
    lines[-1] += "."
    if outcome.used_up:
        lines.append(f"The search ended before {recipe.tune.trials}: no further setting was found.")
    if not outcome.importances:
        lines.append(
            f"What each key mattered is not told: that takes {ENOUGH} finished trials or more, "
            "with different scores."
        )
    else:
        lines.append(
            "Share of variance: fANOVA over the finished trials. Shares add up to 1 even where the "
            "keys explain nothing"
            + ("; from so few trials they are a hint." if finished < FEW else ".")
        )
    return lines


def terminal(recipe: TuneRecipe, outcome: Outcome) -> list[Table]:
    """All trials, and the chosen setting, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    trials = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in _header(recipe):
        # The last word of a key: a terminal is narrow, and the other table has them whole.
        trials.add_column(Text(name.rpartition(".")[2]), justify="right")
    for trial in outcome.trials:
        style = "bold" if trial is outcome.chosen else None
        trials.add_row(*map(Text, _line(recipe, trial)), style=style)
    keys = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    keys.add_column("key")
    keys.add_column("chosen", justify="right")
    keys.add_column("share of variance", justify="right")
    for line in _keys(recipe, outcome):
        keys.add_row(*map(Text, line))
    return [trials, keys]


def _keys(recipe: TuneRecipe, outcome: Outcome) -> list[list[str]]:
    """Key, chosen value, share; by share where there are any."""
    keys = list(outcome.importances) or list(recipe.tune.search)
    shares = outcome.importances
    return [
        [key, show(outcome.chosen.setting[key]), f"{shares[key]:.2f}" if shares else DASH]
        for key in keys
    ]


def _header(recipe: TuneRecipe) -> list[str]:
    return ["trial", *recipe.tune.search, "score", "loss", "steps", "time", ""]


def _line(recipe: TuneRecipe, trial: Settled) -> list[str]:
    loss = _loss(trial)
    done = f"{trial.steps}/{trial.of_steps}" if trial.state == "pruned" else str(trial.steps)
    return [
        str(trial.number),
        *(show(trial.setting[key]) for key in recipe.tune.search),
        DASH if trial.score is None else f"{trial.score:.3f}",
        DASH if loss is None else f"{loss:.3g}",
        done if trial.of_steps else DASH,
        duration(trial.seconds),
        "" if trial.state == "finished" else trial.state,
    ]


def _loss(trial: Settled) -> float | None:
    return trial.curve[max(trial.curve)] if trial.curve else None
