"""How far a model and a method reach, and which s, L_T and curriculum a length asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ryarn.method import METHODS, Method
from ryarn.positions import Contiguous
from ryarn.recipe import Recipe
from ryarn.rope import RopeMap

STEP = 256
"""L_1 is a multiple of so many tokens."""
SPANS = 5
"""Spans where the training has fewer than three epochs: the paper trains five (appendix B.3)."""


@dataclass(frozen=True)
class Reach:
    """Lengths in tokens.

    Attributes:
        original: L_pre, before any scaling.
        own: What the model's config claims as it came.
        trained: What RoPE covers in training: s times the original window, or the model's own.
        answered: The same at inference, with s'.
        native: YaRN factor that the model came with; None without YaRN.
    """

    original: int
    own: int
    trained: int
    answered: int
    native: float | None

    @classmethod
    def of(cls, rope_map: RopeMap, method: Method) -> Reach:
        """Of a method on a model; the model may be one without weights."""
        original, own = rope_map.original_length, int(rope_map.config.max_position_embeddings)

        def covered(factor: float | None) -> int:
            return own if factor is None else math.ceil(original * factor)

        return cls(
            original=original,
            own=own,
            trained=covered(method.train_factor),
            answered=covered(method.eval_factor),
            native=rope_map.native_factor,
        )


@dataclass(frozen=True)
class Advice:
    """What to set for a length.

    Attributes:
        target: The wanted length in tokens, prompt and answer.
        factor: s, and s' with it.
        start: L_1; None where no positions need be drawn.
        end: L_T.
        spans: T.
        reasons: Why, a sentence each.
    """

    target: int
    factor: int
    start: int | None
    end: int
    spans: int
    reasons: tuple[str, ...]

    @property
    def overrides(self) -> str:
        """The same as settings behind a recipe; s' is that of s."""
        found = f"method.factor={self.factor} method.eval_factor=null"
        if self.start is not None:
            rule = f"{{start: {self.start}, end: {self.end}, epochs: {self.spans}}}"
            found += f" 'method.spans={rule}'"
        return found


def advise(target: int, reach: Reach, recipe: Recipe, longest: int) -> Advice:
    """Which s, L_T and curriculum a length asks for (paper, sections 2.1 and 2.2, appendix B).

    Args:
        target: The wanted length in tokens.
        reach: The model's.
        recipe: Says the method, and how long it is trained.
        longest: Tokens of the longest training row that fits; 0 where nothing is trained.
    """
    least = math.ceil(reach.native or 1)
    factor = max(math.ceil(target / reach.original), least)
    reasons = [
        f"s = {factor}: the smallest whole factor whose s x L_pre = {factor * reach.original:,} "
        f"holds {target:,} tokens (section 2.1); s' = s reaches as far at inference (appendix B)"
    ]
    if factor == least and target <= least * reach.original:
        own = f"its own YaRN of factor {least}" if reach.native else "its own window"
        reasons = [f"s = {factor}: the model reaches {target:,} tokens by {own} already"]
    if isinstance(METHODS[recipe.method.name].sampler, Contiguous) or not longest:
        return Advice(target, factor, None, target, 0, tuple(reasons))
    start, end = (STEP * math.ceil(length / STEP) for length in (longest, target))
    end = min(end, factor * reach.original)
    if start >= end:
        reasons.append(
            f"spans: rows of {longest:,} tokens are as long as what is wanted, so there is no "
            "longer position to draw: trained-yarn is the same"
        )
        return Advice(target, factor, None, target, 0, tuple(reasons))
    epochs = round(recipe.train.epochs) if recipe.train.max_steps is None else 0
    spans = epochs if epochs >= 3 else SPANS
    reasons += [
        f"L_T = {end:,}: training sees the positions that the length asks for, and none beyond "
        "s x L_pre (section 2.2)",
        f"L_1 = {start:,}: the longest row fits, so that none keeps contiguous positions; from "
        f"there {spans} spans in equal steps (section 2.2; without the growth the paper loses 6.2 "
        "points, section 4)",
        "s, s' and L_T are hyper-parameters in the paper (appendix B): choose among neighbours "
        "on held-out rows with ryarn tune",
    ]
    return Advice(target, factor, start, end, spans, tuple(reasons))
