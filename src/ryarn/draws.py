"""Draws by address: the generator of (seed, step, row, document) and of nothing else."""

from __future__ import annotations

import hashlib
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ryarn.errors import UserError

# 32-bit words that each part of the address takes. A fixed width, because `SeedSequence` joins the
# words of its numbers without borders: else (2**32, 0) and (0, 1) would be one address.
_WORDS = {"seed": 4, "step": 2, "row": 4, "document": 2}


def generator(seed: int, step: int, row: int, document: int = 0) -> np.random.Generator:
    """The random generator of an address: a pure function, with no state behind it.

    So a draw is the same whichever worker or rank asks, in whatever order, and after a resume; two
    addresses that differ anywhere give independent streams (128 bits of `SeedSequence`, PCG64).
    NumPy promises these bits across its versions, but not that `Generator.choice` turns them into
    the same numbers: to repeat positions exactly, keep NumPy's version.

    Args:
        seed: The run's seed, below 2**128.
        step: Optimizer step, below 2**64; it grows through all epochs.
        row: Which row, below 2**128: a number, or `row_key` of its tokens.
        document: Which document of the row or, with `row_key`, which of its equals; below 2**64.

    Raises:
        UserError: A part is negative or too big.
        TypeError: A part is not a whole number.
    """
    words: list[int] = []
    address = {"seed": seed, "step": step, "row": row, "document": document}
    for name, part in address.items():
        value = operator.index(part)
        bits = 32 * _WORDS[name]
        if not 0 <= value < 1 << bits:
            raise UserError(f"{name} = {value}: expected a whole number from 0 to 2**{bits} - 1")
        words += [(value >> shift) & 0xFFFFFFFF for shift in range(0, bits, 32)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def row_key(tokens: NDArray[np.integer[Any]]) -> int:
    """Content hash of a document: the row id to draw by.

    A row is known by its content because its place in a batch is not stable: batch size, number of
    ranks, packing and order all change it, and padding changes the row. By content, the draw stays
    the same through all of them. Equal documents in one batch have equal keys: number them through
    `generator`'s `document` so that twins are drawn apart.

    Args:
        tokens: Token ids without padding, shape [length], any integer dtype and byte order.

    Returns:
        BLAKE2b of the ids as little-endian int64, 128 bits: 0 <= key < 2**128.

    Raises:
        TypeError: The ids are not integers.
    """
    normal = np.asarray(tokens).astype("<i8", casting="same_kind")
    return int.from_bytes(hashlib.blake2b(normal.tobytes(), digest_size=16).digest(), "little")
