"""Figures; the only file that imports matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ryarn.report.tables import all_labels, bin_label, usual_n

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ryarn.preview import Preview
    from ryarn.report.results import Method, Report

COLOURS = {
    "randomized-yarn": "#0072B2",
    "trained-yarn": "#D55E00",
    "lora": "#009E73",
    "pose": "#CC79A7",
    "rpe": "#E69F00",
    "zero-shot": "#666666",
    "zero-shot+yarn": "#8A8A8A",
}
"""Okabe and Ito's colours for the colour-blind; a method keeps its colour in every figure."""
SPARE = ["#000000", "#882255", "#44AA99", "#999933", "#332288", "#56B4E9", *COLOURS.values()]
MARKERS = dict(zip(COLOURS, "osXD^vP", strict=True))
SPARE_MARKERS = "h<>p*d8"
GAP = 0.06
"""Least distance of two labels, in units of the score axis."""
WIDTH, PANEL = 9.6, 4.1
"""Inches: the figure's width, and the height of a task's panel."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a method's line is drawn: the reference stands out, what was not trained steps back."""

    colour: str
    marker: str
    width: float
    dash: str
    bold: bool

    @property
    def bars(self) -> float:
        """Opacity of the intervals."""
        return 0.8 if self.bold else 0.4


def colours(labels: Sequence[str]) -> dict[str, str]:
    """A colour for each label: the method's own where the label is a method's name."""
    spare = iter([c for c in SPARE if c not in {COLOURS.get(label) for label in labels}])
    return {label: COLOURS.get(label) or next(spare, "#000000") for label in labels}


def score_by_length(reports: Sequence[Report]) -> Figure:
    """Score against length on a log axis: a panel a task, a line a method with 95% intervals.

    Bins up to the training length are shaded; the training length and, where it is near, the
    base's original length are marked.
    """
    styles = _styles(reports)
    # A label may have dollar signs of its own.
    with mpl.rc_context({"font.size": 10, "svg.hashsalt": "ryarn", "text.parse_math": False}):
        height = 0.75 + PANEL * len(reports)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(headline(reports), x=0.01, ha="left", fontsize=12.5, fontweight="bold")
        panels = figure.subplots(len(reports), squeeze=False)[:, 0]
        for axes, report in zip(panels, reports, strict=True):
            _axes(axes, report)
            ends = []
            for number, method in enumerate(report.methods):
                shift = 1.012 ** (number - (len(report.methods) - 1) / 2)
                end = _line(axes, report, method, styles[method.label], shift)
                if end is not None:
                    ends.append((end, method.label, styles[method.label]))
            _label_ends(axes, ends)
            # What the bars are stands small beside the task's name.
            axes.set_title(report.task, loc="left", fontsize=11, fontweight="bold")
            axes.set_title(basis(report), loc="right", fontsize=8.5, color="#444444")
    return figure


def headline(reports: Sequence[Report]) -> str:
    """What the figure shows, in words that need no paper."""
    trained = max(report.train_length for report in reports)
    longest = max(report.bins[-1] for report in reports)
    if not any(report.ood_bins for report in reports):
        return f"Score by length of the text, up to {bin_label(longest)} tokens"
    return (
        f"Fine-tuned on texts of up to {bin_label(trained)} tokens, "
        f"tested on texts of up to {bin_label(longest)}"
    )


def basis(report: Report) -> str:
    """How many rows and training seeds a point stands for."""
    counts = [usual_n(report, b) for b in report.bins]
    least, most = min(counts), max(counts)
    rows = f"{least}" if least == most else f"{least} to {most}"
    seeds = max((len(method.seeds) for method in report.methods), default=0)
    over = f", {seeds} training seed{'s' if seeds > 1 else ''}" if seeds else ""
    return f"mean of {rows} rows a point{over}; bars: 95% intervals"


def _styles(reports: Sequence[Report]) -> dict[str, Style]:
    labels = all_labels(reports)
    colour = colours(labels)
    untrained = {m.label for report in reports for m in report.methods if not m.seeds}
    references = {report.reference for report in reports if report.comparisons}
    grey = iter(["#666666", "#8A8A8A", "#A6A6A6"])
    markers = iter(SPARE_MARKERS * len(labels))
    styles = {}
    for label in labels:
        marker = MARKERS.get(label) or next(markers)
        if label in untrained:
            own = COLOURS.get(label) or next(grey, "#A6A6A6")
            styles[label] = Style(own, marker, 1.0, "--", label in references)
        elif label in references:
            styles[label] = Style(colour[label], marker, 3.0, "-", True)
        else:
            styles[label] = Style(colour[label], marker, 1.5, "-", False)
    return styles


def as_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element, text as shapes: no font is needed to show it."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "ryarn", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def position(report: Report, bin_: int) -> float:
    """Where a bin stands on the log axis; a bin of 0 (no background) left of the first other."""
    return bin_ if bin_ > 0 else min((b for b in report.bins if b > 0), default=2) / 2


def spread(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights for labels: as near to the wanted ones as a least gap and both ends allow."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = list(heights)
    floor = low
    for i in order:
        placed[i] = floor = max(placed[i], floor)
        floor += gap
    ceiling = high
    for i in reversed(order):
        placed[i] = ceiling = min(placed[i], ceiling)
        ceiling -= gap
    return placed


def _axes(axes: Axes, report: Report) -> None:
    places = [position(report, b) for b in report.bins]
    low, high = min(places) / 1.3, max(places) * 1.3
    axes.set_xscale("log", base=2)
    axes.set_ylim(-0.03, 1.13)
    marks = [(report.train_length, "fine-tuned up to")]
    if report.original_length:
        marks.append((report.original_length, "base's own window:"))
    far = ""
    for length, name in marks:
        tuned = length == report.train_length
        if length > 2.2 * max(places) or length < min(places) / 2.2:
            far += f"; {name} {bin_label(length)}, outside"
            continue
        low, high = min(low, length / 1.3), max(high, length * 1.3)
        style = "--" if tuned else ":"
        axes.axvline(length, color="#555555", linestyle=style, linewidth=1.1, zorder=1)
        # Two marks near each other would overprint: the second is written a line lower.
        axes.annotate(
            f" {name} {bin_label(length)}",
            (length, 1.095 if tuned else 1.045),
            fontsize=8.5,
            color="#444444",
            va="center",
        )
    axes.set_xlim(low, high)
    if low < report.train_length:
        axes.axvspan(low, min(report.train_length, high), color="#f2f2f2", zorder=0)
    axes.set_xticks(places, [bin_label(b) for b in report.bins])
    axes.minorticks_off()
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"length of the text in tokens (log scale{far})")
    axes.set_ylabel(f"score ({report.rule})")


def _line(
    axes: Axes, report: Report, method: Method, style: Style, shift: float
) -> tuple[float, float] | None:
    """Draw one method and return where its line ends; bins without a score are gaps."""
    cells = [cell for cell in method.cells if cell.score.mean is not None]
    if not cells:
        return None
    x = [position(report, cell.bin) * shift for cell in cells]
    y = [cell.score.mean or 0.0 for cell in cells]
    axes.plot(
        x,
        y,
        color=style.colour,
        marker=style.marker,
        markersize=6.5 if style.bold else 5,
        linewidth=style.width,
        linestyle=style.dash,
        label=method.label,
        zorder=4 if style.bold else 3,
    )
    for place, mean, cell in zip(x, y, cells, strict=True):
        low, high = cell.score.low, cell.score.high
        if low is not None and high is not None:
            error = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
            axes.errorbar(
                place, mean, error, color=style.colour, elinewidth=1.2, alpha=style.bars, zorder=2
            )
    return x[-1], y[-1]


def _label_ends(axes: Axes, ends: Sequence[tuple[tuple[float, float], str, Style]]) -> None:
    """Write each method's name at the right edge, joined to its line's end."""
    right = axes.get_xlim()[1]
    heights = spread([end[1] for end, _, _ in ends], GAP, 0.0, 1.08)
    for (end, label, style), height in zip(ends, heights, strict=True):
        axes.annotate(
            label,
            xy=end,
            xytext=(right * 1.04, height),
            color=style.colour,
            fontsize=9.5,
            fontweight="bold" if style.bold else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": style.colour,
                "linewidth": 0.6,
                "alpha": 0.6,
                "relpos": (0, 0.5),
            },
        )


def plot_positions(rows: Sequence[Preview], path: Path) -> None:
    """Draw where the tokens of one row lie under each span (the paper's figure 1) into a PNG.

    Args:
        rows: One for each span, see `ryarn.preview`.
        path: File to write.
    """
    height = 1.3 + 0.42 * len(rows)
    figure = Figure(figsize=(8.4, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.eventplot(
        [row.positions for row in rows],
        lineoffsets=[row.epoch for row in rows],
        linelengths=0.7,
        linewidths=0.5,
        colors=COLOURS["randomized-yarn"],
    )
    for row in rows:
        axes.plot([row.span] * 2, [row.epoch - 0.42, row.epoch + 0.42], color="#D55E00", lw=2)
    names = [f"$L_{{{row.epoch}}}$ = {row.span:,}" for row in rows]
    axes.set_yticks([row.epoch for row in rows], names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    length = len(rows[0].positions)
    axes.set_xlabel(f"position of each of the row's {length} tokens; the bar ends the span $L_t$")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
