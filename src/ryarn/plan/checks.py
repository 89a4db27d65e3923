"""What can't work in a recipe, and what somebody should know of it before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ryarn.cost.memory import GIB, pair_activations
from ryarn.cost.sizes import Sizes
from ryarn.doctor.diagnosis import Finding
from ryarn.method import Method
from ryarn.plan.needs import Need, room_for
from ryarn.plan.reach import Advice, Reach
from ryarn.plan.rows import Row, Rows
from ryarn.recipe import Recipe

MIB = 2**20
SHARE = 0.05
"""Of the activations: a mask that takes more is worth a sentence."""


@dataclass(frozen=True)
class Subject:
    """What is checked.

    Attributes:
        recipe: As given.
        method: The recipe's.
        reach: How far model and method reach.
        trained: Training rows; none where nothing is trained.
        asked: Evaluation rows.
        window: Tokens that evaluation allows a row; None where a server says.
        advice: For the wanted length.
        wanted: Whether it was asked for; else it is that of the longest evaluation row.
    """

    recipe: Recipe
    method: Method
    reach: Reach
    trained: Rows
    asked: Rows
    window: int | None
    advice: Advice
    wanted: bool

    @property
    def fitting(self) -> tuple[Row, ...]:
        """Training rows that fit `train.max_length`."""
        return self.trained.fitting(self.recipe.train.max_length)

    @property
    def answered(self) -> tuple[Row, ...]:
        """Evaluation rows that fit the window with the longest answer."""
        return self.asked.fitting(self.window, self.recipe.evaluate.max_new_tokens)


def check(subject: Subject) -> list[Finding]:
    """Everything about rows and lengths, failures first."""
    found = [*_training_rows(subject), *_spans(subject), *_evaluation_rows(subject)]
    found += _target(subject)
    return sorted(found, key=lambda finding: finding.level != "fail")


def _training_rows(subject: Subject) -> Iterator[Finding]:
    limit, rows = subject.recipe.train.max_length, subject.trained.rows
    if not rows:
        return
    fitting = subject.fitting
    longest = max(row.length for row in rows)
    if not fitting:
        shortest = min(row.length for row in rows)
        yield Finding(
            "fail",
            f"train.max_length = {limit:,}: none of {len(rows):,} training rows fits, the shortest "
            f"has {shortest:,} tokens",
            f"set train.max_length={longest} or make shorter rows",
        )
    elif len(fitting) < len(rows):
        yield Finding(
            "warning",
            f"{len(rows) - len(fitting):,} of {len(rows):,} training rows are longer than "
            f"train.max_length = {limit:,} and are dropped; the longest has {longest:,} tokens",
            f"train.max_length={longest} keeps them",
        )
    beyond = sum(row.length > subject.reach.trained for row in fitting)
    if beyond:
        yield Finding(
            "fail" if 2 * beyond > len(fitting) else "warning",
            f"{beyond:,} of {len(fitting):,} training rows are longer than the "
            f"{subject.reach.trained:,} tokens that RoPE covers in training",
            "raise method.factor" if subject.method.train_factor else "train shorter rows",
        )


def _spans(subject: Subject) -> Iterator[Finding]:
    curriculum, rows = subject.method.curriculum, subject.fitting
    if curriculum is None or not rows:
        return
    first, last = curriculum.spans[0], curriculum.spans[-1]
    longest = max(row.length for row in rows)
    over = sum(row.length > first for row in rows)
    if 2 * over > len(rows):
        yield Finding(
            "fail",
            f"method.spans starts at {first:,}, but {over:,} of {len(rows):,} rows are longer and "
            "would keep contiguous positions: ryarn train refuses that",
            f"begin the spans at {longest} or above",
        )
    elif longest > last:
        never = sum(row.length > last for row in rows)
        yield Finding(
            "warning",
            f"{never:,} of {len(rows):,} rows are longer than the last span, {last:,}: their "
            "positions are never drawn",
            f"end the spans above {longest}",
        )
    elif over:
        yield Finding("note", f"{over:,} of {len(rows):,} rows are longer than the first span")
    factor, reach = subject.method.train_factor, subject.reach.trained
    if factor is not None and last > reach:
        yield Finding(
            "fail",
            f"method.spans ends at {last:,}, beyond the {reach:,} positions that s = {factor:g} "
            f"times the window of {subject.reach.original:,} covers",
            f"set method.factor={-(-last // subject.reach.original)} or end the spans at {reach}",
        )
    elif factor is None and last > reach:
        yield Finding(
            "note",
            f"positions up to {last:,} are trained without YaRN, beyond the window of {reach:,}: "
            f"that is what {subject.method.name} does",
        )


def _more_room(subject: Subject, longest: int) -> str:
    """What makes room for an evaluation row and its answer of so many tokens."""
    window = subject.recipe.evaluate.window
    if window is not None and window < longest <= subject.reach.answered:
        return f"set evaluate.window={longest}"
    if subject.method.eval_factor:
        return f"set method.eval_factor={-(-longest // subject.reach.original)}"
    return "shorten them"


def _evaluation_rows(subject: Subject) -> Iterator[Finding]:
    rows, window = subject.asked.rows, subject.window
    if not rows:
        yield Finding("fail", "evaluate.data has no rows", "check its path and split")
    if window is None or not rows:
        return
    out = len(rows) - len(subject.answered)
    room = subject.recipe.evaluate.max_new_tokens
    longest = max(row.prompt for row in rows) + room
    if out:
        yield Finding(
            "warning" if subject.answered else "fail",
            f"{out:,} of {len(rows):,} evaluation rows don't fit into {window:,} tokens with an "
            f"answer of {room:,} and are skipped; the longest takes {longest:,}",
            _more_room(subject, longest),
        )
    covered, factor = subject.reach.answered, subject.method.eval_factor
    over = sum(row.prompt + room > covered for row in subject.answered)
    if over:
        # The paper evaluates what has no YaRN beyond its window, too.
        yield Finding(
            "note" if factor is None else "warning",
            f"{over:,} evaluation rows are answered beyond the {covered:,} tokens that RoPE covers "
            f"{'without YaRN' if factor is None else f'with factor {factor:g}'}",
        )


def _target(subject: Subject) -> Iterator[Finding]:
    target, reach = subject.advice.target, subject.reach.answered
    # What evaluation asks for by itself is checked row by row.
    if not subject.wanted or target <= reach or subject.method.eval_factor is None:
        return
    yield Finding(
        "fail",
        f"a length of {target:,} is beyond the {reach:,} tokens that s' = "
        f"{subject.method.eval_factor:g} times the window of {subject.reach.original:,} covers",
        f"set method.eval_factor={-(-target // subject.reach.original)}, or train for it as "
        "recommended",
    )


def check_memory(
    sizes: Sizes, recipe: Recipe, needed: Need, limit: int | None
) -> Iterator[Finding]:
    """Whether it fits, and what a mask costs.

    Args:
        sizes: The model's.
        recipe: What is run.
        needed: On the accelerator.
        limit: Bytes of it; None is not asked about.
    """
    peak = needed.peak(recipe)
    if limit is not None and peak > limit:
        yield Finding(
            "fail",
            f"{peak / GIB:.3g} GiB are needed on the accelerator, {limit / GIB:.3g} GiB are there",
            room_for(recipe, needed, limit),
        )
    if needed.batch is None or needed.training is None or not needed.batch.padded:
        return
    mask = pair_activations(sizes, recipe, needed.batch)
    if mask * sizes.layers > SHARE * needed.training.kept:
        yield Finding(
            "note",
            f"rows of a batch differ in length, so that each layer keeps a mask: {mask / MIB:,.0f} "
            "MiB",
            "train.batch_size=1 with more train.gradient_accumulation needs none",
        )
