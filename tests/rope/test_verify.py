"""The self-test passes on what works and goes red on each thing that breaks silently elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ryarn import Extension, ExtensionCallback, SelfTestError, UserError, extend, make_method, tiny

METHOD = make_method("randomized-yarn", factor=4, spans=[512])


def extended(family: str = "llama", attention: str = "sdpa") -> tuple[Any, Extension]:
    model, _ = tiny.build(family, attention)
    return model, extend(model, METHOD)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", list(tiny.FAMILIES))
@pytest.mark.parametrize("name", ["lora", "trained-yarn", "rpe", "pose", "randomized-yarn"])
def test_every_method_passes_on_every_family(name: str, family: str, attention: str) -> None:
    model, _ = tiny.build(family, attention)
    extension = extend(model, make_method(name, factor=4, spans=[512]))
    model.train()
    extension.verify()
    assert all(module.training for module in model.modules())
    assert extension.stats.documents == 0


def test_stale_frequencies() -> None:
    model, extension = extended()
    fresh, _ = tiny.build("llama")
    model.model.rotary_emb.inv_freq = fresh.model.rotary_emb.inv_freq
    with pytest.raises(SelfTestError, match=r"rotary_emb: its live inv_freq .* off the formula"):
        extension.verify()


def test_frequencies_cast_to_bfloat16() -> None:
    model, extension = extended()
    model.to(torch.bfloat16)
    with pytest.raises(SelfTestError, match=r"inv_freq \(torch.bfloat16\) is off the formula"):
        extension.verify()


def test_attention_factor_lost() -> None:
    model, extension = extended()
    model.model.rotary_emb.attention_scaling = 1.0
    with pytest.raises(
        SelfTestError, match=r"attention factor is 1.000000, the formula gives 1.13"
    ):
        extension.verify()


def test_scaling_that_reached_the_sliding_layers() -> None:
    model, extension = extended("olmo3")
    rotary = model.model.rotary_emb
    rotary.sliding_attention_inv_freq = rotary.full_attention_inv_freq
    with pytest.raises(SelfTestError, match=r"\(sliding_attention\): its live inv_freq"):
        extension.verify()


def test_positions_that_reach_the_sliding_layers() -> None:
    model, extension = extended("olmo3")
    rotary = model.model.rotary_emb

    def leak(module: Any, args: Any, kwargs: Any) -> Any:
        held = extension._remapper._held
        return (args[0], held, *args[2:]), kwargs

    rotary.register_forward_pre_hook(leak, with_kwargs=True)
    with pytest.raises(SelfTestError, match=r"\(sliding_attention\): its phases are not those"):
        extension.verify()


def test_hooks_that_a_patched_rotary_bypasses() -> None:
    model, extension = extended()
    rotary = model.model.rotary_emb
    plain = torch.arange(6)[None]
    original = rotary.forward
    rotary.forward = lambda x, position_ids: original(x, plain)
    with pytest.raises(SelfTestError, match="something else decides its positions"):
        extension.verify()


def test_a_rotary_module_that_is_not_called() -> None:
    model, extension = extended()
    rotary = model.model.rotary_emb
    rotary.__class__ = type("Patched", (type(rotary),), {"__call__": type(rotary).forward})
    with pytest.raises(SelfTestError, match="the decoder ran without calling it"):
        extension.verify()


def test_attention_cut_at_gaps() -> None:
    """What passing drawn positions as position_ids does: each token sees only itself."""
    model, extension = extended()
    drawn = torch.tensor([[3, 9, 10, 40, 57, 90]])

    def pass_on(module: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "position_ids": drawn}

    model.model.register_forward_pre_hook(pass_on, with_kwargs=True)
    with pytest.raises(SelfTestError, match="token 0 does not move token 1 of one document"):
        extension.verify()


def test_attention_that_looks_ahead() -> None:
    model, extension = extended()

    def see_all(module: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "attention_mask": torch.zeros(1, 1, 6, 6)}

    model.model.register_forward_pre_hook(see_all, with_kwargs=True)
    with pytest.raises(SelfTestError, match="token 1 moves token 0 of one document"):
        extension.verify()


def test_documents_that_see_each_other() -> None:
    model, extension = extended()

    def forget_packing(module: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "attention_mask": torch.ones(1, 6, dtype=torch.long)}

    model.model.register_forward_pre_hook(forget_packing, with_kwargs=True)
    extension.verify()  # rows that are not packed are fine
    extension.set_progress(0, 1)
    model.train()(torch.arange(6)[None], use_cache=False)
    with pytest.raises(UserError, match="token 0 moves token 3 of two packed documents"):
        model(torch.arange(6)[None], position_ids=torch.arange(6)[None] % 3, use_cache=False)


def test_a_mixture_of_experts_passes() -> None:
    """Where no token moves another by exactly zero: experts round by who shares them."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    size = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = Qwen3MoeConfig(vocab_size=97, num_hidden_layers=4, **size, **experts)
    torch.manual_seed(0)
    extend(Qwen3MoeForCausalLM(config), METHOD).verify()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_leak_as_small_as_rounding_is_seen_in_a_dense_model(dtype: torch.dtype) -> None:
    model, _ = tiny.build("llama", dtype=dtype)
    extension = extend(model, METHOD)

    def leak(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        # the first token hears of the last, by one step of its dtype
        heard = out[..., -1:, :1].float().sign()
        out = out.clone()
        out[..., :1, :1] *= 1 + heard * torch.finfo(dtype).eps
        return out

    before = model.model.norm.register_forward_hook(leak)
    with pytest.raises(SelfTestError, match="moves token 0 of one document"):
        extension.verify()
    before.remove()
    extension.verify()


def test_a_model_is_extended_once() -> None:
    model, extension = extended()
    with pytest.raises(UserError, match="already extended: call remove"):
        extend(model, METHOD)
    extension.remove()
    extend(model, METHOD).verify()


def test_the_callback_refuses_another_model() -> None:
    _, extension = extended()
    other, _ = tiny.build("llama")
    callback: Any = ExtensionCallback(extension)
    with pytest.raises(UserError, match="not the one given to extend"):
        callback.on_train_begin(None, None, None, model=other)


def test_the_callback_refuses_a_step_without_draws() -> None:
    """As a model that runs with a cache (prefix tuning) trains."""
    _, extension = extended()
    extension.set_progress(0, 1)
    callback: Any = ExtensionCallback(extension)
    with pytest.raises(UserError, match="no positions were drawn in this step"):
        callback.on_step_end(None, None, None)
