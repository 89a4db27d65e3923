"""The numbers that the paper's text gives, by the rows of its tables: what ours stand beside."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stated:
    """A number that the paper states: an OOD average, or the difference of two, in percent.

    Attributes:
        first: Label of the method.
        second: Label of the method that is taken off; None for an average.
        value: The number, in percent or points.
        place: Where it stands.
        quote: In which words.
        remark: What the words leave open.
    """

    first: str
    second: str | None
    value: float
    place: str
    quote: str
    remark: str = ""


_AVERAGES = (
    "Randomized YaRN achieves 90.3% accuracy with Qwen2.5-7B, 88.0% on Olmo3-7B, and 92.6% on "
    "Qwen3-14B when evaluated on OOD test examples"
)
_LONGBENCH = (
    "Randomized YaRN achieves 41.2% with Qwen2.5-7B and 37.1% on Olmo3-7B on OOD examples with "
    "context length ranging from 32K to 128K"
)
_TRAINED = "improving over Trained YaRN by 4.4 points on Olmo3-7B and 1.5 points on Qwen2.5-7B"
_CURRICULUM = (
    "Without the curriculum, OOD performance substantially decreases for both methods by 4.1 % for "
    "RPE and 6.2 % for Randomized YaRN"
)
_RATES = (
    "both the baseline and Randomized YaRN peak at 1e-4, which is the learning rate we report in "
    "the main results; here Randomized YaRN exceeds Trained YaRN by 4.8%"
)
_INFERENCE = Stated(
    first="zero-shot+yarn",
    second="zero-shot",
    value=1.0,
    place="section 4",
    quote="adding YaRN at inference time only improves the average OOD accuracy by 1%",
    remark="of which model, the text does not say",
)


def _reached(value: float, quote: str) -> Stated:
    return Stated("randomized-yarn", None, value, "section 4", quote)


def _over_trained(value: float, place: str, quote: str, rate: str = "") -> Stated:
    return Stated(f"randomized-yarn{rate}", f"trained-yarn{rate}", value, place, quote)


STATED: Mapping[str, tuple[Stated, ...]] = {
    "babilong/qwen2.5-7b": (_reached(90.3, _AVERAGES), _INFERENCE),
    "babilong/olmo3-7b": (
        _reached(88.0, _AVERAGES),
        _over_trained(4.8, "appendix B.3", _RATES),
        _INFERENCE,
    ),
    "babilong/qwen3-14b": (_reached(92.6, _AVERAGES), _INFERENCE),
    "mrcr/qwen2.5-7b": (),
    "mrcr/olmo3-7b": (),
    "mrcr/qwen3-14b": (),
    "longbench-v2/qwen2.5-7b": (
        _reached(41.2, _LONGBENCH),
        _over_trained(1.5, "table 3, caption", _TRAINED),
    ),
    "longbench-v2/olmo3-7b": (
        _reached(37.1, _LONGBENCH),
        _over_trained(4.4, "table 3, caption", _TRAINED),
    ),
    "table-4": (
        Stated("rpe", "rpe, no curriculum", 4.1, "section 4", _CURRICULUM),
        Stated("randomized-yarn", "randomized-yarn, no curriculum", 6.2, "section 4", _CURRICULUM),
    ),
    "figure-2": (_over_trained(4.8, "appendix B.3", _RATES, rate=", 1e-4"),),
    "larger-factor": (),
}
"""Rows of the paper to what its text says of them. Of MRCR and of s' > s it says no number."""


def nearest(rows: str) -> str:
    """What to say of a name that is no key of `STATED`: the one that was meant, or all of them."""
    close = difflib.get_close_matches(rows, STATED, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(STATED)}"
