"""The tuning: settings proposed, trained and scored on held-out rows until the best is chosen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from ryarn.compare.cells import TIMES, TRAINING, check_owner, progress
from ryarn.compare.choice import ood_mean
from ryarn.compare.estimate import Survey
from ryarn.compare.grid import Cell
from ryarn.compare.stage import LOCK, NOTES, alone
from ryarn.compare.watch import Board, part_done
from ryarn.compare.workers import Pool, share
from ryarn.config import dump, leaves, parse_yaml
from ryarn.errors import UserError
from ryarn.recipe import WITHOUT_EFFECT
from ryarn.runs import RUN, check_writable, read_json, write_json
from ryarn.tasks.babilong_context import nominal
from ryarn.tasks.jsonl import JsonlConfig
from ryarn.tasks.overlap import check_apart
from ryarn.tasks.registry import make_task
from ryarn.tune.search import Setting, TuneRecipe, check_tune, chosen_recipe, spaces
from ryarn.tune.study import Journal, Past, Settled, check_installed, importances, propose
from ryarn.tune.trials import PRUNED, Trial, curve_of, make_trial, run_trial
from ryarn.tune.tuned import Outcome, best, show, write_outcome, write_trials

if TYPE_CHECKING:
    from rich.console import Console

TUNE, SETTINGS = "tune.yaml", "settings.json"
"""Files of the output: the recipe, resolved, and every setting that was proposed, by number."""

_FREE = (
    "output",
    *("tune.trials", "tune.processes", "evaluate.batch_tokens"),
    *(f"train.{key}" for key in WITHOUT_EFFECT),
)
"""Keys that may change when a tuning goes on."""


def tune(recipe: TuneRecipe, *, console: Console | None = None) -> Outcome:
    """Try settings until there are as many as asked for, and choose the best.

    A killed tuning goes on where it was: settled trials are kept, a half-done one is taken up. A
    trial that fails is recorded and the others go on; it is tried again by the next call. Called
    from a script, it must stand under `if __name__ == "__main__":`, as workers load the script.

    Args:
        recipe: What to search, and how.
        console: Where progress is shown; by default stderr.

    Raises:
        UserError: Bad input, or a folder that belongs to another tuning, before anything is run;
            or no trial has a score.
        KeyboardInterrupt: After Ctrl-C, when all workers have been stopped.
    """
    from rich.console import Console

    survey = Survey()
    check(recipe, survey)
    with alone(recipe.output, "tune"):
        (recipe.output / TUNE).write_text(dump(recipe), encoding="utf-8")
        search = _Search(recipe, Journal(recipe.output, spaces(recipe)))
        _run(search, survey, console or Console(stderr=True))
        trials = [search.settled[number] for number in sorted(search.settled)]
        write_trials(recipe, trials)
        chosen = best(trials)
        if chosen is None:
            raise UserError(
                f"none of the {len(trials)} trials has a score; trial {trials[0].number}: "
                f"{trials[0].reason}"
            )
        shares = importances(trials, search.searched, recipe.tune.seed)
        made = chosen_recipe(recipe, chosen.setting)
        outcome = Outcome(trials, chosen, made, shares, search.used_up)
        write_outcome(recipe, outcome)
    return outcome


def check(recipe: TuneRecipe, survey: Survey) -> Trial:
    """See that everything is there and fits, before anything is written.

    Returns:
        The first trial.

    Raises:
        UserError: Something does not.
    """
    check_installed()
    check_tune(recipe)
    check_output(recipe)
    known = read_settings(recipe.output)
    first = known.get(1) or propose(
        spaces(recipe), Past(), (recipe.tune.seed, 1), trial_maker(recipe)
    )
    assert first is not None, "the first proposal can't have been made before"
    trial = make_trial(recipe, 1, first)
    survey.check([trial])
    _check_rows(recipe, trial)
    return trial


def trial_maker(recipe: TuneRecipe) -> Callable[[Setting], object]:
    """What makes a trial of a setting, or says why it can't."""
    return lambda setting: make_trial(recipe, 0, setting)


_SELECT = {"rows", "lengths", "questions"}
"""Keys of a data section that take more or fewer rows and leave each in its split."""


def _check_rows(recipe: TuneRecipe, trial: Trial) -> None:
    """The rows to choose by: none is a test row, and there are bins to take the mean of."""
    from ryarn.models import load_tokenizer

    data, result = trial.recipe.evaluate.data, recipe.evaluate.data
    tokenizer = load_tokenizer(recipe.model)
    if isinstance(data, JsonlConfig):
        try:
            check_apart(data, result, "test")
        except UserError as error:
            raise UserError(f"tune.evaluate: rows to choose by must be apart: {error}") from error
    elif data.model_dump(exclude=_SELECT) != result.model_dump(exclude=_SELECT):
        # Each task keeps its splits apart, but only under one set of its settings.
        tested = {row.source for row in make_task(result).examples(tokenizer, "test")}
        chosen_by = {row.source for row in make_task(data).examples(tokenizer, "held-out")}
        if shared := sorted(tested & chosen_by):
            raise UserError(
                f"tune.evaluate.data: {len(shared)} sources of its held-out rows, e.g. "
                f"{shared[0]!r}, are those of test rows: share rows out as evaluate.data does"
            )
    longest = trial.recipe.train.max_length
    lengths = [nominal(length) for length in getattr(data, "lengths", [])]
    if recipe.tune.bins == "longer" and not lengths:
        lengths = [row.bin for row in make_task(data).examples(tokenizer, "held-out")]
    if recipe.tune.bins == "longer" and max(lengths) <= longest:
        raise UserError(
            f"evaluate.data: held-out rows are in bins up to {max(lengths)}, none beyond "
            f"train.max_length = {longest}, so there is nothing to choose by: add longer ones, or "
            "choose by all bins with tune.bins=all"
        )


def check_output(recipe: TuneRecipe) -> None:
    """See that the folder is free, or holds this tuning.

    Raises:
        UserError: It can't be written to, or holds something else; a key that differs is named.
    """
    folder = recipe.output
    check_writable(folder)
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there - {LOCK} and TUNE not in there:
        raise UserError(
            f"output = {str(folder)!r} is not empty and holds no tuning: choose another folder"
        )
    if TUNE not in there:
        return
    try:
        theirs = leaves(parse_yaml((folder / TUNE).read_text("utf-8")) or {})
    except yaml.YAMLError as error:
        raise UserError(f"{folder / TUNE} is not YAML: delete the folder") from error
    mine = leaves(parse_yaml(dump(recipe)))
    for key in {**theirs, **mine} if theirs else ():  # a kill may have left it empty
        if key not in _FREE and theirs.get(key) != mine.get(key):
            raise UserError(
                f"output = {str(folder)!r} was tuned with {key} = {theirs.get(key)!r}, not "
                f"{mine.get(key)!r}: choose another output, or delete that folder"
            )
    for number, setting in read_settings(folder).items():
        check_owner(make_trial(recipe, number, setting))


def read_settings(folder: Path) -> dict[int, Setting]:
    """Number to setting, of all trials that were proposed in an output folder."""
    path = folder / SETTINGS
    return {int(n): s for n, s in read_json(path).items()} if path.is_file() else {}


class _Search:
    """Which trial comes next, and what became of the others.

    Attributes:
        searched: Key to space.
        proposed: Number to setting, also of trials that have not ended.
        settled: Number to what became of it.
        used_up: Whether no further setting was found.
    """

    def __init__(self, recipe: TuneRecipe, journal: Journal) -> None:
        self.recipe, self._journal = recipe, journal
        self.searched = spaces(recipe)
        self.settled = journal.settled()
        self.proposed = read_settings(recipe.output)
        self.used_up = False
        self._starts: dict[int, float] = {}
        self._waiting = [
            make_trial(recipe, number, setting)
            for number, setting in self.proposed.items()
            if number not in self.settled or self.settled[number].state == "failed"
        ]

    @property
    def left(self) -> int:
        """Trials that have not been begun."""
        fresh = 0 if self.used_up else max(0, self.recipe.tune.trials - len(self.proposed))
        return len(self._waiting) + fresh

    def next(self) -> Trial | None:
        """Take or propose the trial that should run next; None if there is none."""
        if self._waiting:
            trial = self._waiting.pop(0)
        elif self.left:
            number = len(self.proposed) + 1
            running = {n: s for n, s in self.proposed.items() if n not in self.settled}
            past = Past(self.settled.values(), running)
            address = self.recipe.tune.seed, number
            setting = propose(self.searched, past, address, trial_maker(self.recipe))
            if setting is None:
                self.used_up = True
                return None
            self.proposed[number] = setting
            write_json(
                self.recipe.output / SETTINGS, {str(n): dict(s) for n, s in self.proposed.items()}
            )
            trial = make_trial(self.recipe, number, setting)
        else:
            return None
        self._starts[_number(trial)] = time.monotonic()
        return trial

    def settle(self, trial: Trial, error: str | None) -> Settled:
        """Write down what became of a trial."""
        number = _number(trial)
        taken = time.monotonic() - self._starts.pop(number)
        settled = settle(trial, self.proposed[number], error, taken)
        self._journal.add(settled)
        self.settled[number] = settled
        return settled


def _number(cell: Cell) -> int:
    assert cell.setting is not None
    return cell.setting


def settle(trial: Trial, setting: Setting, error: str | None, seconds: float) -> Settled:
    """What became of a trial, read from its folder.

    Args:
        trial: The trial.
        setting: Its values.
        error: Why it failed; None if its worker ended well.
        seconds: What it took.
    """
    folder, number, curve = trial.recipe.output, _number(trial), curve_of(trial)
    # An earlier call may have been killed when this was done, and not yet written down.
    seconds = max(seconds, _noted_seconds(folder))
    if error is None and (folder / PRUNED).is_file():
        stop = read_json(folder / PRUNED)
        loss = f"{curve[stop['check']]:.3g}"
        reason = f"held-out loss {loss} at step {stop['step']} of {stop['steps']}"
        steps = stop["step"], stop["steps"]
        return Settled(number, setting, "pruned", None, curve, reason, seconds, *steps)
    if error is None:
        try:
            score = ood_mean(trial, all_bins=trial.all_bins)
        except UserError as unscored:
            error = str(unscored)
        else:
            done = read_json(folder / RUN)["steps"] if trial.trains else 0
            return Settled(number, setting, "finished", score, curve, "", seconds, done, done)
    where = progress(trial)
    steps = (where.done, where.total or 0) if where.stage == TRAINING else (0, 0)
    return Settled(number, setting, "failed", None, curve, error, seconds, *steps)


def _noted_seconds(folder: Path) -> float:
    if (folder / PRUNED).is_file():
        return float(read_json(folder / PRUNED)["seconds"])
    return float(sum(read_json(folder / TIMES).values())) if (folder / TIMES).is_file() else 0.0


def _run(search: _Search, survey: Survey, console: Console) -> None:
    """Run trials until there is none left."""
    recipe = search.recipe
    total = max(recipe.tune.trials, len(search.proposed))
    board = Board(console, total, total - search.left, float(search.left), unit="trials")
    if not search.left:
        return
    count, threads = share(total, recipe.tune.processes)
    with board, Pool(count, threads, recipe.output / NOTES, run_trial) as pool:
        while search.left or pool.running:
            pool.fill(search.left + len(pool.running))
            while pool.has_room and (trial := search.next()) is not None:
                pool.submit(trial)
                board.started(trial)
            for result in pool.wait(0.5):
                assert isinstance(result.cell, Trial)
                settled = search.settle(result.cell, result.error)
                board.ended(result.cell, 1.0, settled.reason if settled.state == "failed" else None)
                board.say(f"        {_said(settled)}")
            now = [(cell, progress(cell)) for cell in pool.running]
            works = {cell.name: survey.work(cell.recipe) for cell, _ in now}
            board.tick(
                [(c, p, part_done(works[c.name], p) / max(1, works[c.name].cost)) for c, p in now]
            )


def _said(trial: Settled) -> str:
    values = ", ".join(f"{key} {show(value)}" for key, value in trial.setting.items())
    if trial.score is not None:
        return f"{values}: held-out mean {trial.score:.3f}"
    return f"{values}: pruned, {trial.reason}" if trial.state == "pruned" else values
