"""Documents told apart by masks that trainers make themselves: numbers, or tokens by tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from integrations.inside import positions_of, watch
from ryarn import UserError, extend, make_method
from ryarn.rope.documents import find_documents
from ryarn.tiny import build

NUMBERS = np.array([[1, 1, 2, 2, 2, 0], [0, 1, 1, 1, 1, 1], [1, 2, 3, 3, 0, 0]])
DOCUMENTS = [
    *[(0, slice(0, 2)), (0, slice(2, 5)), (1, slice(1, 6))],
    *[(2, slice(0, 1)), (2, slice(1, 2)), (2, slice(2, 4))],
]


def by_tokens(dtype: str) -> np.ndarray:
    """The mask of who sees whom, [B, 1, T, T]."""
    same = NUMBERS[:, :, None] == NUMBERS[:, None, :]
    sees = same & (NUMBERS != 0)[:, None, :] & np.tril(np.ones((6, 6), dtype=bool))
    return sees[:, None] if dtype == "bool" else np.where(sees, 0.0, -1e9)[:, None]


@pytest.mark.parametrize("mask", [NUMBERS, by_tokens("bool"), by_tokens("added")])
def test_packed_documents_are_read_off_the_mask(mask: np.ndarray) -> None:
    assert find_documents((3, 6), mask, None) == DOCUMENTS


def test_documents_in_a_mask_are_drawn_apart_and_don_t_see_each_other() -> None:
    model, _ = build("llama")
    method = make_method("randomized-yarn", factor=4, spans=[4096])
    extension = extend(model, method, seed=3)
    extension.set_progress(0, 1)
    model.train()
    tokens = torch.arange(18).reshape(3, 6) + 60
    # As LLaMA-Factory makes it in bfloat16, which NumPy does not have.
    mask = torch.from_numpy(by_tokens("added")).to(torch.bfloat16).float()
    with watch(extension) as seen, torch.no_grad():
        model(input_ids=tokens, attention_mask=mask, use_cache=False)
    assert extension.stats.documents == len(DOCUMENTS)
    for row, where in DOCUMENTS:
        alone, _ = build("llama")
        other = extend(alone, method, seed=3)
        other.set_progress(0, 1)
        alone.train()
        with watch(other) as single, torch.no_grad():
            alone(input_ids=tokens[row, where][None], use_cache=False)
        assert torch.equal(seen[0].positions[row, where], single[0].positions[0])


def test_positions_are_read_back_from_cos_and_sin() -> None:
    inv_freq = torch.tensor([1.0, 1e-2, 1e-4])
    positions = torch.tensor([[0, 5, 4097, 40000]])
    angle = positions[..., None] * inv_freq
    assert torch.equal(positions_of(angle.cos(), angle.sin(), inv_freq), positions)


class FastPath(torch.nn.Module):
    """As Unsloth's: it keeps an inv_freq and a signature, and a table that attention reads."""

    __module__ = "unsloth.models.llama"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", torch.ones(8), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        return x


def test_a_fast_path_that_asks_no_rotary_module_is_refused() -> None:
    model, _ = build("llama")
    model.model.rotary_emb = FastPath()
    with pytest.raises(UserError, match=r"FastPath runs code of unsloth\.models\.llama"):
        extend(model, make_method("randomized-yarn", factor=4, spans=[4096]))


def test_a_decoder_with_such_a_forward_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build("llama")

    def forward(self: object, *args: object, **kwargs: object) -> None: ...

    monkeypatch.setattr(forward, "__module__", "unsloth.models.llama")
    monkeypatch.setattr(type(model.model), "forward", forward)
    with pytest.raises(UserError, match=r"LlamaModel runs code of unsloth\.models\.llama"):
        extend(model, make_method("randomized-yarn", factor=4, spans=[4096]))
