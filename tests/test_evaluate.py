"""The evaluation stage with a backend that knows the answers: files, restarts, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ryarn.backends import Generated
from ryarn.backends.echo import EchoBackend
from ryarn.errors import UserError
from ryarn.evaluate import (
    MANIFEST,
    SUMMARY,
    Budget,
    data_fingerprint,
    evaluate,
    failures,
    run_evaluation,
)
from ryarn.records import Example, Score, read_jsonl
from ryarn.runs import EVALUATION, read_json
from tiny_run import make_recipe


class WordTokenizer:
    """A token a word; the template writes one token of its own."""

    name_or_path = "words"
    chat_template = "yes"

    def apply_chat_template(self, messages, **_):
        return " ".join(["<chat>", *(message["content"] for message in messages)])

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": list(range(len(text.split())))}


class ExactTask:
    """Right when the answer is the target; an empty answer is no answer."""

    def score(self, example, completion):
        right = float(completion.text == example.target)
        scores = {"exact": right, "lenient": 1.0}
        parsed = bool(completion.text)
        return Score(example.id, example.bin, example.source, scores, parsed, completion.finish)


def example(number, words=4, **changes):
    row = {
        "id": f"row-{number}",
        "prompt": ({"role": "user", "content": "word " * words},),
        "completion": "It is é.",
        "target": f"answer-{number}",
        "task": "exact",
        "bin": 512 * (1 + number % 2),
        "source": f"story-{number}",
    }
    return Example(**{**row, **changes})


EXAMPLES = [example(n, words=4 + n) for n in range(6)]


class Killed(Exception):
    pass


class DyingBackend(EchoBackend):
    """Answers some rows, then dies as a killed process does."""

    def __init__(self, examples, survives=99):
        super().__init__(examples)
        self.asked, self._survives = [], survives

    def generate(self, prompts, max_new_tokens):
        for count, (key, answer) in enumerate(super().generate(prompts, max_new_tokens)):
            if count == self._survives:
                raise Killed
            self.asked.append(key)
            yield key, answer


def run(folder, backend=None, examples=EXAMPLES, window=100, **fingerprint):
    return run_evaluation(
        examples,
        ExactTask(),
        backend or EchoBackend(examples),
        WordTokenizer(),
        folder,
        budget=Budget(window, max_new_tokens=5),
        fingerprint={"label": "lora", "seed": 0, "spans": (1, 2), **fingerprint},
    )


def test_files_say_what_was_asked_answered_and_scored(tmp_path):
    wrong = EchoBackend(EXAMPLES, lambda e: e.target if e.bin == 512 else "")
    summary = run(tmp_path, wrong)
    assert (summary.rows, summary.scored, summary.skipped, summary.unparsed) == (6, 6, 0, 3)
    assert (summary.rule, summary.mean) == ("exact", {512: 1.0, 1024: 0.0})
    names = {path.name for path in tmp_path.iterdir()}
    files = {"manifest.json", "completions.jsonl", "scores.jsonl", "examples.jsonl", "summary.json"}
    assert names == files
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["data"] == data_fingerprint(EXAMPLES)
    assert (manifest["label"], manifest["window"], manifest["rows"]) == ("lora", 100, 6)
    assert [Example.from_json(row) for row in read_jsonl(tmp_path / "examples.jsonl")] == EXAMPLES
    assert [row["id"] for row in read_jsonl(tmp_path / "scores.jsonl")] == [e.id for e in EXAMPLES]


def test_a_row_that_does_not_fit_is_skipped_and_counted_never_scored(tmp_path):
    # a prompt is 1 + 4 + n tokens, an answer 5: row 4 takes 14 and fits, row 5 takes 15
    backend = DyingBackend(EXAMPLES)
    summary = run(tmp_path, backend, window=14)
    assert (summary.scored, summary.skipped) == (5, 1)
    assert "row-5" not in backend.asked
    assert list(summary.reasons.values()) == [1]
    last = list(read_jsonl(tmp_path / "scores.jsonl"))[-1]
    assert (last["id"], last["scores"], last["finish"]) == ("row-5", {}, "skipped")
    skipped = [row for row in read_jsonl(tmp_path / "completions.jsonl") if row["reason"]]
    assert [row["prompt_tokens"] for row in skipped] == [10]
    assert "window of 14 tokens" in skipped[0]["reason"]


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path / "killed", DyingBackend(EXAMPLES, survives=2))
    assert not (tmp_path / "killed" / "scores.jsonl").exists()
    torn = tmp_path / "killed" / "completions.jsonl"
    with torn.open("a") as file:
        file.write('{"id": "row-5", "text": "ans')
    second = DyingBackend(EXAMPLES)
    summary = run(tmp_path / "killed", second)
    assert second.asked == ["row-2", "row-3", "row-4", "row-5"]
    assert (summary.reused, summary.mean) == (2, {512: 1.0, 1024: 1.0})
    run(tmp_path / "straight")
    for name in ("completions.jsonl", "scores.jsonl", "manifest.json"):
        assert (tmp_path / "killed" / name).read_text() == (
            tmp_path / "straight" / name
        ).read_text()


def test_each_answer_is_on_disk_before_the_next_is_asked(tmp_path):
    written = []

    class Watching(EchoBackend):
        def generate(self, prompts, max_new_tokens):
            for pair in super().generate(prompts, max_new_tokens):
                written.append((tmp_path / "completions.jsonl").read_text().count("\n"))
                yield pair

    run(tmp_path, Watching(EXAMPLES))
    assert written == [0, 1, 2, 3, 4, 5]


def test_a_finished_run_asks_nothing_again(tmp_path):
    run(tmp_path)
    again = DyingBackend(EXAMPLES, survives=0)
    assert run(tmp_path, again).reused == 6


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"label": "pose"}, "label"),
        ({"examples": EXAMPLES[:5]}, "rows, data"),
        ({"examples": [*EXAMPLES[:5], example(5, completion="other")]}, "data"),
        ({"window": 99}, "window"),
    ],
)
def test_a_folder_of_another_run_is_refused(tmp_path, changes, named):
    run(tmp_path)
    before = (tmp_path / "completions.jsonl").read_text()
    with pytest.raises(UserError, match=rf"belongs to another run \({named} differ\)"):
        run(tmp_path, **changes)
    assert (tmp_path / "completions.jsonl").read_text() == before


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    run(tmp_path)
    path = tmp_path / "completions.jsonl"
    path.write_text("{oops\n" + path.read_text())
    with pytest.raises(UserError, match="line 1: not valid JSON"):
        run(tmp_path)


def test_rows_without_examples_or_with_one_id_twice_are_refused(tmp_path):
    with pytest.raises(UserError, match="no rows"):
        run(tmp_path, examples=[])
    with pytest.raises(UserError, match="'row-1' is used twice"):
        run(tmp_path, examples=[example(1), example(1)])
    assert list(tmp_path.iterdir()) == []


def test_cut_answers_are_counted(tmp_path):
    class Cutting(EchoBackend):
        def generate(self, prompts, max_new_tokens):
            for key, answer in super().generate(prompts, max_new_tokens):
                yield key, Generated(answer.text, "length" if key == "row-3" else "stop")

    assert run(tmp_path, Cutting(EXAMPLES)).cut == 1


class FailingBackend(DyingBackend):
    """Gets no answer to some rows, and gives its answers in the reverse order."""

    def __init__(self, failing, survives=99):
        super().__init__(EXAMPLES, survives)
        self.failing = failing

    def generate(self, prompts, max_new_tokens):
        for key, answer in super().generate(prompts[::-1], max_new_tokens):
            lost = Generated("", "failed", "no line")
            yield key, lost if key in self.failing else answer


def lines(folder, name="completions.jsonl"):
    return list(read_jsonl(folder / name))


def test_a_failed_row_is_counted_with_its_reason_and_never_scored(tmp_path):
    summary = run(tmp_path, FailingBackend({"row-1", "row-2"}), window=14)
    assert (summary.scored, summary.failed, summary.skipped) == (3, 2, 1)
    assert summary.reasons["no line"] == 2
    assert summary.mean == {512: 1.0, 1024: 1.0}
    failed = [row for row in lines(tmp_path, "scores.jsonl") if row["finish"] == "failed"]
    assert [(row["id"], row["scores"]) for row in failed] == [("row-1", {}), ("row-2", {})]
    assert failures(tmp_path) == (
        "2 of 6 rows failed and have no score (2 of them: no line); the same command asks for "
        "them again"
    )


def test_a_failed_row_is_asked_again_and_the_others_are_not(tmp_path):
    run(tmp_path, FailingBackend({"row-1", "row-2", "row-4"}))
    again = FailingBackend({"row-2"})
    summary = run(tmp_path, again)
    assert sorted(again.asked) == ["row-1", "row-2", "row-4"]
    assert (summary.reused, summary.failed, summary.scored) == (3, 1, 5)
    assert len(lines(tmp_path)) == 6
    run(tmp_path, FailingBackend(set()))
    assert failures(tmp_path) is None
    assert sorted(row["id"] for row in lines(tmp_path)) == [e.id for e in EXAMPLES]
    run(tmp_path / "straight")
    scores = [(folder / "scores.jsonl").read_text() for folder in (tmp_path, tmp_path / "straight")]
    assert scores[0] == scores[1]


def test_a_run_killed_among_failed_rows_and_answers_out_of_order_goes_on(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, FailingBackend({"row-5", "row-3"}, survives=3))
    assert [row["id"] for row in lines(tmp_path)] == ["row-5", "row-4", "row-3"]
    with pytest.raises(Killed):
        run(tmp_path, FailingBackend(set(), survives=1))
    again = FailingBackend(set())
    summary = run(tmp_path, again)
    # the second call answered row-5 anew
    assert sorted(again.asked) == ["row-0", "row-1", "row-2", "row-3"]
    assert (summary.failed, summary.scored) == (0, 6)
    assert len(lines(tmp_path)) == 6
    assert {row["finish"] for row in lines(tmp_path)} == {"stop"}


def test_a_backend_that_forgets_a_row_is_found_out(tmp_path):
    class Forgetful(EchoBackend):
        def generate(self, prompts, max_new_tokens):
            yield from super().generate(prompts[1:], max_new_tokens)

    with pytest.raises(RuntimeError, match="row-0"):
        run(tmp_path, Forgetful(EXAMPLES))


@pytest.mark.parametrize(("window", "scored"), [(None, 12), (20, 0), (8192, 12)])
def test_the_recipe_can_give_another_window(
    tmp_path: Path, window: int | None, scored: int
) -> None:
    recipe = make_recipe(
        tmp_path, "method={name: zero-shot}", f"evaluate.window={window or 'null'}"
    )
    evaluate(recipe)
    summary = read_json(recipe.output / EVALUATION / SUMMARY)
    manifest = read_json(recipe.output / EVALUATION / MANIFEST)
    assert (summary["scored"], summary["rows"]) == (scored, 12)
    assert manifest["window"] == (window or 4096)
