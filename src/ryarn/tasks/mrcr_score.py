"""OpenAI MRCR's score: the published rule to the letter (openai/mrcr), and more lenient ones."""

from __future__ import annotations

from difflib import SequenceMatcher

from ryarn.records import Completion, Example, Score
from ryarn.thinking import after_thinking


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


def mrcr_score(example: Example, completion: Completion) -> Score:
    """Four rules for one completion, the official first; none for a skipped row.

    - `mrcr`: the official one.
    - `mrcr-lstrip`: the same once white space before the answer is taken off, as EvalScope has it.
    - `mrcr-after-thinking`: that on what follows the thinking block, as harnesses have it that take
      such blocks off.
    - `exact`: the whole answer is right, white space around it aside.
    """
    scores: dict[str, float] = {}
    parsed = False
    if completion.finish != "skipped":
        text, target, prefix = completion.text, example.target, example.info["prefix"]
        answer = after_thinking(text, completion.finish)
        scores = {
            "mrcr": mrcr(text, target, prefix),
            "mrcr-lstrip": mrcr(text.lstrip(), target, prefix),
            "mrcr-after-thinking": mrcr(answer.lstrip(), target, prefix),
            "exact": float(text.strip() == target.strip()),
        }
        parsed = text.startswith(prefix)
    return Score(example.id, example.bin, example.source, scores, parsed, completion.finish)
