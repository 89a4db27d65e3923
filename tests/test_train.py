"""Training end to end on a tiny model: files, resume, labels, adapter, contract, processes."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from ryarn import tiny
from ryarn.backends.echo import EchoBackend
from ryarn.chat import prompt_ids
from ryarn.config import build
from ryarn.errors import UserError
from ryarn.evaluate import Budget, run_evaluation
from ryarn.recipe import Recipe, TrainConfig, load_recipe
from ryarn.records import read_jsonl
from ryarn.rope.remap import Remapper
from ryarn.tasks.registry import make_task
from ryarn.train import _held_out, encode, train
from tiny_run import command, make_recipe, run_info, weights, write_recipe, write_rows

STEPS = 10
# Two rows a batch and two batches a step of 12 rows: an epoch ends after steps 3, 6 and 9.
LONG = (
    "method.spans=[64,128,256,512]",
    "train.batch_size=2",
    "train.gradient_accumulation=2",
    f"train.max_steps={STEPS}",
    "train.save_steps=5",
)

QWEN3_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == "assistant" and loop.last %}
        {{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}
        {{- message.content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
"""How Qwen3's own template treats the thinking mode, written anew."""


class Tape:
    """What a training was given and drew: a line for each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Any], list[Any]]] = []
        self.inputs: list[dict[str, torch.Tensor]] = []

    def after(self, step: int) -> list[tuple[int, list[Any], list[Any]]]:
        return [batch for batch in self.batches if batch[0] >= step]


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """Records (step, tokens, positions) as the rotary modules get them, and the loss's inputs."""
    recorded = Tape()
    draw, training_step = Remapper._draw, Trainer.training_step

    def drawn(self: Remapper, tokens: torch.Tensor, mask: Any, ordinary: Any) -> torch.Tensor:
        positions = draw(self, tokens, mask, ordinary)
        assert self._progress is not None
        recorded.batches.append((self._progress[0], tokens.tolist(), positions.tolist()))
        return positions

    def stepped(self: Any, model: Any, inputs: dict[str, Any], *rest: Any) -> Any:
        recorded.inputs.append({name: value.clone() for name, value in inputs.items()})
        return training_step(self, model, inputs, *rest)

    monkeypatch.setattr(Remapper, "_draw", drawn)
    monkeypatch.setattr(Trainer, "training_step", stepped)
    return recorded


def log(recipe: Recipe) -> list[dict[str, Any]]:
    """The log's lines of single steps."""
    return [entry for entry in read_jsonl(recipe.output / "log.jsonl") if "loss" in entry]


def same_weights(one: Path, two: Path) -> bool:
    first, second = weights(one), weights(two)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_the_command_line_trains_evaluates_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(tmp_path)
    run = tmp_path / "run"
    held_out = ("train.data.held_out=0.3", "train.held_out_rows=2", "train.epochs=2")
    assert command(monkeypatch, "train", path, *held_out) == 0
    assert command(monkeypatch, "evaluate", path, *held_out) == 0
    assert command(monkeypatch, "report", run, "--out", tmp_path / "report") == 0
    captured = capsys.readouterr()
    assert "Warning" not in captured.err + captured.out
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")}
    assert names >= {
        "run/recipe.yaml",
        "run/run.json",
        "run/log.jsonl",
        "run/adapter/adapter_config.json",
        "run/adapter/adapter_model.safetensors",
        "run/adapter/ryarn.json",
        "run/evaluation/manifest.json",
        "run/evaluation/scores.jsonl",
        "run/evaluation/summary.json",
        *(f"report/report.{ending}" for ending in ("html", "md", "csv", "json", "png")),
    }
    assert all(value.isfinite().all() for value in weights(run / "adapter").values())
    assert any(value.any() for name, value in weights(run / "adapter").items() if "lora_B" in name)
    recipe = load_recipe(run / "recipe.yaml", [])
    entries, info = log(recipe), run_info(recipe)
    assert [entry["step"] for entry in entries] == list(range(1, info["steps"] + 1))
    for entry in entries:
        assert entry["positions/span"] in (128, 256)
        assert entry["positions/max"] < entry["positions/span"]
        assert entry["positions/mean_stretch"] > 1
        assert entry["positions/contiguous_documents"] == 0
    assert sum(entry["positions/documents"] for entry in entries) == 2 * info["data"]["rows"]
    assert entries[0]["positions/span"] == 128
    assert entries[-1]["positions/span"] == 256
    assert (info["status"], info["resumed_from"], info["dtype"]) == ("finished", None, "float32")
    assert info["data"]["rows"] + 2 <= 12
    assert info["data"]["held_out_rows"] == 2
    assert 0 < info["held_out_loss"] < 10
    assert set(info["versions"]) >= {"ryarn", "torch", "transformers", "peft", "trl"}
    summary = json.loads((run / "evaluation" / "summary.json").read_text())
    assert (summary["rows"], summary["scored"]) == (12, 12)


KILLED = """
import os, signal
from ryarn import callback

class Killed(callback.ExtensionCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        super().on_step_begin(args, state, control, **kwargs)

callback.ExtensionCallback = Killed
from ryarn.cli import main
main()
"""


@pytest.mark.slow
def test_five_steps_and_a_kill_and_a_resume_are_ten_steps(
    tmp_path: Path, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(tmp_path)
    killed = load_recipe(path, [*LONG, f"output={tmp_path / 'killed'}"])
    straight = load_recipe(path, [*LONG, f"output={tmp_path / 'straight'}"])
    arguments = ["train", str(path), *LONG, f"output={killed.output}"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [entry["step"] for entry in log(killed)] == [1, 2, 3, 4, 5, 6, 7]
    assert not (killed.output / "adapter").exists()
    (killed.output / "checkpoints" / "checkpoint-9").mkdir()  # as one that a kill left half-made

    with pytest.raises(UserError, match="holds an interrupted run: add --resume"):
        train(killed)
    assert tape.batches == []
    train(killed, resume=True)
    resumed = tape.after(0)
    assert {step for step, _, _ in resumed} == {5, 6, 7, 8, 9}
    tape.batches.clear()
    train(straight)
    assert resumed == tape.after(5)
    assert len({tuple(map(tuple, positions)) for _, _, positions in tape.after(0)}) == 2 * STEPS

    one, two = log(straight), log(killed)
    assert [entry["step"] for entry in two] == list(range(1, STEPS + 1))
    assert [e["loss"] for e in one] == pytest.approx([e["loss"] for e in two], abs=1e-6)
    spans = [entry["positions/span"] for entry in one]
    assert spans == [64, 64, 64, 128, 128, 256, 256, 256, 512, 512]
    keys = [name for name in one[0] if name.startswith("positions/")]
    assert [[e[name] for name in keys] for e in one] == [[e[name] for name in keys] for e in two]
    assert same_weights(straight.output / "adapter", killed.output / "adapter")
    for recipe in (straight, killed):
        mean = statistics.fmean(entry["loss"] for entry in one)
        assert run_info(recipe)["train_loss"] == pytest.approx(mean, abs=1e-6)
    assert run_info(killed)["resumed_from"] == "checkpoint-5"


# Where there are fewer cores than workers.
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
def test_workers_change_nothing(tmp_path: Path, tape: Tape) -> None:
    path = write_recipe(tmp_path)
    seen = []
    for workers in (0, 2):
        changes = [*LONG, "train.max_steps=4", f"train.workers={workers}"]
        recipe = load_recipe(path, [*changes, f"output={tmp_path / str(workers)}"])
        train(recipe)
        seen.append(([entry["loss"] for entry in log(recipe)], tape.after(0)))
        tape.batches.clear()
    assert seen[0] == seen[1]


def test_gradient_accumulation_is_one_larger_batch(tmp_path: Path, tape: Tape) -> None:
    path = write_recipe(tmp_path)
    runs = []
    for size, accumulation in ((4, 1), (2, 2)):
        recipe = load_recipe(
            path,
            [
                f"train.batch_size={size}",
                f"train.gradient_accumulation={accumulation}",
                "train.lora_dropout=0",
                f"output={tmp_path / str(size)}",
            ],
        )
        train(recipe)
        runs.append([entry["loss"] for entry in log(recipe)])
    assert len(runs[0]) == 3
    assert runs[0] == pytest.approx(runs[1], abs=1e-5)


def test_rows_that_do_not_fit_are_dropped_and_counted_never_cut(
    tmp_path: Path, tape: Tape, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe(tmp_path, "train.batch_size=1")
    task = make_task(recipe.train.data)
    tokenizer = tiny.byte_tokenizer()
    lengths = encode(task.examples(tokenizer, "train"), tokenizer, 10**6).lengths
    limit = sorted(lengths)[len(lengths) // 2]
    fitting = [length for length in lengths if length <= limit]
    assert 0 < len(fitting) < len(lengths)
    train(
        recipe.model_copy(update={"train": recipe.train.model_copy(update={"max_length": limit})})
    )
    info = run_info(recipe)["data"]
    assert (info["rows"], info["dropped"]) == (len(fitting), len(lengths) - len(fitting))
    assert (info["tokens"], info["longest"]) == (sum(fitting), limit)
    assert f"dropped {info['dropped']} longer than train.max_length = {limit}" in (
        capsys.readouterr().err
    )
    seen = [int(inputs["attention_mask"].sum()) for inputs in tape.inputs]
    assert sorted(seen) == sorted(fitting)


def test_what_a_task_found_in_its_training_rows_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe(tmp_path)
    task = type(make_task(recipe.train.data))
    monkeypatch.setattr(task, "notes", ["3 rows stand in [the] test data, too"], raising=False)
    train(recipe)
    assert "\n3 rows stand in [the] test data, too\n" in capsys.readouterr().err


def test_no_row_that_fits_is_an_error(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, "train.max_length=8")
    with pytest.raises(UserError, match="max_length = 8: none of 12 rows fits it"):
        train(recipe)
    assert not recipe.output.exists()


def test_no_held_out_row_that_fits_is_an_error(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "long.jsonl", question="Where " * 12 + "is {}?")
    changes = ("train.held_out_rows=4", "train.data.held_out=0.5")
    recipe = make_recipe(tmp_path, *changes, f"train.data.path={rows}")
    tokenizer = tiny.byte_tokenizer()
    task = make_task(recipe.train.data)
    shortest = min(encode(task.examples(tokenizer, "train"), tokenizer, 999).lengths)
    held_out = encode(task.examples(tokenizer, "held-out"), tokenizer, 999).lengths
    assert held_out
    limit = min(held_out) - 1
    if shortest > limit:
        with rows.open("a") as file:
            file.write(json.dumps({"prompt": "?", "completion": "!"}) + "\n")
    recipe = make_recipe(tmp_path, *changes, f"train.data.path={rows}", f"train.max_length={limit}")
    with pytest.raises(UserError, match="held-out rows fits it"):
        train(recipe)


def test_the_loss_is_on_the_completion_and_the_prompt_is_that_of_inference(
    tmp_path: Path, tape: Tape
) -> None:
    recipe = make_recipe(tmp_path)
    tokenizer = tiny.byte_tokenizer()
    train(recipe)
    task = make_task(recipe.train.data)
    examples = list(task.examples(tokenizer, "train"))
    asked: list[list[int]] = []

    class Listening(EchoBackend):
        def generate(self, prompts: Any, max_new_tokens: int) -> Any:
            asked.extend(prompt.ids.tolist() for prompt in prompts)
            return super().generate(prompts, max_new_tokens)

    run_evaluation(
        examples,
        task,
        Listening(examples),
        tokenizer,
        tmp_path / "evaluation",
        budget=Budget(512, 4),
        fingerprint={},
    )
    trained = []
    for inputs in tape.inputs:
        for ids, mask, labels in zip(
            inputs["input_ids"], inputs["attention_mask"].bool(), inputs["labels"], strict=True
        ):
            assert (labels[~mask] == -100).all()
            scored = labels != -100
            assert torch.equal(labels[scored], ids[scored])
            trained.append((ids[mask & ~scored].tolist(), tokenizer.decode(labels[scored])))
    wanted = zip(asked, (f"{e.completion}<|end|>" for e in examples), strict=True)
    assert sorted(trained) == sorted(wanted)


def test_the_thinking_mode_is_off_in_training_and_at_inference(tmp_path: Path) -> None:
    tokenizer = tiny.byte_tokenizer()
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]},
        replace_extra_special_tokens=False,
    )
    tokenizer.chat_template = QWEN3_TEMPLATE
    recipe = make_recipe(tmp_path)
    examples = list(make_task(recipe.train.data).examples(tokenizer, "train"))
    rows = encode(examples, tokenizer, 256).rows
    assert len(rows) == 12
    for example, row in zip(examples, rows, strict=True):
        prompt = prompt_ids(tokenizer, example.prompt)
        assert row["input_ids"][: len(prompt)] == prompt
        assert row["labels"][: len(prompt)] == [-100] * len(prompt)
        text = tokenizer.decode(prompt)
        assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        # The template's end of turn, not the tokenizer's eos_token, which is another one here.
        target = tokenizer.decode(row["labels"][len(prompt) :])
        assert target == f"{example.completion}<|im_end|>"
        whole = [*example.prompt, {"role": "assistant", "content": example.completion}]
        told = tokenizer.apply_chat_template(whole, tokenize=False, enable_thinking=False)
        assert told.startswith(text + target)


@pytest.mark.parametrize("method", ["zero-shot", "zero-shot+yarn"])
def test_a_method_without_training_is_not_trained(tmp_path: Path, method: str) -> None:
    recipe = make_recipe(tmp_path, f"method.name={method}", "model.name=./absent")
    with pytest.raises(UserError, match="trains nothing: run ryarn evaluate"):
        train(recipe)


@pytest.mark.parametrize("method", ["lora", "rpe"])
def test_no_plain_baseline_on_a_model_pretrained_with_yarn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    folder = tmp_path / "native"
    model, tokenizer = tiny.build("qwen3")
    model.config.rope_parameters = {
        **model.config.rope_parameters,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = make_recipe(tmp_path, f"method.name={method}", f"model.name={folder}")
    monkeypatch.setattr("ryarn.train.encode", lambda *_: pytest.fail("data were made"))
    monkeypatch.setattr("ryarn.models.load_model", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(UserError, match=r"pretrained with YaRN \(factor 4\).*appendix B.1"):
        train(recipe)
    assert not recipe.output.exists()


def test_bfloat16_trains_on_a_cpu(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, "model.dtype=bfloat16", "train.epochs=4")
    train(recipe)
    losses = [entry["loss"] for entry in log(recipe)]
    assert run_info(recipe)["dtype"] == "bfloat16"
    assert losses[-1] < losses[0]
    assert all(value.isfinite().all() for value in weights(recipe.output / "adapter").values())


def test_held_out_rows_are_spread_over_the_split() -> None:
    data = {"task": "babilong", "questions": ["qa1", "qa2"], "lengths": ["0k"], "rows": 4}
    recipe = build(TrainConfig, {"data": data, "max_length": 10**6, "held_out_rows": 4})
    found = _held_out(make_task(recipe.data), tiny.byte_tokenizer(), recipe)
    assert found is not None
    assert [row["id"][:3] for row in found.rows] == ["qa1", "qa1", "qa2", "qa2"]
