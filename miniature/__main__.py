"""`python -m miniature`: the packaged base model, from nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from miniature.pretrain import ARCHITECTURES, pretrain


def main() -> None:
    """Pretrain; see `miniature.pretrain`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/miniature"))
    parser.add_argument("--steps", type=int, default=4500, help="of the last stage [4500]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="llama")
    given = parser.parse_args()
    torch.set_num_threads(1)  # the matrices are too small to share out
    pretrain(given.out, steps=given.steps, seed=given.seed, architecture=given.architecture)


if __name__ == "__main__":
    main()
