"""The figure: a line a method, where the numbers are, named and marked."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from report_runs import make_run
from ryarn.report.plots import COLOURS, as_svg, colours, score_by_length, spread
from ryarn.report.results import build_report
from ryarn.report.stage import load_runs

BINS = (512, 1024, 2048, 4096)
LABELS = ["randomized-yarn", "lora", "trained-yarn"]


def report_of(folder, bins=BINS, **more):
    chances = [dict.fromkeys(bins, chance) for chance in (0.9, 0.5, 0.45)]
    runs = [
        make_run(folder / label, label, chance, **more)
        for label, chance in zip(LABELS, chances, strict=True)
    ]
    return build_report(load_runs(runs))


def lines(axes):
    return {line.get_label(): line for line in axes.lines if line.get_label() in COLOURS}


def test_each_method_is_a_line_through_its_scores(tmp_path):
    report = report_of(tmp_path)
    axes = score_by_length([report]).axes[0]
    assert set(lines(axes)) == set(LABELS)
    for method in report.methods:
        line = lines(axes)[method.label]
        assert list(line.get_ydata()) == [cell.score.mean for cell in method.cells]
        assert list(line.get_xdata()) == pytest.approx(list(BINS), rel=0.05)
        assert line.get_color() == COLOURS[method.label]
    segments = [bars.get_segments() for bars in axes.collections if hasattr(bars, "get_segments")]
    ends = {round(float(y), 6) for bar in segments for x, y in bar[0]}
    first = report.methods[0].cells[0].score
    assert {round(first.low, 6), round(first.high, 6)} <= ends


def test_axis_reads_as_lengths_and_marks_training_and_original_length(tmp_path):
    axes = score_by_length([report_of(tmp_path)]).axes[0]
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["512", "1K", "2K", "4K"]
    texts = [text.get_text().strip() for text in axes.texts]
    assert {"fine-tuned up to 512", "base's own window: 2K", *LABELS} <= set(texts)
    marks = [line.get_xdata()[0] for line in axes.lines if list(line.get_ydata()) == [0, 1]]
    assert marks == [512, 2048]


def test_an_original_length_far_away_is_said_not_drawn(tmp_path):
    axes = score_by_length([report_of(tmp_path, original_length=32_768)]).axes[0]
    assert "base's own window: 32K, outside" in axes.get_xlabel()
    assert axes.get_xlim()[1] < 8192


def test_rows_without_background_have_a_place_on_the_log_axis(tmp_path):
    axes = score_by_length([report_of(tmp_path, bins=(0, 1000, 2000))]).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0K", "1K", "2K"]
    assert min(axes.get_xticks()) == 500


def test_a_bin_without_scores_is_left_out(tmp_path):
    figure = score_by_length([report_of(tmp_path, window=5)])
    assert lines(figure.axes[0]) == {}


def test_a_method_keeps_its_colour_and_no_two_labels_share_one():
    assert colours(["pose", "mine"])["pose"] == colours(["lora", "pose"])["pose"]
    many = colours([*COLOURS, "mine", "mine (2)"])
    assert len(set(many.values())) == len(many)


def test_labels_are_spread_apart_within_the_axis():
    placed = spread([0.98, 0.97, 0.02, 1.0, 0.5], 0.05, 0.0, 1.0)
    ordered = sorted(placed)
    assert all(b - a >= 0.05 - 1e-9 for a, b in pairwise(ordered))
    assert ordered[-1] <= 1.0
    assert placed[4] == 0.5
    assert placed[1] < placed[0] < placed[3]


def test_svg_needs_no_font_and_is_the_same_every_time(tmp_path):
    report = report_of(tmp_path)
    one, two = (as_svg(score_by_length([report])) for _ in range(2))
    assert one == two
    assert one.startswith("<svg")
    assert "<text" not in one


def test_each_task_has_a_panel_and_the_title_says_what_was_done(tmp_path):
    report = report_of(tmp_path)
    figure = score_by_length([report, replace(report, task="other")])
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["places", "other"]
    assert figure.get_suptitle() == (
        "Fine-tuned on texts of up to 512 tokens, tested on texts of up to 4K"
    )
    assert figure.axes[0].get_title(loc="right") == (
        "mean of 50 rows a point, 1 training seed; bars: 95% intervals"
    )


def test_the_reference_stands_out_and_what_was_not_trained_steps_back(tmp_path):
    runs = [
        make_run(tmp_path / "0", "zero-shot", dict.fromkeys(BINS, 0.3), train=None),
        make_run(tmp_path / "1", "lora", dict.fromkeys(BINS, 0.5)),
        make_run(tmp_path / "2", "mine", dict.fromkeys(BINS, 0.8)),
    ]
    axes = score_by_length([build_report(load_runs(runs), "mine")]).axes[0]
    drawn = {line.get_label(): line for line in axes.lines}
    widths = [drawn[label].get_linewidth() for label in ("zero-shot", "lora", "mine")]
    assert widths == sorted(set(widths))
    assert [drawn[label].get_linestyle() for label in ("zero-shot", "lora")] == ["--", "-"]
    bold = {text.get_text() for text in axes.texts if text.get_fontweight() == "bold"}
    assert bold == {"mine"}
