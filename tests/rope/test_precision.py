"""Far positions in half precision: float32 frequencies, and a bound on the phase, after every cast.

The bound: position m, frequency f. m is exact in float32 up to 2^24. f is off by at most 5e-6 of
itself by the self-test (3e-7 seen), and the product is rounded once: 2^-24. So the phase is off by
at most 4e-7 m f radians (0.4 at m = 2^20 in the fastest dimension, whose whole turn is 6.28), where
a bfloat16 frequency is off by 4e-3 m f: hundreds of turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn

from ryarn import extend, make_method, tiny
from ryarn.errors import SelfTestError
from ryarn.rope import Extension, inspect_rope

METHOD = make_method("randomized-yarn", factor=32, spans=[512])
POSITIONS = [0, 1, 4_095, 65_537, 131_071, 2**19 + 1, 2**20 - 1]
BOUND = 4e-7
HALF = [torch.bfloat16, torch.float16]


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("gloo") / "store"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def phase_error(extension: Extension) -> float:
    """Largest error of a phase over m f, against float64; phases are read off cos and sin."""
    (rope,) = extension.rope_map.extended
    assert rope.inv_freq.dtype == torch.float32
    exact = np.outer(POSITIONS, extension.rope_map.yarn(rope, 32.0).inv_freq())
    extra = () if rope.layer_type is None else (rope.layer_type,)
    # A float32 input: cos and sin before the cast to the model's dtype.
    cos, sin = rope.module.forward(torch.zeros(1), torch.tensor([POSITIONS]), *extra)
    size = exact.shape[1]
    live = np.arctan2(sin[0, :, :size].double().numpy(), cos[0, :, :size].double().numpy())
    turn = np.abs(np.exp(1j * live) - np.exp(1j * exact))  # of the angle between, below 0.5
    return float(np.max((turn - 1e-6) / np.maximum(exact, 1e-9)))


def check(extension: Extension) -> None:
    extension.verify()
    assert phase_error(extension) < BOUND


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", list(tiny.FAMILIES))
def test_a_model_loaded_in_half_precision(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model, _ = tiny.build(family, dtype=dtype)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=dtype)
    check(extend(loaded, METHOD))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", ["llama", "olmo3"])
def test_a_cast_is_detected_and_extending_after_it_is_not_hurt(
    family: str, dtype: torch.dtype
) -> None:
    model, _ = tiny.build(family)
    extension = extend(model, METHOD)
    model.to(dtype)
    with pytest.raises(SelfTestError, match=rf"inv_freq \({dtype}\) is off the formula"):
        extension.verify()
    extension.remove()
    model.to(dtype)
    if family == "llama":  # olmo3's sliding RoPE stays cast: nothing of ours, so it is refused
        check(extend(model, METHOD))
    else:
        with pytest.raises(SelfTestError, match="sliding_attention"):
            extend(model, METHOD).verify()


def saved(folder: Path) -> Any:
    model, _ = tiny.build("llama", dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return model


def test_weights_dispatched_into_an_empty_model(tmp_path: Path) -> None:
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch

    original = saved(tmp_path)
    with init_empty_weights():
        model = type(original)(original.config)
    model = load_checkpoint_and_dispatch(
        model, str(tmp_path), device_map={"": "cpu"}, dtype=torch.bfloat16
    )
    check(extend(model, METHOD))


def test_weights_that_wait_on_disk(tmp_path: Path) -> None:
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch

    original = saved(tmp_path)
    with init_empty_weights():
        model = type(original)(original.config)
    places = {"model.embed_tokens": "disk", "model.layers.0": "cpu", "model.layers.1": "disk"}
    places |= {"model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    model = load_checkpoint_and_dispatch(
        model, str(tmp_path), device_map=places, offload_folder=str(tmp_path / "off")
    )
    assert any(weight.is_meta for weight in model.parameters())
    check(extend(model, METHOD))


def test_buffers_left_on_the_meta_device(tmp_path: Path) -> None:
    original = saved(tmp_path)
    with torch.device("meta"):
        model = type(original)(original.config)
    model.load_state_dict(original.state_dict(), assign=True)
    with pytest.raises(SelfTestError, match="inv_freq is on the meta device"):
        extend(model, make_method("lora")).verify()
    check(extend(build_again(model, original), METHOD))


def build_again(model: Any, original: Any) -> Any:
    """The same without the extension; YaRN makes the buffers anew."""
    with torch.device("meta"):
        fresh = type(model)(original.config)
    fresh.load_state_dict(original.state_dict(), assign=True)
    return fresh


def one_step(wrapped: nn.Module, extension: Extension) -> None:
    extension.set_progress(0, 1)
    wrapped.train()
    tokens = torch.arange(5, 37)[None]
    wrapped(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    assert extension.stats.documents == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_ddp(process_group: None, when: str) -> None:
    from torch.nn.parallel import DistributedDataParallel

    model, _ = tiny.build("llama", dtype=torch.bfloat16)
    extension = extend(model, METHOD) if when == "before" else None
    wrapped = DistributedDataParallel(model)
    extension = extension or extend(model, METHOD)
    one_step(wrapped, extension)
    check(extension)
    extension.remove()
    assert inspect_rope(model).native_factor is None


@pytest.mark.parametrize("when", ["before", "after"])
def test_fsdp2_with_mixed_precision(process_group: None, when: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model, _ = tiny.build("llama")
    extension = extend(model, METHOD) if when == "before" else None
    mesh = init_device_mesh("cpu", (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    extension = extension or extend(model, METHOD)
    extension.verify(model)
    one_step(model, extension)
    extension.verify(model)
    assert phase_error(extension) < BOUND


def test_positions_rounded_to_bfloat16_are_detected() -> None:
    """As code does that casts `position_ids` to the model's dtype before the product."""
    model, _ = tiny.build("llama", dtype=torch.bfloat16)
    extension = extend(model, METHOD)
    original = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: original(
        x, position_ids.to(torch.bfloat16)
    )
    with pytest.raises(SelfTestError, match="its phases are not those of positions"):
        extension.verify()
