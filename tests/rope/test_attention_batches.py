"""Flex attention, batches as trainers make them, and gradients, against the explicit reference.

Eager and SDPA are in test_remap.py, flash attention in test_attention_flash.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_remap import METHOD, SEED, STEP, Batch, drawn_output, reference, yarn_model
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import masking_utils
from transformers.integrations import flex_attention as transformers_flex
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from ryarn import extend, make_method, tiny
from ryarn.errors import UserError

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    # Of PyTorch's compiler and of how transformers calls it.
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]
LAYOUTS = ["no mask", "full mask", "padded right", "padded left", "packed"]


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flex attention as PyTorch runs it without compiling, which takes a minute a shape."""

    def make_mask(*arguments: Any, _compile: bool = False, **named: Any) -> Any:
        return create_block_mask(*arguments, **named)

    monkeypatch.setattr(masking_utils, "create_block_mask", make_mask)
    wrapped = transformers_flex.WrappedFlexAttention
    monkeypatch.setattr(wrapped, "__call__", lambda self: flex_attention)
    monkeypatch.setattr(wrapped, "__init__", lambda self, training: None)


FLEX = [
    *(("llama", rows, layout) for rows in (1, 4) for layout in LAYOUTS),
    ("olmo3", 4, "padded left"),
    ("olmo3", 1, "packed"),
]


@pytest.mark.parametrize(("family", "rows", "layout"), FLEX)
def test_flex_attention_equals_the_reference(
    family: str, rows: int, layout: str, uncompiled: None
) -> None:
    batch = Batch(layout, rows)
    model, _ = tiny.build(family, "flex_attention")
    extension = extend(model, METHOD, seed=SEED)
    extension.set_progress(STEP, 10)
    ours = drawn_output(model, batch)
    theirs = reference(yarn_model(family, "eager"), batch)
    torch.testing.assert_close(ours[batch.real], theirs[batch.real], atol=2e-5, rtol=1e-4)
    assert extension.stats.documents == len(batch.documents)


@pytest.mark.slow
def test_flex_attention_compiled_equals_the_reference() -> None:
    batch = Batch("padded left", 4)
    model, _ = tiny.build("llama", "flex_attention")
    extend(model, METHOD, seed=SEED).set_progress(STEP, 10)
    theirs = reference(yarn_model("llama", "eager"), batch)
    ours = drawn_output(model, batch)
    torch.testing.assert_close(ours[batch.real], theirs[batch.real], atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_self_test_passes_on_flex_attention(uncompiled: None) -> None:
    model, _ = tiny.build("olmo3", "flex_attention")
    extend(model, METHOD).verify()


ROWS = [list(range(20, 20 + length)) for length in (9, 14, 6, 11, 12)]


def collate(rows: list[list[int]], **how: Any) -> dict[str, torch.Tensor]:
    """TRL's own collator."""
    examples = [{"input_ids": row, "labels": row} for row in rows]
    if how.pop("packed", False):
        joined = [token for row in rows for token in row]
        lengths = [len(row) for row in rows]
        examples = [{"input_ids": joined, "labels": joined, "seq_lengths": lengths}]
    return dict(DataCollatorForLanguageModeling(0, **how)(examples))


MADE: dict[str, dict[str, Any]] = {
    "padded": {},
    "padding-free": {"padding_free": True},
    "packed (bfd)": {"padding_free": True, "packed": True},
}


HOW = [("eager", None), ("sdpa", None), ("sdpa", "reentrant"), ("sdpa", "not reentrant")]


@pytest.mark.parametrize(("attention", "checkpointing"), HOW)
@pytest.mark.parametrize("made", MADE)
def test_gradients_of_an_epoch_are_those_of_its_rows_one_by_one(
    made: str, attention: str, checkpointing: str | None
) -> None:
    """Batches of two, the last of one row, however they are made: each row's own draw and loss."""
    wanted = lora_gradients([{"input_ids": torch.tensor([row])} for row in ROWS], "eager", None)
    batches = [collate(ROWS[start : start + 2], **MADE[made]) for start in (0, 2, 4)]
    assert len(batches[-1]["input_ids"]) == 1
    found = lora_gradients(batches, attention, checkpointing)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() < 1e-4 * gradient.norm(), name


def lora_gradients(
    batches: list[dict[str, torch.Tensor]], attention: str, checkpointing: str | None
) -> dict[str, torch.Tensor]:
    """Gradients of LoRA from the summed loss of all labelled tokens of one step."""
    model, _ = tiny.build("olmo3", attention)
    extension = extend(model, METHOD, seed=SEED)
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    adapted: Any = get_peft_model(model, config).train()
    if checkpointing is not None:
        adapted.enable_input_require_grads()
        reentrant = checkpointing == "reentrant"
        adapted.activation_checkpointing_enable({"use_reentrant": reentrant})
    extension.set_progress(STEP, 10)
    for batch in batches:
        given = {key: value for key, value in batch.items() if key != "labels"}
        tokens = batch["input_ids"]
        labels = batch.get("labels", tokens).clone()
        labels[:, 0] = -100  # nothing before it to be told from
        logits = adapted(**given, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
        )
        loss.backward()
    assert extension.stats.documents == len(ROWS)
    return {name: p.grad for name, p in adapted.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("method", ["randomized-yarn", "trained-yarn"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_rows_beside_a_padding_mask_are_refused(attention: str, method: str) -> None:
    """Given such a mask, transformers looks at no restarts: documents would see each other."""
    batch = Batch("packed", 1)
    batch.given["attention_mask"] = torch.ones_like(batch.given["input_ids"])
    model, _ = tiny.build("llama", attention)
    spans = {"spans": [512]} if method == "randomized-yarn" else {}
    extension = extend(model, make_method(method, factor=4.0, **spans), seed=SEED)
    extension.set_progress(STEP, 10)
    with pytest.raises(UserError, match=r"looks at no restarts.*leave the mask out"):
        drawn_output(model, batch)


def test_transformers_looks_at_no_restarts_beside_a_padding_mask() -> None:
    """Should it learn to, the refusal above can go."""
    batch = Batch("packed", 1)
    mask = torch.ones_like(batch.given["input_ids"])
    model, _ = tiny.build("llama")
    with torch.no_grad():
        before = model.model(**batch.given, attention_mask=mask, use_cache=False)[0]
        batch.given["input_ids"][0, 0] += 1
        after = model.model(**batch.given, attention_mask=mask, use_cache=False)[0]
    assert not torch.equal(before[0, -1], after[0, -1])


@pytest.mark.parametrize("padding", [0, 1])
def test_positions_of_padding_mean_nothing(padding: int) -> None:
    """Padded on the left, with ids that count real tokens, as generation makes them."""
    batch = Batch("padded left", 4)
    counted = batch.given["attention_mask"].cumsum(1) - 1
    batch.given["position_ids"] = counted.masked_fill(~batch.real, padding)
    model, _ = tiny.build("llama")
    extension = extend(model, METHOD, seed=SEED)
    extension.set_progress(STEP, 10)
    theirs = reference(yarn_model("llama", "sdpa"), batch)
    torch.testing.assert_close(
        drawn_output(model, batch)[batch.real], theirs[batch.real], atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("layout", ["one row", "load balanced"])
def test_a_piece_of_a_row_is_refused(layout: str) -> None:
    """As a process has it where others hold the rest; balanced, it holds the first piece, too."""
    whole = torch.arange(24)
    piece = whole[12:] if layout == "one row" else torch.cat([whole[:6], whole[18:]])
    model, _ = tiny.build("llama")
    extend(model, METHOD, seed=SEED).set_progress(STEP, 10)
    with pytest.raises(UserError, match=r"position_ids begin at 1[28] where a document begins"):
        model.train()(input_ids=whole[None, :12], position_ids=piece[None], use_cache=False)
