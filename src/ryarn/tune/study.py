"""The border to optuna: the study on disk, the next setting, when to prune, what mattered."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ryarn.errors import UserError
from ryarn.tune.search import Choices, PruneConfig, Range, Setting, Space, encode

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

JOURNAL = "study.journal"
"""File of the tuning's output, in optuna's own format."""
_NAME = "ryarn tune"
_DRAWS, _MODELLED = 200, 20
"""Proposals before the search counts as used up; after so many they are drawn at random: where few
settings are left, the sampler keeps proposing those that were good."""
STARTUP = 10
"""Trials that are spread over the space before the sampler looks at what became of them."""
ENOUGH = 4
"""Finished trials before anything is said about what mattered."""

State = Literal["finished", "pruned", "failed"]


@dataclass(frozen=True)
class Settled:
    """What became of a trial.

    Attributes:
        number: From 1.
        setting: Searched key to value.
        state: Finished trials alone have a score.
        score: Mean over the bins of the held-out rows.
        curve: Check, from 1, to held-out loss.
        reason: Why it was pruned or failed; empty for a finished one.
        seconds: What it took, from when it was last begun.
        steps: Optimizer steps done.
        of_steps: Of how many.
    """

    number: int
    setting: Setting
    state: State
    score: float | None = None
    curve: Mapping[int, float] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    steps: int = 0
    of_steps: int = 0


def check_installed() -> None:
    """See that optuna and what its importances need are there.

    Raises:
        UserError: They are not.
    """
    from importlib.util import find_spec

    missing = [name for name in ("optuna", "sklearn") if find_spec(name) is None]
    if missing:
        raise UserError(f"ryarn tune needs {' and '.join(missing)}: pip install 'ryarn[tune]'")


class Journal:
    """The study as a file: settled trials are added and never taken back.

    Proposals that are being tried are not in it, so a kill leaves nothing there to repair but a
    last line that was not written to its end.

    Args:
        folder: The tuning's output; this process alone may write there.
        searched: Key to space.
    """

    def __init__(self, folder: Path, searched: Mapping[str, Space]) -> None:
        self._searched = searched
        path = folder / JOURNAL
        if path.is_file():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                with path.open("r+b") as file:
                    file.truncate(whole)
        # A lock that a killed process left would be waited for.
        path.with_name(f"{JOURNAL}.lock").unlink(missing_ok=True)
        optuna = _optuna()
        self.study: Study = optuna.create_study(
            storage=_storage(path), study_name=_NAME, direction="maximize", load_if_exists=True
        )

    def settled(self) -> dict[int, Settled]:
        """Number to what became of it at last: a failed trial may have been tried again."""
        return _settled(self.study)

    def add(self, trial: Settled) -> None:
        """Write a trial down for good."""
        self.study.add_trial(_to_optuna(trial, self._searched))


def _settled(study: Study) -> dict[int, Settled]:
    found = [_from_optuna(trial) for trial in study.get_trials(deepcopy=False)]
    return {trial.number: trial for trial in found}


def _optuna() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _storage(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(path)))


def _distribution(space: Space) -> BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(space, Choices):
        return CategoricalDistribution([encode(value) for value in space.values])
    low, high = space.low, space.high
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=space.log)
    return FloatDistribution(low, high, log=space.log)


def _to_optuna(
    trial: Settled, searched: Mapping[str, Space], *, running: bool = False
) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    states = {
        "finished": TrialState.COMPLETE,
        "pruned": TrialState.PRUNED,
        "failed": TrialState.FAIL,
    }
    return create_trial(
        state=TrialState.RUNNING if running else states[trial.state],
        value=trial.score,
        params={
            key: encode(value) if isinstance(searched[key], Choices) else value
            for key, value in trial.setting.items()
        },
        distributions={key: _distribution(searched[key]) for key in trial.setting},
        # The study is maximized, and optuna compares these the same way.
        intermediate_values={check: -loss for check, loss in trial.curve.items()},
        user_attrs={
            "number": trial.number,
            "setting": dict(trial.setting),
            "state": trial.state,
            "reason": trial.reason,
            "seconds": trial.seconds,
            "steps": trial.steps,
            "of_steps": trial.of_steps,
        },
    )


def _from_optuna(trial: FrozenTrial) -> Settled:
    return Settled(
        score=trial.value if trial.user_attrs["state"] == "finished" else None,
        curve={check: -loss for check, loss in sorted(trial.intermediate_values.items())},
        **trial.user_attrs,
    )


def _value(space: Space, drawn: Any) -> Any:
    return json.loads(drawn) if isinstance(space, Choices) else _rounded(space, drawn)


def _rounded(space: Range, drawn: float) -> float:
    if isinstance(drawn, int):
        return drawn
    return min(max(float(f"{drawn:.3g}"), space.low), space.high)


@dataclass(frozen=True)
class Past:
    """What a proposal is made from.

    Attributes:
        settled: Trials that are settled.
        running: Number to setting of those that are not yet.
    """

    settled: Collection[Settled] = ()
    running: Mapping[int, Setting] = field(default_factory=dict)

    def taken(self) -> set[str]:
        """The settings that were proposed before, as text."""
        known = [*(trial.setting for trial in self.settled), *self.running.values()]
        return {encode(dict(setting)) for setting in known}


def propose(
    searched: Mapping[str, Space],
    past: Past,
    address: tuple[int, int],
    check: Callable[[Setting], object],
) -> Setting | None:
    """The next setting, never one that was proposed before.

    The first are a Latin hypercube, those after it come from optuna's TPE over what is known. A
    pure function: a search that was killed goes on as if it had not been, so the sampler's
    generator is made from the address for each draw. Numbers from a range have three digits: what
    is shown is what was tried.

    Args:
        searched: Key to space.
        past: What was tried.
        address: The search's seed and the trial's number.
        check: Takes a setting and raises `UserError` if it is none.

    Returns:
        None if nothing new was found: all settings, or nearly all, were tried.

    Raises:
        UserError: No setting that was drawn is possible; says why the last one is not.
    """
    optuna = _optuna()
    study = optuna.create_study(direction="maximize")
    study.add_trials([_to_optuna(trial, searched) for trial in past.settled])
    for number, setting in past.running.items():
        study.add_trial(_to_optuna(Settled(number, setting, "failed"), searched, running=True))
    taken, reason = past.taken(), ""
    for again in range(_DRAWS):
        if again == 0 and address[1] <= STARTUP:
            setting = _spread(searched, *address)
        else:
            setting = _drawn(study, searched, (*address, again))
        if encode(setting) in taken:
            continue
        try:
            check(setting)
        except UserError as error:
            reason = str(error)
            continue
        return setting
    if reason and not taken:
        raise UserError(f"tune.search: none of {_DRAWS} settings is possible: {reason}")
    return None


def _drawn(study: Study, searched: Mapping[str, Space], address: tuple[int, int, int]) -> Setting:
    """What optuna proposes; in the end at random, as few settings may be left."""
    optuna = _optuna()
    seed = int(np.random.SeedSequence(address).generate_state(1)[0])
    study.sampler = (
        optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=seed)
        if address[-1] < _MODELLED
        else optuna.samplers.RandomSampler(seed=seed)
    )
    drawn = study.ask({key: _distribution(space) for key, space in searched.items()})
    study.tell(drawn, state=optuna.trial.TrialState.FAIL)  # of a copy that is thrown away
    return {key: _value(searched[key], value) for key, value in drawn.params.items()}


def _spread(searched: Mapping[str, Space], seed: int, number: int) -> Setting:
    """A point of a Latin hypercube: over the first trials, each key takes each part of its space.

    A dozen independent draws often leave a value of a list out (McKay, Beckman and Conover 1979).
    """
    setting = {}
    for place, (key, space) in enumerate(searched.items()):
        rng = np.random.default_rng(np.random.SeedSequence((seed, 0, place)))
        parts, offsets = rng.permutation(STARTUP), rng.random(STARTUP)
        share = float(parts[number - 1] + offsets[number - 1]) / STARTUP
        if isinstance(space, Choices):
            setting[key] = space.values[int(share * len(space.values))]
            continue
        low, high = space.low, space.high
        drawn = low * (high / low) ** share if space.log else low + (high - low) * share
        whole = isinstance(low, int) and isinstance(high, int)
        setting[key] = round(drawn) if whole else _rounded(space, drawn)
    return setting


def is_hopeless(folder: Path, prune: PruneConfig, curve: Mapping[int, float]) -> bool:
    """Whether a trial should be pruned at the check that its curve ends with.

    Its best loss so far is ranked among those of the others at this check; trials that were pruned
    before it rank behind. Optuna's pruners compare with finished trials alone, which gets stricter
    with each trial pruned, as only the good ones finish. A loss that is no number is hopeless.

    Args:
        folder: The tuning's output.
        prune: The recipe's section.
        curve: Check to held-out loss.
    """
    check = max(curve)
    if not math.isfinite(curve[check]):
        return True
    study = _optuna().load_study(storage=_storage(folder / JOURNAL), study_name=_NAME)
    others = _settled(study).values()
    if sum(trial.state == "finished" for trial in others) < prune.after:
        return False
    losses = [trial.curve[check] for trial in others if check in trial.curve]
    before = sum(t.state == "pruned" and check not in t.curve for t in others)
    better = sum(loss < min(curve.values()) for loss in losses)
    return better > prune.keep * (len(losses) + before)


def importances(
    trials: Collection[Settled], searched: Mapping[str, Space], seed: int
) -> dict[str, float]:
    """Share of the variance of the finished trials' scores that each key explains, most first.

    Optuna's fANOVA (Hutter, Hoos and Leyton-Brown 2014). Its other evaluator, PED-ANOVA, looks at
    the best tenth alone and with a dozen trials names any key that is drawn from a range.

    Returns:
        Nothing where fewer than `ENOUGH` trials finished or all scores are equal.
    """
    finished = [trial for trial in trials if trial.score is not None]
    if len(finished) < ENOUGH or len({trial.score for trial in finished}) == 1:
        return {}
    optuna = _optuna()
    study = optuna.create_study(direction="maximize")
    study.add_trials([_to_optuna(trial, searched) for trial in finished])
    found = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=seed)
    )
    return {key: float(share) for key, share in found.items()}
