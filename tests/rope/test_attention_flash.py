"""Flash attention on a CPU: transformers' own path, with a plain kernel in the place of its own.

What the kernel is called with (borders and longest document) must come from ordinary positions, and
the outcome must be that of the explicit reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from test_remap import METHOD, SEED, STEP, Batch, drawn_output, reference, yarn_model
from torch.nn.functional import scaled_dot_product_attention
from transformers import modeling_flash_attention_utils as flash

from ryarn import extend, tiny
from ryarn.errors import UserError
from ryarn.rope import Extension

LAYOUTS = ["no mask", "full mask", "padded right", "padded left", "packed"]
VERSIONS = ["flash_attention_2", "flash_attention_3"]
FAMILIES = ["llama", "olmo3"]


@dataclass
class Kernel:
    """Attention document by document, and with what borders it was called."""

    borders: list[list[int]] = field(default_factory=list)
    longest: list[int] = field(default_factory=list)
    plain: int = 0

    def rows(self, q: Any, k: Any, v: Any, causal: bool, window: tuple[int, int]) -> torch.Tensor:
        """Rows of one length, [B, T, heads, size]."""
        assert causal
        steps = torch.arange(q.shape[1])
        seen = steps[:, None] >= steps
        if window[0] >= 0:
            seen &= steps[:, None] - steps <= window[0]
        q, k, v = (value.transpose(1, 2) for value in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return out.transpose(1, 2)

    def documents(self, q: Any, k: Any, v: Any, borders: Any, longest: Any, **how: Any) -> Any:
        """Documents one after another, [tokens, heads, size]."""
        self.borders.append(borders.tolist())
        self.longest.append(int(longest))
        parts = [
            self.rows(q[None, a:b], k[None, a:b], v[None, a:b], **how)
            for a, b in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
        ]
        return torch.cat(parts, dim=1)[0]


def version_2(kernel: Kernel) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """With the parameters of `flash_attn`'s functions."""

    def rows(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):  # type: ignore[no-untyped-def]
        kernel.plain += 1
        return kernel.rows(q, k, v, causal, window_size)

    def varlen(  # type: ignore[no-untyped-def]
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
    ):  # fmt: skip
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert int(max_seqlen_q) == int(max_seqlen_k)
        how = {"causal": causal, "window": window_size}
        return kernel.documents(q, k, v, cu_seqlens_q, max_seqlen_q, **how)

    return rows, varlen


def version_3(kernel: Kernel) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """With those of `flash_attn_interface`: no dropout, more than the output comes back."""

    def rows(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1)):  # type: ignore[no-untyped-def]
        kernel.plain += 1
        return kernel.rows(q, k, v, causal, window_size), None

    def varlen(  # type: ignore[no-untyped-def]
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        softmax_scale=None, causal=False, window_size=(-1, -1),
    ):  # fmt: skip
        how = {"causal": causal, "window": window_size}
        return kernel.documents(q, k, v, cu_seqlens_q, max_seqlen_q, **how), None

    return rows, varlen


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def kernel(version: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """The plain kernel where transformers keeps the loaded one."""
    recorded = Kernel()
    rows, varlen = {"flash_attention_2": version_2, "flash_attention_3": version_3}[version](
        recorded
    )
    loaded = {
        "_loaded_implementation": version,
        "_flash_fn": rows,
        "_flash_varlen_fn": varlen,
        "_flash_with_kvcache_fn": None,
        "_pad_fn": flash._pad_input,
        "_unpad_fn": flash._unpad_input,
        "_process_flash_kwargs_fn": flash._lazy_define_process_function(varlen),
        "_process_with_kvcache_kwargs_fn": dict,
    }
    for name, value in loaded.items():
        monkeypatch.setattr(flash, name, value)
    return recorded


def model_with(version: str, family: str = "llama") -> tuple[Any, Extension]:
    """An extended model that calls the kernel; told before, transformers would ask for a GPU."""
    model, _ = tiny.build(family)
    extension = extend(model, METHOD, seed=SEED)
    model.config._attn_implementation = version
    return model, extension


def borders(batch: Batch) -> list[int]:
    """Where the documents begin in the real tokens, one after another, and where all end."""
    sizes = torch.tensor([0, *(where.stop - where.start for _, where in batch.documents)])
    return sizes.cumsum(0).tolist()


BATCHES = [
    (rows, layout) for layout in LAYOUTS for rows in (1, 4) if (rows, layout) != (4, "packed")
]


@pytest.mark.parametrize(("rows", "layout"), BATCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_the_reference(
    family: str, rows: int, layout: str, version: str, kernel: Kernel
) -> None:
    batch = Batch(layout, rows)
    model, extension = model_with(version, family)
    extension.set_progress(STEP, 10)
    ours = drawn_output(model, batch)
    theirs = reference(yarn_model(family, "eager"), batch)
    torch.testing.assert_close(ours[batch.real], theirs[batch.real], atol=2e-5, rtol=1e-4)
    layers = model.config.num_hidden_layers
    if bool(batch.real.all()) and layout != "packed":
        assert (kernel.plain, kernel.borders) == (layers, [])
    else:
        assert kernel.plain == 0
        assert kernel.borders == [borders(batch)] * layers
        longest = max(where.stop - where.start for _, where in batch.documents)
        assert kernel.longest == [longest] * layers


@pytest.mark.parametrize("rows", [1, 4])
def test_borders_that_the_collator_counted_reach_the_kernel(
    rows: int, version: str, kernel: Kernel
) -> None:
    """Given them, it need not look for restarts, so that several rows will do."""
    batch = Batch("packed", rows)
    counted = torch.tensor(borders(batch), dtype=torch.int32)
    longest = int(counted.diff().max())
    batch.given |= {"cu_seq_lens_q": counted, "cu_seq_lens_k": counted}
    batch.given |= {"max_length_q": longest, "max_length_k": longest}  # type: ignore[dict-item]
    model, extension = model_with(version)
    extension.set_progress(STEP, 10)
    theirs = reference(yarn_model("llama", "eager"), batch)
    torch.testing.assert_close(drawn_output(model, batch), theirs, atol=2e-5, rtol=1e-4)
    assert kernel.borders[0] == counted.tolist()


def test_the_self_test_passes_and_packing_is_allowed(version: str, kernel: Kernel) -> None:
    _, extension = model_with(version)
    extension.verify()
    assert extension._remapper.packing_fault is None


def test_several_packed_rows_are_refused(version: str, kernel: Kernel) -> None:
    """transformers looks for restarts in a batch of one row; four would be one document each."""
    model, extension = model_with(version)
    extension.set_progress(STEP, 10)
    with pytest.raises(
        UserError, match=r"in a batch of one row alone\); make one row of the batch"
    ):
        drawn_output(model, Batch("packed", 4))


def test_drawn_positions_as_position_ids_would_cut_attention(version: str, kernel: Kernel) -> None:
    """Why they are not passed on: each gap would be a border, or there would be none at all."""
    batch = Batch("no mask", 1)
    model = yarn_model("llama", "eager")
    model.config._attn_implementation = version
    with torch.no_grad():
        model.model(
            input_ids=batch.given["input_ids"], position_ids=batch.positions, use_cache=False
        )
    assert kernel.plain == 0
    assert kernel.borders
