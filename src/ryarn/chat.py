"""From chat turns to tokens: the training prompt is, token for token, the inference prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from ryarn.errors import UserError
from ryarn.records import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINKING = False
"""What templates with a thinking mode (Qwen3, SmolLM3) read as `enable_thinking`."""


def render_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> str:
    """The text a model is given: the chat turns and the opening of its own turn.

    Raises:
        UserError: The tokenizer has no chat template, or the template refuses these turns.
    """
    if not tokenizer.chat_template:
        raise UserError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template: use an instruct model, "
            "or set tokenizer.chat_template"
        )
    return _render(tokenizer, messages, opens=True)


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, opens: bool = False
) -> str:
    """The turns as the template writes them; `opens`: with the opening of the model's next one."""
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=opens, enable_thinking=THINKING
        )
    except TemplateError as error:
        raise UserError(
            f"the chat template of {tokenizer.name_or_path!r} refuses a prompt with the roles "
            f"{', '.join(message['role'] for message in messages)}: {error}"
        ) from error
    assert isinstance(text, str)
    return text


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Token ids of the rendered prompt; the template writes the special tokens, none are added."""
    ids: list[int] = tokenizer(render_prompt(tokenizer, messages), add_special_tokens=False)[
        "input_ids"
    ]
    return ids


def completion_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a training target: the answer, then the token that ends the model's turn.

    Tokenized apart from the prompt, as generation sees it: the prompt's last token and the answer's
    first can't merge.

    Raises:
        UserError: Neither the chat template nor the tokenizer says how a turn ends.
    """
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [*ids, end_of_turn(tokenizer)]


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int:
    """Id of the token with which the chat template closes an assistant turn.

    It is not always the tokenizer's `eos_token`; a model trained to end with another token than
    the one its template writes runs on at inference.

    Raises:
        UserError: Neither the chat template nor the tokenizer says how a turn ends.
    """
    probe = "\u2603"
    turns: list[Message] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": probe},
    ]
    text = _render(tokenizer, turns)
    tail = tokenizer(text.rpartition(probe)[2].strip(), add_special_tokens=False)["input_ids"]
    if tail and tail[0] in special_ids(tokenizer):
        return int(tail[0])
    if tokenizer.eos_token_id is None:
        raise UserError(
            f"tokenizer {tokenizer.name_or_path!r} has no eos_token and its chat template ends a "
            "turn with no special token: set tokenizer.eos_token"
        )
    return int(tokenizer.eos_token_id)


def opening_of_answer(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of what the chat template writes between a user's text and the answer.

    For ChatML, the end of the user's turn, a line break, and the header of the assistant's. What
    follows in some renderings alone, as an empty thinking block, is left out.

    Raises:
        UserError: As `render_prompt`.
    """
    probe, answer = "\u2603", "\u2604"
    question: Message = {"role": "user", "content": probe}
    asked = render_prompt(tokenizer, [question]).rpartition(probe)[2]
    # A second turn behind it, because some templates add to the last one alone.
    turns: list[Message] = [question, {"role": "assistant", "content": answer}] * 2
    answered = _render(tokenizer, turns).partition(answer)[0].rpartition(probe)[2]
    first, second = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in (asked, answered)
    )
    common = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return [token for token, _ in common]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of all special tokens, those without a name of their own included."""
    # Not `all_special_ids`: those are the named ones alone, without Llama 3's <|eot_id|>.
    added = tokenizer.added_tokens_decoder.items()
    return {*tokenizer.all_special_ids, *(i for i, token in added if token.special)}
