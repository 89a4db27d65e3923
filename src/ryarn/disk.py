"""A disk that refuses to take a file, said in one sentence, whichever library it refuses."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
_REFUSALS = {*_FORBIDDEN, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""A connection that broke is an `OSError`, too, and no matter of the disk."""
_TORCH = ("inline_container", "PytorchStreamWriter", "iostream error")
"""What torch says where a file ends early; it does not tell why."""


@contextmanager
def writing(what: Path, after: str) -> Iterator[None]:
    """Name the file and the remedy where a write fails.

    Args:
        what: The file or folder that is written.
        after: What to do when the disk takes files again, the end of the sentence.

    Raises:
        OSError: The disk refused; the sentence is its `strerror`.
    """
    try:
        yield
    except Exception as error:  # the tokenizers library raises no narrower class
        refusal = _refusal(error)
        if refusal is None:
            raise
        number, reason = refusal
        first = "make it writable" if number in _FORBIDDEN else "free some space"
        raise OSError(number, f"{what} can't be written ({reason}): {first}, {after}") from error


def _refusal(error: Exception) -> tuple[int, str] | None:
    """The system's number and words for a failed write; None where it was something else."""
    if isinstance(error, OSError):
        number = error.errno
        return (number, os.strerror(number)) if number in _REFUSALS else None
    # torch, safetensors and tokenizers write by themselves, and tell in their own words.
    told = re.search(r"\(os error (\d+)\)", str(error))
    if told is not None:
        return int(told[1]), os.strerror(int(told[1]))
    if any(words in str(error) for words in _TORCH):
        return errno.EIO, "the disk took only a part of it"
    return None
