"""The public API in other people's trainers: the examples as they stand, packing, padding-free."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from ryarn import ExtensionCallback, UniformSubset, extend, load, make_method, tiny
from ryarn.draws import generator, row_key
from ryarn.errors import UserError
from ryarn.rope.remap import Remapper

EXAMPLES = Path(__file__).parents[1] / "examples"
SPANS = [4096, 8192, 16384]

pytestmark = [
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning"),
    # Where there is no accelerator.
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning"),
]


def steps(printed: str) -> list[list[str]]:
    """The example's own lines: step, loss, span, largest position."""
    lines = [line for line in printed.splitlines() if line.startswith("step ")]
    return [re.findall(r"[\d.]+", line) for line in lines]


@pytest.mark.parametrize("name", ["transformers_trainer.py", "trl_sft.py"])
def test_an_example_runs_and_resumes(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, straight], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = steps(done.stdout)
    assert len(told) == 24
    assert [int(span) for _, _, span, _ in told] == [span for span in SPANS for _ in range(8)]
    assert all(int(largest) < int(span) for _, _, span, largest in told)
    assert float(told[-1][1]) < float(told[0][1])
    assert (straight / "ryarn.json").is_file()
    if (straight / "adapter_config.json").is_file():
        model, _ = load(straight)
        assert model.config.rope_parameters["factor"] == 4

    shutil.copytree(straight / "checkpoint-10", resumed / "checkpoint-10")
    monkeypatch.setattr(sys, "argv", [name, str(resumed), "--resume"])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert steps(capsys.readouterr().out) == told


@pytest.mark.parametrize("name", ["transformers_trainer.py", "trl_sft.py"])
def test_an_example_needs_four_lines(name: str) -> None:
    """Without its marked lines an example is a plain training script."""
    lines = (EXAMPLES / name).read_text().splitlines()
    assert sum(line.endswith("# ryarn") for line in lines) == 4
    code = lines[[i for i, line in enumerate(lines) if line.endswith('"""')][-1] + 1 :]
    rest = "\n".join(line for line in code if not line.endswith("# ryarn"))
    compile(rest, name, "exec")
    for word in ("Extension", "extend", "extension", "make_method", "method"):
        assert word not in rest.replace("from ryarn.tiny import build", "")


class Tape:
    """Documents by optimizer step: their tokens and the positions that they got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.documents: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        draw = Remapper._group_draw

        def record(remapper: Remapper, documents: Any) -> Any:
            [tokens] = documents
            positions = draw(remapper, documents)
            assert remapper._progress is not None
            step = remapper._progress[0]
            self.documents.append((step, tuple(tokens.tolist()), tuple(positions.tolist())))
            return positions

        monkeypatch.setattr(Remapper, "_group_draw", record)


def sft(
    folder: Path, attention: str, rows: list[list[int]], spans: list[int] = SPANS, **arguments: Any
) -> list[dict[str, Any]]:
    """Train a few steps with TRL; the log's lines of single steps."""
    model, tokenizer = tiny.build("llama", attention)
    extension = extend(model, make_method("randomized-yarn", factor=4, spans=spans), seed=3)
    given: dict[str, Any] = {
        "max_length": None,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        **arguments,
    }
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(output_dir=str(folder), **given),
        train_dataset=Dataset.from_list([{"input_ids": row} for row in rows]),
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[ExtensionCallback(extension)],
    )
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def rows_of(lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(1, 250, length).tolist() for length in lengths]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_free_batches_train_as_padded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    rows = rows_of([12, 30, 21, 8, 25, 17, 40, 9, 33, 14, 27, 19])
    padded = Tape(monkeypatch)
    first = sft(tmp_path, attention, rows)
    monkeypatch.undo()
    flat = Tape(monkeypatch)
    second = sft(tmp_path, attention, rows, padding_free=True)
    assert padded.documents == flat.documents
    assert len(flat.documents) == len(rows)
    assert [entry["positions/documents"] for entry in second] == [4, 4, 4]
    assert [entry["positions/span"] for entry in second] == SPANS
    losses = [[entry["loss"] for entry in log] for log in (first, second)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_rows_are_drawn_by_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    rows = rows_of([12, 30, 21, 8, 25, 17, 23, 9, 33, 14, 27, 19])
    tape = Tape(monkeypatch)
    packing = {"packing": True, "max_length": 64, "per_device_train_batch_size": 1}
    log = sft(tmp_path, attention, rows, **packing)
    assert sorted(list(tokens) for _, tokens, _ in tape.documents) == sorted(rows)
    total = len(log)
    assert total < len(rows) / 1.5
    assert sum(entry["positions/documents"] for entry in log) == len(rows)
    for step, tokens, positions in tape.documents:
        span = SPANS[step * len(SPANS) // total]
        rng = generator(3, step, row_key(np.array(tokens)))
        assert positions == tuple(UniformSubset()(len(tokens), span, rng).tolist())


def test_most_documents_longer_than_the_span_stop_the_training(tmp_path: Path) -> None:
    rows = rows_of([20] * 20 + [60] * 44)
    with pytest.raises(UserError, match="documents are longer than the span 32"):
        sft(tmp_path, "sdpa", rows, [32, 64])


def test_a_trainer_without_the_callback_is_told_so() -> None:
    model, _ = tiny.build("llama")
    extend(model, make_method("randomized-yarn", spans=[64]))
    model.train()
    with pytest.raises(UserError, match=r"callbacks=\[ryarn\.ExtensionCallback\(extension\)\]"):
        model(torch.arange(1, 9)[None])
