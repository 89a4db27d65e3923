"""What `ryarn doctor` found: layers, lengths, findings, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

NONE = "none"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class LiveRope:
    """A RoPE as its live buffers have it.

    Attributes:
        rope_type: As transformers calls it; `UNKNOWN` where no formula gives these frequencies,
            `NONE` in a layer that RoPE does not move.
        theta: Its base.
        rotary_size: Rotated dimensions of a head.
        factor: By how much the window is scaled, 1 for plain RoPE.
        attention_factor: On cos and sin.
        window: Positions in tokens that it is made for.
    """

    rope_type: str
    theta: float | None = None
    rotary_size: int = 0
    factor: float | None = None
    attention_factor: float | None = None
    window: int | None = None


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    Attributes:
        attention: transformers' word for what it sees, with the size of a window.
        rope: The RoPE that moves it.
        drawn: Whether a randomized method would give it drawn positions in training.
    """

    attention: str
    rope: LiveRope
    drawn: bool


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes:
        level: Only a failure fails; a warning is what somebody should know; a note is a fact.
        text: What it is, with the numbers.
        remedy: What to do about it.
    """

    level: Literal["fail", "warning", "note"]
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What is live in a model, and whether it is what its config says.

    Attributes:
        name: What was examined.
        model: Class of the model.
        layers: Its layers, the first one first; empty where the model could not be read.
        lengths: What claims which length in tokens; None for no limit.
        findings: Failures first.
    """

    name: str
    model: str
    layers: tuple[Layer, ...] = ()
    lengths: dict[str, int | None] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What makes it fail."""
        return tuple(finding for finding in self.findings if finding.level == "fail")

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures


def table(diagnosis: Diagnosis) -> Table:
    """The layers for the terminal; those with equal values share a line."""
    from rich.table import Table

    shown = Table(title=f"{diagnosis.name} ({diagnosis.model})", title_justify="left")
    heads = ("Layers", "Sees", "RoPE", "Base", "Dims", "Factor", "Attention", "Window", "Drawn")
    for head in heads:
        shown.add_column(head)
    for layer in dict.fromkeys(diagnosis.layers):
        where = [i for i, other in enumerate(diagnosis.layers) if other == layer]
        cells = ["" if value is None else f"{value}" for value in astuple(layer.rope)]
        for column, value in enumerate(astuple(layer.rope)):
            if isinstance(value, float):
                cells[column] = f"{value:.6g}"
        if layer.rope.rope_type == NONE:
            cells[2] = ""
        shown.add_row(ranges(where), layer.attention, *cells, "yes" if layer.drawn else "no")
    return shown


def ranges(numbers: Iterable[int]) -> str:
    """Rising numbers in short: `0-2, 4, 6-8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def lines(diagnosis: Diagnosis) -> list[str]:
    """What stands below the table: lengths, findings, and pass or fail with the remedy."""
    told = [
        f"{where}: {'no limit' if value is None else f'{value} tokens'}"
        for where, value in diagnosis.lengths.items()
    ]
    for finding in diagnosis.findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        told.append(f"{finding.level}: {finding.text}{remedy}")
    if diagnosis.passed:
        return [*told, "pass: what is live is what the config says"]
    remedies = dict.fromkeys(f.remedy for f in diagnosis.failures if f.remedy)
    return [*told, f"fail ({len(diagnosis.failures)}). Remedy: {'. '.join(remedies)}."]
