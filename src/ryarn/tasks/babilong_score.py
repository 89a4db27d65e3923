"""BABILong's score rules: the official one to the letter, and the lenient ones in use elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from ryarn.records import Completion, Example, Score
from ryarn.tasks.babi import PLACES
from ryarn.thinking import after_thinking


def label_set(
    text: str, question: str, target: str, labels: Sequence[str] = PLACES
) -> tuple[bool, bool]:
    """The official rule (babilong/metrics.py): one place is named, and it is the right one.

    Lower-cased, only the text before the first "." and before any `<context>` or `<example>`
    counts. Places that the question names are set aside, since they are never the answer. The
    official code also cuts at "Question", but after lower-casing, so that cut never happens; nor
    does it strip thinking blocks.

    Args:
        text: The answer.
        question: The question.
        target: The right place.
        labels: All places there are, in lower case; the official rule knows bAbI's six.

    Returns:
        Whether the answer is right, and whether any place outside the question was named at all.
    """
    answer = _first_sentence(text)
    asked = question.lower()
    named = {place for place in labels if place in answer and place not in asked}
    return named == {target.lower()}, bool(named)


def substring(text: str, target: str) -> bool:
    """The older rule (babilong_utils.compare_answers): the first sentence has the right place."""
    return target.lower() in _first_sentence(text)


def anywhere(text: str, target: str) -> bool:
    """The rule of lm-evaluation-harness (tasks/babilong): any part of the answer has the place."""
    return target.strip().lower() in text.lower()


def babilong_score(example: Example, completion: Completion) -> Score:
    """All rules for one completion, the official first; none for a skipped row.

    - `babilong`: the official one.
    - `babilong-after-thinking`: the same on what follows the thinking block, as harnesses have it
      that take such blocks off.
    - `babilong-substring`: the official one of before May 2024, still that of OpenCompass.
    - `babilong-lm-eval`: that of lm-evaluation-harness.
    """
    scores: dict[str, float] = {}
    parsed = False
    if completion.finish != "skipped":
        text, question, target = completion.text, example.question, example.target
        right, parsed = label_set(text, question, target)
        answer = after_thinking(text, completion.finish)
        scores = {
            "babilong": float(right),
            "babilong-after-thinking": float(label_set(answer, question, target)[0]),
            "babilong-substring": float(substring(text, target)),
            "babilong-lm-eval": float(anywhere(text, target)),
        }
    return Score(example.id, example.bin, example.source, scores, parsed, completion.finish)


def _first_sentence(text: str) -> str:
    answer = text.lower()
    for end in (".", "<context>", "<example>"):
        answer = answer.split(end)[0]
    return answer
