"""A plan on the terminal: rows, spans and memory as tables, the rest in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ryarn.compare.watch import duration
from ryarn.cost.memory import GIB
from ryarn.plan.needs import Need
from ryarn.plan.rows import Bin, Rows

if TYPE_CHECKING:
    from rich.table import Table

    from ryarn.plan.stage import Plan

MIB = 2**20
BAR = 12
"""Characters of a histogram's longest bar."""


def tables(plan: Plan) -> Iterator[Table]:
    """The plan's tables, in the order in which things happen."""
    subject, config = plan.subject, plan.subject.recipe.train
    room = subject.recipe.evaluate.max_new_tokens
    if subject.trained.rows:
        limit = config.max_length
        title = f"Training rows, up to train.max_length = {limit:,} tokens"
        yield _rows(title, subject.trained, subject.trained.bins(limit), "dropped")
    if subject.asked.rows:
        fits = "any" if subject.window is None else f"{subject.window:,}"
        title = f"Evaluation rows, window of {fits} tokens with an answer of {room:,}"
        yield _rows(title, subject.asked, subject.asked.bins(subject.window, room), "skipped")
    if subject.method.curriculum is not None and plan.steps:
        yield _spans(plan)
    if plan.needs:
        yield _memory(plan.needs, config.gradient_checkpointing)


def _table(title: str, columns: Sequence[str], left: int = 1) -> Table:
    from rich.table import Table

    made = Table(title=title, title_justify="left", caption_justify="left")
    for number, name in enumerate(columns):
        made.add_column(name, justify="left" if number < left else "right")
    return made


def _rows(title: str, rows: Rows, bins: Sequence[Bin], out: str) -> Table:
    made = _table(title, ("bin", "rows", "shortest", "median", "longest", out), left=0)
    made.add_column("")
    most = max(found.rows for found in bins)
    for found in bins:
        numbers = (found.bin, found.rows, found.shortest, found.median, found.longest)
        shown = [f"{number:,}" for number in numbers]
        bar = "█" * max(1, round(BAR * found.rows / most))
        made.add_row(*shown, f"{found.too_long:,}" if found.too_long else "", bar)
    if rows.source is not None:
        made.caption = f"As the recipe asks for: {rows.source}"
    return made


def _spans(plan: Plan) -> Table:
    subject = plan.subject
    assert subject.method.curriculum is not None
    spans, reach = subject.method.curriculum.spans, subject.reach.trained
    made = _table("Spans", ("t", "span", "steps", "of what RoPE covers", "rows too long"), left=0)
    rows = subject.fitting
    for place, span in enumerate(spans):
        # The first step at which `Curriculum.span` gives it, and the one before the next.
        first, end = (-(-n * plan.steps // len(spans)) for n in (place, place + 1))
        steps = f"{first + 1:,}-{end:,}" if end > first else "none"
        over = sum(row.length > span for row in rows)
        made.add_row(str(place + 1), f"{span:,}", steps, f"{span / reach:.0%}", f"{over:,}")
    return made


def _memory(needs: Sequence[Need], checkpointing: bool) -> Table:
    made = _table("Memory", ("", *(f"{need.device}, {need.dtype}" for need in needs)))
    training = [need.training for need in needs if need.training is not None]
    if training:
        batch = needs[0].batch
        assert batch is not None
        mine, other = ("with", "without") if checkpointing else ("without", "with")
        made.add_row("base weights", *(_size(part.weights) for part in training))
        made.add_row("LoRA, its gradients, AdamW", *(_size(part.adapter) for part in training))
        name = f"activations of {batch.rows} x {batch.longest:,} tokens"
        own = (part.checkpointed if checkpointing else part.kept for part in training)
        made.add_row(name, *map(_size, own))
        name = f"logits of {batch.rows} x {batch.scored:,} tokens"
        made.add_row(name, *(_size(part.logits) for part in training))
        totals = (_size(part.total(checkpointing)) for part in training)
        made.add_row(f"training, {mine} checkpointing", *totals, style="bold")
        totals = (_size(part.total(not checkpointing)) for part in training)
        made.add_row(f"the same {other}", *totals, end_section=True)
    answering = [need.answering for need in needs if need.answering is not None]
    if answering:
        first = answering[0]
        made.add_row("base weights and LoRA", *(_size(part.weights) for part in answering))
        name = f"KV cache of {first.rows} x {first.tokens:,} tokens"
        made.add_row(name, *(_size(part.cache) for part in answering))
        made.add_row("reading the prompts", *(_size(part.prefill) for part in answering))
        made.add_row("evaluation", *(_size(part.total) for part in answering), style="bold")
    return made


def _size(count: int) -> str:
    """E.g. "14.2 GiB" or "81.0 MiB"."""
    return f"{count / GIB:.3g} GiB" if count >= GIB else f"{count / MIB:.3g} MiB"


def lines(plan: Plan) -> list[str]:
    """What stands below the tables: RoPE, steps, time, recommendation, findings, the verdict."""
    subject = plan.subject
    told = [f"RoPE: {plan.rope}"]
    if plan.steps:
        config = subject.recipe.train
        told.append(
            f"training: {plan.steps:,} steps of {config.batch_size} x "
            f"{config.gradient_accumulation} rows, {len(subject.fitting):,} rows "
            f"{plan.epochs:.3g} times, {plan.tokens:,} tokens"
        )
    if plan.sizes is None:
        told.append("memory: not reckoned for layers of this build")
    if plan.hours is not None:
        told.append(f"GPU-hours: about {plan.hours[0]:.2g} on {plan.hours[1]}")
    told.append(_time(plan))
    told.append(
        f"for {subject.advice.target:,} tokens"
        f"{'' if subject.wanted else ' (the longest evaluation row)'}: {subject.advice.overrides}"
    )
    told += [f"  {reason}" for reason in subject.advice.reasons]
    for finding in plan.findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        told.append(f"{finding.level}: {finding.text}{remedy}")
    failed = sum(finding.level == "fail" for finding in plan.findings)
    told.append(f"fail ({failed})" if failed else "pass: nothing speaks against it")
    return told


def _time(plan: Plan) -> str:
    times = plan.times
    if times is None:
        how = "--probe times two steps" if plan.at_hand else "the model is not on this machine"
        return f"time here: not known; {how if plan.passed else 'nothing is timed that fails'}"
    parts = []
    if times.step is not None and times.train is not None:
        parts.append(
            f"training about {duration(times.train)} ({times.step:.2g} s a batch of "
            f"{times.tokens:,} tokens)"
        )
    if times.evaluate is not None:
        parts.append(f"evaluation at most about {duration(times.evaluate)}")
    return f"time here: {', '.join(parts)}"
