"""Several processes: what each must hold for the method to be the same, and what is refused."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from ryarn.errors import UserError

REMEDY = "use the processes for more rows instead (DDP, FSDP2 or DeepSpeed ZeRO)"


def check_launched() -> None:
    """Look at what `accelerate launch` was told, before any model is loaded.

    Raises:
        UserError: See `check_parallelism`.
    """
    if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false").lower() == "true":
        from accelerate import ParallelismConfig

        check_parallelism(ParallelismConfig())


def check_parallelism(config: Any) -> None:
    """Refuse what cuts a row in pieces: positions are drawn for whole documents.

    Args:
        config: accelerate's `ParallelismConfig`; None where there is none.

    Raises:
        UserError: Context or sequence parallelism is on.
    """
    for name, size in (("cp_size", "context"), ("sp_size", "sequence")):
        processes = getattr(config, name, 1)
        if processes > 1:
            raise UserError(
                f"{name} = {processes}: {size} parallelism cuts each row in pieces for several "
                f"processes, but positions are drawn for a whole document: set it to 1 and {REMEDY}"
            )


def check_running() -> None:
    """Look at the accelerator of the trainer that is about to start.

    Raises:
        UserError: See `check_parallelism`.
    """
    from accelerate.state import AcceleratorState, is_initialized

    if is_initialized():
        check_parallelism(AcceleratorState().parallelism_config)


def check_wrapping(model: nn.Module) -> None:
    """Refuse FSDP of version 1, whose flat weights neither self-test nor fingerprint can read.

    Raises:
        UserError: The model, or a part of it, is wrapped so.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise UserError(
            "the model is sharded by FSDP version 1: set fsdp_version: 2 in accelerate's "
            "fsdp_config (fully_shard in PyTorch)"
        )
