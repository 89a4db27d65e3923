"""torch.compile: as many graphs as without ryarn, no break, nothing compiled anew at a step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_models import build, small_config
from torch._dynamo.utils import counters

from ryarn import extend, make_method, tiny
from ryarn.rope import opaque

# Of PyTorch's own compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
METHOD = make_method("randomized-yarn", factor=4.0, spans=[512, 1024])
STEPS = 3
# Gemma 2's windowed layers share a rotary module with the others, so a third hook is at work.
CASES = [
    ("llama", "padded"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("llama", "no mask"),
            ("llama", "packed"),
            ("llama", "other lengths"),
            ("olmo3", "padded"),
            ("gemma2", "checkpointed"),
        )
    ),
]
GRAPHS = {"no mask": 1, "padded": 1, "packed": 1, "checkpointed": 1, "other lengths": 2}
"""The second is of any length."""
Outcome = list[tuple[float, int, int]]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    counters.clear()


def model_of(family: str) -> Any:
    if family in tiny.FAMILIES:
        return tiny.build(family)[0]
    return build(small_config(family))


def batches(layout: str) -> Iterator[dict[str, torch.Tensor]]:
    rng = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        length = 24 + 5 * step if layout == "other lengths" else 24
        tokens = torch.randint(3, 90, (2, length), generator=rng)
        given = {"input_ids": tokens, "labels": tokens}
        if layout == "padded":
            given["attention_mask"] = torch.ones_like(tokens)
            given["attention_mask"][0, : 3 + step] = 0
        if layout == "packed":
            ids = torch.cat([torch.arange(10 + step), torch.arange(14 - step)])
            given["position_ids"] = ids.expand(2, -1).contiguous()
        yield given


def train(family: str, layout: str, *, extended: bool, backend: str | None = "eager") -> Outcome:
    """Loss, largest position and documents of each step."""
    model = model_of(family)
    extension = extend(model, METHOD, seed=3) if extended else None
    model.train()
    if layout == "checkpointed":
        model.activation_checkpointing_enable({"use_reentrant": False})
    run: Any = torch.compile(model, backend=backend) if backend else model
    counters.clear()
    seen = []
    for step, given in enumerate(batches(layout)):
        if extension is not None:
            extension.set_progress(step, STEPS)
        loss = run(**given, use_cache=False).loss
        loss.backward()
        if extension is None:
            seen.append((loss.item(), 0, 0))
        else:
            seen.append((loss.item(), extension.stats.max_position, extension.stats.documents))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["padded", "other lengths"])
def test_without_us_there_are_as_many_graphs(layout: str) -> None:
    train("llama", layout, extended=False)
    assert counters["stats"]["unique_graphs"] == GRAPHS[layout]


@pytest.mark.parametrize(("family", "layout"), CASES)
def test_compiled_training_is_the_training_in_one_graph(family: str, layout: str) -> None:
    plain = train(family, layout, extended=True, backend=None)
    compiled = train(family, layout, extended=True, backend="aot_eager")
    assert dict(counters["graph_break"]) == {}
    assert counters["stats"]["unique_graphs"] == GRAPHS[layout]
    assert [loss for loss, _, _ in compiled] == pytest.approx([loss for loss, _, _ in plain], 1e-5)
    assert [drawn for _, *drawn in compiled] == [drawn for _, *drawn in plain]
    assert len({place for _, place, _ in plain}) > 1


@pytest.mark.slow
def test_inductor_trains_the_same() -> None:
    plain = train("llama", "padded", extended=True, backend=None)
    compiled = train("llama", "padded", extended=True, backend="inductor")
    assert [loss for loss, _, _ in compiled] == pytest.approx([loss for loss, _, _ in plain], 1e-4)
    assert [drawn for _, *drawn in compiled] == [drawn for _, *drawn in plain]


@pytest.mark.slow
def test_a_compiled_pass_counts_as_one_with_gradients() -> None:
    """Compiled code runs without them; the draws of preference training ask which pass it is."""
    model = model_of("llama").train()
    extension = extend(model, METHOD, seed=3)
    run = torch.compile(model, backend="aot_eager")
    extension.set_progress(0, 1)
    tokens = torch.arange(5, 29)[None]
    run(input_ids=tokens, use_cache=False)
    assert extension.stats.without_gradients == 0
    with torch.no_grad():
        run(input_ids=tokens, use_cache=False)
    assert (extension.stats.documents, extension.stats.without_gradients) == (2, 1)


def test_a_model_that_is_gone_leaves_nothing_behind() -> None:
    before = len(opaque._DRAWINGS)
    model = model_of("llama")
    extension = extend(model, METHOD)
    assert len(opaque._DRAWINGS) == before + 1
    del model, extension
    gc.collect()
    assert len(opaque._DRAWINGS) <= before
