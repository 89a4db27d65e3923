"""The plan says of a recipe what training and evaluation then do, and refuses what can't work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ryarn.backends import Prompt
from ryarn.backends.hf import batches
from ryarn.errors import UserError
from ryarn.models import load_tokenizer
from ryarn.plan import stage
from ryarn.plan.probe import _batches, at_hand
from ryarn.plan.reach import Reach, advise
from ryarn.plan.rows import Row, read_rows
from ryarn.plan.show import lines, tables
from ryarn.plan.stage import Plan, plan
from ryarn.recipe import ModelConfig
from ryarn.tasks.registry import make_task
from ryarn.train import encode
from tiny_run import command, make_recipe, write_recipe


def look(folder: Path, *overrides: str, **more: Any) -> Plan:
    return plan(make_recipe(folder, *overrides), **more)


def findings(found: Plan, level: str = "fail") -> list[str]:
    return [f"{one.text}; {one.remedy}" for one in found.findings if one.level == level]


def test_rows_are_those_that_training_encodes(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, "train.max_length=30")
    found = plan(recipe)
    tokenizer = load_tokenizer(recipe.model)
    made = encode(make_task(recipe.train.data).examples(tokenizer, "train"), tokenizer, 30)
    assert [row.length for row in found.subject.fitting] == made.lengths
    assert found.subject.trained.source is None
    [one] = found.subject.trained.bins(30)
    assert (one.rows, one.too_long) == (12, made.dropped)
    assert made.dropped > 0
    assert one.shortest <= one.median <= one.longest
    dropped = f"{made.dropped} of 12 training rows are longer than train.max_length = 30"
    assert findings(found, "warning")[0].startswith(dropped)
    assert found.passed


def test_a_recipe_that_works_passes(tmp_path: Path) -> None:
    found = look(tmp_path, "train.epochs=3", "train.gradient_accumulation=2")
    # 12 rows, 4 a batch, 2 batches a step: 2 steps an epoch.
    assert (found.steps, found.epochs) == (6, 3)
    assert found.tokens == 3 * sum(row.length for row in found.subject.fitting)
    assert found.subject.reach == Reach(4096, 4096, 8192, 8192, None)
    assert found.subject.window == 8192
    assert found.rope.startswith("rotary_emb: plain RoPE, theta 10000 -> YaRN of 4096 by 2")
    assert found.passed
    assert found.at_hand
    assert lines(found)[-1] == "pass: nothing speaks against it"


def test_steps_that_are_given_make_the_epochs(tmp_path: Path) -> None:
    found = look(tmp_path, "train.max_steps=9")
    assert (found.steps, found.epochs) == (9, 3.0)


def test_nothing_is_trained_without_training(tmp_path: Path) -> None:
    found = look(tmp_path, "method.name=zero-shot+yarn")
    assert (found.steps, found.epochs, found.tokens) == (0, 0, 0)
    assert found.subject.trained.rows == ()
    assert [need.training for need in found.needs] == [None] * len(found.needs)
    assert found.passed


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["train.max_length=9"],
            r"train.max_length = 9: none of 12 training rows fits, the shortest has \d+ tokens; "
            r"set train.max_length=\d+ or make shorter rows",
        ),
        (
            ["method.spans=[20,64]"],
            r"method.spans starts at 20, but 12 of 12 rows are longer and would keep contiguous "
            r"positions: ryarn train refuses that; begin the spans at \d+ or above",
        ),
        (
            ["method.spans=[128,9000]"],
            r"method.spans ends at 9,000, beyond the 8,192 positions that s = 2 times the window "
            r"of 4,096 covers; set method.factor=3 or end the spans at 8192",
        ),
        (
            ["evaluate.window=20"],
            r"12 of 12 evaluation rows don't fit into 20 tokens with an answer of 4 and are "
            r"skipped; the longest takes \d+; set evaluate\.window=\d+",
        ),
    ],
)
def test_what_can_not_work_fails(tmp_path: Path, overrides: list[str], sentence: str) -> None:
    found = look(tmp_path, *overrides)
    assert not found.passed
    [said] = findings(found)
    assert re.fullmatch(sentence, said)
    assert lines(found)[-1] == "fail (1)"


def test_a_length_beyond_the_reach_fails_and_is_advised(tmp_path: Path) -> None:
    found = look(tmp_path, target=20_000)
    assert findings(found) == [
        "a length of 20,000 is beyond the 8,192 tokens that s' = 2 times the window of 4,096 "
        "covers; set method.eval_factor=5, or train for it as recommended"
    ]
    advice = found.subject.advice
    assert (advice.factor, advice.start, advice.end, advice.spans) == (5, 256, 20_224, 5)
    settings = re.findall(r"'([^']*)'|(\S+)", advice.overrides)
    again = look(tmp_path, *(one or two for one, two in settings), target=20_000)
    assert again.passed
    assert again.subject.method.curriculum is not None
    assert again.subject.method.curriculum.spans[-1] == 20_224


def test_a_span_below_some_rows_is_a_warning(tmp_path: Path) -> None:
    lengths = [row.length for row in look(tmp_path).subject.fitting]
    span = max(lengths) - 1
    over = lengths.count(max(lengths))
    found = look(tmp_path, f"method.spans=[{span}]")
    assert found.passed
    assert findings(found, "warning") == [
        f"{over} of 12 rows are longer than the last span, {span}: their positions are never "
        f"drawn; end the spans above {max(lengths)}"
    ]
    found = look(tmp_path, f"method.spans=[{span},64]")
    assert findings(found, "note") == [f"{over} of 12 rows are longer than the first span; "]


def test_rows_beyond_the_window(tmp_path: Path) -> None:
    long = {"prompt": "x" * 5000, "completion": "room 1"}
    recipe = make_recipe(tmp_path, "train.max_length=9000", "method.name=lora")
    for file in ("rows.jsonl", "test.jsonl"):
        more = json.dumps({**long, "prompt": file + long["prompt"]}) + "\n"
        (tmp_path / file).write_text((tmp_path / file).read_text() + more, "utf-8")
    found = plan(recipe)
    assert findings(found, "warning") == [
        "1 of 13 training rows are longer than the 4,096 tokens that RoPE covers in training; "
        "train shorter rows",
        "1 of 13 evaluation rows don't fit into 4,096 tokens with an answer of 4 and are skipped; "
        f"the longest takes {max(row.prompt for row in found.subject.asked.rows) + 4:,}; "
        "shorten them",
    ]
    wide = recipe.evaluate.model_copy(update={"window": 9000})
    found = plan(recipe.model_copy(update={"evaluate": wide}))
    assert found.passed
    assert findings(found, "note")[0].startswith(
        "1 evaluation rows are answered beyond the 4,096 tokens that RoPE covers without YaRN"
    )


def test_drawing_without_yarn_beyond_the_window_is_what_rpe_does(tmp_path: Path) -> None:
    found = look(tmp_path, "method.name=rpe", "method.spans=[128,8192]")
    assert found.passed
    [note] = findings(found, "note")
    assert note.startswith("positions up to 8,192 are trained without YaRN, beyond the window of")


def test_memory_that_is_not_there_fails(tmp_path: Path) -> None:
    assert look(tmp_path, limit=2**30).passed
    found = look(tmp_path, limit=1000)
    assert findings(found)[0].startswith("0.00")
    assert "GiB are needed on the accelerator, 9.31e-07 GiB are there" in findings(found)[0]


def test_a_mask_is_worth_a_sentence(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, "train.max_length=2000", "method.spans=[2000]")
    rows = [{"prompt": str(n) + "x" * (900 + n), "completion": "room"} for n in range(8)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(text, "utf-8")
    [note] = findings(plan(recipe), "note")
    assert re.match(r"rows of a batch differ in length, so that each layer keeps a mask: \d+", note)
    alone = recipe.model_copy(update={"train": recipe.train.model_copy(update={"batch_size": 1})})
    assert findings(plan(alone), "note") == []


def test_a_served_recipe_needs_no_memory_to_answer(tmp_path: Path) -> None:
    server = "evaluate.backend={name: openai, base_url: 'http://localhost:1/v1', model: m}"
    found = look(tmp_path, server)
    assert found.subject.window is None
    assert [need.answering for need in found.needs] == [None] * len(found.needs)
    assert found.passed
    assert look(tmp_path, server, "evaluate.window=300").subject.window == 300


REACH = Reach(original=8192, own=8192, trained=8192, answered=8192, native=None)


@pytest.mark.parametrize(
    ("target", "longest", "factor", "start", "end"),
    [
        (131_072, 8000, 16, 8192, 131_072),
        (131_073, 8192, 17, 8192, 131_328),
        (20_000, 100, 3, 256, 20_224),
        (8190, 100, 1, 256, 8192),
    ],
)
def test_the_smallest_factor_and_spans_up_to_the_length(
    tmp_path: Path, target: int, longest: int, factor: int, start: int, end: int
) -> None:
    recipe = make_recipe(tmp_path, "train.epochs=4")
    advice = advise(target, REACH, recipe, longest)
    assert (advice.factor, advice.start, advice.end, advice.spans) == (factor, start, end, 4)
    assert end <= factor * 8192
    assert "(section 2.2)" in " ".join(advice.reasons)


def test_spans_end_where_the_factor_does(tmp_path: Path) -> None:
    odd = Reach(original=1000, own=1000, trained=1000, answered=1000, native=None)
    assert advise(1990, odd, make_recipe(tmp_path), 100).end == 2000


def test_advice_keeps_a_native_factor_and_draws_only_where_it_helps(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    native = Reach(original=8192, own=65_536, trained=65_536, answered=65_536, native=8.0)
    advice = advise(20_000, native, recipe, 4000)
    assert (advice.factor, advice.spans) == (8, 5)
    assert advice.reasons[0] == (
        "s = 8: the model reaches 20,000 tokens by its own YaRN of factor 8 already"
    )
    assert advise(131_072, native, recipe, 4000).factor == 16
    assert advise(5000, REACH, recipe, 5000).start is None
    trained = make_recipe(tmp_path, "method.name=trained-yarn")
    assert advise(131_072, REACH, trained, 4000).start is None
    assert advise(131_072, REACH, trained, 4000).overrides == (
        "method.factor=16 method.eval_factor=null"
    )


PAPER = [
    "model.name=Qwen/Qwen2.5-7B-Instruct",
    "model.dtype=bfloat16",
    "train.max_length=9000",
    "train.epochs=5",
    "train.batch_size=1",
    "train.gradient_accumulation=4",
    "train.gradient_checkpointing=true",
    "method.factor=4",
    "method.spans=[8192,16384]",
    "train.data={task: mrcr, lengths: [8k], rows: 60, source: openai/mrcr, serves: all}",
    "evaluate.data={task: mrcr, lengths: [8k,128k], rows: 30, source: openai/mrcr}",
]


def test_a_model_of_which_only_the_config_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(_: ModelConfig) -> Any:
        raise UserError("model.name = 'Qwen/Qwen2.5-7B-Instruct' can't be loaded: no hub")

    monkeypatch.setattr("ryarn.models.load_tokenizer", nowhere)
    monkeypatch.setattr("ryarn.models.load_skeleton", nowhere)
    found = look(tmp_path, *PAPER)
    assert found.subject.trained.source == (
        "there is no tokenizer (model.name = 'Qwen/Qwen2.5-7B-Instruct' can't be loaded: no hub)"
    )
    assert [(b.bin, b.rows) for b in found.subject.trained.bins(9000)] == [(8192, 60)]
    assert found.steps == 75
    beyond = look(tmp_path, *PAPER, "evaluate.window=139264")
    assert findings(beyond) == []
    assert findings(beyond, "warning") == [
        "30 evaluation rows are answered beyond the 131,072 tokens that RoPE covers with factor 4; "
    ]
    assert found.hours is not None
    assert 0.08 < found.hours[0] < 0.1
    assert not found.at_hand
    training = found.needs[-1].training
    assert training is not None
    # 14.2 GiB of weights, 0.6 of LoRA and AdamW, 3.7 of activations.
    assert 18 < training.total(True) / 2**30 < 18.6
    with pytest.raises(UserError, match=r"^--probe: model.name = .* is not on this machine$"):
        stage.timed(found)
    local = "train.data={task: jsonl, path: rows.jsonl}"
    with pytest.raises(UserError, match=r"no hub$"):
        look(tmp_path, *PAPER, local)


def test_data_on_a_hub_that_does_not_answer(tmp_path: Path, monkeypatch: Any) -> None:
    recipe = make_recipe(tmp_path, *PAPER[-2:])
    tokenizer = load_tokenizer(recipe.model)

    def broken(_: Any) -> Any:
        raise UserError("no hub")

    monkeypatch.setattr("ryarn.plan.rows.make_task", broken)
    found = read_rows(recipe.train.data, "train", tokenizer, "m")
    assert (len(found.rows), found.source) == (60, "openai/mrcr can't be read (no hub)")
    made = make_recipe(tmp_path, "train.data={task: mrcr, lengths: [2000], rows: 3}")
    with pytest.raises(UserError, match=r"^no hub$"):
        read_rows(made.train.data, "train", tokenizer, "m")


def test_batches_are_those_of_the_evaluation() -> None:
    rows = [Row(0, length, 5) for length in (100, 300, 120, 900, 250, 251, 30)]
    ids = load_tokenizer(ModelConfig(name="tiny:llama"))("x" * 900, return_tensors="np").input_ids
    prompts = [Prompt(str(n), (), ids[0, : row.prompt]) for n, row in enumerate(rows)]
    for limit in (1, 500, 600, 1000):
        assert _batches(rows, limit) == len(list(batches(prompts, limit)))


def test_what_lies_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tiny:llama", "smollm2", "miniature", "x/y.gguf", "./m", str(tmp_path)):
        assert at_hand(ModelConfig(name=name)), name
    assert not at_hand(ModelConfig(name="nobody/nothing"))
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda name, file, **_: "/there" if file == "model.safetensors" else None,
    )
    assert at_hand(ModelConfig(name="nobody/nothing"))


def test_the_command_prints_tables_and_its_exit_code_is_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path)
    assert command(monkeypatch, "plan", recipe, "--memory", "1GB", "--probe") == 0
    told = capsys.readouterr()
    for words in ("Training rows, up to", "Evaluation rows", "Spans", "KV cache of", "AdamW"):
        assert words in told.out
    found = re.search(r"time here: training about (\d+) s \(([\d.]+) s a batch of (\d+)", told.out)
    assert found is not None
    assert 100 < int(found[3]) < 4 * 64
    assert "evaluation at most about" in told.out
    assert "pass: nothing speaks against it" in told.out
    assert not (tmp_path / "run").exists()
    assert command(monkeypatch, "plan", recipe, "--target", "9000", "--probe") == 1
    told = capsys.readouterr()
    assert "time here: not known; nothing is timed that fails" in told.out
    assert "fail (1)" in told.out
    assert told.err == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--target", "0"], "ryarn: --target 0: give at least 1 token"),
        (["--memory", "lots"], "ryarn: --memory 'lots': give a size such as 24GB or 80GiB"),
        (["train.max_step=2"], "ryarn: unknown key 'train.max_step': did you mean 'max_steps'?"),
        (["model.name=./none"], "ryarn: model.name = './none': no folder with a config.json there"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, monkeypatch: Any, capsys: Any, options: list[str], sentence: str
) -> None:
    assert command(monkeypatch, "plan", write_recipe(tmp_path), *options) == 2
    assert capsys.readouterr().err.strip() == sentence


def test_rows_that_are_trained_on_and_tested_are_refused(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    (tmp_path / "test.jsonl").write_text((tmp_path / "rows.jsonl").read_text(), "utf-8")
    with pytest.raises(UserError, match="train"):
        plan(recipe)


def test_a_span_is_in_force_at_the_steps_that_are_shown(tmp_path: Path) -> None:
    found = look(tmp_path, "train.max_steps=7", "method.spans=[64,128,256]")
    [spans] = [table for table in tables(found) if table.title == "Spans"]
    shown = list(spans.columns[2].cells)
    curriculum = found.subject.method.curriculum
    assert curriculum is not None
    for span, steps in zip((64, 128, 256), shown, strict=True):
        first, last = map(int, str(steps).split("-"))
        assert [s for s in range(7) if curriculum.span(s, 7) == span] == list(
            range(first - 1, last)
        )
