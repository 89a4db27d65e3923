"""How long a recipe takes here: two training steps and one answer of the real thing, timed."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ryarn.cost.sizes import Sizes
from ryarn.errors import UserError
from ryarn.plan.rows import Row
from ryarn.recipe import ModelConfig, Recipe
from ryarn.tasks.jsonl import JsonlConfig

ANSWER = 8
"""Tokens of the timed answer beyond its first."""


@dataclass(frozen=True)
class Times:
    """What the probe found.

    Attributes:
        step: Seconds of the second training step, of one batch; None where nothing is trained.
        tokens: Tokens of that batch, padding included.
        train: Seconds of the whole training; None as above.
        evaluate: Seconds of the evaluation, every answer as long as it may be; None where a server
            answers.
    """

    step: float | None
    tokens: int
    train: float | None
    evaluate: float | None


def at_hand(config: ModelConfig) -> bool:
    """Whether a model's weights lie on this machine."""
    from huggingface_hub import try_to_load_from_cache

    from ryarn.models import PACKAGED, SMOLLM2, TINY

    name = config.name
    local = name in (SMOLLM2, *PACKAGED) or name.startswith((TINY, "/", ".", "~"))
    if local or name.endswith(".gguf") or Path(name).is_dir():
        return True
    files = ("model.safetensors", "model.safetensors.index.json")
    found = [try_to_load_from_cache(name, file, revision=config.revision) for file in files]
    return any(isinstance(path, str) for path in found)


def probe(
    recipe: Recipe, sizes: Sizes | None, trained: Sequence[Row], asked: Sequence[Row], steps: int
) -> Times:
    """Train two steps on the longest rows and answer the longest prompts, in a folder thrown away.

    Other lengths are reckoned by their operations.

    Args:
        recipe: What is run; its model must be at hand.
        sizes: The model's; None reckons by tokens.
        trained: Training rows that fit; none where nothing is trained.
        asked: Evaluation rows that fit; none where a server answers.
        steps: Optimizer steps of the training.

    Raises:
        UserError: The rows were not read, or what `train` and `evaluate` refuse.
    """
    if any(row.example is None for row in (*trained, *asked)):
        raise UserError("--probe: the rows can't be read here, so there is nothing to time")
    size = recipe.train.batch_size
    longest = sorted(trained, key=lambda row: -row.length)[: 2 * size]
    first = max(asked, key=lambda row: row.prompt, default=None)
    step = train_seconds = evaluate_seconds = None
    tokens = 0
    with tempfile.TemporaryDirectory() as made, _silence():
        small = _small(recipe, Path(made), longest, [first] if first else longest[:1])
        if longest:
            step, tokens, read = _train(small, sizes)
            a_step = size * recipe.train.gradient_accumulation
            each = sum(_operations(sizes, row.length) for row in trained) / len(trained)
            train_seconds = step * steps * a_step * each / read
        if first is not None:
            evaluate_seconds = _evaluate(small, sizes, first, asked)
    return Times(step, tokens, train_seconds, evaluate_seconds)


def _operations(sizes: Sizes | None, length: int) -> float:
    return float(length) if sizes is None else sizes.operations(length)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What training and transformers say of their progress is not about the recipe's own run."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()
        try:
            yield
        finally:
            logging.set_verbosity(before)


def _small(recipe: Recipe, folder: Path, rows: Sequence[Row], asked: Sequence[Row]) -> Recipe:
    """The recipe with a few of its rows, in another folder."""
    train, test = folder / "train.jsonl", folder / "test.jsonl"
    _write(train, rows)
    _write(test, asked)
    return recipe.model_copy(
        update={
            "output": folder / "run",
            "train": recipe.train.model_copy(
                update={
                    "data": JsonlConfig(path=str(train), held_out=0),
                    "max_steps": 2,
                    "gradient_accumulation": 1,
                    "held_out_rows": 0,
                    "report_to": [],
                    "workers": 0,
                }
            ),
            "evaluate": recipe.evaluate.model_copy(
                update={"data": JsonlConfig(path=str(test), test=1)}
            ),
        }
    )


def _write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            assert row.example is not None
            completion = [{"role": "assistant", "content": row.example.completion}]
            line = {"prompt": list(row.example.prompt), "completion": completion}
            file.write(json.dumps(line) + "\n")


def _train(recipe: Recipe, sizes: Sizes | None) -> tuple[float, int, float]:
    """Seconds, tokens and operations of the second step."""
    from transformers import TrainerCallback

    from ryarn.train import train

    times: list[float] = []
    shapes: list[tuple[int, int]] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            def look(_: Any, given: Any, named: Any) -> None:
                shapes.append(tuple(named.get("input_ids", given[0] if given else None).shape))

            kwargs["model"].register_forward_pre_hook(look, with_kwargs=True)

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            times.append(time.perf_counter())

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            times.append(time.perf_counter())

    train(recipe, callbacks=[Clock()])
    rows, length = shapes[-1]
    return times[-1] - times[-2], rows * length, rows * _operations(sizes, length)


def _evaluate(recipe: Recipe, sizes: Sizes | None, first: Row, asked: Sequence[Row]) -> float:
    """Seconds of all answers, from reading one prompt and writing a few tokens."""
    import torch

    from ryarn.chat import prompt_ids
    from ryarn.loading import load_for_inference
    from ryarn.models import load_tokenizer

    tokenizer = load_tokenizer(recipe.model)
    model, _ = load_for_inference(recipe, tokenizer)
    assert first.example is not None
    ids = torch.tensor([prompt_ids(tokenizer, first.example.prompt)], device=model.device)

    def seconds(tokens: int) -> float:
        start = time.perf_counter()
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=tokenizer.pad_token_id,
        ).cpu()
        return time.perf_counter() - start

    seconds(1)
    read = seconds(1)
    token = max(0.0, seconds(1 + ANSWER) - read) / ANSWER
    reading = sum(_operations(sizes, row.prompt) for row in asked)
    passes = _batches(asked, recipe.evaluate.batch_tokens)
    return (
        read * reading / _operations(sizes, first.prompt)
        + token * passes * recipe.evaluate.max_new_tokens
    )


def _batches(rows: Sequence[Row], batch_tokens: int) -> int:
    """How many batches `ryarn.backends.hf` makes of them."""
    count = filled = longest = 0
    for prompt in sorted((row.prompt for row in rows), reverse=True):
        if not count or (filled + 1) * longest > batch_tokens:
            count, filled, longest = count + 1, 0, prompt
        filled += 1
    return count
