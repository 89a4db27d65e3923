"""What drawing and remapping cost: steps with and without them, turn about, in one TRL training."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, process_time
from typing import Any

import numpy as np
from transformers import TrainerCallback

from benchmarks.setting import FACTOR, Shape, make_model, make_rows, make_trainer
from ryarn import UniformSubset, extend, make_method
from ryarn.draws import generator, row_key
from ryarn.rope.remap import Remapper
from ryarn.sft import LabelledLogitsTrainer

WARM_UP = 2
"""Pairs of steps that are run and not counted."""


@dataclass(frozen=True)
class Interval:
    """A median, and the interval of order statistics that covers it with at least 95%.

    Attributes:
        median: Of the values.
        low: Lower end; the smallest value where there are too few for 95%.
        high: Upper end likewise.
        n: Values.
    """

    median: float
    low: float
    high: float
    n: int


def interval(values: Sequence[float]) -> Interval:
    """The median of some values with its distribution-free interval (sign test)."""
    ordered, n = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < n // 2 and tail + math.comb(n, rank) / 2**n <= 0.025:
        tail += math.comb(n, rank) / 2**n
        rank += 1
    low = max(rank - 1, 0)
    return Interval(float(np.median(ordered)), ordered[low], ordered[n - 1 - low], n)


@dataclass(frozen=True)
class Cost:
    """What was measured at one length.

    Attributes:
        length: Tokens of a row.
        shape: The model.
        seconds: Median step without drawing.
        ratio: Step with drawing over the same trainer's step without, pair by pair, wall clock.
        busy: The same in processor time, which other programs on the machine disturb less.
        share: Seconds inside the hooks over the step, for steps with drawing. The step counts with
            the smaller of wall clock and processor time: waiting for other programs would flatter.
        hooks: Median milliseconds inside the hooks.
    """

    length: int
    shape: Shape
    seconds: float
    ratio: Interval
    busy: Interval
    share: Interval
    hooks: float


class _Timed(Remapper):
    """The hooks, with a clock around each."""

    spent = 0.0

    def _before_decoder(self, module: Any, args: Any, kwargs: Any) -> None:
        began = perf_counter()
        super()._before_decoder(module, args, kwargs)
        self.spent += perf_counter() - began

    def _before_rotary(self, module: Any, args: Any, kwargs: Any) -> Any:
        began = perf_counter()
        try:
            return super()._before_rotary(module, args, kwargs)
        finally:
            self.spent += perf_counter() - began


class _TurnAbout(TrainerCallback):
    """Puts the hooks on for every second step, A B B A, and takes the time of each step."""

    def __init__(self, extension: Any, method: Any) -> None:
        self.rope_map, self.method = extension.rope_map, method
        self.hooks: _Timed | None = None
        self.began = self.began_busy = 0.0
        self.steps: dict[bool, list[float]] = {False: [], True: []}
        self.busy: dict[bool, list[float]] = {False: [], True: []}
        self.spent: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        drawing = state.global_step % 4 in (1, 2)
        self.hooks = None
        if drawing:
            self.hooks = _Timed(self.rope_map, self.method, 0)
            self.hooks.set_progress(state.global_step, state.max_steps)
        self.began, self.began_busy = perf_counter(), process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        drawing = self.hooks is not None
        self.steps[drawing].append(perf_counter() - self.began)
        self.busy[drawing].append(process_time() - self.began_busy)
        if self.hooks is not None:
            assert self.hooks.stats.documents == 1
            assert self.hooks.stats.mean_stretch > 1
            self.spent.append(self.hooks.spent)
            self.hooks.remove()


def measure(shape: Shape, length: int, pairs: int) -> Cost:
    """Time steps of one TRL LoRA training under YaRN, with drawn positions and without.

    Without is `trained-yarn` with not one hook on the model; with is `randomized-yarn`. Both scores
    labelled tokens alone: TRL's own trainer has the longer step on a CPU, so the smaller share.

    Args:
        shape: The model.
        length: Tokens of a row; a step has one.
        pairs: Pairs of steps that count.
    """
    model = make_model(shape)
    extension = extend(model, make_method("trained-yarn", factor=FACTOR))
    extension._remapper.remove()
    method = make_method("randomized-yarn", factor=FACTOR, spans=[4 * length])
    clock = _TurnAbout(extension, method)
    rows = make_rows(2 * (pairs + WARM_UP), length, shape.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(partial(LabelledLogitsTrainer, rows=rows), model, rows, folder)
        trainer.add_callback(clock)
        trainer.train()
    without, drawn, busy_without, busy_drawn, spent = (
        np.array(values[WARM_UP:])
        for values in (*clock.steps.values(), *clock.busy.values(), clock.spent)
    )
    return Cost(
        length=length,
        shape=shape,
        seconds=float(np.median(without)),
        ratio=interval((drawn / without).tolist()),
        busy=interval((busy_drawn / busy_without).tolist()),
        share=interval((spent / np.minimum(drawn, busy_drawn)).tolist()),
        hooks=1000 * float(np.median(spent)),
    )


def draw_milliseconds(length: int, span: int, repeats: int) -> tuple[Interval, Interval]:
    """The sampler alone, and a whole draw: hash of the tokens, generator, sampler."""
    tokens = np.random.default_rng(0).integers(0, 50_000, length)
    sampler, rng = UniformSubset(), np.random.default_rng(0)
    alone, whole = [], []
    for step in range(repeats):
        began = perf_counter()
        sampler(length, span, rng)
        between = perf_counter()
        sampler(length, span, generator(0, step, row_key(tokens)))
        alone.append(1000 * (between - began))
        whole.append(1000 * (perf_counter() - between))
    return interval(alone), interval(whole)
