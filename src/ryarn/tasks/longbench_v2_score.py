"""LongBench v2's published answer rule, to the letter (THUDM/LongBench, pred.py and result.py)."""

from __future__ import annotations

import re

from ryarn.records import Completion, Example, Score
from ryarn.thinking import after_thinking

UNANSWERED = 0.25
"""What `compensated` gives where no answer is found: the chance of guessing one of four."""

_OFFICIAL = (
    re.compile(r"The correct answer is \(([A-D])\)"),
    re.compile(r"The correct answer is ([A-D])"),
)
_SGLANG = (
    re.compile(r"the correct answer is:?\s*\(([A-D])\)", re.IGNORECASE),
    re.compile(r"the correct answer is:?\s*([A-D])", re.IGNORECASE),
    re.compile(r"answer[ \t]*:[ \t]*\$?([A-D])\$?", re.IGNORECASE),
    re.compile(r"answer\s+is\s*\(?([A-D])\)?", re.IGNORECASE),
)


def official_letter(text: str) -> str | None:
    """The letter that the official rule finds (pred.py), None where it finds none.

    Asterisks are deleted. The first "The correct answer is (X)" counts; only if the whole text has
    none, the first "The correct answer is X". Case and single spaces count, X is A to D, and
    nothing is asked of what follows: "The correct answer is Definitely" is D. Thinking blocks are
    not taken out.

    Args:
        text: The answer.
    """
    return _first(_OFFICIAL, text.replace("*", ""))


def sglang_letter(text: str) -> str | None:
    """The letter that SGLang's port finds (test/simple_eval_longbench_v2.py), a more lenient rule.

    Case, line breaks and a colon don't matter, and "Answer: X" or "answer is X" will do. It takes
    the article in "the correct answer is a ..." for an A.

    Args:
        text: The answer.
    """
    found = _first(_SGLANG, text.replace("*", "").replace("\n", ""))
    return found and found.upper()


def longbench_v2_score(example: Example, completion: Completion) -> Score:
    """Four rules for one completion, the official first; none for a skipped row.

    - `longbench-v2`: the official accuracy.
    - `longbench-v2-compensated`: a switch of the official result.py, off by default there: 0.25
      where no answer is found.
    - `longbench-v2-after-thinking`: the official rule on what follows the thinking block, as
      harnesses have it that take such blocks off.
    - `longbench-v2-sglang`: SGLang's more lenient rule.

    An empty answer is scored as one without a letter. The official script takes it for a failed
    request and leaves the row out.
    """
    scores: dict[str, float] = {}
    parsed = False
    if completion.finish != "skipped":
        text, target = completion.text, example.target
        letter = official_letter(text)
        right, parsed = float(letter == target), letter is not None
        answer = after_thinking(text, completion.finish)
        scores = {
            "longbench-v2": right,
            "longbench-v2-compensated": right if parsed else UNANSWERED,
            "longbench-v2-after-thinking": float(official_letter(answer) == target),
            "longbench-v2-sglang": float(sglang_letter(text) == target),
        }
    return Score(example.id, example.bin, example.source, scores, parsed, completion.finish)


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> str | None:
    for pattern in patterns:
        match = pattern.search(text)
        if match is not None:
            return match[1]
    return None
