"""Which split a story or row belongs to: decided by its content, so splits can't overlap."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

SPLITS = ("train", "held-out", "test")


def content_hash(parts: Sequence[str]) -> str:
    """A stable hex digest of some texts; their borders count."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def split_of(content: str, held_out: float, test: float) -> str:
    """The split of a content hash: a share `held_out` and a share `test` of all, the rest train."""
    # A hash of the hash, so that ids made of its first digits don't tell the split.
    share = int(content_hash((content,))[:8], 16) / 16**8
    if share < test:
        return "test"
    return "held-out" if share < test + held_out else "train"
