"""Two processes in one test of seconds: the draws, the loss and the adapter are those of one.

`accelerate launch` and sharded weights are in test_launch.py.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ryarn import extend, make_method, tiny
from ryarn.rope.remap import Remapper

METHOD = make_method("randomized-yarn", factor=2, spans=[128, 256])
STEPS = 3
ROWS = torch.from_numpy(np.random.default_rng(0).integers(3, 250, (STEPS, 4, 20)))


def train(rank: int, ranks: int, folder: Path) -> None:
    """AdamW on the process's share of each step's rows; what it drew and trained goes to a file."""
    torch.set_num_threads(1)
    if ranks > 1:
        store = f"file://{folder / 'store'}"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    drawn: dict[Any, Any] = {}
    draw = Remapper._draw

    def recorded(self: Any, tokens: Any, mask: Any, ordinary: Any) -> torch.Tensor:
        positions = draw(self, tokens, mask, ordinary)
        for row, places in zip(tokens.tolist(), positions.tolist(), strict=True):
            drawn[self._progress[0], tuple(row)] = places
        return positions

    Remapper._draw = recorded  # type: ignore[method-assign]
    try:
        losses, adapter = steps(rank, ranks)
    finally:
        Remapper._draw = draw  # type: ignore[method-assign]
    torch.save((drawn, losses, adapter), folder / f"{ranks}-{rank}.pt")
    if ranks > 1:
        distributed.destroy_process_group()


def steps(rank: int, ranks: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    model, _ = tiny.build("llama")
    extension = extend(model, METHOD, seed=1)
    torch.manual_seed(0)
    adapted: Any = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    extension.verify()
    run = DistributedDataParallel(adapted) if ranks > 1 else adapted
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        extension.set_progress(step, STEPS)
        rows = ROWS[step, rank::ranks]
        loss = run.train()(input_ids=rows, labels=rows, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in trained.items()}


# Python 3.12 warns of it where there are threads; the children set theirs to one.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_two_processes_are_one_with_twice_the_rows(tmp_path: Path) -> None:
    train(0, 1, tmp_path)
    # Forked, they need not import everything again.
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=train, args=(rank, 2, tmp_path)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    drawn, losses, adapter = torch.load(tmp_path / "1-0.pt")
    (drawn_0, losses_0, adapter_0), (drawn_1, losses_1, adapter_1) = (
        torch.load(tmp_path / f"2-{rank}.pt") for rank in (0, 1)
    )
    assert len(drawn) == 4 * STEPS
    assert len(drawn_0) == len(drawn_1) == 2 * STEPS
    assert {**drawn_0, **drawn_1} == drawn
    means = [(one + two) / 2 for one, two in zip(losses_0, losses_1, strict=True)]
    assert means == pytest.approx(losses, abs=2e-6)
    for name, value in adapter.items():
        assert torch.equal(adapter_0[name], adapter_1[name])
        torch.testing.assert_close(adapter_0[name], value, atol=1e-4, rtol=0)
