"""Other architectures in vLLM: the live RoPE passes its check, answers are transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from environments import python_of
from export_runs import Shape, make_base, make_run
from ryarn.evaluate import evaluate
from ryarn.export import export
from ryarn.recipe import load_recipe
from ryarn.records import read_jsonl
from serve_runs import ENVIRONMENT
from tiny_run import write_recipe

pytestmark = pytest.mark.slow
# vLLM's attention on CPUs has no heads of 16.
HEADS = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2}
SHAPES = {
    "qwen2": Shape("qwen2", {**HEADS, "tie_word_embeddings": False}),
    "qwen3": Shape("qwen3", {**HEADS, "head_dim": 64, "tie_word_embeddings": True}),
    "olmo3": Shape("olmo3", {**HEADS, "num_hidden_layers": 4, "sliding_window": 64}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_rope_is_the_trained_one_and_so_are_the_answers(
    shape: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_of("serve-vllm")
    for key, value in ENVIRONMENT.items():
        monkeypatch.setenv(key, value)
    base = make_base(tmp_path / "base", SHAPES[shape], tokenizer)
    run = make_run(tmp_path / "run", base, factor=4, spans=[512, 1024])
    export(run, tmp_path / "merged")
    options = {"enforce_eager": True}
    section = {"name": "vllm", "model": str(tmp_path / "merged"), "python": python}
    changes = [f"model.name={base}", "method.factor=4", "method.spans=[512,1024]"]
    path = write_recipe(tmp_path)
    evaluate(load_recipe(path, changes))
    backend = f"evaluate.backend={json.dumps({**section, 'options': options})}"
    evaluate(load_recipe(path, [*changes, f"output={tmp_path / 'vllm'}", backend]))
    mine, theirs = (
        {
            row["id"]: row["text"]
            for row in read_jsonl(tmp_path / name / "evaluation/completions.jsonl")
        }
        for name in ("run", "vllm")
    )
    assert mine == theirs
    assert len(set(mine.values())) > 1
