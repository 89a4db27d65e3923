"""Scores of the user's own rows, by name: four rules of ours, or a function of the user's."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ryarn.errors import UserError
from ryarn.records import Completion, Example, Score
from ryarn.tasks.mrcr_score import mrcr
from ryarn.thinking import after_thinking

Function = Callable[[str, str, dict[str, Any]], float | bool]
"""A score of the user's own: response, one accepted target, the row as `Example.to_json` has it."""

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
# Marks that models put around a letter: markdown, quotes, brackets. Possessive, as an answer that
# ends in thousands of blanks must not take quadratic time.
_OPEN = r"[\s*_`\"'(\[]*+"
_STATED = re.compile(rf"(?i:\banswer[\s*_]*+(?:is\b[\s*_]*+:?+|:)){_OPEN}([A-Z])(?!\w|'\w)")
_LEADING = re.compile(rf"{_OPEN}([A-Z])(?!'\w)(?:[*_`\"')\].,:;]|[ \t]*+(?:\n|\Z))")
_ALONE = re.compile(rf"{_OPEN}([A-Za-z])[\s*_`\"')\].]*+\Z")


def exact(response: str, target: str) -> float:
    """1 where both are equal, white space around them aside."""
    return float(response.strip() == target.strip())


def contains(response: str, target: str) -> float:
    """1 where the target stands anywhere in the response, in the same case."""
    return float(target.strip() in response)


def sequence_match(response: str, target: str) -> float:
    """MRCR's official ratio without its prefix, of the texts without white space around them."""
    return mrcr(response.strip(), target.strip(), prefix="")


def multiple_choice(response: str, target: str) -> float:
    """1 where both name the same letter, see `letter`."""
    found = letter(response)
    return float(found is not None and found == letter(target))


def letter(text: str) -> str | None:
    """The letter A to Z that an answer names: a rule of ours, not that of a benchmark.

    The first of these that is there:

    1. the last capital letter that follows "answer is" or "answer:" and is no part of a word;
    2. the capital letter that the text begins with, if punctuation, a closing mark or the end of
       the line follows;
    3. the only letter of the text, capital or small.

    Opening brackets, quotes and markdown marks before the letter don't count.
    """
    stated = _STATED.findall(text)
    if stated:
        return str(stated[-1])
    first = _LEADING.match(text) or _ALONE.match(text)
    return first[1].upper() if first else None


RULES: dict[str, Callable[[str, str], float]] = {
    "exact": exact,
    "contains": contains,
    "multiple-choice": multiple_choice,
    "sequence-match": sequence_match,
}
"""Name, as in a recipe's `score`, to the rule: response and one accepted target to 0 .. 1."""

BESIDE = {"exact": "contains", "contains": "exact", "sequence-match": "exact"}
"""A rule to the one that is reported beside it."""


def check_name(name: str) -> None:
    """See that a score is one of `RULES` or has the form `module:function`; nothing is imported.

    Raises:
        ValueError: It is neither.
    """
    if name not in RULES and not _FUNCTION.fullmatch(name):
        raise ValueError(
            f"must be one of {', '.join(RULES)}, or module:function for a function of your own"
        )


@dataclass(frozen=True)
class Scorer:
    """Scores rows by one rule.

    Attributes:
        name: Key of `RULES`, or `module:function`.
        function: The user's own, where the name says so.
    """

    name: str
    function: Function | None = None

    @classmethod
    def of(cls, name: str) -> Scorer:
        """The scorer of a name that `check_name` lets pass; imports the user's module.

        Raises:
            UserError: There is no such module or function, or it does not take three arguments.
        """
        return cls(name, None if name in RULES else _load(name))

    def why_not(self, targets: Sequence[str]) -> str | None:
        """Why these accepted targets can't be scored by this rule; None where they can."""
        if self.name == "multiple-choice":
            for target in targets:
                if letter(target) is None:
                    return (
                        f"target = {_clip(target)!r} names no letter A to Z, as score = "
                        "'multiple-choice' needs: give a column target with the letter"
                    )
        return None

    def score(self, example: Example, completion: Completion) -> Score:
        """The row's best value over its accepted targets; no value where there is no answer.

        What stands behind the last thinking block is the answer.

        Raises:
            UserError: The user's function fails, or returns no number from 0 to 1.
        """
        text = after_thinking(completion.text, completion.finish)
        scores: dict[str, float] = {}
        parsed = False
        if completion.finish not in ("skipped", "failed"):
            accepted = targets_of(example)
            scores[self.name] = max(self._value(text, target, example) for target in accepted)
            beside = BESIDE.get(self.name)
            if beside is not None:
                scores[beside] = max(RULES[beside](text, target) for target in accepted)
            parsed = bool(text.strip())
            if self.name == "multiple-choice":
                parsed = letter(text) is not None
        return Score(example.id, example.bin, example.source, scores, parsed, completion.finish)

    def _value(self, text: str, target: str, example: Example) -> float:
        if self.function is None:
            return RULES[self.name](text, target)
        failed = f"score = {self.name!r} failed on row {_clip(example.id)!r}"
        try:
            value = self.function(text, target, example.to_json())
        except Exception as error:
            what = " ".join(str(error).split())
            raise UserError(
                f"{failed}: {type(error).__name__}: {_clip(what)}{_where(error, self.function)}"
            ) from error
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise UserError(f"{failed}: it returned {_show(value)}, not a number from 0 to 1")
        return float(value)


def targets_of(example: Example) -> Sequence[str]:
    """The accepted targets of a row: those of a list in its column `target`, else its one."""
    several = example.info.get("target")
    return several if isinstance(several, list) and several else [example.target]


def _load(name: str) -> Function:
    """The user's function, its module looked for in the working folder first."""
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in _parents(module_name):
            reason = f"there is no module {error.name!r} in {here} or among the installed ones"
        else:
            what = " ".join(str(error).split())
            reason = f"importing {module_name} fails: {type(error).__name__}: {_clip(what)}"
        raise UserError(f"score = {name!r}: {reason}") from error
    finally:
        with contextlib.suppress(ValueError):  # the module may have taken it out itself
            sys.path.remove(here)
        # What the function imports when it is called is found, too, but hides nothing installed.
        if here not in sys.path:
            sys.path.append(here)
    function: Function | None = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"score = {name!r}: module {module_name} has no function {function_name!r}")
    try:
        inspect.signature(function).bind("", "", {})
    except TypeError as error:
        raise UserError(
            f"score = {name!r}: it must take three arguments, (response, target, row): {error}"
        ) from error
    except ValueError:
        pass  # written in C, without a signature to look at
    return function


def _parents(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[: end + 1]) for end in range(len(parts))}


def _where(error: Exception, function: Function) -> str:
    """The line of the user's module at which a call failed, where it can be told."""
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if code and frame.filename == code.co_filename]
    return f" ({Path(code.co_filename).name}, line {lines[-1]})" if code and lines else ""


def _show(value: Any) -> str:
    """What a function returned; its own `repr` may fail, too."""
    try:
        return _clip(repr(value))
    except Exception:
        return f"a {type(value).__name__}"


def _clip(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
