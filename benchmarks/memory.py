"""Peak memory of a short training, each in a process of its own.

The peak is `ru_maxrss`, which a process inherits from the one that starts it: start these from a
process that has not loaded torch yet. glibc is told to give large blocks back at once, so that the
peak is what was alive together and not what it kept for later.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

STEPS = 3
LENGTH = 512
LAYERS = 2
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
KINDS = ("trl", "trl with extend", "ryarn")
"""Plain TRL and LoRA; the same with the extension and its callback; with ryarn's trainer, too."""


@dataclass(frozen=True)
class Peak:
    """What one process needed.

    Attributes:
        imports: Peak in MiB once everything was imported.
        training: Peak in MiB at the end.
    """

    imports: float
    training: float


def measure(kind: str) -> Peak:
    """Train in a fresh process and tell its peak.

    Args:
        kind: One of `KINDS`.
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", kind],
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        check=True,
    )
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def _peak() -> float:
    value = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return value / (1024 * 1024 if sys.platform == "darwin" else 1024)


def _train(kind: str) -> Peak:
    """The child's part: everything is imported before the first look, whatever the kind."""
    from dataclasses import replace
    from functools import partial

    from trl import SFTTrainer

    import ryarn
    from benchmarks.setting import FACTOR, SMOLLM2, make_model, make_rows, make_trainer
    from ryarn.callback import ExtensionCallback
    from ryarn.sft import LabelledLogitsTrainer

    shape = replace(SMOLLM2, layers=LAYERS)
    method = ryarn.make_method("randomized-yarn", factor=FACTOR, spans=[4 * LENGTH])
    rows = make_rows(STEPS, LENGTH, shape.vocabulary)
    imports = _peak()
    model = make_model(shape)
    trainer_class: Any = (
        partial(LabelledLogitsTrainer, rows=rows) if kind == "ryarn" else SFTTrainer
    )
    with tempfile.TemporaryDirectory() as folder:
        if kind == "trl":
            trainer = make_trainer(trainer_class, model, rows, folder)
        else:
            extension = ryarn.extend(model, method)
            trainer = make_trainer(trainer_class, model, rows, folder)
            trainer.callback_handler.callbacks.insert(0, ExtensionCallback(extension))
        trainer.train()
    return Peak(imports, _peak())


if __name__ == "__main__":
    print(json.dumps(vars(_train(sys.argv[1]))))
