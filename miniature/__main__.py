"""`python -m miniature`: the packaged base models, from nothing."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from miniature.pretrain import PLANS, pretrain


def main() -> None:
    """Pretrain; see `miniature.pretrain`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/miniature"))
    parser.add_argument("--architecture", choices=PLANS, default="llama", help="[llama]")
    parser.add_argument("--steps", type=int, help="of the last stage [as it was packaged]")
    parser.add_argument("--seed", type=int, help="[as it was packaged]")
    given = parser.parse_args()
    plan = PLANS[given.architecture]
    torch.set_num_threads(1)  # the matrices are too small to share out
    steps = plan.steps if given.steps is None else given.steps
    seed = plan.seed if given.seed is None else given.seed
    pretrain(given.out, replace(plan, steps=steps, seed=seed))


if __name__ == "__main__":
    main()
