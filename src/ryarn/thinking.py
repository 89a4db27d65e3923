"""Thinking blocks: what a reasoning model writes between `<think>` and `</think>`."""

from __future__ import annotations

from typing import Literal

OPEN, CLOSE = "<think>", "</think>"
"""The marks of Qwen3, DeepSeek-R1, Olmo 3 Think, SmolLM3 and others."""
THINKING: Literal["thinking"] = "thinking"
"""How an answer finished that ended inside a block, whatever ended it: see `Completion.finish`."""


def is_open(text: str) -> bool:
    """Whether a text ends inside a thinking block."""
    return text.rfind(OPEN) > text.rfind(CLOSE)


def after_thinking(text: str, finish: str) -> str:
    """The answer without its thinking: what stands behind the last block.

    Args:
        text: The whole answer. Where the chat template opened the block, it only ends here.
        finish: How it finished; an answer that ended inside a block has nothing behind it.
    """
    return "" if finish == THINKING else text.rpartition(CLOSE)[2]
