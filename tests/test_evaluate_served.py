"""`ryarn evaluate` against a server: no weights, one score a row, failures, and no key on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import openai_server as fakes
from openai_server import status
from ryarn.backends.config import KEY
from ryarn.records import read_jsonl
from ryarn.runs import read_json
from tiny_run import command, write_recipe

SECRET = "sk-0123456789-abcdef"
ROWS = 12
LABEL = "randomized-yarn"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv(KEY, SECRET)
    with fakes.serving() as running:
        running.models = [{"id": "tuned", "max_model_len": 4096}]
        yield running


@pytest.fixture
def run(server, tmp_path, monkeypatch, capsys):
    """Runs the command with the server; gives its exit code and stderr."""
    recipe = write_recipe(tmp_path)
    monkeypatch.setattr("ryarn.backends.openai.pause", lambda *_: 0.0)

    def call(*overrides, **settings):
        section = {"name": "openai", "base_url": server.url, "model": "tuned", **settings}
        backend = f"evaluate.backend={json.dumps(section)}"
        code = command(monkeypatch, "evaluate", recipe, backend, *overrides)
        return code, capsys.readouterr().err

    return call


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "run" / "evaluation"


def is_seventh(body: dict[str, Any]) -> bool:
    """Whether a request is for one certain row."""
    return "xx7?" in fakes.byte_tokenizer().decode(body["prompt"])


def test_no_weights_are_loaded_and_no_adapter_is_asked_for(run, folder, monkeypatch):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded")

    for name in ("ryarn.tiny.build", "ryarn.loading.load_model"):
        monkeypatch.setattr(name, never)
    assert run()[0] == 0
    summary = read_json(folder / "summary.json")
    assert (summary["rows"], summary["scored"], summary["failed"]) == (ROWS, ROWS, 0)


def test_the_manifest_says_who_answered_and_that_its_rope_was_not_verified(run, folder, server):
    run()
    manifest = read_json(folder / "manifest.json")
    assert manifest["backend"] == "openai"
    assert manifest["server"] == {
        "base_url": server.url,
        "model": "tuned",
        "api": "completions",
        "prompt": "tokens",
    }
    assert manifest["rope"] == "the server's own: not verified"
    assert manifest["label"] == manifest["method"]["name"] == LABEL
    assert (manifest["window"], manifest["train"]["max_length"]) == (4096, 64)
    assert "adapter" not in manifest


def test_what_changes_no_answer_may_change(run, folder, server):
    run(concurrency=1)
    asked = len(server.requests)
    assert run(concurrency=4, timeout=9, retries=0)[0] == 0
    assert len(server.requests) == asked
    code, said = run(api="chat")
    assert (code, "(server differ" in said) == (2, True)


def test_the_window_is_the_server_s_or_the_recipe_s(run, folder, server):
    server.models = [{"id": "tuned", "max_model_len": 20}]
    run()
    assert read_json(folder / "summary.json")["skipped"] == ROWS
    assert server.requests == []
    server.models = None
    code, said = run("output=other")
    assert code == 2
    assert "evaluate.window is missing: server http://127.0.0.1" in said
    server.gets.clear()
    assert run("evaluate.window=200", f"output={folder.parent.parent / 'third'}")[0] == 0
    assert server.gets == []


def test_failed_rows_end_with_a_sentence_and_exit_code_1_and_are_asked_again(run, folder, server):
    fault = status(400, "not this one")
    server.fault_of = lambda body: fault if is_seventh(body) else None
    code, said = run()
    assert code == 1
    assert said.splitlines()[-1] == (
        "ryarn: 1 of 12 rows failed and have no score (1 of them: HTTP 400: not this one); the "
        "same command asks for them again"
    )
    summary = read_json(folder / "summary.json")
    assert (summary["scored"], summary["failed"]) == (ROWS - 1, 1)
    server.requests.clear()
    server.fault_of = lambda body: None
    assert run()[0] == 0
    assert len(server.requests) == 1
    assert read_json(folder / "summary.json")["scored"] == ROWS
    assert len(list(read_jsonl(folder / "completions.jsonl"))) == ROWS


def test_the_table_and_the_report_count_failed_rows(run, folder, server, monkeypatch, capsys):
    server.fault_of = lambda body: status(400, "no") if is_seventh(body) else None
    run()
    out = folder.parent / "report"
    assert command(monkeypatch, "report", folder.parent, "--out", out) == 0
    text = (out / "report.md").read_text()
    assert "1 of 12 rows at 32 failed; they are counted, not scored" in text
    assert "did not fit into its window" not in text
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    [header] = [cells for cells in lines if cells[-1:] == ["failed"]]
    [counts] = [cells for cells in lines if len(cells) == len(header) and cells[0] == LABEL]
    shown = dict(zip(header, counts, strict=True))
    assert [shown[key] for key in ("rows", "scored", "skipped", "failed")] == ["12", "11", "0", "1"]


def test_a_server_that_goes_away_is_one_sentence_and_the_answers_stay(run, folder, server):
    server.fault_of = lambda body: fakes.hang_up if len(server.requests) > 2 else None
    code, said = run(concurrency=1, retries=0)
    assert code == 2
    assert "failed 10 rows one after another" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert not (folder / "scores.jsonl").exists()
    server.requests.clear()
    server.fault_of = lambda body: None
    assert run()[0] == 0
    assert len(server.requests) == ROWS - 2
    rows = list(read_jsonl(folder / "completions.jsonl"))
    assert (len(rows), {row["finish"] for row in rows}) == (ROWS, {"stop"})


def test_a_prompt_cut_by_the_server_stops_the_run_before_anything_is_kept(run, folder, server):
    server.window = 20
    code, said = run()
    assert code == 2
    assert "counted 20 prompt tokens" in said
    assert (folder / "completions.jsonl").read_text() == ""


def test_the_key_is_nowhere(run, folder, server, monkeypatch, capsys):
    """A server that repeats the header in its errors, and all files and words that come of it."""

    def echo(handler):
        status(400, f"who is {handler.headers['Authorization']}?")(handler)

    server.fault_of = lambda body: echo if is_seventh(body) else None
    monkeypatch.setenv("OPENAI_LOG", "debug")
    code, said = run()
    assert code == 1
    assert "who is Bearer ***?" in said
    out = folder.parent / "report"
    command(monkeypatch, "report", folder.parent, "--out", out)
    printed = capsys.readouterr()
    files = [path for path in folder.parent.parent.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"manifest.json", "completions.jsonl", "report.html"}
    assert SECRET not in said + printed.out + printed.err
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_a_missing_package_is_named(run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, said = run()
    assert (code, "pip install 'ryarn[openai]'" in said) == (2, True)
