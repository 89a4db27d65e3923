"""Memory and hours against what PyTorch keeps, and against sums done by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.autograd.graph import saved_tensors_hooks

from ryarn import tiny
from ryarn.config import build
from ryarn.cost.architectures import ARCHITECTURES, known_skeleton
from ryarn.cost.hours import Accelerator, gpu_hours
from ryarn.cost.memory import answering_memory, layer_activations, training_memory
from ryarn.cost.sizes import Sizes
from ryarn.paper.expected import expected_rows, hub_source
from ryarn.recipe import Recipe
from ryarn.tasks.babilong import BabilongConfig
from ryarn.tasks.longbench_v2 import LongBenchV2Config
from ryarn.tasks.mrcr import MrcrConfig

TOKENS = 96


def recipe(method: str = "trained-yarn", **train: Any) -> Recipe:
    data = {"task": "mrcr", "lengths": [2000], "rows": 3}
    return build(
        Recipe,
        {
            "model": {"name": "tiny:qwen2"},
            "method": {"name": method},
            "train": {"data": data, "max_length": 2000, **train},
            "evaluate": {"data": data, "max_new_tokens": 10, "batch_tokens": 4000},
            "output": "run",
        },
    )


def sizes(family: str) -> Sizes:
    found = Sizes.of(tiny.build(family)[0])
    assert found is not None
    return found


def kept(family: str, dropout: float) -> int:
    """Bytes that autograd keeps of a forward pass for each token and layer; weights left out."""
    model, _ = tiny.build(family, dtype=torch.bfloat16)
    config = LoraConfig(
        r=4, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    lora: Any = get_peft_model(model, config).train()
    weights = {p.untyped_storage().data_ptr() for p in lora.parameters()}

    def measure(layers: int) -> int:
        lora.base_model.model.model.config.num_hidden_layers = layers
        found: dict[int, tuple[Any, int]] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights and tensor.dim() >= 2 and TOKENS in tensor.shape:
                found[storage.data_ptr()] = (tensor, storage.nbytes())
            return tensor

        ids = torch.arange(TOKENS)[None] % 200
        with saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", torch.bfloat16):
            # One logit alone: what the layers keep is asked for.
            out = lora(input_ids=ids, use_cache=False, logits_to_keep=1).logits
        assert out.requires_grad
        return sum(size for _, size in found.values())

    return (measure(2) - measure(1)) // TOKENS


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_a_layer_keeps_what_autograd_keeps(family: str, dropout: float) -> None:
    measured = kept(family, dropout)
    told = layer_activations(sizes(family), rank=4, mask=4 if dropout else 0)
    assert told == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("family", ["qwen2.5-7b", "olmo3-7b", "qwen3-14b"])
def test_lora_has_the_parameters_that_peft_makes(family: str) -> None:
    model, _ = tiny.build(family)
    config = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    made = sum(p.numel() for p in get_peft_model(model, config).parameters() if p.requires_grad)
    assert sizes(family).adapter(8) == made


@pytest.mark.parametrize("family", ["qwen2.5-7b", "olmo3-7b"])
def test_the_cache_is_as_large_as_transformers_makes_it(family: str) -> None:
    model, _ = tiny.build(family, dtype=torch.bfloat16)
    with torch.inference_mode():
        cache = model(torch.zeros((1, 1200), dtype=torch.long), use_cache=True).past_key_values
    made = sum(2 * layer.keys.numel() * layer.keys.element_size() for layer in cache.layers)
    told = answering_memory(sizes(family), recipe(), 1200).cache
    # batch_tokens = 4000: three rows of that length at once.
    assert told == pytest.approx(3 * made, rel=0.01)


def test_the_papers_models_have_their_published_sizes() -> None:
    told = {name: known_skeleton(name) for name in ARCHITECTURES}
    billions = {name: sum(p.numel() for p in m.parameters()) / 1e9 for name, m in told.items()}
    assert billions == pytest.approx(
        {
            "Qwen/Qwen2.5-7B-Instruct": 7.6156,
            "allenai/Olmo-3-7B-Instruct": 7.2980,
            "Qwen/Qwen3-14B": 14.7683,
        },
        abs=1e-4,
    )
    olmo = Sizes.of(told["allenai/Olmo-3-7B-Instruct"])
    assert olmo is not None
    assert (olmo.layers, olmo.sliding, olmo.window) == (32, 24, 4096)
    assert known_skeleton("another/model") is None


def test_training_memory_is_the_sum_of_its_parts() -> None:
    small = sizes("qwen2")
    layer = layer_activations(small, rank=16, mask=1)
    need = training_memory(small, recipe(batch_size=2), 100)
    assert need.weights == 2 * small.parameters
    assert need.adapter == 16 * small.adapter(16)
    assert need.kept == 200 * layer * small.layers
    assert need.checkpointed == 200 * (2 * small.hidden * small.layers + layer)
    assert need.logits == 20 * small.vocabulary * 10
    rest = need.weights + need.adapter + need.logits
    assert (need.total(True), need.total(False)) == (rest + need.checkpointed, rest + need.kept)


def test_causal_attention_sees_half_and_a_sliding_layer_its_window() -> None:
    olmo = sizes("olmo3-7b")
    assert (olmo.layers, olmo.sliding, olmo.window) == (2, 1, 512)
    near = sum(min(place, 512) for place in range(2000))
    assert olmo.seen(2000) == pytest.approx(2000**2 / 2 + near, rel=0.01)


ONE = Accelerator("one", flops=1e12, bandwidth=1e9, share=0.5)


def test_hours_are_operations_and_bytes_over_the_rates() -> None:
    small = sizes("qwen2")
    matrices = small.parameters - small.embedding
    attention = 4 * small.queries * small.layers * 1000**2 / 2
    answered = Counter({1000: 3})
    # Four rows fit into batch_tokens = 4000 and share the weights.
    moved = 2 * matrices / 4 + 4 * small.keys * small.layers * 1000
    reading = 3 * (2 * matrices * 1000 + attention) / 0.5e12 + 3 * 10 * moved / 0.5e9
    told = gpu_hours(small, recipe("zero-shot"), Counter(), answered, ONE)
    assert told == pytest.approx(reading / 3600)
    rows = Counter({1000: 2})
    for checkpointing, passes, back in ((False, 2, 3.5), (True, 3, 4.5)):
        train = recipe(gradient_checkpointing=checkpointing, epochs=4)
        step = 4 * 2 * (passes * 2 * matrices * 1000 + back * attention) / 0.5e12
        both = gpu_hours(small, train, rows, answered, ONE)
        assert both == pytest.approx((reading + step) / 3600)
    capped = recipe(max_steps=3, batch_size=2, gradient_accumulation=2, epochs=9)
    step = 12 / 2 * 2 * (2 * 2 * matrices * 1000 + 3.5 * attention) / 0.5e12
    assert gpu_hours(small, capped, rows, answered, ONE) == pytest.approx((reading + step) / 3600)


def test_the_assumption_is_in_words() -> None:
    assert str(ONE) == "one one at 50% of 1 TFLOP/s and of 0.00 TB/s"


def test_a_local_copy_is_no_hub_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copy").mkdir()
    assert hub_source(MrcrConfig(lengths=["8k"], source="copy")) is None
    for source, name in ((str(tmp_path), None), ("./absent", None), ("openai/mrcr", "openai/mrcr")):
        assert hub_source(MrcrConfig(lengths=["8k"], source=source)) == name
    assert hub_source(MrcrConfig(lengths=[900], rows=1)) is None
    babilong = {"questions": ["qa3"], "rows": 1}
    assert hub_source(BabilongConfig(lengths=[900], **babilong)) is None
    assert hub_source(BabilongConfig(lengths=["4k"], source="a/b", **babilong)) == "a/b"
    assert hub_source(LongBenchV2Config()) == "zai-org/LongBench-v2"


def test_expected_rows_are_asked_for_or_the_papers() -> None:
    one = BabilongConfig(questions=["qa3"], lengths=["0k", "1k"], rows=300, source="a/b")
    assert expected_rows(one, "train", "m") == {0: 300, 1000: 300}
    several = one.model_copy(update={"multi_entry": True})
    assert expected_rows(several, "test", "m") == {0: 300, 1000: 264}
    whole = MrcrConfig(lengths=["8k"], source="openai/mrcr", needles=[2, 4])
    assert expected_rows(whole, "test", "m") == {8192: 200}
    shared = LongBenchV2Config(held_out=0.25)
    assert expected_rows(shared, "train", "Qwen/Qwen2.5-7B-Instruct") == {32768: 87}
    assert expected_rows(shared, "held-out", "Qwen/Qwen2.5-7B-Instruct") == {32768: 29}
    olmo = expected_rows(shared, "test", "allenai/Olmo-3-7B-Instruct")
    assert olmo == {65536: 71, 131072: 67}
