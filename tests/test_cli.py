"""The command line: bad input is one sentence and exit code 2, found before expensive work."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from ryarn import loading, models, tiny
from ryarn.checkpoints import seal
from ryarn.evaluate import evaluate
from ryarn.recipe import load_recipe
from ryarn.report.tables import DASH
from ryarn.train import train
from tiny_run import command, write_recipe, write_rows

NO_MODEL = "model.name=no-such-owner/no-such-model"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    # The hub's library reads the variable when it is imported, which it already is.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a model are never read."""
    for module in (loading, models):
        monkeypatch.setattr(module, "load_model", lambda *_: pytest.fail("weights were read"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a finished run."""
    path = write_recipe(tmp_path_factory.mktemp("finished"))
    train(load_recipe(path, ["train.max_steps=1"]))
    return path.parent / "run" / "recipe.yaml"


class Refusal:
    """Runs a command that must be refused, and gives its one sentence."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> str:
        self._capsys.readouterr()
        assert command(self._monkeypatch, *arguments) == 2
        # A progress bar draws over itself; what it leaves is no message.
        lines = re.sub(r"[^\n]*\r|[^\n]*it/s\]", "", self._capsys.readouterr().err).splitlines()
        messages = [line for line in lines if line.strip()]
        assert len(messages) == 1, messages
        assert messages[0].startswith("ryarn: ")
        return messages[0].removeprefix("ryarn: ")


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    return Refusal(monkeypatch, capsys)


def test_a_refusal_in_a_process_of_its_own(recipe: Path) -> None:
    arguments = ["train", str(recipe), "train.learning_rat=1"]
    done = subprocess.run(
        [sys.executable, "-m", "ryarn", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "ryarn: unknown key 'train.learning_rat': did you mean 'learning_rate'?\n"
    )


@pytest.mark.parametrize("stage", ["train", "evaluate", "positions"])
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.learning_rat=1", "unknown key 'train.learning_rat': did you mean 'learning_rate'?"),
        ("method.span=[1]", "unknown key 'method.span': did you mean 'spans'?"),
        ("train.data.paths=x", "did you mean 'path'?"),
        ("method.spans=[256,128]", "spans decreases from 256 to 128"),
        ("method.factor=0.5", "method.factor = 0.5 is below 1"),
        ("method.eval_factor=1.5", "method.eval_factor = 1.5 is below method.factor = 2"),
        ("method.name=randomised-yarn", "did you mean 'randomized-yarn'?"),
        ("method.spans=null", "method.spans is missing"),
        ("train.batch_size=0", "train.batch_size = 0: "),
        ("train.epochs", "override 'train.epochs': expected key=value"),
    ],
)
def test_a_wrong_recipe_is_refused_before_any_model(
    recipe: Path, refused: Refusal, stage: str, override: str, sentence: str
) -> None:
    assert sentence in refused(stage, recipe, NO_MODEL, override)


@pytest.mark.parametrize("stage", ["train", "evaluate", "positions"])
def test_a_missing_recipe(tmp_path: Path, refused: Refusal, stage: str) -> None:
    path = tmp_path / "absent.yaml"
    assert refused(stage, path) == f"{path}: no such recipe file"


@pytest.mark.usefixtures("no_weights")
def test_spans_smaller_than_the_data(recipe: Path, refused: Refusal) -> None:
    sentence = refused("train", recipe, "method.spans=[16,256]")
    assert "method.spans starts at 16, but 12 of 12 rows are longer" in sentence
    assert "raise the spans or shorten the rows" in sentence
    assert not (recipe.parent / "run").exists()


@pytest.mark.usefixtures("no_weights")
def test_a_model_without_rope(recipe: Path, refused: Refusal, tmp_path: Path) -> None:
    folder = tmp_path / "gpt2"
    tokenizer = tiny.byte_tokenizer()
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=len(tokenizer))
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sentence = refused("train", recipe, f"model.name={folder}")
    assert sentence.startswith("GPT2LMHeadModel has no RoPE")


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_missing_data(recipe: Path, refused: Refusal, stage: str) -> None:
    path = recipe.parent / "absent.jsonl"
    changes = [f"{stage}.data.path={path}", "method.name=lora"]
    if stage == "evaluate":
        changes[1] = "method.name=zero-shot"
    assert refused(stage, recipe, *changes) == f"path = {str(path)!r}: no such file"


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"prompt": "Where', "line 3: not valid JSON ("),
        ('["Where"]', 'line 3: expected a JSON object, got \'["Where"]'),
        ('{"prompt": "Where"}', "line 3: no column prompt and completion, or messages"),
        ('{"prompt": "Where", "completion": " "}', "line 3: the row has no answer: "),
        ('{"messages": [{"role": "user", "content": "?"}]}', "line 3: the row has no answer: "),
    ],
)
@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_a_broken_row_is_named_by_its_line(
    recipe: Path, refused: Refusal, stage: str, line: str, sentence: str
) -> None:
    path = write_rows(recipe.parent / "broken.jsonl")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    method = "randomized-yarn" if stage == "train" else "zero-shot"
    changes = [f"{stage}.data.path={path}", f"method.name={method}"]
    assert refused(stage, recipe, *changes).startswith(f"{path}, {sentence}")


@pytest.mark.usefixtures("no_weights")
def test_a_folder_that_is_no_run(recipe: Path, refused: Refusal) -> None:
    folder = recipe.parent / "run"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    assert "is not empty and is no run of ryarn" in refused("train", recipe)
    assert refused("report", folder).startswith(f"run {folder} has no evaluation")
    assert refused("report", folder / "absent").startswith(f"run {folder / 'absent'} has no")
    assert "is a file" in refused("train", recipe, f"output={folder / 'thesis.tex'}")


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("train.learning_rate=2e-3", "train.learning_rate = 0.001, not 0.002"),
        ("seed=1", "seed = 0, not 1"),
        ("method.spans=[128]", "method.spans = [128, 256], not [128]"),
    ],
)
def test_a_folder_of_another_run(
    finished: Path, refused: Refusal, override: str, named: str
) -> None:
    for stage in ("train", "evaluate"):
        sentence = refused(stage, finished, override)
        assert f"belongs to another run, whose recipe has {named}" in sentence


@pytest.mark.usefixtures("no_weights")
def test_a_finished_run_is_not_trained_again(finished: Path, refused: Refusal) -> None:
    for flags in ([], ["--resume"]):
        assert "already holds this run's finished adapter" in refused("train", finished, *flags)
    # what is evaluated later may be decided later
    changed = refused("train", finished, "evaluate.max_new_tokens=9")
    assert "already holds this run's finished adapter" in changed


@pytest.mark.usefixtures("no_weights")
def test_an_interrupted_run_is_resumed_on_request_alone(recipe: Path, refused: Refusal) -> None:
    run = recipe.parent / "run"
    assert "holds no checkpoint; train without it" in refused("train", recipe, "--resume")
    resolved = load_recipe(recipe, [])
    checkpoint = run / "checkpoints" / "checkpoint-7"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text("{}")
    seal(checkpoint)
    from ryarn.runs import save_recipe

    save_recipe(resolved)
    assert "add --resume to go on from checkpoint-7" in refused("train", recipe)
    assert "no trained adapter" in refused("evaluate", recipe)


@pytest.mark.usefixtures("no_weights")
def test_evaluating_what_was_not_trained(recipe: Path, refused: Refusal) -> None:
    sentence = refused("evaluate", recipe, NO_MODEL)
    assert "no trained adapter for method 'randomized-yarn'; run ryarn train first" in sentence


def test_evaluating_on_another_base(finished: Path, refused: Refusal) -> None:
    sentence = refused("evaluate", finished, "model.name=tiny:qwen3")
    assert "adapter trained on 'tiny:llama' does not fit the base 'tiny:qwen3'" in sentence
    assert "model_type is 'qwen3', it was 'llama' in training" in sentence


def test_evaluating_with_another_method(finished: Path, refused: Refusal) -> None:
    sentence = refused("evaluate", finished, "method.name=trained-yarn")
    assert "was trained with method 'randomized-yarn'" in sentence


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no-such-owner/no-such-model", "model.name = 'no-such-owner/no-such-model' can't be"),
        ("not a hub name", "model.name = 'not a hub name' can't be loaded: "),
        ("./absent", "model.name = './absent': no folder with a config.json there"),
        ("/absent/model.gguf", "model.name = '/absent/model.gguf': no such file"),
        ("tiny:mamba", "model.name = 'tiny:mamba': known families are llama, "),
    ],
)
@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_a_model_that_is_not_there(
    recipe: Path, refused: Refusal, stage: str, name: str, sentence: str
) -> None:
    method = "randomized-yarn" if stage == "train" else "zero-shot"
    said = refused(stage, recipe, f"method.name={method}", f"model.name={name}")
    assert said.startswith(sentence)
    assert not (recipe.parent / "run").exists()


def test_a_revision_that_is_not_there(recipe: Path, refused: Refusal) -> None:
    assert "can't be loaded" in refused("train", recipe, NO_MODEL, "model.revision=v0")


def test_an_attention_backend_that_is_not_there(recipe: Path, refused: Refusal) -> None:
    sentence = refused("train", recipe, "model.attention=flash")
    assert 'can\'t be loaded: Specified `attn_implementation="flash"` is not' in sentence


def test_data_writes_rows_that_train(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = recipe.parent / "made" / "rows.jsonl"
    settings = ["questions=[qa1]", "lengths=[1024]", "rows=6"]
    arguments = ["babilong", *settings, "--model", "tiny:llama", "--out", out]
    assert command(monkeypatch, "data", *arguments) == 0
    printed = capsys.readouterr().out
    assert re.search(r"bin 1024: 6 rows of \d stories, \d+ to \d+ tokens", printed)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 6
    assert all(row["completion"][0]["role"] == "assistant" for row in rows)
    changes = [f"train.data.path={out}", "train.max_length=2048", "method.spans=[2048]"]
    assert command(monkeypatch, "train", recipe, *changes, "train.max_steps=1") == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["babi", "rows=1"],
            "task = 'babi' is unknown: known tasks are babilong, jsonl, conflicts, lookalikes, "
            "longbench-v2, mrcr",
        ),
        (["babilong", "row=1"], "unknown key 'row': did you mean 'rows'?"),
        (["jsonl", "path=/absent.jsonl"], "path = '/absent.jsonl': no such file"),
    ],
)
def test_data_that_can_not_be_made(
    refused: Refusal, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    out = tmp_path / "rows.jsonl"
    assert refused("data", *arguments, "--model", "tiny:llama", "--out", out) == sentence
    assert not out.exists()


def test_positions_as_text_and_picture(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = recipe.parent / "figures" / "positions.png"
    arguments = [recipe, NO_MODEL, "--length", 40, "--out", out]
    assert command(monkeypatch, "positions", *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if re.match(r" +\d", line)] == ["128", "256"] * 2
    assert sum("(40 tokens)" in line for line in lines) == 2
    assert out.read_bytes().startswith(b"\x89PNG")


def test_positions_by_sentence_say_what_they_assume(
    monkeypatch: pytest.MonkeyPatch, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = ["method.name=sentence-yarn", "method.spans=[512]", "--length", "64"]
    assert command(monkeypatch, "positions", str(recipe), *method) == 0
    assert "no text is read here: sentences of 16 tokens are assumed" in capsys.readouterr().out


def test_positions_of_a_row_longer_than_the_span(recipe: Path, refused: Refusal) -> None:
    sentence = refused("positions", recipe, "--length", 200)
    assert sentence.startswith("--length 200 is longer than the first span 128")


def test_evaluate_prints_its_scores(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = finished.parent / "long.jsonl"
    write_rows(long, question="Where is {}" + " and where" * 12_000)
    rows = [*long.read_text().splitlines()[:1]]
    short = Path(load_recipe(finished, []).evaluate.data.path)
    long.write_text("\n".join([*short.read_text().splitlines(), *rows]) + "\n")
    assert command(monkeypatch, "evaluate", finished, f"evaluate.data.path={long}") == 0
    printed = capsys.readouterr().out
    summary = json.loads((finished.parent / "evaluation" / "summary.json").read_text())
    assert (summary["scored"], summary["skipped"]) == (12, 1)
    table = [re.findall(r"[\w.%\u2013]+", line) for line in printed.splitlines()]
    assert ["bin", "exact", "rows", "skipped", "unparsed", "cut"] in table
    assert ["128K", "OOD", DASH, "1", "1", "0", "0"] in table
    [scored] = [row for row in table if row[:2] == ["32", "ID"]]
    assert scored[2] == f"{100 * summary['mean']['32']:.1f}"
    assert scored[5:] == ["12", "0", str(summary["unparsed"]), str(summary["cut"])]


@pytest.mark.parametrize("stage", ["train", "evaluate", "report", "data", "positions"])
def test_help_shows_an_example(
    stage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, stage, "--help") == 0
    assert f"Example: ryarn {stage} " in capsys.readouterr().out


def test_a_zero_shot_evaluation_keeps_out_of_a_trained_run(
    finished: Path, refused: Refusal
) -> None:
    sentence = refused("evaluate", finished, "method.name=zero-shot")
    assert "belongs to another run, whose recipe has method.name = 'randomized-yarn'" in sentence


def test_testing_on_training_rows(recipe: Path, refused: Refusal) -> None:
    rows = recipe.parent / "rows.jsonl"
    sentence = refused("train", recipe, NO_MODEL, f"evaluate.data.path={rows}")
    assert "rows trained on would be tested on: give both the same held_out and test" in sentence


def test_a_logger_that_is_not_there(recipe: Path, refused: Refusal) -> None:
    sentence = refused("train", recipe, NO_MODEL, "train.report_to=[no-such-logger]")
    assert sentence.startswith("train.report_to = 'no-such-logger': ")
    assert not (recipe.parent / "run").exists()


@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_an_output_below_a_file(recipe: Path, refused: Refusal, stage: str) -> None:
    changes = [NO_MODEL, f"output={recipe}/run"]
    if stage == "evaluate":
        changes.append("method.name=zero-shot")
    assert f"{recipe} is a file, choose a folder" in refused(stage, recipe, *changes)


def test_a_report_onto_a_file(recipe: Path, refused: Refusal) -> None:
    changes = ("method.name=zero-shot", f"output={recipe.parent / 'zero'}")
    evaluate(load_recipe(recipe, list(changes)))
    assert str(recipe) in refused("report", recipe.parent / "zero", "--out", recipe)


@pytest.mark.parametrize("value", [".inf", ".nan"])
@pytest.mark.parametrize("key", ["method.factor", "method.eval_factor", "train.epochs"])
def test_numbers_that_are_none(recipe: Path, refused: Refusal, key: str, value: str) -> None:
    assert refused("train", recipe, NO_MODEL, f"{key}={value}").startswith(key)


def test_rows_that_are_not_utf8(recipe: Path, refused: Refusal) -> None:
    rows = recipe.parent / "rows.jsonl"
    rows.write_bytes(rows.read_bytes() + b'{"prompt": "caf\xe9", "completion": "x"}\n')
    assert refused("train", recipe).endswith("line 13: not UTF-8; save the file as UTF-8")


def test_half_a_surrogate_pair(recipe: Path, refused: Refusal) -> None:
    rows = recipe.parent / "rows.jsonl"
    rows.write_text(rows.read_text() + '{"prompt": "\\ud800", "completion": "x"}\n')
    assert "line 13: column prompt: half a UTF-16 surrogate pair" in refused("train", recipe)


def test_resuming_on_other_rows(recipe: Path, refused: Refusal) -> None:
    output = recipe.parent / "run"
    train(load_recipe(recipe, ["train.save_steps=1", "train.max_steps=3"]))
    shutil.rmtree(output / "adapter")  # as if it had been interrupted
    changes = ("train.save_steps=1", "train.max_steps=3")
    assert "holds an interrupted run: add --resume" in refused("train", recipe, *changes)
    write_rows(recipe.parent / "rows.jsonl", 11)
    sentence = refused("train", recipe, *changes, "--resume")
    assert "the training rows are not those" in sentence
    assert "(11 rows now, 12 then)" in sentence


def test_a_run_goes_on_with_other_workers(recipe: Path) -> None:
    train(load_recipe(recipe, ["train.save_steps=1", "train.max_steps=2"]))
    shutil.rmtree(recipe.parent / "run" / "adapter")
    train(load_recipe(recipe, ["train.log_steps=2", "train.max_steps=2"]), resume=True)


def test_weights_that_are_cut_off(recipe: Path, refused: Refusal, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    for saved in tiny.build("llama"):
        saved.save_pretrained(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    sentence = refused("train", recipe, f"model.name={folder}")
    assert sentence.startswith(f"model.name = '{folder}' can't be loaded: ")
