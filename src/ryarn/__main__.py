"""`python -m ryarn`, which is what `accelerate launch -m ryarn train ...` runs."""

from __future__ import annotations

from ryarn.cli import main

if __name__ == "__main__":
    main()
