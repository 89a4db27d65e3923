"""Lengths of published MRCR rows: the card's bins, in tokens of o200k_base."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ryarn.errors import UserError

if TYPE_CHECKING:
    from tiktoken import Encoding

ENCODING = "o200k_base"
FIRST_TOKEN = 4096
"""The shortest published row; the first bin begins with it."""
BINS = {
    "8k": 8192,
    "16k": 16384,
    "32k": 32768,
    "64k": 65536,
    "128k": 131_072,
    "256k": 262_144,
    "512k": 524_288,
    "1M": 1_048_576,
}
"""The published bins: name to longest row. A bin begins where the one before it ends."""
NAMES = {longest: name for name, longest in BINS.items()}
MOST_CHARACTERS = 8
"""Characters that a token has at most, on a row's average: published rows have 4.9. What is longer
than a bin by this measure is not counted, which spares most of the data."""

_FILE = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
_CACHED = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""What tiktoken calls that file in its cache folder."""


def bin_of(tokens: int) -> int | None:
    """The bin of a row: its longest length; None outside of all bins."""
    if tokens < FIRST_TOKEN:
        return None
    return next((longest for longest in BINS.values() if tokens <= longest), None)


def load_encoding() -> Encoding:
    """The tokenizer that the card counts with.

    Raises:
        UserError: tiktoken is not installed, or neither its cache nor the network has the file.
    """
    try:
        import tiktoken
    except ImportError as error:
        raise UserError(
            "published MRCR rows are sorted into bins by o200k_base tokens, which needs tiktoken: "
            "pip install 'ryarn[mrcr]'"
        ) from error
    try:
        return tiktoken.get_encoding(ENCODING)
    except (OSError, ValueError) as error:
        raise UserError(
            f"published MRCR rows are sorted into bins by o200k_base tokens, and tiktoken can't "
            f"load {ENCODING} ({_short(error)}): with no network, save {_FILE} from elsewhere as "
            f"{_CACHED} in a folder and set TIKTOKEN_CACHE_DIR to that folder"
        ) from error


def count_tokens(encoding: Encoding, texts: Iterable[str], most: int) -> int:
    """Tokens of some texts together, as the card sums them: contents alone, no chat template.

    Args:
        encoding: From `load_encoding`.
        texts: All messages, and the answer.
        most: Counting stops once there are more.
    """
    total = 0
    for text in texts:
        total += len(encoding.encode_ordinary(text))
        if total > most:
            break
    return total


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
