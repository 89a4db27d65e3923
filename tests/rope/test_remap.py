"""Drawn positions against an explicit reference: plain transformers, the mask written out."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from ryarn import UniformSubset, extend, make_method, tiny
from ryarn.draws import generator, row_key
from ryarn.errors import UserError

FACTOR, SPAN, SEED, STEP = 4.0, 512, 11, 3
METHOD = make_method("randomized-yarn", factor=FACTOR, spans=[SPAN])
FAMILIES = ["llama", "qwen2", "qwen3", "olmo3"]
ATTENTIONS = ["eager", "sdpa"]


def yarn_model(family: str, attention: str) -> Any:
    """A model that ryarn never touched, built by transformers from a config that has YaRN."""
    plain, _ = tiny.build(family, attention)
    config = copy.deepcopy(plain.config)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    rope.update(rope_type="yarn", factor=FACTOR, original_max_position_embeddings=tiny.WINDOW)
    config.max_position_embeddings = int(tiny.WINDOW * FACTOR)
    model = type(plain)._from_config(config, attn_implementation=attention)
    model.load_state_dict(plain.state_dict())
    return model.eval()


class Batch:
    """Rows of a layout, what the model is given, and the documents as the layout means them."""

    def __init__(self, layout: str, rows: int) -> None:
        rng = np.random.default_rng(5)
        length = 24
        tokens = torch.from_numpy(rng.integers(1, 250, (rows, length)))
        self.given: dict[str, torch.Tensor] = {"input_ids": tokens}
        lengths = [length - 3 * (row % 3) for row in range(rows)]
        if layout == "no mask":
            self.documents = [(row, slice(0, length)) for row in range(rows)]
        elif layout == "full mask":
            self.documents = [(row, slice(0, length)) for row in range(rows)]
            self.given["attention_mask"] = torch.ones_like(tokens)
        elif layout == "padded right":
            self.documents = [(row, slice(0, n)) for row, n in enumerate(lengths)]
        elif layout == "padded left":
            self.documents = [(row, slice(length - n, length)) for row, n in enumerate(lengths)]
        elif layout == "packed":
            borders = [0, 7, 16, length]
            self.documents = [
                (row, slice(a, b)) for row in range(rows) for a, b in pairwise(borders)
            ]
            ids = torch.cat([torch.arange(b - a) for a, b in pairwise(borders)])
            self.given["position_ids"] = ids.expand(rows, -1).contiguous()
        if layout.startswith("padded"):
            mask = torch.zeros_like(tokens)
            for row, where in self.documents:
                mask[row, where] = 1
            self.given["attention_mask"] = mask
        self.real = torch.zeros(rows, length, dtype=torch.bool)
        self.same = torch.zeros(rows, length, length, dtype=torch.bool)
        self.positions = torch.zeros(rows, length, dtype=torch.long)
        for row, where in self.documents:
            self.real[row, where] = True
            self.same[row, where, where] = True
            document = tokens[row, where].numpy()
            rng = generator(SEED, STEP, row_key(document))
            drawn = UniformSubset()(len(document), SPAN, rng)
            self.positions[row, where] = torch.from_numpy(drawn)

    def mask(self, window: int | None = None) -> torch.Tensor:
        """The plain causal mask inside documents, as numbers to add, shape [B, 1, T, T]."""
        t = torch.arange(self.real.shape[1])
        allowed = self.same & (t[:, None] >= t[None, :])
        if window is not None:
            allowed &= t[:, None] - t[None, :] < window
        allowed |= torch.eye(len(t), dtype=torch.bool)  # padding sees itself: no empty row
        return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)[:, None]


def reference(model: Any, batch: Batch) -> torch.Tensor:
    """Hidden states of the untouched model with positions and masks given by hand."""
    rotary = model.model.rotary_emb
    mask: Any = batch.mask()
    if hasattr(rotary, "sliding_attention_inv_freq"):
        mask = {
            "full_attention": batch.mask(),
            "sliding_attention": batch.mask(model.config.sliding_window),
        }
        plain = torch.zeros_like(batch.positions)
        for row, where in batch.documents:
            plain[row, where] = torch.arange(where.stop - where.start)
        original = rotary.forward

        def by_layer(x: torch.Tensor, position_ids: torch.Tensor, layer_type: str) -> Any:
            chosen = batch.positions if layer_type == "full_attention" else plain
            return original(x, chosen, layer_type)

        rotary.forward = by_layer
    with torch.no_grad():
        return model.model(
            input_ids=batch.given["input_ids"],
            attention_mask=mask,
            position_ids=batch.positions,
            use_cache=False,
        ).last_hidden_state


def drawn_output(model: Any, batch: Batch) -> torch.Tensor:
    model.train()
    with torch.no_grad():
        return model.model(**batch.given, use_cache=False).last_hidden_state


@pytest.mark.parametrize(
    "layout", ["no mask", "full mask", "padded right", "padded left", "packed"]
)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_positions_equal_the_reference(
    family: str, attention: str, rows: int, layout: str
) -> None:
    batch = Batch(layout, rows)
    model, _ = tiny.build(family, attention)
    extension = extend(model, METHOD, seed=SEED)
    extension.set_progress(STEP, 10)
    ours = drawn_output(model, batch)
    theirs = reference(yarn_model(family, attention), batch)
    torch.testing.assert_close(ours[batch.real], theirs[batch.real], atol=2e-5, rtol=1e-4)
    assert extension.stats.documents == len(batch.documents)
    assert extension.stats.max_position == int(batch.positions.max())


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_tells_position_ids_without_a_mask_apart(family: str, attention: str) -> None:
    """The obvious way is the wrong way: transformers takes a gap for a packed document's end."""
    batch = Batch("no mask", 1)
    model = yarn_model(family, attention)
    tokens = batch.given["input_ids"]
    with torch.no_grad():
        naive = model.model(input_ids=tokens, position_ids=batch.positions, use_cache=False)
        other = tokens.clone()
        other[0, 0] += 1
        moved = model.model(input_ids=other, position_ids=batch.positions, use_cache=False)
    theirs = reference(model, batch)
    assert not torch.allclose(naive.last_hidden_state, theirs, atol=1e-2)
    assert torch.equal(naive.last_hidden_state[0, -1], moved.last_hidden_state[0, -1])


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_token_depends_on_the_first(family: str, attention: str) -> None:
    batch = Batch("no mask", 1)
    model, _ = tiny.build(family, attention)
    extension = extend(model, METHOD, seed=SEED)
    with extension._remapper.forced(batch.positions):
        before = drawn_output(model, batch)
        batch.given["input_ids"][0, 0] += 1
        after = drawn_output(model, batch)
    assert not torch.equal(before[0, -1], after[0, -1])


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_documents_do_not_see_each_other(family: str, attention: str) -> None:
    batch = Batch("packed", 1)
    model, _ = tiny.build(family, attention)
    extension = extend(model, METHOD, seed=SEED)
    _, first = batch.documents[0]
    with extension._remapper.forced(batch.positions):
        before = drawn_output(model, batch)
        batch.given["input_ids"][0, first] += 1
        after = drawn_output(model, batch)
    assert torch.equal(before[0, first.stop :], after[0, first.stop :])
    assert not torch.equal(before[0, first], after[0, first])


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_evaluation_is_the_untouched_model_under_yarn(family: str, attention: str) -> None:
    batch = Batch("padded left", 4)
    model, _ = tiny.build(family, attention)
    extension = extend(model, METHOD, seed=SEED)
    extension.set_progress(STEP, 10)
    drawn_output(model, batch)  # a training batch before leaves nothing behind
    theirs = yarn_model(family, attention)
    with torch.no_grad():
        ours = model.eval()(**batch.given).logits
        assert torch.equal(ours, theirs(**batch.given).logits)
        text = {"max_new_tokens": 6, "do_sample": False}
        assert torch.equal(
            model.generate(**batch.given, **text), theirs.generate(**batch.given, **text)
        )


def test_generation_in_training_mode_draws_nothing() -> None:
    batch = Batch("full mask", 1)
    model, _ = tiny.build("llama")
    extension = extend(model, METHOD, seed=SEED)
    text = {"max_new_tokens": 6, "do_sample": False}
    expected = model.eval().generate(**batch.given, **text)
    extension.set_progress(0, 1)
    assert torch.equal(model.train().generate(**batch.given, **text), expected)
    assert extension.stats.documents == 0


def test_training_without_progress_is_refused() -> None:
    model, _ = tiny.build("llama")
    extend(model, METHOD)
    model.train()
    with pytest.raises(UserError, match=r"callbacks=\[ryarn.ExtensionCallback\(extension\)\]"):
        model(**Batch("no mask", 1).given)
    with pytest.raises(UserError, match=r"came before the first step.* or call model\.eval\(\)"):
        drawn_output(model, Batch("no mask", 1))


def test_a_draw_depends_on_step_and_row_alone() -> None:
    batch = Batch("full mask", 4)
    model, _ = tiny.build("llama")
    extension = extend(model, METHOD, seed=SEED)
    extension.set_progress(STEP, 10)
    whole = drawn_output(model, batch)
    extension.set_progress(STEP, 10)
    alone = [
        model.model(input_ids=batch.given["input_ids"][row : row + 1], use_cache=False)
        for row in (2, 0, 3, 1)
    ]
    for row, out in zip((2, 0, 3, 1), alone, strict=True):
        torch.testing.assert_close(out.last_hidden_state[0], whole[row], atol=1e-5, rtol=1e-4)
    extension.set_progress(STEP + 1, 10)
    assert not torch.allclose(drawn_output(model, batch), whole, atol=1e-3)


def test_equal_documents_of_one_step_are_drawn_apart() -> None:
    batch = Batch("no mask", 1)
    batch.given["input_ids"] = batch.given["input_ids"].repeat(2, 1)
    model, _ = tiny.build("llama")
    extend(model, METHOD, seed=SEED).set_progress(STEP, 10)
    out = drawn_output(model, batch)
    assert not torch.allclose(out[0], out[1], atol=1e-3)


def test_one_draw_a_batch_is_shared_by_its_documents() -> None:
    batch = Batch("no mask", 4)
    batch.given["input_ids"] = batch.given["input_ids"][:1].repeat(4, 1)
    model, _ = tiny.build("llama")
    method = make_method("randomized-yarn", factor=FACTOR, spans=[SPAN], draw="batch")
    extension = extend(model, method, seed=SEED)
    extension.set_progress(STEP, 10)
    out = drawn_output(model, batch)
    assert torch.equal(out[0], out[3])
    assert extension.stats.documents == 4
    assert not torch.allclose(drawn_output(model, batch), out, atol=1e-3)  # next micro-batch


def test_a_document_longer_than_the_span_stays_contiguous_and_is_counted() -> None:
    batch = Batch("full mask", 4)
    model, _ = tiny.build("llama")
    method = make_method("randomized-yarn", factor=FACTOR, spans=[20, 512])
    extension = extend(model, method, seed=SEED)
    extension.set_progress(0, 10)
    ours = drawn_output(model, batch)
    assert (extension.stats.documents, extension.stats.contiguous) == (4, 4)
    with torch.no_grad():
        plain = model.eval().model(**batch.given, use_cache=False).last_hidden_state
    assert torch.equal(ours, plain)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    batch = Batch("padded right", 4)
    gradients = []
    for checkpointing in (False, True):
        model, _ = tiny.build("llama")
        extend(model, METHOD, seed=SEED).set_progress(STEP, 10)
        if checkpointing:
            model.enable_input_require_grads()
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model.train()
        model(**batch.given, use_cache=False).logits[batch.real].float().square().mean().backward()
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-7, rtol=1e-5)
