"""Axolotl's own training command with the plugin, watched from inside the model; prints JSON."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from axolotl.cli.train import do_cli
from inside import report, watch

from ryarn.integrations.axolotl import RyarnPlugin


def main(config: Path, steps: int, seed: int) -> None:
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        original = RyarnPlugin.add_callbacks_pre_trainer

        def watched(self: Any, cfg: Any, model: Any) -> Any:
            callbacks = original(self, cfg, model)
            found["extension"] = callbacks[0].extension
            found["seen"] = stack.enter_context(watch(found["extension"]))
            return callbacks

        RyarnPlugin.add_callbacks_pre_trainer = watched  # type: ignore[method-assign]
        do_cli(str(config))
    print(json.dumps(report(found["extension"], found["seen"], steps, seed)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
