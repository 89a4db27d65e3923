"""LLaMA-Factory's training through the module, watched from inside the model; prints JSON."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from inside import report, watch

from ryarn.integrations import llamafactory


def main(config: Path, steps: int, seed: int, *overrides: str) -> None:
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        original = llamafactory.extend

        def watched(model: Any, method: Any, *, seed: int) -> Any:
            found["extension"] = original(model, method, seed=seed)
            found["seen"] = stack.enter_context(watch(found["extension"]))
            return found["extension"]

        llamafactory.extend = watched
        llamafactory.main([str(config), *overrides])
    seen = found["seen"]
    result = report(found["extension"], seen, steps, seed)
    policy, reference = ([one for one in seen if one.gradients is grad] for grad in (True, False))
    if reference:
        halves = [one.positions.chunk(2) for one in policy]
        masks = [(one.mask != 0).chunk(2) for one in policy]
        result["shared"] = all(
            bool((a == b)[m & n].all()) for (a, b), (m, n) in zip(halves, masks, strict=True)
        )
        result["reference"] = len(policy) == len(reference) and all(
            bool((a.positions == b.positions).all()) for a, b in zip(policy, reference, strict=True)
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
