"""ryarn: Randomized YaRN, long-context reasoning learned from short rows.

Importing ryarn loads neither torch nor transformers; each name below is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ryarn.callback import ExtensionCallback
    from ryarn.curriculum import Curriculum
    from ryarn.errors import SelfTestError, UserError
    from ryarn.loading import load
    from ryarn.method import METHODS, Method, make_method
    from ryarn.positions import Contiguous, RandomChunks, SentenceChunks, SkipWise, UniformSubset
    from ryarn.rope import Extension, extend
    from ryarn.yarn import Yarn

__version__ = "0.1.0"

_HOME = {
    "Curriculum": "curriculum",
    "ExtensionCallback": "callback",
    "UserError": "errors",
    "load": "loading",
    "METHODS": "method",
    "Method": "method",
    "make_method": "method",
    "Contiguous": "positions",
    "RandomChunks": "positions",
    "SentenceChunks": "positions",
    "SkipWise": "positions",
    "UniformSubset": "positions",
    "Extension": "rope",
    "SelfTestError": "errors",
    "extend": "rope",
    "Yarn": "yarn",
}

__all__ = [
    "METHODS",
    "Contiguous",
    "Curriculum",
    "Extension",
    "ExtensionCallback",
    "Method",
    "RandomChunks",
    "SelfTestError",
    "SentenceChunks",
    "SkipWise",
    "UniformSubset",
    "UserError",
    "Yarn",
    "extend",
    "load",
    "make_method",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"ryarn.{_HOME[name]}"), name)
    raise AttributeError(f"module 'ryarn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
