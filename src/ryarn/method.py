"""The methods as data: which YaRN factors, positions and curriculum (paper, section 3)."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ryarn.curriculum import Curriculum
from ryarn.errors import UserError
from ryarn.positions import (
    Contiguous,
    RandomChunks,
    Sampler,
    SentenceChunks,
    SkipWise,
    UniformSubset,
)

Draw = Literal["document", "batch"]
_CONTIGUOUS = Contiguous()


@dataclass(frozen=True)
class Row:
    """One row of the paper's tables: what the method changes, before any number is chosen.

    Attributes:
        trains: Whether LoRA adapters are trained.
        yarn_in_training: Whether training runs under YaRN with factor s.
        yarn_at_inference: Whether inference runs under YaRN with factor s'.
        sampler: Where the positions of a training row come from.
        fixed_span: Positions are drawn from the last span from the first step on (PoSE's target).
    """

    trains: bool
    yarn_in_training: bool
    yarn_at_inference: bool
    sampler: Sampler = _CONTIGUOUS
    fixed_span: bool = False


METHODS: dict[str, Row] = {
    "zero-shot": Row(False, False, False),
    "zero-shot+yarn": Row(False, False, True),
    "lora": Row(True, False, False),
    "trained-yarn": Row(True, True, True),
    "rpe": Row(True, False, True, UniformSubset()),
    # The paper leaves `lora` and `rpe` out for a model pretrained with YaRN but keeps PoSE
    # (appendix B.1), so PoSE trains under YaRN; PoSE's own paper also trains interpolated.
    "pose": Row(True, True, True, SkipWise(chunks=2), fixed_span=True),
    "randomized-yarn": Row(True, True, True, UniformSubset()),
    "chunked-yarn": Row(True, True, True, RandomChunks()),
    "sentence-yarn": Row(True, True, True, SentenceChunks()),
}
"""Name to row, in the order of the paper's tables; the last two are ours (docs/design/0005)."""


@dataclass(frozen=True)
class Method:
    """A method with its numbers.

    Attributes:
        name: Key of `METHODS`.
        train_factor: YaRN factor s in training, relative to the original window; None leaves the
            model's own RoPE as it is.
        eval_factor: YaRN factor s' at inference; None as above.
        sampler: Draws the positions of a training document.
        curriculum: Span by training progress; None for contiguous positions.
        draw: One draw a document, or one a batch.
        replace_scaling: YaRN may take the place of another scaling that the model came with.
    """

    name: str
    train_factor: float | None
    eval_factor: float | None
    sampler: Sampler
    curriculum: Curriculum | None
    draw: Draw = "document"
    replace_scaling: bool = False

    @property
    def trains(self) -> bool:
        """Whether there is anything to train."""
        return METHODS[self.name].trains

    @property
    def randomizes(self) -> bool:
        """Whether training positions are drawn at all."""
        return self.curriculum is not None

    def why_not(self, native_factor: float | None) -> str | None:
        """Why the method does not apply to a model, or None if it does.

        Args:
            native_factor: The YaRN factor that the model was pretrained with, None for plain RoPE.

        Returns:
            One sentence with the paper's reason (appendix B.1).
        """
        row = METHODS[self.name]
        if native_factor is not None and row.trains and not row.yarn_in_training:
            return (
                f"method {self.name!r} trains without YaRN, but this model was pretrained with "
                f"YaRN (factor {native_factor:g}), so it is no baseline (paper, appendix B.1): "
                "use trained-yarn or randomized-yarn"
            )
        return None


def make_method(
    name: str,
    *,
    factor: float = 4.0,
    eval_factor: float | None = None,
    spans: Sequence[int] | Curriculum | None = None,
    draw: Draw = "document",
    chunks: RandomChunks | SentenceChunks | None = None,
    replace_scaling: bool = False,
) -> Method:
    """One of the methods with its numbers; each takes the numbers it uses.

    Args:
        name: Key of `METHODS`.
        factor: YaRN factor s in training, at least 1.
        eval_factor: YaRN factor s' at inference, at least s; None means s.
        spans: L_1 <= ... <= L_T, or a curriculum; needed by the methods that draw positions.
            `pose` uses the last one alone, its fixed target.
        draw: One draw a document, or (the paper's letter) one a batch.
        chunks: How `chunked-yarn` or `sentence-yarn` places its chunks; None: as in `METHODS`.
        replace_scaling: YaRN may take the place of llama3, linear, dynamic or LongRoPE scaling.

    Raises:
        UserError: The name is unknown, a factor is out of range, spans are missing or decrease, or
            `chunks` is of another method, or one that draws by sentence is to draw for a batch.
    """
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(METHODS)}"
        raise UserError(f"method.name {name!r} is unknown: {hint}")
    if factor < 1:
        raise UserError(f"method.factor = {factor:g} is below 1: YaRN only extends a window")
    eval_factor = factor if eval_factor is None else eval_factor
    for key, value in (("factor", factor), ("eval_factor", eval_factor)):
        if not math.isfinite(value):
            raise UserError(f"method.{key} = {value}: give a finite number, at least 1")
    if eval_factor < factor:
        raise UserError(
            f"method.eval_factor = {eval_factor:g} is below method.factor = {factor:g}: "
            "s' must be at least s"
        )
    row = METHODS[name]
    _check_fits(name, draw, chunks)
    return Method(
        name=name,
        train_factor=factor if row.yarn_in_training else None,
        eval_factor=eval_factor if row.yarn_at_inference else None,
        sampler=chunks or row.sampler,
        curriculum=_curriculum(name, spans),
        draw=draw,
        replace_scaling=replace_scaling,
    )


def _curriculum(name: str, spans: Sequence[int] | Curriculum | None) -> Curriculum | None:
    """What the method's positions are drawn from; None where nothing is drawn."""
    row = METHODS[name]
    if isinstance(row.sampler, Contiguous):
        return None
    if spans is None:
        raise UserError(
            f"method.spans is missing: {name!r} draws positions, so give the spans "
            "L_1 <= ... <= L_T, e.g. [8192, 16384]"
        )
    curriculum = spans if isinstance(spans, Curriculum) else Curriculum(tuple(spans))
    return Curriculum(curriculum.spans[-1:]) if row.fixed_span else curriculum


def _check_fits(name: str, draw: Draw, chunks: RandomChunks | SentenceChunks | None) -> None:
    """Refuse what this method's sampler can't do."""
    sampler = METHODS[name].sampler
    if chunks is not None and type(chunks) is not type(sampler):
        kind = type(chunks).__name__
        of = "chunked-yarn" if isinstance(chunks, RandomChunks) else "sentence-yarn"
        raise UserError(
            f"chunks: {kind} is for {of}, not for {name!r}: use that method, or drop it"
        )
    if draw == "batch" and isinstance(sampler, SentenceChunks):
        raise UserError(
            f"method.draw = 'batch': {name!r} draws by each document's own sentences: use document"
        )
