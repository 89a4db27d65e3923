"""What a server is asked: greedy decoding in OpenAI's words, and what some servers don't know."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ryarn.backends import Prompt
from ryarn.backends.config import OpenAIConfig
from ryarn.chat import THINKING, end_of_turn, render_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPTIONAL = (
    "seed",
    "repetition_penalty",
    "stop_token_ids",
    "add_special_tokens",
    "chat_template_kwargs",
)
"""Left out for a server that refuses them by name: they undo what a server may do by itself."""
BUDGET, NEWER_BUDGET = "max_tokens", "max_completion_tokens"
"""The token budget: what every server knows, and what some hosted chat models insist on."""


class Requests:
    """Writes the requests of one evaluation.

    Args:
        config: The recipe's `evaluate.backend`.
        tokenizer: The model's own.
    """

    def __init__(self, config: OpenAIConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._form: Callable[[Prompt], dict[str, Any]] = {
            "chat": self._chat,
            "tokens": lambda prompt: {"prompt": prompt.ids.tolist()},
            "text": self._text,
        }[config.api if config.api == "chat" else config.prompt]
        self._end = end_of_turn(tokenizer)

    @property
    def path(self) -> str:
        """The endpoint."""
        return "/chat/completions" if self._config.api == "chat" else "/completions"

    @property
    def sends_ids(self) -> bool:
        """Whether prompts go as token ids, which not every server takes."""
        return self._config.api == "completions" and self._config.prompt == "tokens"

    def body(self, prompt: Prompt, max_new_tokens: int, without: frozenset[str]) -> dict[str, Any]:
        """The request for one row.

        Args:
            prompt: The row.
            max_new_tokens: Token budget of the answer.
            without: Names that the server refused before.
        """
        body = {
            "model": self._config.model,
            "temperature": 0,
            BUDGET: max_new_tokens,
            # For servers that sample among equals.
            "seed": 0,
            # A server may apply the penalty of the model's generation_config.json.
            "repetition_penalty": 1.0,
            # The template's end of turn may be none of the end tokens that the server knows.
            "stop_token_ids": [self._end],
            **self._form(prompt),
        }
        if BUDGET in without:
            body[NEWER_BUDGET] = body[BUDGET]
        return {key: value for key, value in body.items() if key not in without}

    def _chat(self, prompt: Prompt) -> dict[str, Any]:
        kwargs = {"enable_thinking": THINKING}
        return {"messages": list(prompt.messages), "chat_template_kwargs": kwargs}

    def _text(self, prompt: Prompt) -> dict[str, Any]:
        # The template has written the special tokens; a server would add its own before them.
        text = render_prompt(self._tokenizer, prompt.messages)
        return {"prompt": text, "add_special_tokens": False}


def refused(message: str, body: dict[str, Any]) -> frozenset[str]:
    """Which names of a refused request the server's message names, of those that can be spared."""
    named = {name for name in OPTIONAL if name in body and re.search(rf"\b{name}\b", message)}
    if BUDGET in body and "messages" in body and re.search(rf"\b{NEWER_BUDGET}\b", message):
        named.add(BUDGET)
    return frozenset(named)
