"""What the YAML files beside it name: the harness loads this file by its path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ryarn.integrations.lm_eval import load_rows, score_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datasets import Dataset


def babilong(**given: Any) -> dict[str, Dataset]:
    """Rows of BABILong."""
    return {"test": load_rows("babilong", given)}


def longbench_v2(**given: Any) -> dict[str, Dataset]:
    """Rows of LongBench v2."""
    return {"test": load_rows("longbench-v2", given)}


def mrcr(**given: Any) -> dict[str, Dataset]:
    """Rows of MRCR."""
    return {"test": load_rows("mrcr", given)}


def prompt(doc: dict[str, Any]) -> str:
    """The text that the model is given, chat template and all."""
    return str(doc["text"])


def scores(doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """The scores of one answer."""
    return score_row(doc, results[0])
