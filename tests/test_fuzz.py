"""Whatever a recipe, a file of rows or a model says: it works, or a `UserError` says why not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ryarn import tiny
from ryarn.backends import Generated, Prompt
from ryarn.compare.grid import GridRecipe, check_cells
from ryarn.config import build, dump, load, parse, parse_yaml
from ryarn.errors import UserError
from ryarn.evaluate import SCORES as SCORES_FILE
from ryarn.evaluate import Budget, run_evaluation
from ryarn.recipe import Recipe, recipe_method
from ryarn.records import Completion, Example, Score, read_jsonl
from ryarn.report.page import page
from ryarn.report.results import build_report
from ryarn.report.stage import load_runs
from ryarn.tasks.jsonl import SCORES, Jsonl, JsonlConfig
from ryarn.tasks.registry import CONFIGS, make_task
from ryarn.tasks.scores import RULES, Scorer
from tiny_run import RECIPE

TOKENIZER = tiny.byte_tokenizer()
FOLDER = count()


def sizes(number: int) -> Any:
    """A fifth of the cases in every run of the tests, all of them among the slow ones."""
    whole = pytest.param(number, marks=pytest.mark.slow)
    return pytest.mark.parametrize("size", [number // 5, whole])


def examples(number: int) -> settings:
    """The same cases every time: a failure is the same one tomorrow."""
    return settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


ODD = ["", " ", "null", "1e-4", "\x00", "\ud83d", "é\u0301", "../..", "/", "[", "a: b", "<b>", "~x"]
texts = st.sampled_from(ODD) | st.text(max_size=12)
numbers = (
    st.integers(-3, 70_000)
    | st.sampled_from([2**31, 2**64, -(2**63), 10**400])
    | st.floats()
    | st.booleans()
)
leaves = st.none() | numbers | texts
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
odd_keys = st.integers() | st.none() | st.booleans()
yaml_values = values | st.dictionaries(odd_keys, leaves, max_size=2)

DATA: dict[str, dict[str, Any]] = {
    "babilong": {"questions": ["qa1"], "lengths": ["0k", 700], "rows": 2},
    "jsonl": {"path": "/absent.jsonl", "score": "contains", "bins": [64, 512]},
    "conflicts": {"lengths": [512], "rows": 2},
    "lookalikes": {"lengths": [512], "rows": 2},
    "longbench-v2": {"source": "/absent.jsonl"},
    "mrcr": {"source": "/absent.jsonl"},
}
GRID: dict[str, Any] = {
    **{key: RECIPE[key] for key in ("model", "train", "evaluate", "output")},
    "method": {"factor": 2},
    "tasks": {"one": {}, "two": {"train": {"max_length": 32}}},
    "methods": {"lora": {}, "drawn": {"method": {"name": "randomized-yarn", "spans": [64]}}},
    "seeds": [0, 1],
    "choose": {"seed": 9, "settings": {"lora": [{"train": {"learning_rate": 1e-3}}, {}]}},
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything below a mapping."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in inner:
        yield (*path, key)
        if isinstance(below, dict | list):
            yield from places(below, (*path, key))


def like(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type, most of which could stand there."""
    match value:
        case bool():
            return st.booleans()
        case int():
            return st.integers(0, 5000)
        case float():
            return st.floats(0, 2)
        case str():
            return st.sampled_from(["lora", "rpe", "test", "held-out", "auto", "0", value])
        case _:
            return st.just(value)


@st.composite
def broken(draw: Any, base: dict[str, Any], value: st.SearchStrategy[Any]) -> dict[str, Any]:
    """A mapping with one to three of its parts replaced, taken out, or added to."""
    made = copy.deepcopy(base)
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        path = draw(st.sampled_from(list(places(made)) or [("model",)]))
        holder = made
        for key in path[:-1]:
            holder = holder[key]
        match draw(st.sampled_from(["like", "like", "replace", "replace", "remove", "add"])):
            case "like":
                holder[path[-1]] = draw(like(holder[path[-1]]))
            case "remove":
                holder.pop(path[-1], None) if isinstance(holder, dict) else holder.pop()
            case "add" if isinstance(holder, dict):
                holder[draw(texts)] = draw(value)
            case _:
                holder[path[-1]] = draw(value)
        if not made:
            break
    return made


def typed(action: Callable[[], Any]) -> Any:
    """What an action gives; None where it is refused in a sentence."""
    try:
        return action()
    except UserError as error:
        sentence = str(error)
    assert sentence.strip()
    return None


def use_recipe(recipe: Recipe) -> None:
    """What every command does with a recipe before it reads data."""
    typed(lambda: recipe_method(recipe.method))
    for data in (recipe.train.data, recipe.evaluate.data):
        typed(lambda data=data: make_task(data))
    assert load_text(dump(recipe)) == recipe


def load_text(text: str) -> Recipe:
    return parse(Recipe, (), parse_yaml(text))


@sizes(150)
def test_recipes(size: int) -> None:
    passed: list[bool] = []

    @examples(size)
    @given(broken(RECIPE, yaml_values))
    def run(data: dict[str, Any]) -> None:
        recipe = typed(lambda: build(Recipe, data))
        passed.append(recipe is not None)
        if recipe is not None:
            use_recipe(recipe)

    run()
    # Were all refused at the first check, nothing would be learned of the rest.
    assert 0.1 < sum(passed) / len(passed) < 0.9


@pytest.mark.parametrize("task", CONFIGS)
@sizes(30)
def test_data_sections(task: str, size: int) -> None:
    @examples(size)
    @given(broken(DATA[task], yaml_values))
    def run(section: dict[str, Any]) -> None:
        config = typed(lambda: build(CONFIGS[task], section))
        if config is not None:
            assert build(CONFIGS[task], parse_yaml(dump(config))) == config
            typed(lambda: make_task(config))

    run()


@sizes(60)
def test_grids(size: int) -> None:
    @examples(size)
    @given(broken(GRID, yaml_values))
    def run(data: dict[str, Any]) -> None:
        grid = typed(lambda: build(GridRecipe, data))
        if grid is not None:
            typed(lambda: check_cells(grid))

    run()


FRAGMENTS = [
    *("model:", " {name: x}", "\n", "\n  ", "- ", "[", "]", "{", "}", ",", "? ", ": ", "#", "|\n"),
    *("&a ", "*a", "<<: ", "!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!map ", "!!set "),
    *("!!python/object:os.system ", "!!binary ", "!!x ", "2001-13-45", "0x_", "0b_", "1:99", "'"),
    *("method", "train", "0", "1e-4", ".inf", ".nan", "=", "~", "---\n", "...\n", "\x00", "\ufeff"),
    *('"', "\t", "%", ">", "é"),
]
yaml_texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join)


@sizes(150)
def test_yaml_files(size: int, tmp_path: Path) -> None:
    @examples(size)
    @given(yaml_texts)
    def run(text: str) -> None:
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8", errors="replace")
        typed(lambda: load(Recipe, path, ()))

    run()


@pytest.mark.parametrize(
    "text", ["[" * 600, "seed: " + "1" * 5000, "!!int ''", "!!map [a]", "&a [*a]", "&a {a: *a}"]
)
def test_yaml_files_that_no_chance_finds(text: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UserError):
        load(Recipe, tmp_path / "recipe.yaml", ())


KEYS = ["model.name", "train", "train.data", "train.data.path", "method.spans", "a", "..", ""]


overrides = st.tuples(st.sampled_from(KEYS), st.sampled_from(["=", ""]), yaml_texts | texts)


@sizes(80)
def test_overrides(size: int) -> None:
    @examples(size)
    @given(st.lists(overrides))
    def run(changes: list[tuple[str, str, str]]) -> None:
        typed(lambda: parse(Recipe, ["".join(change) for change in changes], copy.deepcopy(RECIPE)))

    run()


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "(B) here"},
]
ROWS: list[dict[str, Any]] = [
    {"prompt": "Where?", "completion": "(B) here", "target": ["B", "here"], "id": 3, "source": "s"},
    {"prompt": MESSAGES[:2], "completion": MESSAGES[2:], "unit": {"m": 1}},
    {"messages": MESSAGES},
]


def made(task: str, **info: Any) -> Example:
    prompt = ({"role": "user", "content": "Where is Mary in the park?"},)
    return Example(f"{task}-1", prompt, "x A kitchen", "A", task, 64, "s", "Where is Mary?", info)


MADE = [made(task, prefix="x ", answer="A", choices=["a", "b"]) for task in SCORES]
ROWS += [example.to_json() for example in MADE]


@st.composite
def files(draw: Any) -> bytes:
    """A JSONL file: whole rows, broken ones, other JSON, other text, other bytes."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        row = draw(st.sampled_from(ROWS))
        kinds = ["whole", *["broken"] * 3, "json", "text", "bytes"]
        match draw(st.sampled_from(kinds)):
            case "whole":
                lines.append(json.dumps(row).encode())
            case "broken":
                lines.append(json.dumps(draw(broken(row, values))).encode())
            case "json":
                lines.append(json.dumps(draw(values)).encode())
            case "text":
                cut = json.dumps(row)[: draw(st.integers(0, 90))]
                lines.append((cut + draw(texts)).encode(errors="replace"))
            case _:
                lines.append(draw(st.binary(max_size=20)))
    return draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"])).join(lines)


jsonl_settings = st.fixed_dictionaries(
    {"held_out": st.sampled_from([0.0, 0.5]), "test": st.sampled_from([0.0, 0.5, 1.0])},
    optional={
        "score": st.sampled_from([*RULES, "os.path:join"]),
        "bins": st.sampled_from([[1], [64, 512]]),
    },
)


splits = st.sampled_from(["train", "test", "held-out"])


@sizes(150)
def test_files_of_rows(size: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    @examples(size)
    @given(content=files(), config=jsonl_settings, split=splits)
    def run(content: bytes, config: dict[str, Any], split: str) -> None:
        path.write_bytes(content)
        checked = build(JsonlConfig, {"path": str(path), **config, "score": config.get("score")})
        task = typed(lambda: Jsonl(checked))
        found = task and typed(lambda: list(task.examples(TOKENIZER, split)))
        for example in found or ():
            # What comes through can be written, read again, rendered and scored.
            line = json.dumps(example.to_json(), ensure_ascii=False, allow_nan=False).encode()
            assert Example.from_json(json.loads(line)) == example
            completion = Completion(example.id, example.target, 1, "stop")
            score = typed(lambda example=example, c=completion: task.score(example, c))
            check_score(score, example)

    run()


def check_score(score: Score | None, example: Example) -> None:
    if score is None:
        return
    assert (score.id, score.bin, score.source) == (example.id, example.bin, example.source)
    assert all(type(value) is float and 0 <= value <= 1 for value in score.scores.values())
    json.dumps(asdict(score), allow_nan=False)


SPOKEN = [
    *("<think>", "</think>", "answer is", "The correct answer is", "answer:", "(", ")", "**", "A"),
    *("B", "x ", "kitchen", "the park", ".", "\n", " " * 999, "<context>", "Question", "\\boxed{"),
    *("</script><script>alert(1)</script>", "\x00", "\u2028", "\U0001f600", "[bold]", "{{ x }}"),
    *("\r", "I'm", "é"),
]
answers = st.lists(st.sampled_from(SPOKEN) | st.text(max_size=6), max_size=8).map("".join)
finishes = st.sampled_from(["stop", "length", "thinking"])


@sizes(120)
def test_answers(size: int) -> None:
    @examples(size)
    @given(text=answers, finish=finishes)
    def run(text: str, finish: str) -> None:
        for example in MADE:
            completion = Completion(example.id, text, 5, finish)
            check_score(SCORES[example.task](example, completion), example)
        for rule in RULES:
            example = made("jsonl", target=["A", "kitchen"])
            score = Scorer(rule).score(example, Completion(example.id, text, 5, finish))
            assert next(iter(score.scores)) == rule
            check_score(score, example)

    run()


class Saying:
    """A backend that gives the answers it was made with."""

    name = "saying"

    def __init__(self, said: Sequence[tuple[str, Any]]) -> None:
        self._said = said

    def generate(
        self, prompts: Sequence[Prompt], max_new_tokens: int
    ) -> Iterator[tuple[str, Generated]]:
        for prompt, (text, finish) in zip(prompts, self._said, strict=True):
            yield prompt.id, Generated(text, finish)


@sizes(25)
def test_answers_through_evaluation_and_report(size: int, tmp_path: Path) -> None:
    task = Jsonl(build(JsonlConfig, {"path": "absent.jsonl"}))
    said_twice = st.lists(st.tuples(answers, finishes), min_size=2, max_size=2)

    @examples(size)
    @given(said=said_twice, label=answers)
    def run(said: list[tuple[str, str]], label: str) -> None:
        folder = tmp_path / f"answers-{next(FOLDER)}"
        other = Example(**{**asdict(MADE[0]), "id": label or "b", "source": label})
        rows = [made("jsonl"), other]
        about = {"label": label, "method": "lora", "seed": 0, "task": "jsonl", "train_length": 32}
        run_evaluation(
            rows,
            task,
            Saying(said),
            TOKENIZER,
            folder / "evaluation",
            budget=Budget(512, 9),
            fingerprint=about,
        )
        found = [Score(**row) for row in read_jsonl(folder / "evaluation" / SCORES_FILE)]
        assert [score.id for score in found] == [row.id for row in rows]
        for score, row in zip(found, rows, strict=True):
            check_score(score, row)
        html = page([build_report(load_runs([folder]))], "<svg></svg>", [label])
        assert "<script>alert" not in html

    run()
