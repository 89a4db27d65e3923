"""Where the documents of a batch begin and end, read off what the model is given."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Document = tuple[int, slice]
"""Row of the batch, and the document's tokens in it."""


def find_documents(
    shape: tuple[int, int],
    attention_mask: NDArray[np.bool_] | None,
    position_ids: NDArray[np.int64] | None,
) -> list[Document]:
    """Find each run of tokens that is one document: padding parts them, and so do restarts.

    A document begins where a position id is not its left neighbour's plus one: the rule by which
    transformers keeps packed documents apart (`masking_utils.find_packed_sequence_indices`).

    Args:
        shape: Rows and tokens of the batch, [B, T].
        attention_mask: True where a token is real, shape [B, T]; None where all are.
        position_ids: The ordinary position ids given to the model, shape [B, T] or [1, T]; None for
            0..T-1 in each row.

    Returns:
        The documents in reading order; tokens of padding are in none.
    """
    real = np.ones(shape, dtype=bool) if attention_mask is None else attention_mask
    starts = real.copy()
    starts[:, 1:] &= ~real[:, :-1]
    if position_ids is not None:
        ids = np.broadcast_to(position_ids, shape)
        starts[:, 1:] |= real[:, 1:] & (np.diff(ids, axis=1) != 1)
    ends = real.copy()
    ends[:, :-1] &= ~real[:, 1:] | starts[:, 1:]
    return [
        (int(row), slice(int(first), int(last) + 1))
        for (row, first), last in zip(np.argwhere(starts), np.nonzero(ends)[1], strict=True)
    ]
