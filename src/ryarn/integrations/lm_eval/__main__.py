"""`python -m ryarn.integrations.lm_eval`: prints the folder for `--include_path`."""

from __future__ import annotations

from ryarn.integrations.lm_eval import FOLDER

print(FOLDER)
