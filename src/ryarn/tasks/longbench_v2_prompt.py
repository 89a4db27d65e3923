"""LongBench v2's official zero-shot prompt (THUDM/LongBench, prompts/0shot.txt), to the byte.

The prompt is part of the benchmark: its wording is kept, and so is the way it is filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LETTERS = ("A", "B", "C", "D")

TEMPLATE = (
    "Please read the following text and answer the question below.\n\n"
    "<text>\n$DOC$\n</text>\n\n"
    "What is the correct answer to this question: $Q$\n"
    "Choices:\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\n\n"
    'Format your response as follows: "The correct answer is (insert answer here)".'
)


def longbench_v2_prompt(context: str, question: str, choices: Sequence[str]) -> str:
    """The one user message of a row; there is no system message.

    As in the official pred.py, parts are stripped and put in one after the other, so that a
    document with a literal `$Q$` or `$C_A$` gets the question or choice there, too.

    Args:
        context: The document.
        question: The question.
        choices: The four choices.
    """
    text = TEMPLATE.replace("$DOC$", context.strip()).replace("$Q$", question.strip())
    for letter, choice in zip(LETTERS, choices, strict=True):
        text = text.replace(f"$C_{letter}$", choice.strip())
    return text


def answer_sentence(letter: str) -> str:
    """The direct answer in the form that the prompt asks for (paper, appendix A.3)."""
    return f"The correct answer is ({letter})"


def cut_middle(text: str, limit: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """The official truncation: the first and the last half of the tokens, the middle left out.

    It counts the prompt without chat template, and with the special tokens that the tokenizer adds
    to plain text. Of an odd limit the last half has one token more. A text that fits is untouched.

    Args:
        text: The filled prompt.
        limit: Tokens to keep; the official configuration has 120,000 for open models.
        tokenizer: The model's own.
    """
    ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
    if len(ids) <= limit:
        return text
    kept = ids[: limit // 2] + ids[limit // 2 - limit :]
    cut = tokenizer.decode(kept, skip_special_tokens=True)
    assert isinstance(cut, str)
    return cut
