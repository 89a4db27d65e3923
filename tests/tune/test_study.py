"""The study: proposals, the journal, pruning, and what mattered."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tunings import make

from ryarn.errors import UserError
from ryarn.tune import stage
from ryarn.tune.search import (
    Choices,
    PruneConfig,
    Range,
    Setting,
)
from ryarn.tune.stage import tune
from ryarn.tune.study import Journal, Past, Settled, importances, is_hopeless, propose

SPACES: dict[str, Range | Choices] = {
    "rate": Range(low=1e-4, high=1e-2, log=True),
    "rank": Range(low=1, high=64),
    "spans": Choices(values=[[128], [256], [128, 256], None, {"end": 5}]),
}


def anything(setting: Setting) -> None:
    """Every setting is possible."""


def finished(number: int, setting: Setting, score: float, **more: Any) -> Settled:
    return Settled(number, setting, "finished", score, **more)


def test_the_first_settings_cover_every_part_of_every_space() -> None:
    drawn = [propose(SPACES, Past(), (3, n), anything) or {} for n in range(1, 11)]
    assert Counter(json.dumps(s["spans"]) for s in drawn) == Counter(
        {json.dumps(value): 2 for value in SPACES["spans"].values}  # type: ignore[union-attr]
    )
    tenths = [math.floor(10 * (math.log10(s["rate"]) + 4) / 2) for s in drawn]
    assert sorted(tenths) == list(range(10))
    assert sorted(round((s["rank"] - 1) / 6.3 - 0.5) for s in drawn) == pytest.approx(
        list(range(10)), abs=1
    )
    assert all(isinstance(s["rank"], int) and s["rate"] == float(f"{s['rate']:.3g}") for s in drawn)


def test_a_proposal_depends_on_seed_number_and_past_alone() -> None:
    past = Past(
        [finished(n, {"rate": n / 2000, "rank": n, "spans": [128]}, n) for n in range(1, 13)]
    )
    args = (SPACES, past, (1, 13), anything)
    one = propose(*args)
    assert propose(*args) == one
    assert propose(SPACES, past, (2, 13), anything) != one
    assert propose(SPACES, past, (1, 14), anything) != one


def test_after_the_first_settings_good_ones_are_followed() -> None:
    space: dict[str, Range | Choices] = {"rate": Range(low=0.0, high=1.0)}
    settled: list[Settled] = []
    for number in range(1, 31):
        setting = propose(space, Past(settled), (5, number), anything)
        assert setting is not None
        settled.append(finished(number, setting, -abs(setting["rate"] - 0.8)))
    later = [trial.setting["rate"] for trial in settled[10:]]
    # Drawn evenly, 4 of 20 would be as near: 10 or more have a chance of 0.3%.
    assert sum(abs(rate - 0.8) < 0.1 for rate in later) >= 10


def test_nothing_is_proposed_twice_and_the_end_of_a_small_space_is_seen() -> None:
    space = {"a": Choices(values=[1, 2, 3, 4, 5]), "b": Choices(values=["x", "y", "z", "u"])}
    running: dict[int, Setting] = {}
    settled: list[Settled] = []
    for number in range(1, 23):
        found = propose(space, Past(settled, running), (0, number), anything)
        if found is None:
            break
        running[number] = found
        settled.append(finished(number, found, 1.0 if found["a"] == 1 else 0.0))
    assert len(running) == 20
    assert len({json.dumps(s) for s in running.values()}) == 20


def test_impossible_settings_are_passed_over(tmp_path: Path) -> None:
    search = {"method.factor": [2, 8], "method.eval_factor": [2, 4]}
    recipe = make(tmp_path, tune__search=search)
    check = stage.trial_maker(recipe)
    space = stage.spaces(recipe)
    running: dict[int, Setting] = {}
    for number in (1, 2):
        running[number] = propose(space, Past(running=running), (0, number), check) or {}
    assert [s["method.factor"] for s in running.values()] == [2, 2]
    assert propose(space, Past(running=running), (0, 3), check) is None


def test_if_no_setting_is_possible_it_says_why(tmp_path: Path) -> None:
    recipe = make(tmp_path, tune__search={"method.factor": [4, 8], "method.eval_factor": [2, 3]})
    with pytest.raises(
        UserError, match=r"none of 200 settings is possible: .* s' must be at least"
    ):
        tune(recipe)
    assert not (tmp_path / "out").exists()


# The study on disk


def test_the_journal_keeps_what_became_of_each_trial(tmp_path: Path) -> None:
    setting = {"rate": 1e-3, "rank": 3, "spans": {"end": 5}}
    trials = [
        finished(1, setting, 0.5, curve={1: 2.5, 2: 1.5}, seconds=3.5, steps=9, of_steps=9),
        Settled(3, setting, "pruned", None, {1: 9.0}, "held-out loss 9", 1.0, 3, 9),
        Settled(2, setting, "failed", reason="boom"),
    ]
    journal = Journal(tmp_path, SPACES)
    for trial in trials:
        journal.add(trial)
    journal.add(replace(trials[2], reason="boom again"))
    found = Journal(tmp_path, SPACES).settled()
    assert found == {1: trials[0], 3: trials[1], 2: replace(trials[2], reason="boom again")}


def test_a_kill_in_the_middle_of_a_line_loses_that_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = {"rate": 1e-3, "rank": 3, "spans": None}
    Journal(tmp_path, SPACES).add(finished(1, setting, 0.5))
    path = tmp_path / "study.journal"
    with path.open("a") as file:
        file.write('{"op_code":4,"wor')
    (tmp_path / "study.journal.lock").symlink_to(path)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited for a lock of the dead"))
    journal = Journal(tmp_path, SPACES)
    journal.add(finished(2, setting, 0.25))
    assert {n: t.score for n, t in Journal(tmp_path, SPACES).settled().items()} == {1: 0.5, 2: 0.25}


def test_a_trial_is_hopeless_when_most_others_were_better_at_that_check(tmp_path: Path) -> None:
    setting = {"rate": 1e-3, "rank": 3, "spans": None}
    journal = Journal(tmp_path, SPACES)
    rule = PruneConfig(keep=0.75, after=4)
    for number, loss in enumerate((1.0, 2.0, 3.0), start=1):
        journal.add(finished(number, setting, 0.5, curve={1: loss + 5, 2: loss}))
    journal.add(Settled(8, setting, "pruned", None, {1: 9.5}))
    assert not is_hopeless(tmp_path, rule, {1: 99.0}), "only three finished"
    journal.add(finished(4, setting, 0.5, curve={1: 9.0, 2: 4.0}))
    # At the first check others had 6, 7, 8, 9 and 9.5; at the second 1, 2, 3, 4, and one was gone.
    assert is_hopeless(tmp_path, rule, {1: 9.1})
    assert not is_hopeless(tmp_path, rule, {1: 8.9})
    assert is_hopeless(tmp_path, rule, {1: 9.1, 2: 4.1})
    assert not is_hopeless(tmp_path, rule, {1: 3.9, 2: 4.1}), "its best loss counts"
    assert not is_hopeless(tmp_path, PruneConfig(keep=0.9, after=4), {1: 9.1})
    assert not is_hopeless(tmp_path, PruneConfig(keep=0.75, after=5), {1: 9.1})
    assert is_hopeless(tmp_path, PruneConfig(keep=0.5, after=4), {2: 3.1})
    assert not is_hopeless(tmp_path, PruneConfig(keep=0.7, after=4), {2: 3.1}), "one was gone"
    assert not is_hopeless(tmp_path, rule, {3: 99.0}), "nobody came there"


def test_a_loss_that_is_no_number_is_hopeless_at_once(tmp_path: Path) -> None:
    assert is_hopeless(tmp_path, PruneConfig(), {1: math.nan})
    assert is_hopeless(tmp_path, PruneConfig(), {1: 1.0, 2: math.inf})


def test_what_mattered_is_found_and_too_little_is_not_told() -> None:
    trials = [
        finished(n, s, 0.1 + 0.5 * (s["spans"] == [256]) + n / 1000)
        for n in range(1, 21)
        if (s := propose(SPACES, Past(), (n, 1), anything)) is not None
    ]
    found = importances(trials, SPACES, 0)
    assert next(iter(found)) == "spans"
    assert found["spans"] > 0.8
    assert sum(found.values()) == pytest.approx(1)
    assert importances(trials[:3], SPACES, 0) == {}
    assert importances([replace(trial, score=0.5) for trial in trials], SPACES, 0) == {}


# The run, with workers played by this process
