"""Versions of ryarn and of what it trains and evaluates with, for every file that a run leaves."""

from __future__ import annotations

import platform
from importlib import metadata

from ryarn import __version__

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "trl",
    "accelerate",
    "datasets",
    "numpy",
)


def versions() -> dict[str, str]:
    """Name to version, Python's included; packages that are not installed are left out."""
    found = {"python": platform.python_version(), "ryarn": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
