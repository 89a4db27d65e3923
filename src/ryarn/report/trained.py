"""What training reached: loss and accuracy on its own rows, at the positions that they had then."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ryarn.report.tables import DASH
from ryarn.runs import LOG

if TYPE_CHECKING:
    from ryarn.report.results import Method, Report

PART = 0.2
"""The end of training that counts, as a share of its steps."""
HEADER = ["method", "runs", "steps", "epochs", "loss", "tokens right, %"]
HOW = (
    f"Over the last {PART:.0%} of a training's steps, as far as its log tells them apart, on its "
    "own rows, under its RoPE and at the positions that it drew: the mean of the runs [least, "
    "most]. Tokens are those of the answers, the end of the turn among them. In a first epoch each "
    "row is new when it is counted."
)


@dataclass(frozen=True, slots=True)
class Trained:
    """The end of one training.

    Attributes:
        steps: Optimizer steps of the whole.
        epochs: How often each row was seen.
        loss: Mean over the end, in nats a token.
        accuracy: Share of the answers' tokens that were the likeliest; None where it isn't logged.
    """

    steps: int
    epochs: float
    loss: float
    accuracy: float | None

    @classmethod
    def read(cls, run: Path) -> Trained | None:
        """From a run folder's log; None where there is none, or nothing in it."""
        if not (run / LOG).is_file():
            return None
        entries = [json.loads(line) for line in (run / LOG).read_text("utf-8").splitlines()]
        logged = [entry for entry in entries if "loss" in entry]
        if not logged:
            return None
        # The trainer logs no loss of the last steps where their number is not a multiple.
        last = entries[-1]
        end = [entry for entry in logged if entry["step"] > (1 - PART) * last["step"]]
        end = end or logged[-1:]
        known = [e["mean_token_accuracy"] for e in end if "mean_token_accuracy" in e]
        return cls(
            steps=last["step"],
            epochs=last["epoch"],
            loss=statistics.fmean(entry["loss"] for entry in end),
            accuracy=statistics.fmean(known) if known else None,
        )


def trained_rows(report: Report) -> list[list[str]]:
    """A line for each method whose runs have a log of their training."""
    return [line for method in report.methods if (line := _line(method))]


def _line(method: Method) -> list[str]:
    ends = [run.trained for run in method.runs if run.trained is not None]
    if not ends:
        return []
    rights = [100 * end.accuracy for end in ends if end.accuracy is not None]
    return [
        method.label,
        str(len(ends)),
        _range([end.steps for end in ends], "d"),
        _range([end.epochs for end in ends], ".3g"),
        _mean([end.loss for end in ends], ".3f"),
        _mean(rights, ".1f") if rights else DASH,
    ]


def _mean(values: Sequence[float], form: str) -> str:
    """E.g. "94.0 [93.1, 95.2]": mean, least and most."""
    mean = format(statistics.fmean(values), form)
    return mean if len(values) == 1 else f"{mean} [{min(values):{form}}, {max(values):{form}}]"


def _range(values: Sequence[Any], form: str) -> str:
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least} to {most}"
