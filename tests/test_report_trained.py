"""What a report says of the end of each training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from report_runs import make_run
from ryarn.report.results import build_report
from ryarn.report.stage import load_runs, report
from ryarn.report.tables import DASH
from ryarn.report.trained import Trained, trained_rows
from tiny_run import make_recipe

CHANCES = {512: 0.9, 1024: 0.5}


def log(folder: Path, accuracies: list[float | None], epoch: float = 1.0) -> Path:
    """A training's log, an entry each ten steps, with the trainer's last words."""
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = [
        {"loss": 2 - n / 10, "step": 10 * n, "epoch": epoch * n / len(accuracies)}
        | ({} if accuracy is None else {"mean_token_accuracy": accuracy})
        for n, accuracy in enumerate(accuracies, start=1)
    ]
    entries.insert(1, {"eval_loss": 9.0, "step": 10, "epoch": 0.1})
    entries.append({"train_runtime": 1.0, "train_loss": 1.5, "step": 100, "epoch": epoch})
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def test_the_last_fifth_of_the_steps_counts(tmp_path: Path) -> None:
    run = log(tmp_path, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], epoch=2.5)
    end = Trained.read(run)
    assert end == Trained(100, 2.5, pytest.approx(1.05), pytest.approx(0.95))


def test_a_log_with_few_entries_tells_what_it_can(tmp_path: Path) -> None:
    # Of 100 steps, 70 are in the log; the last entry is the best that there is.
    assert Trained.read(log(tmp_path, [0.1] * 6 + [0.6])) == Trained(
        100, 1.0, pytest.approx(1.3), 0.6
    )


@pytest.mark.parametrize("text", [None, "", '{"train_runtime": 1, "step": 4, "epoch": 1}\n'])
def test_without_a_training_there_is_nothing_to_tell(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "log.jsonl").write_text(text)
    assert Trained.read(tmp_path) is None


def test_a_trainer_that_counts_no_tokens_has_its_loss(tmp_path: Path) -> None:
    assert Trained.read(log(tmp_path, [None] * 10)) == Trained(100, 1, pytest.approx(1.05), None)


def test_the_report_has_a_line_for_each_trained_method(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "zero", "zero-shot", CHANCES, train=None)]
    for seed, right in enumerate((0.9, 0.7)):
        runs.append(make_run(tmp_path / f"ours-{seed}", "randomized-yarn", CHANCES, seed))
        log(runs[-1], [right] * 10)
    runs.append(make_run(tmp_path / "lora", "lora", CHANCES))
    log(runs[-1], [None] * 10, epoch=0.5)
    assert trained_rows(build_report(load_runs(runs))) == [
        ["randomized-yarn", "2", "100", "1", "1.050 [1.050, 1.050]", "80.0 [70.0, 90.0]"],
        ["lora", "1", "100", "0.5", "1.050", DASH],
    ]
    report(runs, tmp_path / "out")
    for name in ("report.md", "report.html"):
        text = (tmp_path / "out" / name).read_text()
        assert "What training reached" in text
        assert "80.0 [70.0, 90.0]" in text
    report(runs[:1], tmp_path / "one")
    assert "What training reached" not in (tmp_path / "one" / "report.html").read_text()


def test_a_real_training_is_read(tmp_path: Path) -> None:
    from ryarn.train import train

    recipe = make_recipe(tmp_path, "train.log_steps=2")
    train(recipe)
    end = Trained.read(recipe.output)
    assert end is not None
    lines = (recipe.output / "log.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [e["step"] for e in entries if "loss" in e] == [2]
    assert (end.steps, end.epochs) == (3, 1)
    assert end.accuracy is not None
    assert 0 <= end.accuracy <= 1
