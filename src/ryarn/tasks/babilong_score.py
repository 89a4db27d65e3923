"""BABILong's two published score rules, to the letter (booydar/babilong)."""

from __future__ import annotations

from collections.abc import Sequence

from ryarn.records import Completion, Example, Score
from ryarn.tasks.babi import PLACES


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


def babilong_score(example: Example, completion: Completion) -> Score:
    """Both rules for one completion, the official first; none for a skipped row."""
    scores: dict[str, float] = {}
    parsed = False
    if completion.finish != "skipped":
        right, parsed = label_set(completion.text, example.question, example.target)
        scores["babilong"] = float(right)
        scores["babilong-substring"] = float(substring(completion.text, example.target))
    return Score(example.id, example.bin, example.source, scores, parsed, completion.finish)


def _first_sentence(text: str) -> str:
    answer = text.lower()
    for end in (".", "<context>", "<example>"):
        answer = answer.split(end)[0]
    return answer
