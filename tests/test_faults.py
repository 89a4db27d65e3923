"""What stops a training, and what is left then: numbers that are none, a full disk, a kill."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from ryarn import load, train_files
from ryarn.chat import completion_ids
from ryarn.checkpoints import SEAL, last_checkpoint, make_room, seal
from ryarn.errors import TrainingError, UserError
from ryarn.recipe import Recipe, load_recipe
from ryarn.records import read_jsonl
from ryarn.sft import LabelledLogitsTrainer
from ryarn.train import train
from tiny_run import command, make_recipe, write_recipe

# Two batches of two rows a step. Six rows train, so an epoch ends after steps 2, 4 and 6; the
# held-out loss follows each end. The run ends in the middle of an epoch.
CHANGES = (
    "method.spans=[64,128,256]",
    "train.data.held_out=0.3",
    "train.held_out_rows=2",
    "train.batch_size=2",
    "train.gradient_accumulation=2",
    "train.max_steps=7",
    "train.save_steps=3",
)
STEPS = 7


def make(folder: Path, *changes: str) -> Recipe:
    folder.mkdir(exist_ok=True)
    return make_recipe(folder, *CHANGES, *changes)


def facts(recipe: Recipe) -> dict[str, Any]:
    """What a run says of itself that no clock has a part in."""
    entries = [
        {key: entry[key] for key in ("step", "loss", "eval_loss", "grad_norm") if key in entry}
        | {key: value for key, value in entry.items() if key.startswith("positions/")}
        for entry in read_jsonl(recipe.output / "log.jsonl")
        if "train_runtime" not in entry
    ]
    run = json.loads((recipe.output / "run.json").read_text())
    return {
        "log": entries,
        "end": {key: run[key] for key in ("status", "steps", "train_loss", "held_out_loss")},
    }


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(folder / "adapter_model.safetensors"))


def assert_same(one: Recipe, two: Recipe) -> None:
    assert facts(one) == facts(two)
    assert_same_weights(one.output / "adapter", two.output / "adapter")


def assert_same_weights(one: Path, two: Path) -> None:
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def checkpoints(recipe: Recipe) -> list[str]:
    return sorted(path.name for path in (recipe.output / "checkpoints").glob("checkpoint-*"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A run that nothing stopped."""
    recipe = make(tmp_path_factory.mktemp("straight"))
    train(recipe)
    found = facts(recipe)
    assert [e["step"] for e in found["log"] if "loss" in e] == list(range(1, STEPS + 1))
    assert [e["step"] for e in found["log"] if "eval_loss" in e] == [2, 4, 6, STEPS]
    assert checkpoints(recipe) == ["checkpoint-6", "checkpoint-7"]
    return recipe


class Killed(BaseException):
    """As a kill: nothing that stands in its way is asked."""


class KilledAt(TrainerCallback):
    """Ends training at an event of a step."""

    def __init__(self, event: str, step: int) -> None:
        def end(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                raise Killed

        setattr(self, event, end)


@pytest.mark.parametrize(
    ("event", "step", "last"),
    [
        # After the checkpoint, before the held-out loss of the epoch.
        pytest.param("on_epoch_end", 6, "checkpoint-6", marks=pytest.mark.slow),
        ("on_epoch_end", STEPS, "checkpoint-7"),
        pytest.param("on_step_begin", 5, "checkpoint-3", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(
    straight: Recipe, tmp_path: Path, event: str, step: int, last: str
) -> None:
    recipe = make(tmp_path)
    with pytest.raises(Killed):
        train(recipe, callbacks=[KilledAt(event, step)])
    torn = recipe.output / "checkpoints" / "checkpoint-100"
    torn.mkdir()
    train(recipe, resume=True)
    assert json.loads((recipe.output / "run.json").read_text())["resumed_from"] == last
    assert_same(straight, recipe)
    assert not torn.exists()


def test_a_kill_while_the_adapter_is_saved_leaves_none(
    straight: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make(tmp_path)

    def killed(partial: Path, final: Path) -> None:
        assert {"ryarn.json", "adapter_model.safetensors"} <= {p.name for p in partial.iterdir()}
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(train_files, "write_readme", killed)
        with pytest.raises(Killed):
            train(recipe)
    assert not (recipe.output / "adapter").exists()
    train(recipe, resume=True)
    assert_same(straight, recipe)
    assert sorted(p.name for p in (recipe.output / "adapter").iterdir()) == sorted(
        p.name for p in (straight.output / "adapter").iterdir()
    )
    assert not (recipe.output / "adapter.partial").exists()
    assert not list((recipe.output / "adapter").glob("*.bin"))


def test_a_checkpoint_is_whole_only_with_all_that_was_sealed(
    straight: Recipe, tmp_path: Path
) -> None:
    source = straight.output / "checkpoints" / "checkpoint-7"
    names = [path.name for path in source.iterdir()]
    assert {"adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"} <= {
        *names
    }
    assert {"trainer_state.json", "ryarn.json", SEAL} <= {*names}
    copy = tmp_path / "checkpoint-7"
    copy.mkdir()
    for name in names:
        os.link(source / name, copy / name)
    assert last_checkpoint(tmp_path) == copy
    for name in names:
        (copy / name).unlink()
        assert last_checkpoint(tmp_path) is None, name
        (copy / name).write_bytes((source / name).read_bytes()[:-2])
        assert last_checkpoint(tmp_path) is None, name
        (copy / name).unlink()
        os.link(source / name, copy / name)
    assert last_checkpoint(tmp_path) == copy


def test_room_is_made_of_what_is_not_the_last_whole_checkpoint(tmp_path: Path) -> None:
    for step in (9, 10, 11):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_text("x")
        if step < 11:
            seal(folder)
    assert make_room(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]
    assert not make_room(tmp_path)
    (tmp_path / "checkpoint-12").mkdir()
    assert not make_room(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]


def test_a_kill_before_the_first_file_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    recipe = make(tmp_path, "train.max_length=8")
    recipe.output.mkdir()
    (recipe.output / "recipe.yaml.partial").write_text("model")
    with pytest.raises(UserError, match="max_length = 8"):  # the check after that of the folder
        train(recipe)
    (recipe.output / "letters.txt").write_text("mine")
    with pytest.raises(UserError, match="is no run of ryarn"):
        train(recipe)


def break_loss(monkeypatch: pytest.MonkeyPatch, value: float, step: int) -> None:
    """The second batch of a step has this loss."""
    whole = LabelledLogitsTrainer.compute_loss

    def compute_loss(self: Any, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        loss = whole(self, model, inputs, *rest, **more)
        second = len(self._batches) == 1
        return loss * value if self.state.global_step + 1 == step and second else loss

    monkeypatch.setattr(LabelledLogitsTrainer, "compute_loss", compute_loss)


def seen_rows(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[set[str]]]:
    """Step to the texts of each batch."""
    seen: dict[int, list[set[str]]] = {}
    whole = LabelledLogitsTrainer.training_step

    def training_step(self: Any, model: Any, inputs: Any, *rest: Any) -> Any:
        questions = [
            self.processing_class.decode(line, skip_special_tokens=True)
            for line in inputs["input_ids"]
        ]
        seen.setdefault(self.state.global_step + 1, []).append(set(questions))
        return whole(self, model, inputs, *rest)

    monkeypatch.setattr(LabelledLogitsTrainer, "training_step", training_step)
    return seen


@pytest.mark.parametrize(
    "value", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.slow)]
)
def test_a_loss_that_is_no_number_stops_with_step_and_rows_and_keeps_the_last_good_adapter(
    straight: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    recipe = make(tmp_path)
    questions = {
        f"row-{number:06d}": row["prompt"]
        for number, row in enumerate(read_jsonl(Path(recipe.train.data.path)))  # type: ignore[union-attr]
    }
    seen = seen_rows(monkeypatch)
    with monkeypatch.context() as patched:
        break_loss(patched, value, step=5)
        with pytest.raises(TrainingError) as caught:
            train(recipe)
    sentence = str(caught.value)
    assert sentence.startswith("step 5: the loss is not finite in rows 'row-")
    assert "what was trained before it is in " in sentence
    assert sentence.count("\n") == 0
    named = {key for key in questions if repr(key) in sentence}
    asked = seen[5][1]
    assert len(named) == len(asked) == 2
    assert all(any(questions[key] in text for text in asked) for key in named)

    last = recipe.output / "checkpoints" / "checkpoint-4"
    assert str(last) in sentence
    assert checkpoints(recipe) == ["checkpoint-3", "checkpoint-4"]
    model, _ = load(last, dtype="float32")
    assert all(value.isfinite().all() for value in model.state_dict().values())
    run = json.loads((recipe.output / "run.json").read_text())
    assert (run["status"], run["reason"], run["kept"]) == ("stopped", sentence, "checkpoint-4")
    # Kept as it would have been saved: without the fault, the run goes on as if it had not been.
    train(recipe, resume=True)
    assert_same(straight, recipe)


def test_a_gradient_that_is_no_number_stops_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = LabelledLogitsTrainer.training_step

    def training_step(self: Any, model: Any, inputs: Any, *rest: Any) -> Any:
        loss = whole(self, model, inputs, *rest)
        if self.state.global_step == 0:
            next(p for p in model.parameters() if p.requires_grad).grad.view(-1)[3] = float("inf")
        return loss

    monkeypatch.setattr(LabelledLogitsTrainer, "training_step", training_step)
    path = write_recipe(tmp_path)
    assert command(monkeypatch, "train", path, *CHANGES) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("ryarn: step 1: the gradient is not finite in rows 'row-")
    assert told.count("'row-") == 4
    assert "nothing was trained before: look at these rows, or lower train.learning_rate" in told
    assert checkpoints(load_recipe(path, [])) == []


def test_a_row_without_a_label_is_refused_before_any_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make(tmp_path)
    first = iter([True])
    monkeypatch.setattr(
        "ryarn.train.completion_ids",
        lambda tokenizer, text: [] if next(first, False) else completion_ids(tokenizer, text),
    )
    monkeypatch.setattr("ryarn.models.load_model", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(
        UserError, match=r"1 of 6 rows have no token to learn \(the first: 'row-\d+'\)"
    ):
        train(recipe)
    assert not recipe.output.exists()


def test_a_batch_without_a_label_never_reaches_the_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make(tmp_path, "train.batch_size=1", "train.gradient_accumulation=1")
    monkeypatch.setattr("ryarn.train.completion_ids", lambda *_: [])
    monkeypatch.setattr("ryarn.train._check_rows", lambda *_: None)
    taken: list[int] = []

    class Counting(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            taken.append(state.global_step)

    with pytest.raises(TrainingError, match=r"step 1: no token of rows 'row-\d+' has a label"):
        train(recipe, callbacks=[Counting()])
    assert taken == []


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """The system refuses to make a file longer, as it refuses on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Limited(TrainerCallback):
    """From a step on, files are short."""

    def __init__(self, size: int, step: int) -> None:
        self.size, self.step = size, step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, hard))


# safetensors writes the one, torch the other, each with words of its own.
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("adapter_model.safetensors", "File too large"),
        pytest.param("optimizer.pt", "the disk took only a part of it", marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_that_the_disk_refuses(
    straight: Recipe, tmp_path: Path, file: str, reason: str
) -> None:
    sizes = json.loads((straight.output / "checkpoints" / "checkpoint-7" / SEAL).read_text())
    recipe = make(tmp_path)
    folder = recipe.output / "checkpoints"
    with longest_file(resource.RLIM_INFINITY), pytest.raises(OSError, match=reason) as caught:
        train(recipe, callbacks=[Limited(sizes[file] - 1, 4)])
    assert caught.value.strerror == (
        f"{folder / 'checkpoint-6'} can't be written ({reason}): free some space, then go on from "
        "checkpoint-3 with --resume"
    )
    assert checkpoints(recipe) == ["checkpoint-3"]
    run = json.loads((recipe.output / "run.json").read_text())
    assert (run["status"], run["reason"]) == ("stopped", str(caught.value.strerror))
    train(recipe, resume=True)
    assert_same(straight, recipe)


class FullLog(TrainerCallback):
    """The log lies on a device that is always full."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        log = Path(args.output_dir).parent / "log.jsonl"
        if state.global_step == 4 and not log.is_symlink():
            log.unlink()
            log.symlink_to("/dev/full")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_log_that_the_disk_refuses_loses_no_step(straight: Recipe, tmp_path: Path) -> None:
    recipe = make(tmp_path)
    with pytest.raises(OSError, match="No space left on device") as caught:
        train(recipe, callbacks=[FullLog()])
    log = recipe.output / "log.jsonl"
    assert caught.value.strerror == (
        f"{log} can't be written (No space left on device): free some space, then go on with "
        "--resume"
    )
    assert checkpoints(recipe) == ["checkpoint-3", "checkpoint-5"]
    log.unlink()
    train(recipe, resume=True)
    assert json.loads((recipe.output / "run.json").read_text())["resumed_from"] == "checkpoint-5"
    assert_same(straight, recipe)
