"""How much work a cell is, in rows, steps and tokens, and about how long that takes here."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ryarn.compare.cells import TIMES, is_done, steps
from ryarn.compare.grid import Cell
from ryarn.config import dump
from ryarn.errors import UserError
from ryarn.paper.expected import expected_rows, hub_source
from ryarn.recipe import Recipe, recipe_method
from ryarn.runs import read_json
from ryarn.tasks.babilong_context import nominal
from ryarn.tasks.jsonl import JsonlConfig
from ryarn.tasks.longbench_v2 import LongBenchV2Config
from ryarn.tasks.mrcr import MrcrConfig
from ryarn.tasks.overlap import check_apart
from ryarn.tasks.registry import TaskConfig, make_task

COUNTED = 1_000_000
"""Tokens of data that are made to be counted; of more, rows are reckoned from the recipe."""
BACKWARD = 3
"""A training token costs as much as so many that are only read."""
SHARE = 0.25
"""Of the speed of a large matrix product, what a small model with adapters comes to."""
STEP_CALLS, PASS_CALLS = 10_000, 1_500
"""Time of a layer in a training step of no size, and in a forward pass, in calls of the smallest
operation: what Python takes. Found with two and four layers; good for a factor of two or three."""
START = 1.5
"""Seconds to load a model and set up its training."""


@dataclass(frozen=True)
class Work:
    """A cell's work; 0 of everything that it does not do.

    Attributes:
        rows: Training rows.
        steps: Optimizer steps.
        batches: Forward and backward passes.
        train_tokens: Rows seen times `train.max_length`.
        answers: Evaluation rows.
        read_tokens: Length summed over evaluation rows.
        squares: Length squared, summed over evaluation rows, for attention.
        passes: Forward passes of the evaluation: a prefill and some tokens for each batch.
    """

    rows: int
    steps: int
    batches: int
    train_tokens: int
    answers: int
    read_tokens: int
    squares: int
    passes: int

    @property
    def cost(self) -> int:
        """Something that grows with the time, to order cells by."""
        return BACKWARD * self.train_tokens + self.read_tokens


@dataclass
class Survey:
    """Looks at the data and models of cells before anything runs, each of them once.

    Attributes:
        offline: Ask no hub for what can be told without it: the sizes of the paper's models, and
            how many rows published data has.
        spared: Run folders of cells that take over another's adapter, and so train on nothing.
    """

    offline: bool = False
    spared: set[Path] = field(default_factory=set)
    _tokenizers: dict[str, Any] = field(default_factory=dict)
    _skeletons: dict[str, Any] = field(default_factory=dict)
    _bins: dict[tuple[str, str, str], Counter[int]] = field(default_factory=dict)
    _apart: set[tuple[str, str, str]] = field(default_factory=set)

    def check(self, cells: Iterable[Cell]) -> None:
        """See that models load, methods apply to them and rows are there; no weights are read.

        Raises:
            UserError: Something is not; the sentence names the first cell that needs it.
        """
        from ryarn.loading import check_method

        for cell in cells:
            recipe = cell.recipe
            try:
                skeleton = self.skeleton(recipe)
                if skeleton is not None:
                    check_method(skeleton, recipe_method(recipe.method))
                self.work(recipe)
                if cell.trains:
                    self._check_apart(recipe)
            except UserError as error:
                raise UserError(f"{cell.name}: {error}") from error

    def _check_apart(self, recipe: Recipe) -> None:
        train, rows = recipe.train.data, recipe.evaluate
        if self.offline and (hub_source(train) or hub_source(rows.data)):
            return
        key = (dump(train), dump(rows.data), rows.split)
        if key not in self._apart:
            check_apart(train, rows.data, rows.split)
            self._apart.add(key)

    def skeleton(self, recipe: Recipe) -> Any:
        """The cell's model without its weights, see `ryarn.models.load_skeleton`."""
        from ryarn.cost.architectures import known_skeleton
        from ryarn.models import load_skeleton

        key = dump(recipe.model)
        if key not in self._skeletons:
            known = known_skeleton(recipe.model.name) if self.offline else None
            self._skeletons[key] = known or load_skeleton(recipe.model)
        return self._skeletons[key]

    def work(self, recipe: Recipe) -> Work:
        """What a recipe has to do.

        Raises:
            UserError: The data can't be made.
        """
        config, answers = recipe.train, recipe.evaluate
        rows = number = seen = 0
        trained, bins = self.rows(recipe)
        if trained:
            rows = trained.total()
            number = steps(config, rows)
            a_step = config.batch_size * config.gradient_accumulation
            seen = number * a_step if config.max_steps else round(rows * config.epochs)
        return Work(
            rows=rows,
            steps=number,
            batches=number * config.gradient_accumulation,
            train_tokens=seen * config.max_length,
            answers=bins.total(),
            read_tokens=sum(length * count for length, count in bins.items()),
            squares=sum(length**2 * count for length, count in bins.items()),
            passes=sum(
                -(-count // max(1, answers.batch_tokens // max(1, length)))
                for length, count in bins.items()
            )
            * (1 + answers.max_new_tokens),
        )

    def rows(self, recipe: Recipe) -> tuple[Counter[int], Counter[int]]:
        """Length to rows: those of the training (none where the cell has none), and the others.

        Raises:
            UserError: The data can't be made.
        """
        answers = recipe.evaluate
        trains = recipe_method(recipe.method).trains and recipe.output not in self.spared
        trained = self._count(recipe, recipe.train.data, "train") if trains else Counter[int]()
        return trained, self._count(recipe, answers.data, answers.split)

    def _count(self, recipe: Recipe, data: TaskConfig, split: str) -> Counter[int]:
        key = (dump(recipe.model), dump(data), split)
        if key not in self._bins and self.offline and hub_source(data):
            self._bins[key] = expected_rows(data, split, recipe.model.name)
        if key not in self._bins:
            self._bins[key] = _bins(data, split, self._tokenizer(recipe))
        return self._bins[key]

    def _tokenizer(self, recipe: Recipe) -> Any:
        from ryarn.models import load_tokenizer

        key = dump(recipe.model)
        if key not in self._tokenizers:
            self._tokenizers[key] = load_tokenizer(recipe.model)
        return self._tokenizers[key]


def _bins(data: TaskConfig, split: str, tokenizer: Any) -> Counter[int]:
    """Length to rows of that length: counted, or for much data what the recipe asks for."""
    examples = make_task(data).examples(tokenizer, split)
    if not isinstance(data, JsonlConfig | LongBenchV2Config):
        if isinstance(data, MrcrConfig):
            asked = Counter(data.asked)
        else:
            rows = data.rows * len(getattr(data, "questions", [None]))
            asked = Counter({nominal(length): rows for length in data.lengths})
        if sum(length * count for length, count in asked.items()) > COUNTED:
            # The first row shows that they can be made at all.
            next(examples)
            return asked
    return Counter(example.bin for example in examples)


@dataclass(frozen=True)
class Speed:
    """Seconds for units of work.

    Attributes:
        train_token: Of training.
        read_token: Of evaluation.
        batch: For each forward and backward pass beside its tokens.
        forward: For each forward pass of the evaluation beside its tokens.
        start: For each cell beside all that.
        source: Where the numbers come from, a clause.
    """

    train_token: float
    read_token: float
    batch: float
    forward: float
    start: float
    source: str

    def seconds(self, work: Work) -> float:
        """For one cell in one worker."""
        training = self.train_token * work.train_tokens + self.batch * work.batches
        reading = self.read_token * work.read_tokens + self.forward * work.passes
        return self.start + training + reading


def measured(done: Sequence[Cell], survey: Survey) -> Speed | None:
    """Speed of the cells that are finished here; None if there are none to tell."""
    seconds, tokens = Counter[str](), Counter[str]()
    told = 0
    for cell in done:
        path = cell.recipe.output / TIMES
        if not path.is_file():
            continue
        times, work = read_json(path), survey.work(cell.recipe)
        told += 1
        for stage, count in (("train", work.train_tokens), ("evaluate", work.read_tokens)):
            if stage in times and count:
                seconds[stage] += times[stage]
                tokens[stage] += count
    rates = {stage: seconds[stage] / tokens[stage] for stage in tokens}
    if not rates:
        return None
    train = rates.get("train", BACKWARD * rates.get("evaluate", 0))
    read = rates.get("evaluate", train / BACKWARD)
    return Speed(train, read, 0, 0, 0, f"from {told} finished cells of this grid")


def reckoned(cells: Sequence[Cell], survey: Survey, threads: int) -> Speed | None:
    """Speed from the model's size and a short measurement of this machine; None without a size."""
    skeleton = next((s for s in map(survey.skeleton, (c.recipe for c in cells)) if s), None)
    if skeleton is None:
        return None
    config = skeleton.config.get_text_config()
    embedding = skeleton.get_input_embeddings().weight.numel()
    tied = bool(getattr(config, "tie_word_embeddings", False))
    parameters = sum(p.numel() for p in skeleton.parameters()) - (0 if tied else embedding)
    works = [survey.work(cell.recipe) for cell in cells]
    squares, read = sum(w.squares for w in works), sum(w.read_tokens for w in works)
    # Causal attention: scores and values, two operations each, over half of the length.
    attention = 2 * config.num_hidden_layers * config.hidden_size * squares / max(1, read)
    flops, call = _measure(config.hidden_size, threads)
    overhead = config.num_hidden_layers * call
    return Speed(
        train_token=2 * BACKWARD * parameters / (SHARE * flops),
        read_token=(2 * parameters + attention) / (SHARE * flops),
        batch=STEP_CALLS * overhead,
        forward=PASS_CALLS * overhead,
        start=START,
        source=(
            f"roughly, from {parameters / 1e6:.1f}M parameters and {flops / 1e9:.0f} GFLOP/s "
            "measured on this machine"
        ),
    )


def _measure(hidden: int, threads: int) -> tuple[float, float]:
    """Floating point operations a second in a layer's matrix product, and seconds of a tiny call.

    Takes about half a second.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        one, two = (torch.ones(shape, device=device) for shape in ((512, hidden), (hidden,) * 2))
        small = torch.ones(8, device=device)
        product = _seconds(lambda: (one @ two).sum().item())
        return 2 * 512 * hidden**2 / product, _seconds(lambda: small + small)
    finally:
        torch.set_num_threads(before)


def _seconds(work: Any) -> float:
    """Median time of a call, over a quarter of a second."""
    taken: list[float] = []
    end = time.perf_counter() + 0.25
    while not taken or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def makespan(seconds: Iterable[float], processes: int) -> float:
    """Time until all is done when each free worker takes the longest cell that is left."""
    free = [0.0] * processes
    for taken in sorted(seconds, reverse=True):
        free.sort()
        free[0] += taken
    return max(free)


def done_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Those with nothing left to do."""
    return [cell for cell in cells if is_done(cell)]


def seconds_each(cells: Sequence[Cell], survey: Survey, speed: Speed) -> Mapping[str, float]:
    """Cell name to its expected time."""
    return {cell.name: speed.seconds(survey.work(cell.recipe)) for cell in cells}
