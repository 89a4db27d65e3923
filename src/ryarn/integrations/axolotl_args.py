"""The keys that the plugin adds to Axolotl's YAML, and what can't stand beside them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, field_validator, model_validator

from ryarn.integrations.section import method_section
from ryarn.recipe import MethodConfig


class RyarnArgs(BaseModel):
    """The keys that the plugin adds to Axolotl's YAML: a section `ryarn`."""

    ryarn: MethodConfig | None = None
    """A recipe's section `method`: name, factor, spans, ..."""

    @field_validator("ryarn", mode="before")
    @classmethod
    def _checked(cls, value: Any) -> MethodConfig:
        return method_section(value)

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, data: Any) -> Any:
        if isinstance(data, dict):
            check_axolotl(data)
        return data


def check_axolotl(config: dict[str, Any]) -> None:
    """Refuse what Axolotl can do and drawn positions can't go with.

    Raises:
        ValueError: One sentence.
    """
    if config.get("ryarn") is None:
        raise ValueError(
            "the plugin ryarn.integrations.axolotl.RyarnPlugin is on, but the section ryarn is "
            "missing: add it, or take the plugin off the list"
        )
    for key in ("context_parallel_size", "sequence_parallel_degree"):
        if (config.get(key) or 1) > 1:
            raise ValueError(
                f"{key} = {config[key]}: a row would be cut up among devices, and each piece drawn "
                "for as if it were a document; rows are short in training, so set it to 1"
            )
