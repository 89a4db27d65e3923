"""The length curriculum: from training progress to the span L_t (paper, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ryarn.errors import UserError

Shape = Literal["linear", "geometric", "constant"]


@dataclass(frozen=True)
class Curriculum:
    """Spans L_1 <= ... <= L_T, each in force for an equal share of the training.

    Attributes:
        spans: L_1..L_T in tokens, T at least 1; with T epochs, one an epoch.

    Raises:
        UserError: `spans` is empty, holds a number below 1, or decreases.
    """

    spans: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.spans:
            raise UserError("spans is empty: give at least one span, e.g. [8192]")
        for span in self.spans:
            if span < 1:
                raise UserError(f"spans holds {span}: a span is at least 1 token")
        for before, after in zip(self.spans, self.spans[1:], strict=False):
            if after < before:
                raise UserError(
                    f"spans decreases from {before} to {after}: a curriculum only grows, "
                    "so sort the spans"
                )

    def span(self, step: int, total_steps: int) -> int:
        """The span in force at an optimizer step.

        A pure function of progress, in whole numbers: it holds for `max_steps`, fractional epochs
        and gradient accumulation, and no worker or resume can have a stale one. With T epochs of
        equal length it changes exactly where an epoch begins.

        Args:
            step: Optimizer steps done so far, from 0; at or past the end, the last span holds.
            total_steps: Optimizer steps of the whole training.

        Raises:
            UserError: `step` is negative or `total_steps` is below 1.
        """
        if step < 0 or total_steps < 1:
            raise UserError(
                f"step = {step} of total_steps = {total_steps}: expected step >= 0 and "
                "total_steps >= 1"
            )
        index = step * len(self.spans) // total_steps
        return self.spans[min(index, len(self.spans) - 1)]

    @classmethod
    def ramp(cls, start: int, end: int, epochs: int, shape: Shape = "linear") -> Curriculum:
        """Spans by a rule: one an epoch, the first is `start` and the last is `end`.

        Args:
            start: L_1 in tokens.
            end: L_T in tokens, at least `start`.
            epochs: T. One epoch can only be `constant`, or have `start` equal to `end`.
            shape: "linear" (equal steps), "geometric" (equal ratios) or "constant" (`end` from the
                first epoch on, which is no curriculum: the paper's ablation, table 4). Between the
                ends, spans are rounded to the nearest token.

        Raises:
            UserError: A number is out of range or the shape is unknown.
        """
        if start < 1 or epochs < 1:
            raise UserError(f"start = {start}, epochs = {epochs}: both must be at least 1")
        if end < start:
            raise UserError(f"end = {end} is below start = {start}: a curriculum only grows")
        if shape not in ("linear", "geometric", "constant"):
            raise UserError(f"shape = {shape!r}: expected linear, geometric or constant")
        if shape == "constant" or start == end:
            return cls((end,) * epochs)
        if epochs == 1:
            raise UserError(
                f"epochs = 1 has no room to grow from start = {start} to end = {end}: "
                "use more epochs or shape constant"
            )
        last = epochs - 1
        if shape == "linear":
            # floor(x + 1/2) in whole numbers: exact, however long the spans
            between = [start + (2 * (end - start) * i + last) // (2 * last) for i in range(1, last)]
        else:
            between = [round(start * (end / start) ** (i / last)) for i in range(1, last)]
        return cls((start, *between, end))
