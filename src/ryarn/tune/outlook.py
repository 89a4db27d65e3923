"""What a tuning would do: its first settings and about how long it takes, before it is run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ryarn.compare.cells import is_done
from ryarn.compare.estimate import Survey, done_cells, makespan, measured, reckoned, seconds_each
from ryarn.compare.watch import duration
from ryarn.compare.workers import share
from ryarn.tune.search import Setting, TuneRecipe, spaces
from ryarn.tune.stage import check, read_settings, trial_maker
from ryarn.tune.study import STARTUP, Past, propose
from ryarn.tune.trials import PRUNED, Trial, make_trial
from ryarn.tune.tuned import show

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Forecast:
    """What a tuning would do.

    Attributes:
        trials: Those with a known setting, and those that the search begins with.
        settings: Theirs.
        seconds: Theirs; None where that can't be told.
        notes: What to say below them.
    """

    trials: list[Trial]
    settings: list[Setting]
    seconds: list[float | None]
    notes: list[str]


def forecast(recipe: TuneRecipe) -> Forecast:
    """Say what `tune` would do; nothing is written and no weights are read.

    Raises:
        UserError: As for `tune`, before anything is run.
    """
    survey = Survey()
    check(recipe, survey)
    known = read_settings(recipe.output)
    settings = dict(known)
    for number in range(len(known) + 1, recipe.tune.trials + 1):
        found = propose(
            spaces(recipe), Past(running=settings), (recipe.tune.seed, number), trial_maker(recipe)
        )
        if found is None:
            break
        settings[number] = found
    trials = [make_trial(recipe, number, setting) for number, setting in settings.items()]
    left = [trial for trial in trials if not is_settled(trial)]
    count, threads = share(recipe.tune.trials, recipe.tune.processes)
    done = done_cells(trials)
    speed = measured(done, survey)
    if speed is not None:
        speed = replace(speed, source=f"from {len(done)} finished trials")
    speed = speed or reckoned(trials, survey, threads)
    each = seconds_each(trials, survey, speed) if speed else {}
    shown = max(len(known), min(len(trials), STARTUP))
    notes = [f"{len(trials)} trials, {len(trials) - len(left)} of them settled"]
    if shown < len(trials):
        notes.append(f"the other {len(trials) - shown} are proposed from what these give")
    if speed is None:
        notes.append("time: not known before the first trial is finished")
    elif left:
        total = duration(makespan([each[trial.name] for trial in left], count))
        notes.append(f"time: about {total}, less what is pruned ({speed.source})")
    seconds = [each.get(trial.name) for trial in trials[:shown]]
    return Forecast(trials[:shown], list(settings.values())[:shown], seconds, notes)


def is_settled(trial: Trial) -> bool:
    """Whether nothing is left to do in a trial's folder."""
    return is_done(trial) or (trial.recipe.output / PRUNED).is_file()


def forecast_table(recipe: TuneRecipe, seen: Forecast) -> Table:
    """The trials for a terminal."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("trial", *(key.rpartition(".")[2] for key in recipe.tune.search), "time", ""):
        shown.add_column(name, justify="right")
    for trial, setting, seconds in zip(seen.trials, seen.settings, seen.seconds, strict=True):
        shown.add_row(
            str(trial.setting),
            *(show(setting[key]) for key in recipe.tune.search),
            "?" if seconds is None else duration(seconds),
            "settled" if is_settled(trial) else "",
        )
    return shown
