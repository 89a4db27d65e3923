"""Peak memory of training and evaluation against what `ryarn plan` says, each in a fresh process.

What is measured is resident memory (`VmHWM`, Linux) that the real `train` and `evaluate` need on a
CPU beyond what the process has after a first tiny run of both: interpreter, libraries and their
thread pools are told apart. glibc is told to give large blocks back at once, so that the peak is
what was alive together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
MIB = 2**20
GOAL = 0.2
"""Plan and measurement are at most so far apart, relative to the measurement."""
STEPS = 3

SHAPES: dict[str, dict[str, Any]] = {
    "llama, 71M": {
        "model_type": "llama",
        "num_hidden_layers": 12,
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
        "tie_word_embeddings": False,
    },
    "qwen2, 41M": {
        "model_type": "qwen2",
        "num_hidden_layers": 24,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 8192,
        "tie_word_embeddings": True,
    },
}
"""Random weights; `smollm2` is the real one."""


@dataclass(frozen=True)
class Case:
    """One training and evaluation.

    Attributes:
        model: Key of `SHAPES`, or a recipe's `model.name`.
        batch: Rows of a batch.
        lengths: Bytes of the prompts of training rows, taken in turn.
        checkpointing: `train.gradient_checkpointing`.
        dropout: `train.lora_dropout`.
        asked: Bytes of the prompts of evaluation rows.
        dtype: `model.dtype`.
    """

    model: str
    batch: int
    lengths: tuple[int, ...]
    checkpointing: bool
    dropout: float = 0.1
    asked: int = 2048
    dtype: str = "float32"

    def __str__(self) -> str:
        """For the table."""
        rows = " and ".join(map(str, self.lengths))
        dropout = f"dropout {self.dropout:g}" if self.dropout else "no dropout"
        ending = ", checkpointing" if self.checkpointing else ""
        return f"{self.batch} x {rows} bytes, {dropout}{ending}, {self.dtype}"


CASES = (
    Case("llama, 71M", 1, (1024,), False),
    Case("llama, 71M", 1, (1024,), True),
    Case("llama, 71M", 4, (512,), False, 0.0),
    Case("llama, 71M", 4, (256, 512), False),
    Case("qwen2, 41M", 1, (2048,), False),
    Case("qwen2, 41M", 1, (2048,), True),
    Case("smollm2", 1, (1500,), False),
    Case("smollm2", 1, (6000,), True),
)


def make_model(name: str, folder: Path) -> str:
    """Save a random model of a shape; a name that is no shape is a model of its own."""
    if name not in SHAPES:
        return name
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ryarn.tiny import byte_tokenizer

    tokenizer = byte_tokenizer()
    values = {**SHAPES[name], "max_position_embeddings": 4096, "bos_token_id": None}
    config = AutoConfig.for_model(**values, eos_token_id=tokenizer.eos_token_id)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_recipe(case: Case, model: str, folder: Path) -> dict[str, Any]:
    """A case as a recipe, its rows beside it."""
    train, test = folder / "train.jsonl", folder / "test.jsonl"
    _write(train, _prompts("room", STEPS * case.batch, case.lengths))
    _write(test, _prompts("hall", 2, (case.asked,)))
    return {
        "model": {"name": model, "dtype": case.dtype},
        "method": {"name": "randomized-yarn", "factor": 4, "spans": [8192]},
        "train": {
            "data": {"task": "jsonl", "path": str(train), "held_out": 0},
            "max_length": 8192,
            "max_steps": STEPS,
            "batch_size": case.batch,
            "lora_dropout": case.dropout,
            "gradient_checkpointing": case.checkpointing,
        },
        "evaluate": {
            "data": {"task": "jsonl", "path": str(test), "test": 1},
            "max_new_tokens": 8,
        },
        "output": str(folder / "run"),
    }


def _prompts(word: str, count: int, lengths: tuple[int, ...]) -> Iterator[str]:
    for number in range(count):
        text = f"Look into {word} {number}. " * 500
        yield text[: lengths[number % len(lengths)]]


def _write(path: Path, prompts: Iterator[str]) -> None:
    rows = [{"prompt": prompt, "completion": "In the drawer."} for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def measure(case: Case) -> dict[str, float]:
    """Run a case in a fresh process: MiB of `libraries`, `load`, `train`, `answer`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.plan_memory", json.dumps(asdict(case))],
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _now(key: str) -> int:
    """A value of this process's memory in bytes: VmRSS, or its peak VmHWM."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/self/status: this needs Linux")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _run(case: Case) -> dict[str, float]:
    """The child's part."""
    import gc

    from transformers import TrainerCallback

    from ryarn.backends.hf import HfBackend
    from ryarn.config import build
    from ryarn.evaluate import evaluate
    from ryarn.recipe import Recipe
    from ryarn.train import train

    peaks: dict[str, float] = {}

    class Watch(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            peaks["load"] = _now("VmHWM")
            _forget_peak()

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            peaks["train"] = _now("VmHWM")

    answer = HfBackend._answer

    def watched(self: Any, *given: Any) -> Any:
        _forget_peak()
        out = answer(self, *given)
        peaks["answer"] = max(peaks.get("answer", 0), _now("VmHWM"))
        return out

    HfBackend._answer = watched  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = make_model(case.model, folder / "model")
        warm = replace(case, model="tiny:llama", lengths=(64, 80), asked=64)
        (folder / "warm").mkdir()
        first = build(Recipe, make_recipe(warm, "tiny:llama", folder / "warm"))
        train(first)
        evaluate(first)
        peaks.clear()
        gc.collect()
        base = _now("VmRSS")
        recipe = build(Recipe, make_recipe(case, model, folder))
        train(recipe, callbacks=[Watch()])
        gc.collect()
        evaluate(recipe)
    told = {key: (value - base) / MIB for key, value in peaks.items()}
    return {**told, "libraries": base / MIB}


def told(case: Case) -> dict[str, float]:
    """What the plan says of a case: MiB of `train` and `answer`."""
    from ryarn.config import build
    from ryarn.plan.stage import plan
    from ryarn.recipe import Recipe

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = make_model(case.model, folder / "model")
        need = plan(build(Recipe, make_recipe(case, model, folder))).needs[0]
    assert need.training is not None
    assert need.answering is not None
    train = need.training.total(case.checkpointing)
    return {"train": train / MIB, "answer": need.answering.total / MIB}


def table(results: Iterable[tuple[Case, dict[str, float], dict[str, float]]]) -> Table:
    """Cases with what was measured and what the plan says."""
    made = Table(title="Peak memory on a CPU in MiB, measured and planned", title_justify="left")
    for name in ("model", "training", "measured", "plan", "", "evaluation", "measured", "plan", ""):
        made.add_column(name, justify="left" if name in ("model", "training") else "right")
    worst = 0.0
    for case, measured, planned in results:
        cells = []
        for stage, size in (("train", []), ("answer", [f"2 x {case.asked}"])):
            off = planned[stage] / measured[stage] - 1
            worst = max(worst, abs(off))
            cells += [*size, f"{measured[stage]:,.0f}", f"{planned[stage]:,.0f}", f"{off:+.0%}"]
        made.add_row(case.model, str(case), *cells)
    made.caption = f"Largest difference {worst:.1%}, goal {GOAL:.0%}"
    return made


def main() -> None:
    """Measure all cases and print the table."""
    from benchmarks.__main__ import facts

    results = [(case, measure(case), told(case)) for case in CASES]
    console = Console(width=130)
    console.print(facts(), table(results))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        given = json.loads(sys.argv[1])
        given["lengths"] = tuple(given["lengths"])
        print(json.dumps(_run(Case(**given))))
    else:
        main()
