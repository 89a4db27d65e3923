"""The `ryarn plan` stage: a recipe's rows, reach, steps and memory; weights only for the probe."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ryarn.backends.config import HfConfig
from ryarn.compare.cells import steps
from ryarn.cost.architectures import known_skeleton
from ryarn.cost.hours import H100, gpu_hours
from ryarn.cost.resources import LARGE
from ryarn.cost.sizes import Sizes
from ryarn.doctor.diagnosis import Finding
from ryarn.errors import UserError
from ryarn.method import Method
from ryarn.plan.checks import Subject, check, check_memory
from ryarn.plan.needs import Need, devices, need, parse_memory
from ryarn.plan.probe import Times, at_hand, probe
from ryarn.plan.reach import Reach, advise
from ryarn.plan.rows import Row, Rows, read_rows
from ryarn.recipe import ModelConfig, Recipe, load_recipe, recipe_method
from ryarn.tasks.overlap import check_apart


@dataclass(frozen=True)
class Plan:
    """What a recipe will do.

    Attributes:
        subject: Rows, method and how far they reach.
        rope: What becomes of the model's RoPE.
        sizes: The model's; None for a build whose memory is not reckoned.
        needs: Memory on each device.
        steps: Optimizer steps; 0 where nothing is trained.
        epochs: How often a row is seen.
        tokens: Of all rows, as often as they are seen.
        hours: On an accelerator, and what is assumed; None for a small model.
        at_hand: Whether the model's weights lie here.
        times: What the probe measured; None where it was not asked for.
        findings: What can't work first.
    """

    subject: Subject
    rope: str
    sizes: Sizes | None
    needs: tuple[Need, ...]
    steps: int
    epochs: float
    tokens: int
    hours: tuple[float, str] | None
    at_hand: bool
    times: Times | None
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found that can't work."""
        return not any(finding.level == "fail" for finding in self.findings)


def plan(recipe: Recipe, *, target: int | None = None, limit: int | None = None) -> Plan:
    """Look at a recipe without loading its model.

    Args:
        recipe: The recipe.
        target: Length to reach in tokens; None is the longest evaluation row with its answer.
        limit: Bytes of memory of an accelerator; None is not asked about.

    Raises:
        UserError: The model is not found, the method does not apply to it, or rows can't be made.
    """
    from ryarn.loading import check_method
    from ryarn.rope import describe_method

    method = recipe_method(recipe.method)
    skeleton = _skeleton(recipe.model)
    rope_map = check_method(skeleton, method)
    subject = _subject(recipe, method, Reach.of(rope_map, method), target)
    fitting, answered = subject.fitting, subject.answered
    sizes = Sizes.of(skeleton)
    findings = check(subject)
    needs: tuple[Need, ...] = ()
    if sizes is not None and (fitting or answered):
        places = devices(recipe, skeleton.config)
        needs = tuple(need(sizes, recipe, place, fitting, answered) for place in places)
        findings += check_memory(sizes, recipe, needs[-1], limit)
    elif limit is not None and sizes is None:
        raise UserError("--memory: the memory of a model of this build is not reckoned")
    count = steps(recipe.train, len(fitting)) if fitting else 0
    seen = count * recipe.train.batch_size * recipe.train.gradient_accumulation
    epochs = recipe.train.epochs if recipe.train.max_steps is None else seen / max(1, len(fitting))
    return Plan(
        subject=subject,
        rope=describe_method(rope_map, method),
        sizes=sizes,
        needs=needs,
        steps=count,
        epochs=epochs if fitting else 0.0,
        tokens=round(epochs * sum(row.length for row in fitting)),
        hours=_hours(sizes, recipe, fitting, answered),
        at_hand=at_hand(recipe.model),
        times=None,
        findings=tuple(sorted(findings, key=lambda f: ("fail", "warning", "note").index(f.level))),
    )


def _subject(recipe: Recipe, method: Method, reach: Reach, target: int | None) -> Subject:
    """Rows and lengths of a recipe."""
    from ryarn.models import load_tokenizer

    tokenizer: Any = None
    try:
        tokenizer = load_tokenizer(recipe.model)
    except UserError as error:
        if known_skeleton(recipe.model.name) is None:
            raise
        tokenizer = error
    trained, asked = _rows(recipe, tokenizer, trains=method.trains)
    longest = max((row.prompt for row in asked.rows), default=0) + recipe.evaluate.max_new_tokens
    fitting = trained.fitting(recipe.train.max_length)
    served = not isinstance(recipe.evaluate.backend, HfConfig)
    most = max((row.length for row in fitting), default=0)
    return Subject(
        recipe=recipe,
        method=method,
        reach=reach,
        trained=trained,
        asked=asked,
        window=recipe.evaluate.window or (None if served else reach.answered),
        advice=advise(target or longest, reach, recipe, most),
        wanted=target is not None,
    )


def _skeleton(config: ModelConfig) -> Any:
    """The model without weights, of a GGUF file from its header."""
    from ryarn.models import load_skeleton, model_files

    found = known_skeleton(config.name) or load_skeleton(config)
    if found is not None:
        return found
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    path = model_files(config)
    assert path is not None
    read = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(read, attn_implementation=config.attention)


def _rows(recipe: Recipe, tokenizer: Any, *, trains: bool) -> tuple[Rows, Rows]:
    """Training rows (none where nothing is trained) and evaluation rows, which share no source."""
    name, train, evaluate = recipe.model.name, recipe.train.data, recipe.evaluate
    trained = read_rows(train, "train", tokenizer, name) if trains else Rows(())
    asked = read_rows(evaluate.data, evaluate.split, tokenizer, name)
    if trains and trained.source is None and asked.source is None:
        check_apart(train, evaluate.data, evaluate.split)
    return trained, asked


def _hours(
    sizes: Sizes | None, recipe: Recipe, trained: tuple[Row, ...], asked: tuple[Row, ...]
) -> tuple[float, str] | None:
    if sizes is None or sizes.parameters < LARGE:
        return None
    first, second = (Counter(row.length for row in rows) for rows in (trained, asked))
    return gpu_hours(sizes, recipe, first, second), str(H100)


def run(
    path: Path,
    overrides: list[str],
    *,
    target: int | None = None,
    memory: str | None = None,
    probe: bool = False,
) -> int:
    """The command: print the plan; the probe's time last, if it was asked for.

    Returns:
        Exit code: 1 if something can't work.

    Raises:
        UserError: As for `plan`, or an option is not usable.
    """
    from rich.console import Console

    from ryarn.plan.show import lines, tables

    if target is not None and target < 1:
        raise UserError(f"--target {target}: give at least 1 token")
    found = plan(
        load_recipe(path, overrides),
        target=target,
        limit=parse_memory(memory) if memory is not None else None,
    )
    if probe and found.passed:
        found = replace(found, times=timed(found))
    console = Console(highlight=False)
    for table in tables(found):
        console.print(table)
    console.print("\n".join(lines(found)), markup=False, soft_wrap=True)
    return 0 if found.passed else 1


def timed(found: Plan) -> Times:
    """Load the model of a plan that passed and time two steps.

    Raises:
        UserError: The model is not at hand, or it would not fit.
    """
    subject = found.subject
    recipe = subject.recipe
    if not found.at_hand:
        raise UserError(f"--probe: model.name = {recipe.model.name!r} is not on this machine")
    import psutil  # type: ignore[import-untyped]

    peak, there = found.needs[0].peak(recipe) if found.needs else 0, psutil.virtual_memory()
    if found.needs and found.needs[0].device == "CPU" and peak > there.available:
        raise UserError(
            f"--probe: {peak / 2**30:.3g} GiB are needed, {there.available / 2**30:.3g} GiB are "
            "free: plan without it"
        )
    served = not isinstance(recipe.evaluate.backend, HfConfig)
    asked = () if served else subject.answered
    return probe(recipe, found.sizes, subject.fitting, asked, found.steps)
