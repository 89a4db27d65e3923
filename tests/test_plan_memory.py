"""What the plan says of memory against what autograd keeps and what processes need."""

from __future__ import annotations

import contextlib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoConfig, AutoModelForCausalLM

from ryarn import tiny
from ryarn.config import build
from ryarn.cost.memory import (
    Batch,
    Held,
    answering_memory,
    layer_activations,
    pair_activations,
    training_memory,
)
from ryarn.cost.sizes import Sizes
from ryarn.errors import UserError
from ryarn.plan.needs import ACCELERATOR, CPU, devices, need, parse_memory, room_for
from ryarn.plan.rows import Row
from ryarn.recipe import Recipe

TOKENS, RANK = 96, 4
DTYPES = {4: torch.float32, 2: torch.bfloat16}


def recipe(attention: str = "sdpa", **train: Any) -> Recipe:
    data = {"task": "mrcr", "lengths": [2000], "rows": 3}
    return build(
        Recipe,
        {
            "model": {"name": "tiny:qwen2", "attention": attention, "dtype": "float32"},
            "method": {"name": "trained-yarn"},
            "train": {"data": data, "max_length": 2000, "lora_rank": RANK, **train},
            "evaluate": {"data": data, "max_new_tokens": 10, "batch_tokens": 4000},
            "output": "run",
        },
    )


def sizes(family: str) -> Sizes:
    found = Sizes.of(tiny.build(family)[0])
    assert found is not None
    return found


def kept(model: Any, dropout: float, padded: bool) -> float:
    """Bytes that autograd keeps of two rows in one layer, weights left out."""
    config = LoraConfig(
        r=RANK, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    half = model.dtype == torch.bfloat16
    lora: Any = get_peft_model(model, config).train()
    weights = {p.untyped_storage().data_ptr() for p in lora.parameters()}
    ids = torch.arange(TOKENS).repeat(2, 1) % 200
    mask = torch.ones_like(ids)
    mask[1, TOKENS - 5 :] -= int(padded)

    def measure(layers: int) -> int:
        lora.base_model.model.model.config.num_hidden_layers = layers
        found: dict[int, tuple[Any, int]] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights and {TOKENS, 2 * TOKENS} & set(tensor.shape):
                found[storage.data_ptr()] = (tensor, storage.nbytes())
            return tensor

        autocast = torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext()
        with saved_tensors_hooks(pack, lambda t: t), autocast:
            lora(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=1)
        return sum(size for _, size in found.values())

    return measure(2) - measure(1)


@pytest.mark.parametrize(
    ("family", "dropout", "value", "padded"),
    [
        ("llama", 0.1, 4, False),
        ("llama", 0.0, 4, False),
        ("llama", 0.0, 4, True),
        ("llama", 0.1, 2, True),
        ("qwen3", 0.1, 4, False),
    ],
)
def test_a_layer_keeps_what_autograd_keeps(
    family: str, dropout: float, value: int, padded: bool
) -> None:
    measured = kept(tiny.build(family, dtype=DTYPES[value])[0], dropout, padded)
    layer = layer_activations(sizes(family), RANK, 4 if dropout else 0, value)
    batch = Batch(2, TOKENS, padded, 1)
    pairs = pair_activations(sizes(family), recipe(), batch, Held(value))
    assert batch.tokens * layer + pairs == pytest.approx(measured, rel=0.02)
    assert bool(pairs) == padded


@pytest.mark.parametrize("value", DTYPES)
def test_eager_attention_keeps_its_scores(value: int) -> None:
    model, _ = tiny.build("llama", "eager", DTYPES[value])
    batch = Batch(2, TOKENS, False, 1)
    layer = layer_activations(sizes("llama"), RANK, 0, value)
    pairs = pair_activations(sizes("llama"), recipe("eager"), batch, Held(value))
    measured = kept(model, 0.0, False)
    assert batch.tokens * layer + pairs == pytest.approx(measured, rel=0.03)
    assert pairs > 2 * TOKENS**2 * 4 * 4


def shape(kind: str, **changes: Any) -> Any:
    values = {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
    }
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**values, **changes}))


def test_fused_matrices_are_counted_as_lora_adapts_them() -> None:
    model = shape("phi3")
    found = Sizes.of(model)
    assert found is not None
    assert found.linears == ((64, 64), (64, 128), (64, 320), (160, 64))
    config = LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    made = get_peft_model(model, config).parameters()
    assert found.adapter(RANK) == sum(p.numel() for p in made if p.requires_grad)


@pytest.mark.parametrize("kind", ["gpt_neox", "qwen3_moe", "gpt2", "qwen3_next"])
def test_other_builds_are_not_reckoned(kind: str) -> None:
    more = {"num_experts": 4, "moe_intermediate_size": 32} if kind == "qwen3_moe" else {}
    assert Sizes.of(shape(kind, **more)) is None


def test_stacked_experts_beside_a_gated_mlp_are_another_build() -> None:
    model = tiny.build("llama")[0]
    assert Sizes.of(model) is not None
    model.model.layers[0].mlp.experts = torch.nn.Parameter(torch.empty(2, 3, 4))
    assert Sizes.of(model) is None


def test_a_mapped_file_holds_no_table_that_is_looked_up() -> None:
    untied = Sizes.of(shape("llama", tie_word_embeddings=False))
    assert untied is not None
    assert untied.embedding == 64 * 128
    loaded, mapped = Held(4).weights(untied), Held(4, mapped=True).weights(untied)
    assert (loaded, mapped) == (4 * untied.parameters, 4 * (untied.parameters - 64 * 128))
    tied = Sizes.of(shape("llama", tie_word_embeddings=True))
    assert tied is not None
    assert Held(4, mapped=True).weights(tied) == 4 * tied.parameters


def test_a_step_holds_its_batch() -> None:
    small, batch = sizes("qwen2"), Batch(3, 500, True, 40)
    found = training_memory(small, recipe(), 500, Held(4, 4), batch)
    layer = 1500 * layer_activations(small, RANK, 4, 4)
    layer += pair_activations(small, recipe(), batch, Held(4, 4))
    assert found.kept == small.layers * layer
    assert found.checkpointed == layer + 1500 * 4 * small.hidden * small.layers
    assert found.logits == 3 * 40 * small.vocabulary * 12
    plain = training_memory(small, recipe(lora_dropout=0), 500, Held(4, 4), batch)
    assert found.kept - plain.kept > small.layers * 1500 * 4 * small.inner


def test_a_mask_of_unequal_prompts_is_held_while_they_are_read() -> None:
    small = sizes("qwen2")
    even, odd = (
        answering_memory(small, recipe(), 300, Held(4), Batch(2, 300, padded, 1))
        for padded in (False, True)
    )
    assert odd.prefill - even.prefill == 2 * 300**2 * 5
    assert (even.rows, even.cache) == (2, odd.cache)


def rows(*lengths: int) -> list[Row]:
    return [Row(0, length - 10, 10) for length in lengths]


def test_the_longest_rows_make_the_batch() -> None:
    config, place = recipe(batch_size=2), (CPU, Held(4, 4))
    found = need(sizes("qwen2"), config, place, rows(300, 500, 400), rows(1500, 1900, 1900, 100))
    # Labels at the ends of rows of 500 and 400 tokens; two prompts of 1,890 fit into 4,000.
    assert found.batch == Batch(2, 500, True, 20)
    assert found.answering is not None
    assert (found.answering.rows, found.answering.tokens) == (2, 1900)
    assert found.training is not None
    config = recipe(batch_size=2, gradient_checkpointing=True)
    assert found.peak(config) == max(found.training.total(True), found.answering.total)
    even = need(sizes("qwen2"), config, place, rows(500, 500), []).batch
    assert even == Batch(2, 500, False, 10)
    # Any two of them may meet.
    mixed = need(sizes("qwen2"), config, place, rows(500, 500, 90), []).batch
    assert mixed == Batch(2, 500, True, 10)
    nothing = need(sizes("qwen2"), config, place, [], rows(100))
    assert (nothing.training, nothing.batch) == (None, None)


def test_here_and_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = recipe()
    saved = AutoConfig.for_model("llama", dtype="float32")
    assert devices(config, saved) == [(CPU, Held(4, 4)), (ACCELERATOR, Held(4))]
    folder = config.model_copy(update={"model": config.model.model_copy(update={"name": "./m"})})
    assert devices(folder, saved)[0] == (CPU, Held(4, 4, mapped=True))
    other = AutoConfig.for_model("llama", dtype="bfloat16")
    assert devices(folder, other)[0] == (CPU, Held(4, 4))
    half = config.model_copy(
        update={"model": config.model.model_copy(update={"dtype": "bfloat16"})}
    )
    assert devices(half, saved) == [(CPU, Held(2, 4)), (ACCELERATOR, Held(2))]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices(half, saved) == [(ACCELERATOR, Held(2))]


@pytest.mark.parametrize(
    ("text", "size"), [("24GB", 24e9), ("80 GiB", 80 * 2**30), ("1.5tb", 1.5e12), ("512MiB", 2**29)]
)
def test_sizes_of_memory(text: str, size: float) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["24", "GB", "0GB", "-1GB", "24KB", "nanGB", "1e9GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match=r"^--memory '.*': give a size such as 24GB or 80GiB$"):
        parse_memory(text)


def test_the_remedy_is_the_least_that_fits() -> None:
    config, place = recipe(batch_size=4), (ACCELERATOR, Held())
    found = need(sizes("qwen2"), config, place, rows(*[900] * 4), rows(400, 400))
    assert found.training is not None
    assert found.answering is not None
    whole, less = found.training.total(False), found.training.total(True)
    assert room_for(config, found, whole - 1) == "set train.gradient_checkpointing=true"
    assert "train.batch_size=1 train.gradient_accumulation=4" in room_for(config, found, less - 1)
    fixed = found.training.weights + found.training.adapter
    assert found.answering.total > fixed
    one = found.answering.total - 1
    assert room_for(config, found, one) == (
        "set evaluate.batch_tokens=1, which answers one row at a time"
    )
    assert room_for(config, found, 1000) == "evaluate shorter rows, or a smaller model"
    served = need(sizes("qwen2"), config, place, rows(*[900] * 4), [])
    assert room_for(config, served, fixed) == "train shorter rows, or a smaller model"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_a_process_needs_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root / 'src'}")
    benchmark = import_module("benchmarks.plan_memory")
    for number in (1, 3):
        case = benchmark.CASES[number]
        measured, planned = benchmark.measure(case), benchmark.told(case)
        for stage in ("train", "answer"):
            assert planned[stage] == pytest.approx(measured[stage], rel=benchmark.GOAL), case
