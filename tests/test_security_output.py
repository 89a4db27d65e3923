"""What data and models say is shown and stored as it is: never a path, never markup, no secrets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import openai_server
from report_runs import examples, make_run
from tiny_run import command, write_recipe

EVIL = "<script>alert(1)</script> `x` | [a](http://x.example) ![i](x) [/red] $\\frac{$ ../../up"


class Elements(HTMLParser):
    """The names of a page's elements and of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attributes}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report in which every text that is not ours is hostile."""
    folder = tmp_path_factory.mktemp("hostile") / "inner"
    rows = [
        replace(
            row,
            id=f"../../{EVIL} \x1b[31m {row.id}",
            source=f"../../{EVIL} {row.source}",
            prompt=({"role": "user", "content": f"{row.prompt[0]['content']} {EVIL}"},),
            info={EVIL: EVIL},
        )
        for row in examples((512, 1024), 8)
    ]
    hostile = {"name": f"../../{EVIL}", "revision": EVIL, "dtype": EVIL}
    chances = {"one": 0.2, "two": 0.7}
    runs = [
        make_run(
            folder / name, f"{name} {EVIL}", {512: 0.9, 1024: chance}, rows=rows, model=hostile
        )
        for name, chance in chances.items()
    ]
    for run in runs:
        path = run / "evaluation" / "completions.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        told = [{**line, "text": f"{EVIL}\n```\n# {line['text']}"} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in told))
    with pytest.MonkeyPatch.context() as patched:
        assert command(patched, "report", *runs, "--out", folder / "report") == 0
    return folder / "report"


def test_a_page_has_no_element_that_a_model_or_a_row_wrote(reported: Path) -> None:
    text = (reported / "report.html").read_text()
    found = Elements()
    found.feed(text)
    assert not found.names & {"script", "a", "img", "iframe", "link", "object", "form"}
    assert not [name for name in found.attributes if name.startswith("on")]
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 20
    assert "http://x.example" in text


def test_markdown_has_no_markup_that_a_model_or_a_row_wrote(reported: Path) -> None:
    text = (reported / "report.md").read_text()
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt; &#96;x&#96; &#124; ") > 5
    assert re.findall(r"<\S", text) == []
    assert re.findall(r"\]\(([^)]*)\)", text) == ["report.png"]
    # Every code span is ours: the name of a rule.
    assert {code for code in re.findall(r"`([^`]*)`", text)} <= {"places", "places-substring"}
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in lines.splitlines()}) == 1


def test_no_file_is_named_by_data(reported: Path) -> None:
    folder = reported.parent
    assert sorted(path.name for path in folder.parent.iterdir()) == ["inner"]
    assert sorted(path.name for path in folder.iterdir()) == ["one", "report", "two"]
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert all(re.fullmatch(r"[a-z_]+(\.[a-z]+)+", name) for name in names), names


def test_brackets_of_a_label_are_shown_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chances = {512: 0.5, 1024: 0.5}
    runs = [make_run(tmp_path / name, f"[/red] {name}", chances) for name in ("one", "two")]
    assert command(monkeypatch, "report", *runs, "--out", tmp_path / "report") == 0
    differences = capsys.readouterr().out.partition("Differences on the same rows")[2]
    assert "[/red] one" in differences
    assert "[/red] two" in differences


SECRETS = {
    name: f"{name.lower()}-0123456789abcdef"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY")
}


def test_no_secret_is_written_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    path, run = write_recipe(tmp_path), tmp_path / "run"
    assert command(monkeypatch, "train", path, "train.max_steps=1") == 0
    assert command(monkeypatch, "evaluate", path, "train.max_steps=1") == 0
    with openai_server.serving() as server:
        server.models = [{"id": "tuned", "max_model_len": 4096}]
        # A server that says the key back when it refuses a row.
        key = SECRETS["OPENAI_API_KEY"]
        server.faults.append(openai_server.status(400, f"bad key {key}"))
        section = {"name": "openai", "base_url": server.url, "model": "tuned"}
        backend = f"evaluate.backend={json.dumps(section)}"
        served = tmp_path / "served"
        code = command(
            monkeypatch,
            "evaluate",
            path,
            "train.max_steps=1",
            backend,
            f"output={served}",
            "label=served",
        )
        assert code in (0, 1)
        assert any(headers["Authorization"] == f"Bearer {key}" for _, headers, _ in server.requests)
    assert command(monkeypatch, "report", run, served, "--out", tmp_path / "report") == 0
    for stage in ("train", "evaluate"):
        assert command(monkeypatch, stage, path, "model.name=no-such-owner/none", "output=x") == 2
    printed = "".join(capfd.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 30
    for value in SECRETS.values():
        assert value not in printed
        assert [path for path in files if value.encode() in path.read_bytes()] == []
