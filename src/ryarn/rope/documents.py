"""Where the documents of a batch begin and end, read off what the model is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Document = tuple[int, slice]
"""Row of the batch, and the document's tokens in it."""


def find_documents(
    shape: tuple[int, int],
    attention_mask: NDArray[Any] | None,
    position_ids: NDArray[np.int64] | None,
) -> list[Document]:
    """Find each run of tokens that is one document: padding parts them, and so do restarts.

    A document begins where a position id is not its left neighbour's plus one: the rule by which
    transformers keeps packed documents apart (`masking_utils.find_packed_sequence_indices`).

    Args:
        shape: Rows and tokens of the batch, [B, T].
        attention_mask: Not 0 where a token is real, shape [B, T], or in packed rows the number of
            its document; or which tokens each one sees, as `visible` takes it; None where all
            tokens are real and a row is one document.
        position_ids: The ordinary position ids given to the model, shape [B, T] or [1, T]; None for
            0..T-1 in each row.

    Returns:
        The documents in reading order; tokens of padding are in none.
    """
    real = np.ones(shape, dtype=bool)
    joined = np.ones((shape[0], shape[1] - 1), dtype=bool)
    if attention_mask is not None and attention_mask.ndim == 2:
        real = attention_mask != 0
        joined = attention_mask[:, 1:] == attention_mask[:, :-1]
    elif attention_mask is not None:
        sees = np.broadcast_to(visible(attention_mask), (*shape, shape[1]))
        real = np.diagonal(sees, 0, 1, 2).copy()
        joined = np.diagonal(sees, -1, 1, 2)
    starts = real.copy()
    starts[:, 1:] &= ~(real[:, :-1] & joined)
    if position_ids is not None:
        ids = np.broadcast_to(position_ids, shape)
        starts[:, 1:] |= real[:, 1:] & (np.diff(ids, axis=1) != 1)
    ends = real.copy()
    ends[:, :-1] &= ~real[:, 1:] | starts[:, 1:]
    return [
        (int(row), slice(int(first), int(last) + 1))
        for (row, first), last in zip(np.argwhere(starts), np.nonzero(ends)[1], strict=True)
    ]


def visible(attention_mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Which tokens each token sees, [B, T, T], from a mask that a trainer made itself.

    Args:
        attention_mask: Shape [B, heads, T, T], the same for all heads: True where seen, or what is
            added to the scores (0 where seen).
    """
    one_head = attention_mask[:, 0]
    return one_head if one_head.dtype == bool else one_head == 0
