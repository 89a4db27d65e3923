"""A grid of methods, seeds and tasks as one report: crossing, notes, the one table, raw rows."""

from __future__ import annotations

import csv
import gzip
import io
import json

import numpy as np
import pytest
from rich.console import Console

from report_runs import examples, make_run
from ryarn.errors import UserError
from ryarn.report import tables
from ryarn.report.results import build_report
from ryarn.report.settings import settings
from ryarn.report.stage import load_runs, report, report_grid
from ryarn.stats import (
    CROSSED,
    estimate,
    estimate_over_seeds,
    holm,
    paired,
    paired_over_seeds,
)

BINS = (512, 1024, 2048)
SEEDS = (0, 1, 2)
CHANCES = {
    "zero-shot": (0.4, 0.3, 0.2),
    "lora": (0.95, 0.5, 0.3),
    "randomized-yarn": (0.95, 0.9, 0.8),
    "randomized-yarn, no curriculum": (0.8, 0.8, 0.7),
}


def long_row(row):
    turn = {"role": "user", "content": "word " * 300}
    return type(row).from_json(row.to_json() | {"prompt": [turn]})


def make_grid(root, task, missing=(), bins=BINS, rows=40):
    """Three seeds of each trained method, one run of zero-shot; LoRA's window is too short once."""
    shown = examples(bins, rows)
    # two rows at 2K are too long for LoRA
    shown = [long_row(r) if r.bin == 2048 and int(r.id.split("-")[-1]) < 2 else r for r in shown]
    runs = []
    for label, chances in CHANCES.items():
        trained = label != "zero-shot"
        for seed in SEEDS if trained else SEEDS[:1]:
            if (label, seed) in missing:
                continue
            train = {"learning_rate": 1e-3, "data": {"task": "words", "seed": seed}}
            runs.append(
                make_run(
                    root / task / label / f"seed-{seed}",
                    label,
                    dict(zip(bins, chances, strict=True)),
                    seed=seed,
                    rows=shown,
                    window=250 if label == "lora" else 10_000,
                    train=train if trained else None,
                    train_factor=4.0 if trained else None,
                    adapter=f"{label}{seed}" if trained else None,
                )
            )
    return runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("grid")
    return {
        "conflicts": make_grid(root, "conflicts"),
        "lookalikes": make_grid(root, "lookalikes", missing={("lora", 1)}),
    }


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def reports(runs, out):
    return report_grid(runs, out, "randomized-yarn", ["Base: a <small> one.", "Seeds 0 to 2."])


def method(report, label):
    return next(m for m in report.methods if m.label == label)


def average(report, label):
    return next(c for c in report.averages if label in (c.first, c.second))


def scores(run, bins):
    return {s.id: s for s in run.scores if s.scores and s.bin in bins}


def matrix(runs, ids):
    return np.array([[scores(run, BINS)[key].scores["places"] for key in ids] for run in runs])


def of_label(runs, label):
    return [run for run in load_runs(runs) if run.manifest["label"] == label]


def test_a_report_is_named_by_the_grid_and_keeps_the_order_of_the_methods(reports):
    assert [report.task for report in reports] == ["conflicts", "lookalikes"]
    assert reports[0].labels == list(CHANCES)


def test_seeds_are_found_and_not_taken_for_other_settings(reports):
    assert [m.seeds for m in reports[0].methods] == [(), SEEDS, SEEDS, SEEDS]
    assert method(reports[1], "lora").seeds == (0, 2)


def test_means_are_over_rows_and_seeds(runs, reports):
    ours = of_label(runs["conflicts"], "randomized-yarn")
    for cell in method(reports[0], "randomized-yarn").cells:
        known = scores(ours[0], [cell.bin])
        expected = estimate_over_seeds(matrix(ours, known), [s.source for s in known.values()])
        assert cell.score == expected
        assert (cell.score.n, cell.score.seeds, cell.rows) == (40, 3, 120)
    zero = of_label(runs["conflicts"], "zero-shot")[0]
    known = scores(zero, [1024]).values()
    alone = estimate([s.scores["places"] for s in known], [s.source for s in known])
    assert method(reports[0], "zero-shot").cells[1].score == alone
    ours = method(reports[0], "randomized-yarn")
    assert ours.ood.mean == pytest.approx(np.mean([run.ood for run in ours.runs]))
    assert ours.cells[1].others["places-substring"].seeds == 3


@pytest.mark.parametrize(("label", "seeds"), [("lora", (0, 2)), ("zero-shot", SEEDS)])
def test_differences_are_crossed_and_paired_by_the_seeds_of_both(runs, reports, label, seeds):
    ours, theirs = (of_label(runs["lookalikes"], name) for name in ("randomized-yarn", label))
    ours = [run for run in ours if run.manifest["seed"] in seeds]
    known = {k: s for k, s in scores(theirs[0], [1024, 2048]).items()}
    expected = paired_over_seeds(
        matrix(theirs, known),
        matrix(ours, known),
        [s.source for s in known.values()],
        [s.bin for s in known.values()],
    )
    got = average(reports[1], label)
    assert (got.first, got.second) == (label, "randomized-yarn")
    assert got.difference.p == pytest.approx(expected.p)
    assert (got.difference.n, got.difference.seeds) == (expected.n, len(seeds))
    assert got.difference.low == pytest.approx(expected.low)
    assert not got.rows_only
    assert got.difference.test == CROSSED


def test_one_seed_is_tested_over_rows_as_before_and_said_to_be(runs, tmp_path):
    single = [run for run in runs["conflicts"] if run.name == "seed-0"]
    result = build_report(load_runs(single), "randomized-yarn")
    theirs, ours = (of_label(single, name)[0] for name in ("lora", "randomized-yarn"))
    known = scores(theirs, [1024, 2048])
    expected = paired(
        *matrix([theirs, ours], known),
        [s.source for s in known.values()],
        np.random.default_rng(0),
        [s.bin for s in known.values()],
    )
    assert average(result, "lora").difference == expected
    assert all(c.rows_only for c in result.comparisons)
    assert any("cover the choice of rows only, not the training" in n for n in result.notes)
    assert "rows only" in {row[9] for row in tables.comparison_rows(result, result.averages)}
    assert "p does not cover the training" in tables.summary_note([result])


def test_one_seed_against_several_covers_the_rows_alone(runs):
    kept = [r for r in runs["conflicts"] if "lora" not in r.parts or r.name == "seed-1"]
    result = build_report(load_runs(kept), "randomized-yarn")
    assert average(result, "lora").rows_only
    assert average(result, "lora").difference.seeds == 1
    assert not average(result, "zero-shot").rows_only
    [note] = [n for n in result.notes if n.startswith("One training seed")]
    assert note.startswith("One training seed: lora. ")


def test_methods_without_training_have_no_training_to_cover(runs, tmp_path):
    rows = examples(BINS, 40)
    pair = [
        make_run(tmp_path / name, name, dict.fromkeys(BINS, chance), rows=rows, train=None)
        for name, chance in (("zero-shot", 0.3), ("zero-shot+yarn", 0.5))
    ]
    result = build_report(load_runs(pair))
    assert not any(c.rows_only for c in result.comparisons)
    assert result.notes == []


def test_missing_seeds_and_skipped_rows_are_told(reports):
    assert not any("no finished run" in note for note in reports[0].notes)
    [note] = [n for n in reports[1].notes if "no finished run" in n]
    assert note.startswith("lora: no finished run with seed 1; its numbers are over 2 of 3 seeds")
    assert any("lora: 4 of 80 rows at 2K (over 2 runs) did not fit" in n for n in reports[1].notes)
    cell = method(reports[0], "lora").cells[2]
    assert (cell.rows, cell.skipped, cell.score.n) == (120, 6, 38)
    assert average(reports[0], "lora").difference.n == 78


def test_ood_averages_of_a_task_are_one_family_and_its_bins_another(reports):
    for result in reports:
        for family, size in ((result.averages, 3), (result.by_bin, 9)):
            assert len(family) == size
            assert [c.p_holm for c in family] == holm([c.difference.p for c in family])


def test_a_task_without_the_reference_compares_nothing_and_says_so(runs, tmp_path):
    kept = [run for run in runs["lookalikes"] if "randomized-yarn" not in run.parts]
    grid = {"conflicts": runs["conflicts"], "lookalikes": kept}
    first, second = report_grid(grid, tmp_path, "randomized-yarn", [])
    assert len(first.averages) == 3
    assert second.comparisons == []
    assert any("nothing is compared with it" in note for note in second.notes)
    # its place in the one table is between its neighbours, with dashes
    assert tables.all_labels([second, first])[-2:] == list(CHANCES)[-2:]
    assert {e.text for e in tables.summary_line(second, "randomized-yarn")} == {tables.DASH}
    with pytest.raises(UserError, match="no task has a finished run"):
        report_grid({}, tmp_path, "rpe", [])


def test_where_no_task_has_the_reference_no_other_takes_its_place(runs, tmp_path):
    kept = [run for run in runs["conflicts"] if "randomized-yarn" not in run.parts]
    [alone] = report_grid({"conflicts": kept}, tmp_path, "randomized-yarn", [])
    assert alone.comparisons == []
    text = (tmp_path / "report.md").read_text("utf-8")
    assert "randomized-yarn has no finished run here: nothing is compared with it." in text
    assert "(ref.)" not in text


def test_the_one_table_has_each_bin_the_average_and_p(reports):
    result = reports[1]
    header = tables.summary_header(result)
    assert [e.text for e in header] == ["512", "1K", "2K", "OOD", "p"]
    assert [e.small for e in header[:3]] == ["n=40"] * 3
    line = tables.summary_line(result, "lora")
    lora = method(result, "lora")
    assert [e.text for e in line[:3]] == [f"{100 * c.score.mean:.1f}" for c in lora.cells]
    assert [e.small for e in line[:3]] == ["", "", "n=38"]
    assert f"{line[3].text} {line[3].small}" == tables.percent(lora.ood)
    assert line[4].text == tables.p_value(average(result, "lora").p_holm)
    assert tables.summary_line(result, "randomized-yarn")[4].text == "ref."
    best = [label for label in CHANCES if tables.summary_line(result, label)[3].best]
    assert best == [max(result.methods, key=lambda m: m.ood.mean).label]


def test_seeds_stand_beside_each_name(reports):
    small = {label: tables.summary_label(reports, label).small for label in CHANCES}
    assert small["zero-shot"] == "no training"
    assert small["lora"] == "3 / 2 seeds"
    assert small["randomized-yarn"] == "3 seeds"
    assert tables.summary_label(reports[1:], "lora").small == "2 seeds"


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_shows_every_task_and_method_whole(reports, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(tables.grid_terminal(reports))
    text = console.export_text()
    for result in reports:
        assert result.task in text
        for m in result.methods:
            for number in (c.score.mean for c in m.cells):
                assert f"{100 * number:.1f}" in text
            assert m.label.partition(",")[0] in text
            interval = tables.percent(m.ood).partition(" ")[2]
            assert interval in text
    assert "3 seeds" in text
    assert "Holm-corrected" in text
    assert max(map(len, text.splitlines())) <= width


def test_each_seed_is_shown_by_itself(reports):
    header, *rows = tables.seed_table(reports[1])
    assert header[1:] == ["0", "1", "2"]
    lora = {int(r.manifest["seed"]): r.ood for r in method(reports[1], "lora").runs}
    assert rows[0] == ["lora", f"{100 * lora[0]:.1f}", tables.DASH, f"{100 * lora[2]:.1f}"]
    assert [row[0] for row in rows] == list(CHANCES)[1:]


def test_settings_tell_what_is_shared_and_what_differs(reports):
    shared, (header, *rows) = settings(reports[0])
    shared, differing = dict(shared), {row[0]: row[1:] for row in rows}
    assert header[1:] == list(CHANCES)
    assert shared["model.name"] == "tiny:llama"
    assert shared["train.learning_rate"] == "0.001"
    assert shared["train.data.seed"] == "0 1 2"
    assert differing["seeds"] == ["0", "0 1 2", "0 1 2", "0 1 2"]
    # what one method lacks is no setting of all, unless it is one of a training it has not
    assert differing["factor s (training)"] == [tables.DASH, "4", "4", "4"]
    assert differing["window"] == ["10000", "250", "10000", "10000"]
    assert differing["adapters (SHA-256)"][0] == tables.DASH
    assert not set(shared) & set(differing)


def test_every_format_has_every_task_and_what_it_is_about(reports, out):
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    assert "<li>Base: a &lt;small&gt; one.</li>" in page
    assert "\n- Base: a &lt;small&gt; one.\n- Seeds 0 to 2.\n" in text
    assert json.loads((out / "report.json").read_text())["about"][1] == "Seeds 0 to 2."
    for result in reports:
        assert f"<h2>{result.task}</h2>" in page
        assert f"\n# {result.task}\n" in text
        for c in result.averages:
            assert tables.points(c.difference) in page
            assert tables.points(c.difference) in text
        for note in result.notes:
            assert note in text
    assert "Cameron, Gelbach and Miller" in page
    assert page.index('class="summary"') < page.index("<svg") < page.index("<h2>")
    assert (out / "report.png").stat().st_size > 20_000


def raw_rows(out):
    with gzip.open(out / "rows.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))


class Rows:
    """A task's raw rows, and tables made of nothing else."""

    def __init__(self, rows):
        self.value = {
            (r["label"], r["seed"], r["id"]): float(r["score"]) for r in rows if r["score"]
        }
        self.row = {r["id"]: r for r in rows}
        self.seeds = {}
        for r in rows:
            self.seeds.setdefault(r["label"], {})[r["seed"]] = None

    def table(self, seeds, bins):
        """Matrices of labels with some seeds each, and the rows' sources and bins."""
        ids = [
            key
            for key, r in self.row.items()
            if int(r["bin"]) in bins
            and all((n, s, key) in self.value for n in seeds for s in seeds[n])
        ]
        cells = [
            np.array([[self.value[n, s, key] for key in ids] for s in seeds[n]]) for n in seeds
        ]
        return cells, [self.row[k]["source"] for k in ids], [self.row[k]["bin"] for k in ids]

    def mean(self, label, bins):
        [values], *where = self.table({label: self.seeds[label]}, bins)
        if len(values) > 1:
            return estimate_over_seeds(values, *where)
        return estimate(values[0], *where)

    def difference(self, first, second, bins):
        own = {label: {s for s in self.seeds[label] if s} for label in (first, second)}
        both = sorted(set.intersection(*filter(None, own.values())))
        cells, *where = self.table({n: both if own[n] else [""] for n in own}, bins)
        return paired_over_seeds(*cells, *where)


def test_all_tables_can_be_computed_from_the_raw_rows(reports, out):
    """With nothing but the file and the statistics: means, intervals, differences and Holm's p."""
    for result in reports:
        rows = Rows([r for r in raw_rows(out) if r["task"] == result.task])
        for m in result.methods:
            for cell in m.cells:
                assert_close(rows.mean(m.label, [cell.bin]), cell.score)
            assert_close(rows.mean(m.label, result.ood_bins), m.ood)
        for family in (result.averages, result.by_bin):
            got = [
                rows.difference(c.first, c.second, result.ood_bins if c.bin is None else [c.bin])
                for c in family
            ]
            for mine, c in zip(got, family, strict=True):
                assert (mine.mean, mine.p) == pytest.approx((c.difference.mean, c.difference.p))
            assert holm([mine.p for mine in got]) == pytest.approx([c.p_holm for c in family])


def assert_close(got, expected):
    assert (got.mean, got.low, got.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )
    assert (got.n, got.sources, got.seeds) == (expected.n, expected.sources, expected.seeds)


def test_raw_rows_are_all_there_skipped_ones_without_a_score(runs, out, reports):
    rows = raw_rows(out)
    assert list(rows[0]) == ["task", "label", "seed", "id", "bin", "source", "score", "finish"]
    assert len(rows) == 120 * sum(map(len, runs.values()))
    assert {(r["score"] == "") == (r["finish"] == "skipped") for r in rows} == {True}
    assert {r["seed"] for r in rows if r["label"] == "zero-shot"} == {""}


def test_a_report_of_one_task_is_a_grid_of_one_task(runs, tmp_path):
    alone = report(runs["conflicts"], tmp_path / "report", "lora")
    [of_grid] = report_grid({"places": runs["conflicts"]}, tmp_path / "grid", "lora", [])
    assert alone == of_grid
    for name in ("report.md", "report.html", "report.csv", "rows.csv.gz", "report.json"):
        assert (tmp_path / "report" / name).read_bytes() == (tmp_path / "grid" / name).read_bytes()
