"""The answers of one method as a crossed table of rows and seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ryarn.records import Score
from ryarn.report.answers import Answers, Run, group
from ryarn.report.comparison import compare


def run(seed, values, label="lora", bins=None, **manifest):
    """A run with a row for each value; None was skipped."""
    rows = [
        Score(
            id=f"row-{n}",
            bin=(bins or [1024] * len(values))[n],
            source=f"story-{n}",
            scores={} if value is None else {"exact": value, "contains": 1.0},
            parsed=value is not None,
            finish="skipped" if value is None else "stop",
        )
        for n, value in enumerate(values)
    ]
    known = {"label": label, "seed": seed, "train": {"data": {"seed": seed}}, **manifest}
    return Run(Path(f"{label}-{seed}"), known, rows)


def test_rows_and_seeds_are_a_matrix():
    answers = Answers.of([run(3, [1.0, 0.0]), run(1, [0.5, 0.25])])
    assert answers.seeds == (1, 3)
    ids = answers.ids([1024])
    assert ids == ["row-0", "row-1"]
    assert answers.matrix(ids, [1, 3]).tolist() == [[0.5, 0.25], [1.0, 0.0]]
    assert Answers.of([run(3, [0.0])], "contains").matrix(["row-0"]).tolist() == [[1.0]]


def test_a_row_counts_when_every_seed_scored_it():
    answers = Answers.of([run(0, [1.0, 0.0, 1.0]), run(1, [1.0, None, 0.0])])
    assert answers.ids([1024]) == ["row-0", "row-2"]
    assert answers.ids([1024], [0]) == ["row-0", "row-1", "row-2"]
    assert answers.estimate([1024]).mean == pytest.approx(0.75)
    assert answers.estimate([1024]).n == 2
    assert answers.mean("row-1") == 0.0


def test_a_method_without_training_has_no_seeds_and_runs_of_a_seed_are_averaged():
    untrained = Answers.of([run(0, [1.0], train=None), run(5, [0.0], train=None)])
    assert untrained.seeds == ()
    assert untrained.matrix(["row-0"]).tolist() == [[0.5]]
    twice = Answers.of([run(2, [1.0]), run(2, [0.0])])
    assert twice.seeds == (2,)
    assert twice.matrix(["row-0"]).tolist() == [[0.5]]


def test_an_average_needs_every_bin():
    answers = Answers.of([run(0, [1.0, 0.0, None], bins=[512, 1024, 2048])])
    assert answers.average([512, 1024]).mean == pytest.approx(0.5)
    assert answers.average([512, 1024, 2048]).mean is None


def test_runs_that_differ_in_their_training_seeds_alone_are_one_method():
    other = run(2, [1.0], train={"data": {"seed": 2}, "learning_rate": 1.0})
    assert list(group([run(0, [1.0]), run(1, [1.0])])) == ["lora"]
    assert list(group([run(0, [1.0]), other])) == ["lora (lora-0)", "lora (lora-2)"]


def test_rows_that_one_seed_of_one_method_lacks_are_left_out_of_both():
    rng = np.random.default_rng(0)
    values = rng.random((2, 2, 10)).tolist()
    values[1][0][4] = None
    answers = {
        label: Answers.of([run(seed, of_seed, label) for seed, of_seed in enumerate(both)])
        for label, both in zip(("a", "b"), values, strict=True)
    }
    [average, _] = compare(answers, [("a", "b")], [1024], [1024])
    kept = [n for n in range(10) if n != 4]
    first, second = (np.array([[s[n] for n in kept] for s in both]) for both in values)
    assert average.difference.n == 9
    assert average.difference.seeds == 2
    assert average.difference.mean == pytest.approx((first - second).mean())
