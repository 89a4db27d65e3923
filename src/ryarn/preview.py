"""What a method and its curriculum do to the positions of one row, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ryarn.curriculum import Curriculum
from ryarn.draws import generator
from ryarn.errors import UserError
from ryarn.method import Method
from ryarn.positions import SentenceChunks

SENTENCE = 16
"""Tokens of a sentence, for a preview of what is drawn by sentence: a row has no text here."""


@dataclass(frozen=True)
class Preview:
    """One row's positions under one span of the curriculum.

    Attributes:
        epoch: t of L_t, from 1; the epoch itself where there are as many epochs as spans.
        span: L_t; the row's own length where nothing is drawn.
        positions: Position of each token, int64, shape [length].
        sentence: Tokens of the sentences that were assumed; None where sentences don't matter.
    """

    epoch: int
    span: int
    positions: NDArray[np.int64]
    sentence: int | None = None


def preview(method: Method, length: int, seed: int = 0) -> list[Preview]:
    """Draw one row's positions once for each span of the curriculum.

    Args:
        method: Any of them; one that draws nothing has contiguous positions.
        length: Tokens of the row.
        seed: The run's seed.

    Raises:
        UserError: The row is longer than the first span.
    """
    spans = (method.curriculum or Curriculum((length,))).spans
    if length > spans[0]:
        raise UserError(
            f"--length {length} is longer than the first span {spans[0]}: such a row keeps "
            "contiguous positions; give a shorter one"
        )
    by_sentence = isinstance(method.sampler, SentenceChunks)
    borders = np.arange(SENTENCE, length, SENTENCE) if by_sentence else None
    return [
        Preview(
            epoch,
            span,
            method.sampler(length, span, generator(seed, epoch, 0), borders),
            SENTENCE if by_sentence else None,
        )
        for epoch, span in enumerate(spans, start=1)
    ]


def to_text(rows: Sequence[Preview], width: int = 64) -> str:
    """A line a span: the first positions in numbers, and all of them as marks over the last span.

    The mark of a column grows with the share of its positions that a token took: `. : | #`.
    """
    last = max(row.span for row in rows)
    lines = [f"{'t':>5} {'span':>8}  0{' ' * (width - 2)}{last - 1}"]
    for row in rows:
        counts, _ = np.histogram(row.positions, bins=width, range=(0, last))
        share = counts / (last / width)
        marks = "".join(" .:|#"[int(np.ceil(4 * min(1.0, part)))] for part in share)
        lines.append(f"{row.epoch:>5} {row.span:>8}  {marks}")
    lines.append("")
    for row in rows:
        head = " ".join(str(position) for position in row.positions[:8])
        rest = len(row.positions) - 8
        tail = f" ... {row.positions[-1]} ({len(row.positions)} tokens)" if rest > 0 else ""
        lines.append(f"{row.epoch:>5} {row.span:>8}  {head}{tail}")
    if rows[0].sentence is not None:
        lines += ["", f"no text is read here: sentences of {rows[0].sentence} tokens are assumed"]
    return "\n".join(lines)
