"""OpenAI MRCR's published score rule, to the letter (openai/mrcr on the Hugging Face hub)."""

from __future__ import annotations

from difflib import SequenceMatcher


def mrcr(response: str, answer: str, prefix: str) -> float:
    """How much of the answer is in the response, once the response begins as it was told to.

    0 unless the response starts with the prefix: no white space is stripped and case counts. Then
    the prefix is taken from both (from the answer if it has it) and the rest compared. The order of
    the arguments and difflib's autojunk (which sets aside the characters that are frequent in an
    answer of 200 or more) are part of the rule: both change scores by tens of points.

    Args:
        response: What the model wrote.
        answer: The right text, prefix included.
        prefix: What the model was told to begin with.
    """
    if not response.startswith(prefix):
        return 0.0
    return SequenceMatcher(None, response.removeprefix(prefix), answer.removeprefix(prefix)).ratio()
