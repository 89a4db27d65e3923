"""Export: what was trained, in a form that runs without ryarn (transformers, vLLM, llama.cpp)."""

from __future__ import annotations

from ryarn.export.gguf_from import set_yarn_keys
from ryarn.export.stage import Exported, export, report_lines

__all__ = ["Exported", "export", "report_lines", "set_yarn_keys"]
