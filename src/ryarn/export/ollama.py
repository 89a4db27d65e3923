"""An Ollama Modelfile beside a GGUF file: without one Ollama cuts prompts to a few K tokens."""

from __future__ import annotations

from pathlib import Path

NAME = "Modelfile"


def write_modelfile(path: Path, window: int, stop: str | None = None) -> Path:
    """Write a Modelfile.

    Args:
        path: The GGUF file that it names.
        window: Context length in tokens.
        stop: Text that ends an answer.

    Returns:
        The Modelfile.
    """
    lines = [
        f"FROM ./{path.name}",
        "# The whole window; less of it takes less memory for the cache.",
        f"PARAMETER num_ctx {window}",
    ]
    if stop:
        lines.append(f'PARAMETER stop "{stop}"')
    target = path.with_name(NAME)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target
