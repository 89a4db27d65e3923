"""Whether code that comes with a model may run: only on the word of who started the process.

The word is no key of a recipe, which may be somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)


def trust_remote_code() -> None:
    """Let models run code of their own from here on."""
    _TRUSTED.set(True)


def is_trusted() -> bool:
    """Whether models may run code of their own."""
    return _TRUSTED.get()


@contextmanager
def trusting(is_asked: bool) -> Iterator[None]:
    """Let models run code of their own inside the block, if that is asked."""
    token = _TRUSTED.set(is_asked or _TRUSTED.get())
    try:
        yield
    finally:
        _TRUSTED.reset(token)
