"""`python -m benchmarks`: every figure as a ratio within one run, beside its goal."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.cost import Cost, Interval
    from benchmarks.memory import Peak

COST_GOAL = 0.01
"""Drawing and remapping take at most this share of a training step."""
DRAW_GOAL = 1.0
"""Milliseconds for 8,192 positions out of 1,000,000."""
MEMORY_GOAL = 1.0
"""Peak memory is at most plain TRL's."""
REPEATS = 3
"""Processes of each kind whose memory is measured, turn about."""


def main() -> None:
    """Run all of it and print the tables."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    console = Console(width=100)
    from benchmarks import memory

    # First: a child's peak begins with what its parent holds, so before torch is loaded here.
    peaks: dict[str, list[Peak]] = {kind: [] for kind in memory.KINDS}
    for _ in range(REPEATS):
        for kind in memory.KINDS:
            peaks[kind].append(memory.measure(kind))

    import transformers

    from benchmarks import cost, setting

    transformers.logging.set_verbosity_error()
    console.print(facts())
    console.print(draws_table(*cost.draw_milliseconds(8192, 1_000_000, repeats=500)))
    costs = [
        cost.measure(setting.SMALL, 8192, pairs=16),
        cost.measure(setting.SMOLLM2, 512, pairs=16),
    ]
    console.print(cost_table(costs))
    console.print(vocabulary_table())
    console.print(memory_table(peaks))


def table(title: str, columns: Iterable[str], caption: str) -> Table:
    """An empty table in the style that all of them share."""
    made = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for column in columns:
        made.add_column(column)
    return made


def facts() -> str:
    """What the figures were measured on, in one paragraph."""
    import torch

    from ryarn.versions import versions

    listed = ", ".join(f"{name} {version}" for name, version in versions().items())
    cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    return (
        f"{date.today():%Y-%m-%d}, {_processor()}, {platform.system()}, cores: {len(cores)}, "
        f"threads: {torch.get_num_threads()}, Python {platform.python_version()}, {listed}\n"
    )


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def verdict(value: Interval, goal: float) -> str:
    """Whether a median meets a goal, as far as its interval tells."""
    if value.high <= goal:
        return "pass"
    return "FAIL" if value.low > goal else "not resolved"


def _percent(value: Interval) -> str:
    return f"{100 * value.median:.3f}% [{100 * value.low:.3f}, {100 * value.high:.3f}]"


def _ratio(value: Interval) -> str:
    return f"{value.median:.3f} [{value.low:.3f}, {value.high:.3f}]"


def draws_table(alone: Interval, whole: Interval) -> Table:
    """8K positions out of 1M."""
    made = table(
        "8,192 positions out of 1,000,000",
        ("what", "median ms [95%]", "n", "goal", ""),
        "A whole draw: hash of the tokens, generator of the address, sampler.",
    )
    for name, value in (("sampler alone", alone), ("a whole draw", whole)):
        shown = f"{value.median:.3f} [{value.low:.3f}, {value.high:.3f}]"
        made.add_row(name, shown, str(value.n), f"<= {DRAW_GOAL:g}", verdict(value, DRAW_GOAL))
    return made


def cost_table(costs: list[Cost]) -> Table:
    """Drawing and remapping against the same step without them."""
    models = "".join(
        f"{cost.length:,} tokens: {cost.shape}; {cost.seconds:.2f} s a step without, "
        f"{cost.hooks:.2f} ms inside the hooks.\n"
        for cost in costs
    )
    made = table(
        "Drawing and remapping against the same step without them",
        ("tokens", "figure", "median [95%]", "n", "goal", ""),
        f"{models}Randomized YaRN against trained YaRN: steps of one LoRA training turn about "
        "(A B B A), the ratio pair by pair. Inside the hooks: their seconds over the step's (wall "
        "clock or processor time, whichever is less). A deeper model's step is longer and the "
        "hooks' work the same, so on the same device these are upper bounds.",
    )
    for cost in costs:
        figures = (
            ("inside the hooks", _percent(cost.share), cost.share, COST_GOAL),
            ("step ratio, wall clock", _ratio(cost.ratio), cost.ratio, 1 + COST_GOAL),
            ("step ratio, processor time", _ratio(cost.busy), cost.busy, 1 + COST_GOAL),
        )
        made.add_section()
        for name, shown, value, goal in figures:
            bound = f"<= {goal:.0%}" if goal < 1 else f"<= {goal:g}"
            row = (f"{cost.length:,}", name, shown, str(value.n), bound)
            made.add_row(*row, verdict(value, goal))
    return made


def vocabulary_table() -> Table:
    """The largest tensor along the vocabulary, here and elsewhere."""
    from benchmarks import setting, vocabulary
    from ryarn.tiny import byte_tokenizer

    shape, length = setting.SMOLLM2, 512
    made = table(
        "Largest tensor with a vocabulary axis in a training step",
        ("step", "tensor", "tokens x vocabulary", "share", "goal", ""),
        f"{shape}; {setting.LABELLED} labelled tokens at the end of the row. Every tensor of one "
        "step is looked at, forward and backward (n = 1: no chance in it).",
    )
    found = vocabulary.in_ryarn(setting.make_model(shape), byte_tokenizer(), length, 1)
    passed = "pass" if found.rows <= found.labelled else "FAIL"
    _add(made, "ryarn train", found, "labelled tokens", passed)
    _add(made, "TRL on this device", vocabulary.in_trl(setting.make_model(shape), length))
    plain = vocabulary.in_plain_forward(setting.make_model(shape), length, 1)
    _add(made, "model(input_ids, labels)", plain)
    return made


def _add(made: Table, name: str, found: Any, goal: str = "", passed: str = "") -> None:
    size = f"{found.rows:,} x {found.width:,}"
    whole = f"{found.tokens:,} x {found.vocabulary:,}"
    made.add_row(name, size, whole, f"{found.share:.1%}", goal, passed)


def memory_table(peaks: dict[str, list[Peak]]) -> Table:
    """Peak memory against plain TRL and LoRA."""
    from benchmarks import memory

    made = table(
        "Peak memory against plain TRL and LoRA",
        ("training", "peak MiB, each", "ratio of medians", "n", "goal", ""),
        f"Peak resident size of a process, {memory.STEPS} steps of {memory.LENGTH} tokens, "
        f"SmolLM2's shape with {memory.LAYERS} layers. Goal: at most equal.",
    )
    plain = median(peak.training for peak in peaks["trl"])
    for kind, found in peaks.items():
        values = [peak.training for peak in found]
        ratio = median(values) / plain
        row = (kind, " ".join(f"{value:.1f}" for value in values), f"{ratio:.3f}", str(len(values)))
        passed = "pass" if ratio <= MEMORY_GOAL else "FAIL"
        made.add_row(*row, *(() if kind == "trl" else (f"<= {MEMORY_GOAL:g}", passed)))
    return made


if __name__ == "__main__":
    main()
