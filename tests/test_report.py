"""The report stage: pooling, OOD averages, paired tests, refusals, and every format."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from report_runs import examples, make_run
from ryarn.errors import UserError
from ryarn.records import read_jsonl
from ryarn.report import markdown, tables
from ryarn.report.results import build_report
from ryarn.report.stage import load_runs, report
from ryarn.stats import estimate, paired

BINS = (512, 1024, 2048)
GOOD = dict(zip(BINS, (0.95, 0.9, 0.8), strict=True))
BAD = dict(zip(BINS, (0.95, 0.5, 0.2), strict=True))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [
        make_run(folder / "lora", "lora", BAD),
        make_run(folder / "randomized", "randomized-yarn", GOOD),
        make_run(folder / "pose", "pose", dict.fromkeys(BINS, 0.6)),
    ]


@pytest.fixture(scope="module")
def result(runs):
    return build_report(load_runs(runs))


def scores_of(run, rule="places"):
    rows = read_jsonl(run / "evaluation" / "scores.jsonl")
    return [(row["bin"], row["source"], row["scores"][rule]) for row in rows]


def test_each_cell_is_the_estimate_of_its_rows(runs, result):
    rows = scores_of(runs[0])
    method = result.methods[0]
    assert (method.label, [cell.bin for cell in method.cells]) == ("lora", list(BINS))
    for cell in method.cells:
        mine = [(source, score) for bin_, source, score in rows if bin_ == cell.bin]
        assert cell.score == estimate([s for _, s in mine], [source for source, _ in mine])
        assert cell.rows == cell.score.n == 50


def test_ood_average_weighs_the_bins_beyond_the_training_length_alike(result):
    assert result.ood_bins == [1024, 2048]
    for method in result.methods:
        means = [cell.score.mean for cell in method.cells if cell.bin > 512]
        assert method.ood.mean == pytest.approx(np.mean(means))
        assert method.ood.low < method.ood.mean < method.ood.high


def test_randomized_yarn_is_compared_with_every_other_method(runs, result):
    assert [(c.first, c.second) for c in result.averages] == [
        ("randomized-yarn", "lora"),
        ("randomized-yarn", "pose"),
    ]
    first = result.averages[0]
    ours, theirs = ([row for row in scores_of(run) if row[0] > 512] for run in (runs[1], runs[0]))
    expected = paired(
        [s for *_, s in ours],
        [s for *_, s in theirs],
        [source for _, source, _ in ours],
        np.random.default_rng(0),
        [bin_ for bin_, *_ in ours],
    )
    assert first.difference == expected
    assert first.difference.p < 0.01
    assert [c.difference.test for c in result.by_bin] == ["exact McNemar"] * 6


def test_each_family_of_tests_is_corrected_by_itself(result):
    p = sorted(c.difference.p for c in result.averages)
    assert min(c.p_holm for c in result.averages) == pytest.approx(min(1, 2 * p[0]))
    p = sorted(c.difference.p for c in result.by_bin)
    assert min(c.p_holm for c in result.by_bin) == pytest.approx(min(1, 6 * p[0]))


def test_a_reference_turns_the_comparison_round(runs):
    result = build_report(load_runs(runs), reference="lora")
    assert [(c.first, c.second) for c in result.averages] == [
        ("randomized-yarn", "lora"),
        ("pose", "lora"),
    ]
    with pytest.raises(UserError, match="'rpe': no such method; there are lora, randomized-yarn"):
        build_report(load_runs(runs), reference="rpe")


def test_without_randomized_yarn_the_last_method_is_compared_with_the_others(runs):
    result = build_report(load_runs([runs[2], runs[0]]))
    assert [(c.first, c.second) for c in result.averages] == [("lora", "pose")]


def test_one_label_with_two_settings_is_two_methods(tmp_path, runs):
    other = make_run(tmp_path / "wide", "randomized-yarn", GOOD, eval_factor=8.0)
    result = build_report(load_runs([runs[1], other]))
    assert [m.label for m in result.methods] == [
        "randomized-yarn (randomized)",
        "randomized-yarn (wide)",
    ]


def test_rows_that_did_not_fit_are_counted_and_leave_no_ood_average(tmp_path, runs):
    rows = [
        row if row.bin < 2048 else type(row).from_json(row.to_json() | {"prompt": [long_turn()]})
        for row in examples(BINS)
    ]
    short = make_run(tmp_path / "short", "lora", BAD, window=200, rows=rows)
    full = make_run(tmp_path / "full", "pose", BAD, window=2000, rows=rows)
    result = build_report(load_runs([short, full]))
    cell = result.methods[0].cells[-1]
    assert (cell.rows, cell.skipped, cell.score.n, cell.score.mean) == (50, 50, 0, None)
    assert result.methods[0].ood.mean is None
    assert result.methods[1].ood.mean is not None
    assert any("50 of 50 rows at 2K did not fit" in note for note in result.notes)
    # what both have is still compared, and said to be less than the whole
    assert tables.place(result, result.averages[0]) == "OOD average of 1K"
    assert "| lora |" in markdown.markdown([result], [])


def long_turn():
    return {"role": "user", "content": "word " * 300}


def test_runs_that_cannot_be_compared_are_refused(tmp_path, runs):
    with pytest.raises(UserError, match="no run folders given"):
        load_runs([])
    with pytest.raises(UserError, match="has no evaluation: run `ryarn evaluate`"):
        load_runs([tmp_path])
    with pytest.raises(UserError, match="given twice"):
        load_runs([runs[0], runs[0]])
    fewer = make_run(tmp_path / "fewer", "rpe", GOOD, rows=examples(BINS, rows=49))
    with pytest.raises(UserError, match="different evaluation rows"):
        load_runs([runs[0], fewer])
    with pytest.raises(UserError, match="different task"):
        load_runs([runs[0], make_run(tmp_path / "task", "rpe", GOOD, task="mrcr")])
    (fewer / "evaluation" / "scores.jsonl").unlink()
    with pytest.raises(UserError, match="not finished"):
        load_runs([fewer])


def test_without_ood_bins_there_is_no_average(tmp_path, runs):
    run = make_run(tmp_path / "long", "lora", GOOD, train_length=4096)
    result = build_report(load_runs([run]))
    assert (result.ood_bins, result.averages) == ([], [])
    assert any("nothing here is OOD" in note for note in result.notes)
    assert "OOD average" not in tables.score_header(result)


def test_every_format_is_written_and_agrees(tmp_path, runs):
    result = report(runs, tmp_path / "out")
    out = tmp_path / "out"
    formats = {f"report.{ending}" for ending in ("md", "csv", "json", "png", "html")}
    assert {path.name for path in out.iterdir()} == formats | {"rows.csv.gz"}
    mean = result.methods[1].ood.mean
    [stored] = json.loads((out / "report.json").read_text())["tasks"]
    assert stored["methods"][1]["ood"]["mean"] == mean
    rows = list(csv.DictReader(io.StringIO((out / "report.csv").read_text())))
    assert len(rows) == 3 * (2 * len(BINS) + 1)
    ood = [r for r in rows if r["method"] == "randomized-yarn" and r["bin"] == "ood"]
    assert [float(row["score"]) for row in ood] == [mean]
    assert {row["rule"] for row in rows} == {"places", "places-substring"}
    text = (out / "report.md").read_text()
    assert f"| {tables.percent(result.methods[1].ood)} |" in text
    assert "## Beside it: `places-substring`" in text
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")


class Checker(HTMLParser):
    """Collects what a page would load, and tags that are opened and never closed."""

    def __init__(self):
        super().__init__()
        self.loads, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [v for k, v in attrs if k in {"src", "href", "xlink:href"} and v[0] != "#"]
        assert tag not in {"script", "link", "b"}
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.loads += [v for k, v in attrs if k in {"src", "href", "xlink:href"} and v[0] != "#"]


def test_the_page_is_whole_needs_nothing_and_escapes_what_models_say(tmp_path, runs):
    report(runs, tmp_path)
    text = (tmp_path / "report.html").read_text()
    checker = Checker()
    checker.feed(text)
    assert (checker.loads, checker.open) == ([], [])
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "&lt;b&gt;kitchen&lt;/b&gt; &amp; stayed" in text
    # bin by bin, rows, the other rule, settings
    assert text.count("<details") == 4 + len(BINS)
    for word in ("randomized-yarn", "places-substring", "Wilson", "versions", "width=device-width"):
        assert word in text


def test_the_same_runs_give_the_same_files(tmp_path, runs):
    report(runs, tmp_path / "one")
    report(runs, tmp_path / "two")
    for name in ("report.md", "report.csv", "report.json", "report.html", "rows.csv.gz"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_terminal_shows_scores_and_differences(result):
    console = Console(width=160, record=True, file=io.StringIO())
    for table in tables.terminal(result):
        console.print(table)
    text = console.export_text()
    for shown in (
        tables.percent(result.methods[0].ood),
        tables.points(result.averages[0].difference),
    ):
        mean, _, interval = shown.partition(" ")
        assert mean in text
        assert interval in text


@pytest.mark.parametrize(
    ("length", "label"),
    [
        (0, "0K"),
        (300, "300"),
        (512, "512"),
        (1000, "1K"),
        (1024, "1K"),
        (1536, "1.5K"),
        (4000, "4K"),
        (4096, "4K"),
        (128_000, "128K"),
        (131_072, "128K"),
        (1_000_000, "1M"),
        (1_048_576, "1M"),
    ],
)
def test_lengths_are_named_as_people_name_them(length, label):
    assert tables.bin_label(length) == label


def test_markdown_cells_cannot_break_the_table():
    assert markdown.table(["a"], [["x|y\nz"]]).splitlines()[-1] == "| x&#124;y z |"


def test_runs_scored_by_different_rules_are_refused(tmp_path, runs):
    other = tmp_path / "other"
    shutil.copytree(runs[0], other)
    path = other / "evaluation" / "scores.jsonl"
    path.write_text(path.read_text().replace('"places":', '"elsewhere":'))
    sentence = r"scored by different rules \(places and elsewhere\): .* same evaluate.data.score"
    with pytest.raises(UserError, match=sentence):
        load_runs([runs[0], other])
