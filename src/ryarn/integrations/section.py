"""The section `ryarn` in another tool's config: a recipe's section `method`, checked as one."""

from __future__ import annotations

from typing import Any

from ryarn.config import build
from ryarn.errors import UserError
from ryarn.recipe import MethodConfig, recipe_method


def method_section(value: Any) -> MethodConfig:
    """The section `ryarn` of another tool's config, checked as a recipe's `method` is.

    Raises:
        ValueError: It is missing, or something in it is wrong; one sentence.
    """
    if not isinstance(value, dict):
        raise ValueError(
            f"ryarn = {value!r}: give a section with the method, e.g. "
            "{name: randomized-yarn, factor: 4, spans: [8192, 16384]}"
        )
    try:
        config = build(MethodConfig, value)
        method = recipe_method(config)
    except UserError as error:
        raise ValueError(f"section ryarn: {error}") from error
    if not method.trains:
        raise ValueError(f"section ryarn: name = {config.name!r} trains nothing; choose another")
    return config
