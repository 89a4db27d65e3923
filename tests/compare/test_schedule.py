"""Which cell of a grid runs when, and which setting of a method is chosen."""

from __future__ import annotations

import json
from pathlib import Path

from grids import CHOOSE, Reported, finish, make

from inline_pool import InlinePool
from ryarn.compare.grid import Cell, candidates
from ryarn.compare.schedule import Schedule
from ryarn.compare.stage import compare


def test_candidates_run_first_and_the_longest_of_each_stage_before_the_others(
    tmp_path: Path, inline: InlinePool
) -> None:
    tasks = {"rooms": {}, "more": {"train": {"max_steps": 3}}}
    compare(make(tmp_path, tasks=tasks, choose=CHOOSE, seeds=[0]))
    tried, rest = inline.order[:12], inline.order[12:]
    assert all("setting" in name for name in tried)
    assert [name.split()[0] for name in tried] == ["more"] * 6 + ["rooms"] * 6
    # A method that trains nothing is the shortest, whatever its task.
    assert [name.partition(" / seed")[0] for name in rest] == [
        "more / lora",
        "more / randomized-yarn",
        "rooms / lora",
        "rooms / randomized-yarn",
        "rooms / zero-shot",
        "more / zero-shot",
    ]


def test_a_method_goes_on_as_soon_as_its_own_choice_is_made(tmp_path: Path) -> None:
    grid = make(tmp_path, choose=CHOOSE)
    schedule = Schedule(grid, lambda cell: 1.0, lambda *_: None)
    tried = [cell for cell in candidates(grid) if cell.label == "lora"]
    for cell in tried:
        assert not any(c.label == "lora" and not c.candidate for c in schedule.waiting)
        schedule.waiting.remove(cell)
        finish(cell, {128: [0.5]})
        schedule.settle(cell, None)
    ready = [(c.label, c.seed) for c in schedule.waiting if not c.candidate]
    assert sorted(ready) == [("lora", 0), ("lora", 1), ("zero-shot", 0)]


def test_the_best_mean_over_the_far_bins_wins_each_bin_with_equal_weight(
    tmp_path: Path, inline: InlinePool, reported: Reported
) -> None:
    # 32 is no longer than the training rows; 128 has more rows than 256.
    scores: dict[int, dict[int, list[float]]] = {
        1: {32: [1, 1, 1], 128: [1, 1, 1, 0], 256: [0]},
        2: {32: [0, 0, 0], 128: [0, 0, 0, 0], 256: [1]},
        3: {32: [1, 1, 1], 128: [1, 0, 0, 0], 256: [0]},
    }
    inline.run = lambda cell: finish(cell, scores[cell.setting or 1])
    outcome = compare(make(tmp_path, choose=CHOOSE))
    assert outcome.chosen == {("rooms", "lora"): 2, ("rooms", "randomized-yarn"): 2}
    assert {c.recipe.train.learning_rate for c in outcome.done if c.label == "lora"} == {2e-4}
    [lora, _] = json.loads((tmp_path / "out" / "chosen.json").read_text())["choices"]
    assert (lora["task"], lora["method"], lora["chosen"]) == ("rooms", "lora", 2)
    assert [s["ood_mean"] for s in lora["settings"]] == [0.375, 0.5, 0.125]
    assert lora["settings"][1]["changes"] == {"train": {"learning_rate": 2e-4}}
    assert any("3 settings each of lora and randomized-yarn" in text for text in reported.about)
    assert "Nothing was chosen for zero-shot." in reported.about


def test_the_first_of_equal_settings_wins(tmp_path: Path, inline: InlinePool) -> None:
    values = {1: 0.25, 2: 0.5, 3: 0.5}
    inline.run = lambda cell: finish(cell, {128: [values[cell.setting or 1]]})
    assert set(compare(make(tmp_path, choose=CHOOSE)).chosen.values()) == {2}


def test_candidates_that_answer_nothing_far_are_not_chosen(
    tmp_path: Path, inline: InlinePool
) -> None:
    far = {1: {32: [1.0]}, 2: {128: [0.1]}, 3: {128: [0.0]}}
    inline.run = lambda cell: finish(cell, far[cell.setting or 1])
    compare(make(tmp_path, choose=CHOOSE))
    [lora, _] = json.loads((tmp_path / "out" / "chosen.json").read_text())["choices"]
    assert lora["chosen"] == 2
    assert "beyond train.max_length = 64" in lora["settings"][0]["reason"]


# Failures


def test_a_cell_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, inline: InlinePool, reported: Reported
) -> None:
    bad = "rooms / lora / seed 1"

    def run(cell: Cell) -> str | None:
        return "out of luck" if cell.name == bad else finish(cell, {128: [1.0]})

    inline.run = run
    outcome = compare(make(tmp_path, reference="lora"))
    assert outcome.failed == {bad: "out of luck"}
    assert [c.name for c in outcome.done] == [
        "rooms / zero-shot / seed 0",
        "rooms / lora / seed 0",
        "rooms / randomized-yarn / seed 0",
        "rooms / randomized-yarn / seed 1",
    ]
    assert reported.runs == {"rooms": [c.recipe.output for c in outcome.done]}
    assert reported.reference == "lora"
    assert f"Missing: {bad} (out of luck)." in reported.about
    assert "Nothing is trained in zero-shot, so it ran once." in reported.about


def test_a_method_whose_settings_all_failed_is_reported_and_the_others_go_on(
    tmp_path: Path, inline: InlinePool, reported: Reported
) -> None:
    def run(cell: Cell) -> str | None:
        fails = cell.label == "lora" or cell.name.endswith("yarn / setting 1")
        return "boom" if fails else finish(cell, {128: [0.5]})

    inline.run = run
    outcome = compare(make(tmp_path, choose=CHOOSE, reference="lora"))
    assert outcome.failed == {
        **{f"rooms / lora / setting {n}": "boom" for n in (1, 2, 3)},
        "rooms / randomized-yarn / setting 1": "boom",
        **{f"rooms / lora / seed {n}": "no setting of it could be chosen: boom" for n in (0, 1)},
    }
    assert not any("lora / seed" in name for name in inline.order)
    assert outcome.chosen == {("rooms", "randomized-yarn"): 2}
    assert {c.label for c in outcome.done} == {"zero-shot", "randomized-yarn"}
    assert reported.reference == "lora"  # and no other in its place
    assert "rooms: setting 1 of randomized-yarn has no score: boom." in reported.about
    chosen = json.loads((tmp_path / "out" / "chosen.json").read_text())["choices"]
    assert chosen[0]["chosen"] is None


def test_nothing_finished_is_no_report(
    tmp_path: Path, inline: InlinePool, reported: Reported
) -> None:
    inline.run = lambda cell: "boom"
    assert compare(make(tmp_path)).report is None
    assert reported.runs == {}


# Going on
