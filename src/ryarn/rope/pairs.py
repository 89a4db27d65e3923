"""Which documents of a preference batch answer one prompt, and so share their positions."""

from __future__ import annotations

from ryarn.errors import UserError
from ryarn.rope.documents import Document


def pair_documents(documents: list[Document], rows: int) -> list[list[Document]]:
    """Chosen and rejected answers, pair by pair, in a batch [chosen ..., rejected ...].

    With one draw a pair the tokens of the prompt have the same positions in both answers, and
    so have the answers token by token: what tells the two apart is their text alone.

    Args:
        documents: What the batch holds, in reading order.
        rows: Rows of the batch.

    Raises:
        UserError: The rows are not one document each, or their number is odd.
    """
    alone = [row for row, _ in documents] == list(range(rows))
    if not alone or rows % 2:
        raise UserError(
            f"a preference batch of {rows} rows holds {len(documents)} documents: pairs share "
            "positions only where chosen and rejected answers are a row each, so turn packing and "
            "padding-free batches off"
        )
    return [list(pair) for pair in zip(documents[: rows // 2], documents[rows // 2 :], strict=True)]
