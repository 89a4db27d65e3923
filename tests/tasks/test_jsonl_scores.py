"""Scores of the user's own rows: the named rules, and functions of the user's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ryarn.config import build
from ryarn.errors import UserError
from ryarn.records import Completion, Example
from ryarn.tasks.jsonl import Jsonl, JsonlConfig
from ryarn.tasks.scores import RULES, Scorer, contains, exact, letter, sequence_match

LONG = "the quick brown fox jumps over the lazy dog and runs away from all of them. " * 8


def row(answer: str = "B", /, **info: Any) -> Example:
    prompt = ({"role": "user", "content": "Which?"},)
    return Example("row-000007", prompt, "so: B", answer, "jsonl", 8, "s", "Which?", info)


def scored(name: str, text: str, example: Example, finish: str = "stop") -> dict[str, float]:
    score = Scorer.of(name).score(example, Completion(example.id, text, 3, finish))
    assert (score.id, score.bin, score.source) == (example.id, example.bin, example.source)
    assert score.finish == finish
    return score.scores


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module into a working folder of its own; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)

    def write(text: str, name: str = "grading") -> str:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        sys.modules.pop(name, None)
        return name

    yield write
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # stated: the last one counts
        ("The answer is B.", "B"),
        ("The correct answer is (C).", "C"),
        ("Answer: D", "D"),
        ("**Answer:** *A*", "A"),
        ("answer**: B", "B"),
        ("the ANSWER is: `E`", "E"),
        ("Answer:\n\nB", "B"),
        ("First I thought the answer is A. No: the answer is C.", "C"),
        ("A. That is wrong; the answer is Z", "Z"),
        ("The answer is not B", None),
        ("The answer isn't B, it is nothing", None),
        ("The answer is Berlin", None),
        ("The answer is I'm not sure", None),
        ("answers: B", None),
        ("The answer is b", None),
        ("The answer, B, is clear", None),
        # leading
        ("B", "B"),
        ("B.", "B"),
        ("B) Paris", "B"),
        ("(B) Paris", "B"),
        ("**B** as Paris is large", "B"),
        ("B: Paris", "B"),
        ("B\nbecause Paris is large", "B"),
        ("  [D] ", "D"),
        ("'C', I think", "C"),
        ("A dog is an animal.", None),
        ("I'm not sure", None),
        ("Berlin", None),
        ("USA", None),
        ("It is B.", None),
        ("É.", None),
        # alone
        ("b", "B"),
        (" (c).\n", "C"),
        ("b) paris", None),
        ("ab", None),
        # nothing
        ("", None),
        (" \n", None),
        ("42", None),
        ("?", None),
        ("(", None),
    ],
)
def test_letter(text: str, found: str | None) -> None:
    assert letter(text) == found
    score = scored("multiple-choice", text, row(found or "B"))
    assert score == {"multiple-choice": float(found is not None)}
    assert scored("multiple-choice", text, row("Q")) == {"multiple-choice": 0.0}


@pytest.mark.parametrize(("target", "right"), [("(B)", 1), ("B. Paris", 1), ("b", 1), ("C", 0)])
def test_multiple_choice_reads_the_target_by_the_same_rule(target: str, right: float) -> None:
    assert RULES["multiple-choice"]("The answer is B.", target) == right


def test_endless_blanks_take_no_time() -> None:
    assert letter("answer is" + " " * 200_000 + "?") is None
    assert letter(" " * 200_000 + "é") is None
    assert letter("(" * 200_000) is None


@pytest.mark.parametrize(
    ("response", "target", "is_exact", "is_contained"),
    [
        ("Paris", "Paris", 1, 1),
        (" Paris\n", "Paris ", 1, 1),
        ("It is Paris.", "Paris", 0, 1),
        ("paris", "Paris", 0, 0),
        ("Pari", "Paris", 0, 0),
        ("", "Paris", 0, 0),
        ("München", "München", 1, 1),
        ("Mu\u0308nchen", "München", 0, 0),  # another spelling in Unicode is another text
    ],
)
def test_exact_and_contains(
    response: str, target: str, is_exact: float, is_contained: float
) -> None:
    assert exact(response, target) == is_exact
    assert contains(response, target) == is_contained


def test_sequence_match_is_mrcrs_call() -> None:
    assert sequence_match(f" {LONG}\n", LONG) == 1
    assert sequence_match("abcd", "bcde") == 0.75
    # The order of the arguments and autojunk are part of the rule: turned round it is 0.371.
    part = LONG[:150].replace("quick", "slow")
    assert sequence_match(part, LONG) == pytest.approx(0.011, abs=1e-3)
    assert sequence_match(LONG, part) == pytest.approx(0.371, abs=1e-3)
    assert sequence_match("", "x") == 0


def test_what_stands_beside_each_rule() -> None:
    assert list(scored("exact", "so B", row())) == ["exact", "contains"]
    assert list(scored("contains", "so B", row()).items()) == [("contains", 1), ("exact", 0)]
    assert list(scored("sequence-match", "B", row()).items()) == [
        ("sequence-match", 1),
        ("exact", 1),
    ]
    assert list(scored("multiple-choice", "B", row())) == ["multiple-choice"]


@pytest.mark.parametrize("name", RULES)
def test_the_best_of_several_targets_counts(name: str) -> None:
    example = row("A", target=["A", "B"])
    for text in ("A", "B"):
        assert set(scored(name, text, example).values()) == {1.0}
    assert scored(name, "C", example)[name] == 0


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("finish", ["skipped", "failed"])
def test_rows_without_an_answer_have_no_score(name: str, finish: str) -> None:
    assert scored(name, "", row(), finish) == {}


@pytest.mark.parametrize("name", RULES)
def test_what_follows_the_thinking_is_the_answer(name: str) -> None:
    assert scored(name, "<think>The answer is A.</think>\n\nB", row())[name] == 1
    assert scored(name, "B, as A. The answer is A</think>B", row())[name] == 1
    assert scored(name, "<think>A</think>B<think>B", row(), "thinking")[name] == 0


def test_parsed() -> None:
    for name, text, parsed in [
        ("exact", "what", True),
        ("exact", " ", False),
        ("multiple-choice", "what", False),
        ("multiple-choice", "B", True),
    ]:
        completion = Completion("row-000007", text, 3, "stop")
        assert Scorer.of(name).score(row(), completion).parsed is parsed


def test_a_function_of_the_users(module: Any) -> None:
    module(
        "def close(response, target, row):\n"
        "    assert row['prompt'][0]['content'] == row['question'] == 'Which?'\n"
        "    return 1 - abs(float(response) - float(target)) / row['info']['scale']\n"
    )
    assert scored("grading:close", "5", row("6", scale=4)) == {"grading:close": 0.75}
    # called for each accepted target; the best counts
    assert scored("grading:close", "5", row("6", scale=4, target=["6", "5"])) == {
        "grading:close": 1.0
    }
    assert scored("grading:close", "", row("6", scale=4), "skipped") == {}


@pytest.mark.parametrize("value", ["True", "0", "0.5", "np.float32(0.5)", "np.bool_(True)"])
def test_numbers_that_a_function_may_return(module: Any, value: str) -> None:
    module(f"import numpy as np\ndef f(*_): return {value}\n")
    (score,) = scored("grading:f", "x", row()).values()
    assert type(score) is float


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return 1 / 0", r"ZeroDivisionError: division by zero \(grading.py, line 3\)"),
        ("return row['unit']", r"KeyError: 'unit' \(grading.py, line 3\)"),
        ("raise ValueError('a\\nb')", r"ValueError: a b \(grading.py, line 3\)"),
        ("return helper()", r"RuntimeError: no \(grading.py, line 1\)"),
        ("return 2", "it returned 2, not a number from 0 to 1"),
        ("return -0.1", "it returned -0.1, not"),
        ("return 10**400", "it returned 1000.*…, not"),
        ("return float('nan')", "it returned nan, not"),
        ("return '1'", "it returned '1', not"),
        ("return None", "it returned None, not"),
        ("return [1] * 999", r"it returned \[1, 1, .*…, not"),
        ("return Odd()", "it returned a Odd, not"),
    ],
)
def test_a_failing_function_names_the_row(module: Any, body: str, sentence: str) -> None:
    module(
        "def helper(): raise RuntimeError('no')\n"
        f"def grade(response, target, row):\n    {body}\n"
        "class Odd:\n    def __repr__(self): raise OSError\n"
    )
    with pytest.raises(UserError, match=f"'grading:grade' failed on row 'row-000007': {sentence}"):
        scored("grading:grade", "x", row())


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        (None, "grading:f", r"no module 'grading' in /.* or among the installed ones"),
        (None, "no.such:f", r"no module 'no' in /.* or among"),
        ("", "grading:f", "module grading has no function 'f'"),
        ("f = 3", "grading:f", "module grading has no function 'f'"),
        ("def f(", "grading:f", "importing grading fails: SyntaxError: "),
        ("import not_there", "grading:f", "importing grading fails: ModuleNotFoundError: "),
        ("raise SystemExit(3)", "grading:f", "importing grading fails: SystemExit: 3"),
        ("1 / 0", "grading:f", "importing grading fails: ZeroDivisionError: division by zero"),
        ("def f(response, target): pass", "grading:f", "must take three arguments"),
        ("def f(a, b, c, d): pass", "grading:f", "must take three arguments"),
    ],
)
def test_a_function_that_can_not_be_used(
    module: Any, text: str | None, name: str, sentence: str
) -> None:
    if text is not None:
        module(text)
    with pytest.raises(UserError, match=f"score = '{name}': .*{sentence}"):
        Jsonl(JsonlConfig(path="rows.jsonl", score=name))


def test_the_working_folder_is_looked_in_first_and_hides_nothing_later(
    tmp_path: Path, module: Any
) -> None:
    module("def f(*_):\n    import neighbour\n    return neighbour.VALUE\n")
    module("VALUE = 0.5\n", "neighbour")
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "grading.py").write_text("def f(*_): return 1.0\n")
    sys.path.append(str(installed))
    before = list(sys.path)
    assert scored("grading:f", "x", row()) == {"grading:f": 0.5}
    assert sys.path == [*before, str(Path.cwd())]


@pytest.mark.parametrize(
    "name", ["exakt", "", "a:", ":b", "a.b", "a b:c", "a:b:c", "1a:b", "../a:b"]
)
def test_an_unknown_name_is_refused_by_the_recipe(name: str) -> None:
    with pytest.raises(UserError, match=r"score = .*must be one of exact, contains, .*sequence-m"):
        build(JsonlConfig, {"path": "a.jsonl", "score": name})


def test_rows_are_scored_by_the_recipes_rule(tmp_path: Path, module: Any) -> None:
    module("def half(response, target, row): return 0.5\n")
    for name in (*RULES, "grading:half"):
        task = Jsonl(build(JsonlConfig, {"path": str(tmp_path / "a.jsonl"), "score": name}))
        assert next(iter(task.score(row(), Completion("a", "B", 3, "stop")).scores)) == name


def test_a_target_without_a_letter_is_refused_before_anything_is_answered(
    tmp_path: Path, tokenizer: Any
) -> None:
    path = tmp_path / "a.jsonl"
    rows = [
        {"prompt": "Q?", "completion": "The answer is B."},
        {"prompt": "R?", "completion": "Paris", "target": ["B", "Paris"]},
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    task = Jsonl(build(JsonlConfig, {"path": str(path), "score": "multiple-choice", "test": 1}))
    with pytest.raises(UserError, match=r"line 2: target = 'Paris' names no letter A to Z"):
        list(task.examples(tokenizer, "test"))
