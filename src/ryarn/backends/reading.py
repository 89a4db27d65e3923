"""From generated tokens to an answer: where it ends, and whether that is in a thinking block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ryarn.backends import Generated
from ryarn.chat import end_of_turn, render_prompt
from ryarn.thinking import OPEN, THINKING, is_open

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase


class Reader:
    """Reads the answers of one model.

    Args:
        tokenizer: Its tokenizer.
        ends: Ids of the tokens that end an answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: set[int]) -> None:
        self._tokenizer, self._ends = tokenizer, ends
        self._opening = self._what_opens()

    def read(self, ids: Sequence[int]) -> Generated:
        """The answer that generated tokens are; those after its end don't count."""
        end = next((i for i, token in enumerate(ids) if token in self._ends), None)
        kept = list(ids[:end])
        text = self._tokenizer.decode(kept, skip_special_tokens=True)
        assert isinstance(text, str)
        # The marks of a thinking block may be special tokens.
        if is_open(f"{self._opening}{self._tokenizer.decode(kept)}"):
            return Generated(text, THINKING)
        return Generated(text, "length" if end is None else "stop")

    def _what_opens(self) -> str:
        """What begins a thinking block, where the chat template does: answers lack it then."""
        if not self._tokenizer.chat_template:
            return ""
        prompt = render_prompt(self._tokenizer, [{"role": "user", "content": "?"}])
        return OPEN if is_open(prompt) else ""


def end_ids(model: Any, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that end an answer: of the model's generation settings, tokenizer and chat template.

    The template's is the one that training targets end with.
    """
    return all_ends(model.generation_config, tokenizer)


def all_ends(shipped: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The same, where there are generation settings without a model."""
    known = shipped.eos_token_id
    ids = [*(known if isinstance(known, list) else [known]), tokenizer.eos_token_id]
    if tokenizer.chat_template:
        ids.append(end_of_turn(tokenizer))
    return {int(i) for i in ids if i is not None}
