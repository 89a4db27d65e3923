"""The paper's recipes: what they say, what they would take, and that they run in small."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from transformers import GPT2Tokenizer, Qwen2Tokenizer

from report_runs import examples, make_run
from ryarn import tiny
from ryarn.chat import completion_ids, prompt_ids
from ryarn.compare.estimate import Survey
from ryarn.compare.forecast import forecast
from ryarn.compare.grid import GridRecipe, cells, load_grid
from ryarn.compare.stage import compare
from ryarn.errors import UserError
from ryarn.paper.comparison import REHEARSED, UNSTATED, Beside, PaperTable, beside
from ryarn.paper.numbers import STATED
from ryarn.paper.rehearsal import STANDS_FOR, rehearse
from ryarn.report.stage import load_runs, report_grid
from ryarn.rope import inspect_rope, switch_yarn
from ryarn.tasks.registry import make_task
from tiny_run import command

FOLDER = Path(__file__).parents[1] / "recipes" / "paper"
RECIPES = sorted(FOLDER.glob("*.yaml"))
NAMES = [path.stem for path in RECIPES]


def read(path: Path) -> dict[str, Any]:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def grid_of(name: str, folder: Path, *changes: str) -> GridRecipe:
    return load_grid(FOLDER / f"{name}.yaml", [f"output={folder / name}", *changes])


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_every_row_group_has_its_recipe() -> None:
    assert sorted(read(path)["paper"] for path in RECIPES) == sorted(STATED)


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_what_the_paper_states_is_of_methods_that_the_recipe_has(path: Path) -> None:
    data = read(path)
    for stated in STATED[data["paper"]]:
        assert {stated.first, stated.second} - {None} <= set(data["methods"])


def test_each_stated_number_stands_in_its_quote() -> None:
    for stated in (one for of_rows in STATED.values() for one in of_rows):
        assert f"{stated.value:g}" in stated.quote, stated


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_recipes_of_a_task_share_all_that_does_not_depend_on_the_model(path: Path) -> None:
    data = read(path)
    [task] = data["tasks"]
    first = read(FOLDER / f"{task}-qwen2.5-7b.yaml")
    assert (data["train"], data["evaluate"]) == (first["train"], first["evaluate"])
    assert data["method"]["spans"] == first["method"]["spans"]
    assert data["seeds"] == first["seeds"]
    shared = read(FOLDER / "babilong-qwen2.5-7b.yaml")["train"]
    lora = ("learning_rate", "lora_rank", "lora_alpha", "lora_dropout", "warmup_ratio", "epochs")
    assert [data["train"][key] for key in lora] == [shared[key] for key in lora]


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_every_value_says_whose_it_is(path: Path) -> None:
    """Each line of the method, the training and the evaluation with a value has its reason."""
    plain = {"task", "serves", "source", "revision", "questions", "count_with", "batch_size"}
    section, silent = "", []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line[:1].isalpha():
            section = line.partition(":")[0]
        key, _, value = line.strip().partition(":")
        known = key in plain or (key == "lengths" and "mrcr" in path.stem)
        if section in ("method", "train", "evaluate") and value and not known and "#" not in line:
            silent.append(line)
    allowed = {"  save_steps: 100", "    lengths: [8k]"}
    assert set(silent) <= allowed


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", NAMES)
def test_a_dry_run_needs_no_hub(name: str, tmp_path: Path) -> None:
    grid = grid_of(name, tmp_path)
    seen = forecast(grid)
    notes = "\n".join(seen.notes)
    for part in ("a dry run does not read them", "memory of training", "KV cache", "GPU-hours"):
        assert part in notes
    assert "H100 at 40% of 989 TFLOP/s" in notes
    for line in seen.lines:
        assert line.hours is not None
        assert line.hours > 0
    assert not (tmp_path / name).exists()


@pytest.mark.usefixtures("no_network")
def test_a_dry_run_has_the_papers_rows(tmp_path: Path) -> None:
    def rows(name: str) -> tuple[int, int]:
        [line] = [x for x in forecast(grid_of(name, tmp_path)).lines if x.label == "trained-yarn"]
        return line.work.rows, line.work.answers

    assert rows("babilong-qwen2.5-7b") == (4000, 7 * 305 + 264 + 304)
    assert rows("mrcr-qwen3-14b") == (60, 147)
    assert rows("longbench-v2-qwen2.5-7b") == (116, 66 + 65)
    assert rows("longbench-v2-olmo3-7b") == (119, 71 + 67)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("method", ["lora", "rpe"])
def test_what_does_not_apply_to_olmo3_is_refused_in_one_sentence(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = FOLDER / "babilong-olmo3-7b.yaml"
    changes = [f"output={tmp_path / 'out'}", f"methods.{method}={{}}"]
    for option in (["--dry-run"], ["--tiny"]):
        assert command(monkeypatch, "compare", path, *changes, *option) == 2
        [line] = [x for x in capsys.readouterr().err.splitlines() if x.startswith("ryarn:")]
        assert f"babilong / {method} / seed 0: method '{method}' trains without YaRN" in line
        assert "pretrained with YaRN (factor 8), so it is no baseline (paper, appendix B.1)" in line
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out-tiny").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["paper=babilong/qwen2.5"], "paper = 'babilong/qwen2.5': names no rows of the paper: did"),
        (["paper=xyz"], "paper = 'xyz': names no rows of the paper: known: babilong/qwen2.5-7b, "),
        (["tasks.other={}"], "paper = 'mrcr/qwen2.5-7b' beside 2 tasks: the paper's rows are of "),
    ],
)
def test_a_grid_names_rows_that_the_paper_has(
    changes: list[str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        grid_of("mrcr-qwen2.5-7b", tmp_path, *changes)
    assert str(error.value).startswith(sentence)


# The stand-ins.


@pytest.mark.parametrize(
    ("family", "kind", "original", "native"),
    [
        ("qwen2.5-7b", Qwen2Tokenizer, 32768 // tiny.SCALE, None),
        ("olmo3-7b", GPT2Tokenizer, 8192 // tiny.SCALE, 8),
        ("qwen3-14b", Qwen2Tokenizer, 40960 // tiny.SCALE, None),
    ],
)
def test_a_stand_in_has_the_rope_and_tokenizer_class_of_its_model(
    family: str, kind: type, original: int, native: float | None
) -> None:
    model, tokenizer = tiny.build(family)
    rope = inspect_rope(model)
    assert (rope.original_length, rope.native_factor) == (original, native)
    assert isinstance(tokenizer, kind)
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)
    prompt = prompt_ids(tokenizer, ({"role": "user", "content": "Where is Mary?"},))
    text = "<|im_start|>user\nWhere is Mary?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(prompt) == text
    assert completion_ids(tokenizer, "Here.")[-1] == tokenizer.eos_token_id


def test_only_full_attention_layers_of_olmo3_change_and_factors_do_not_stack() -> None:
    model, _ = tiny.build("olmo3-7b")
    plain, _ = tiny.build("olmo3-7b")
    rotary, before = model.model.rotary_emb, plain.model.rotary_emb
    switch_yarn(inspect_rope(model), 16)
    assert rotary.sliding_attention_inv_freq.equal(before.sliding_attention_inv_freq)
    full = rotary.full_attention_inv_freq
    assert not full.equal(before.full_attention_inv_freq)
    # The slowest frequency is the plain one over s, not over s times the native 8.
    slowest = before.sliding_attention_inv_freq[-1] / 16
    assert full[-1].item() == pytest.approx(slowest.item(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_rehearsal_has_short_rows_that_fit_and_as_many_ood_bins(
    name: str, tmp_path: Path
) -> None:
    grid = grid_of(name, tmp_path)
    small = rehearse(grid)
    assert [(c.task, c.label) for c in cells(small)] == [(c.task, c.label) for c in cells(grid)]
    survey = Survey()
    survey.check(cells(small))
    recipe = next(cell.recipe for cell in cells(small) if cell.trains)
    trained, answered = survey.rows(recipe)
    assert sum(length > recipe.train.max_length for length in answered) == (
        2 if name.startswith("longbench") else 4
    )
    assert max(trained) <= recipe.train.max_length
    tokenizer = tiny.tokenizer_of(small.model["name"].removeprefix("tiny:"))
    for data, split, most, least in (
        (recipe.train.data, "train", recipe.train.max_length, 3),
        (recipe.evaluate.data, "test", recipe.evaluate.window, 8),
    ):
        rows = list(make_task(data).examples(tokenizer, split))
        tokens = [len(prompt_ids(tokenizer, row.prompt)) for row in rows]
        assert len(rows) >= least
        assert most is not None
        assert max(tokens) + (recipe.evaluate.max_new_tokens if split == "test" else 1) <= most
        assert max(tokens) < 20_000
    assert max(tokens) > 12_000  # the longest bin is 128K by 8


def test_a_rehearsal_of_anything_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--tiny: model.name = 'smollm2' has no stand-in: it is "):
        rehearse(grid_of("mrcr-qwen2.5-7b", tmp_path, "model.name=smollm2"))
    data = "train.data={task: jsonl, path: rows.jsonl}"
    with pytest.raises(UserError, match=r"--tiny: train data of task 'jsonl' have no small copy"):
        rehearse(grid_of("mrcr-qwen2.5-7b", tmp_path, data))


def test_a_rehearsal_made_twice_is_the_same(tmp_path: Path) -> None:
    def files() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in tmp_path.rglob("*.json")}

    grid = grid_of("babilong-olmo3-7b", tmp_path)
    once, first = rehearse(grid), files()
    assert (rehearse(grid), files()) == (once, first)
    assert len(first) > 4
    data = tmp_path / "babilong-olmo3-7b-tiny-data"
    parts = ("babilong-train", "babilong-test")
    facts = [json.loads((data / part / "qa3" / "0k.json").read_text("utf-8")) for part in parts]
    learned, scored = ({row["input"] for row in rows} for rows in facts)
    assert learned
    assert scored
    assert not learned & scored
    assert once.output == tmp_path / "babilong-olmo3-7b-tiny"
    assert once.method["spans"] == [n // 8 + 512 for n in (8192, 10240, 12288, 16384, 16384)]
    assert once.methods["pose"].method["spans"] == [32768 // 8 + 512]


def test_every_stand_in_is_for_a_model() -> None:
    assert set(STANDS_FOR.values()) == set(tiny.STAND_INS)


# Ours beside the paper's.


def two_runs(folder: Path, **more: Any) -> list[Path]:
    chances = {512: 1.0, 1024: 0.9, 2048: 0.9}
    weaker = {512: 1.0, 1024: 0.2, 2048: 0.2}
    rows = examples((512, 1024, 2048), 60)
    return [
        make_run(folder / "a", "randomized-yarn", chances, rows=rows, **more),
        make_run(folder / "b", "trained-yarn", weaker, rows=rows, **more),
    ]


def test_an_average_and_a_difference_stand_beside_the_papers(tmp_path: Path) -> None:
    model = {"name": "Qwen/Qwen2.5-7B-Instruct"}
    table = beside(load_runs(two_runs(tmp_path, model=model)), "longbench-v2/qwen2.5-7b")
    average, gain = table.lines
    assert average.mean is not None
    assert gain.mean is not None
    assert average.mean > 0.6
    assert gain.mean > 0.1  # in favour of the first
    assert average.difference == pytest.approx(100 * average.mean - 41.2)
    assert average.covered is False
    assert gain.difference == pytest.approx(100 * gain.mean - 1.5)
    assert gain.covered is False
    cells = table.cells
    assert cells[0][:3:2] == ["randomized-yarn", "41.2"]
    assert cells[1][:3:2] == ["randomized-yarn \u2212 trained-yarn", "+1.5"]
    assert cells[0][1].startswith(f"{100 * average.mean:.1f} [")
    assert cells[1][1].startswith(f"+{100 * gain.mean:.1f} [")
    assert cells[0][3:] == [f"{average.difference:+.1f}", "no", "section 4"]
    assert REHEARSED not in table.notes
    assert any("improving over Trained YaRN by 4.4 points" in note for note in table.notes)


def test_an_interval_that_holds_the_papers_number_covers_it(tmp_path: Path) -> None:
    [line, missing] = beside(load_runs(two_runs(tmp_path)), "babilong/qwen2.5-7b").lines
    assert line.low is not None
    assert line.high is not None
    # About 0.8 of 120 rows are right; the paper has 90.3.
    assert line.covered is (line.low <= 0.903 <= line.high)
    assert (missing.mean, missing.difference, missing.covered) == (None, None, None)
    assert PaperTable("babilong/qwen2.5-7b", [missing], []).cells[0][1] == "\u2013"


@pytest.mark.parametrize(("low", "high", "said"), [(0.89, 0.92, "yes"), (0.2, 0.9, "no")])
def test_covered_is_told_by_the_interval(low: float, high: float, said: str) -> None:
    line = Beside(STATED["babilong/qwen2.5-7b"][0], 0.9, low, high)
    assert PaperTable("babilong/qwen2.5-7b", [line], []).cells[0][4] == said
    bare = Beside(STATED["babilong/qwen2.5-7b"][0], 0.9, None, None)
    assert PaperTable("babilong/qwen2.5-7b", [bare], []).cells[0][4] == "\u2013"


def test_rows_without_a_number_say_so_and_random_weights_too(tmp_path: Path) -> None:
    table = beside(load_runs(two_runs(tmp_path)), "mrcr/olmo3-7b")
    assert (table.lines, table.notes) == ([], [UNSTATED, REHEARSED])


def test_every_format_of_the_report_has_it(tmp_path: Path) -> None:
    runs = {"longbench-v2": two_runs(tmp_path)}
    report_grid(runs, tmp_path / "with", "randomized-yarn", [], "longbench-v2/qwen2.5-7b")
    report_grid(runs, tmp_path / "without", "randomized-yarn", [])
    for name in ("report.md", "report.html"):
        heading = "Beside the paper: longbench-v2/qwen2.5-7b"
        assert heading in (tmp_path / "with" / name).read_text("utf-8")
        assert "Beside the paper" not in (tmp_path / "without" / name).read_text("utf-8")
    found = json.loads((tmp_path / "with" / "report.json").read_text("utf-8"))["paper"]
    assert [line["stated"]["value"] for line in found["lines"]] == [41.2, 1.5]
    assert found["lines"][0]["covered"] is False
    assert "paper" not in json.loads((tmp_path / "without" / "report.json").read_text("utf-8"))


# End to end.


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_runs_in_small(name: str, tmp_path: Path) -> None:
    grid = rehearse(grid_of(name, tmp_path))
    outcome = compare(grid, processes=1)
    assert outcome.failed == {}
    assert len(outcome.done) == len(grid.methods)
    [report] = outcome.tasks
    assert len(report.ood_bins) == (2 if name.startswith("longbench") else 4)
    for method in report.methods:
        assert all(cell.score.mean is not None for cell in method.cells), method.label
        assert not any(cell.skipped for cell in method.cells)
    folder = tmp_path / f"{name}-tiny" / "report"
    found = json.loads((folder / "report.json").read_text("utf-8"))["paper"]
    assert found["rows"] == grid.paper
    assert all(line["mean"] is not None for line in found["lines"])
