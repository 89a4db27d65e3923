"""Randomized YaRN as an Axolotl plugin: `plugins: [ryarn.integrations.axolotl.RyarnPlugin]`."""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel

from ryarn.callback import ExtensionCallback
from ryarn.config import build
from ryarn.integrations.axolotl_args import RyarnArgs
from ryarn.recipe import MethodConfig, recipe_method
from ryarn.rope import extend


class RyarnPlugin(BasePlugin):  # type: ignore[misc]
    """Extends the model that Axolotl has loaded, and gives its trainer the callback."""

    def get_input_args(self) -> str:
        """Where Axolotl finds the class of the plugin's keys."""
        return f"{RyarnArgs.__module__}.{RyarnArgs.__name__}"

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[ExtensionCallback]:
        """Extend the model, adapters and patches already on it, before a trainer wraps it.

        Args:
            cfg: Axolotl's validated config.
            model: What will be trained.

        Raises:
            UserError: The method can't go on this model.
        """
        section = build(MethodConfig, _plain(cfg.ryarn))
        return [ExtensionCallback(extend(model, recipe_method(section), seed=cfg.seed or 0))]


def _plain(section: Any) -> dict[str, Any]:
    """Axolotl's dictionaries answer None for what is not there; these are ordinary ones."""
    given = section.model_dump() if isinstance(section, BaseModel) else dict(section)
    return {key: value for key, value in given.items() if value is not None}
