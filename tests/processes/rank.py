"""One process of a training: `ryarn` as it is, and a record of what the process held and drew.

Without GPUs accelerate knows no FSDP: it trains as DDP and says nothing. Told that the process has
an accelerator, it shards over gloo what it would shard over NCCL.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import state
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor

from ryarn import callback
from ryarn.cli import main
from ryarn.rope.remap import Remapper

DRAWN: dict[tuple[int, tuple[int, ...]], list[int]] = {}
start, draw = state.PartialState.__init__, Remapper._draw


def started(self: Any, cpu: bool = False, **arguments: Any) -> None:
    start(self, cpu, **arguments)
    sharded = os.environ.get("ACCELERATE_USE_FSDP") == "true"
    if sharded and self.distributed_type == DistributedType.MULTI_CPU:
        state.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def drawn(self: Remapper, tokens: torch.Tensor, mask: Any, ordinary: Any) -> torch.Tensor:
    positions = draw(self, tokens, mask, ordinary)
    assert self._progress is not None
    for row, real, places in zip(tokens, mask.bool(), positions, strict=True):
        DRAWN[self._progress[0], tuple(row[real].tolist())] = places[real.cpu()].tolist()
    return positions


def whole(weight: torch.Tensor) -> torch.Tensor:
    if isinstance(weight, DTensor):
        return weight.detach().full_tensor()
    if hasattr(weight, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([weight]):
            return weight.detach().clone()
    return weight.detach()


class Kept(callback.ExtensionCallback):
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_end(args, state, control, **kwargs)
        model = kwargs["model"]
        ropes = (*self.extension.rope_map.extended, *self.extension.rope_map.untouched)
        record = {
            "weights": sorted({type(weight).__name__ for weight in model.parameters()}),
            "partitioned": any(hasattr(weight, "ds_id") for weight in model.parameters()),
            "optimizer": type(kwargs["optimizer"].optimizer).__name__,
            "ropes": {rope.label: rope.inv_freq.clone() for rope in ropes},
            "drawn": DRAWN,
            "adapter": {
                name: whole(weight)
                for name, weight in model.named_parameters()
                if weight.requires_grad
            },
        }
        torch.save(record, Path(os.environ["KEPT"]) / f"rank-{os.environ.get('RANK', '0')}.pt")


if __name__ == "__main__":
    state.PartialState.__init__ = started
    Remapper._draw = drawn
    callback.ExtensionCallback = Kept
    main()
