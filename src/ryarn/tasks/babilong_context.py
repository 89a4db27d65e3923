"""A BABILong context: a story hidden in background text, made to a length."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from ryarn.chat import completion_ids, prompt_ids
from ryarn.errors import UserError
from ryarn.tasks.babi import SHORTEST, QuestionType, Story, simulate
from ryarn.tasks.babilong_prompt import answer_sentence, babilong_prompt
from ryarn.tasks.background import Background

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENS_PER_FACT = 8
"""Official bound: a context has room for one line of a story in 8 tokens, be it a fact or the
question (data/create_tasks.py, TaskDataset)."""
OFFICIAL_MARGIN = 300
"""Tokens that the official lengths leave for prompt and answer (data/create_tasks.py)."""

_OFFICIAL = re.compile(r"(\d+)([kM])")


def nominal(length: int | str) -> int:
    """A length as a number of tokens: 4k is 4000.

    Raises:
        ValueError: A string is not like 0k, 4k, 1M.
    """
    if isinstance(length, int):
        return length
    match = _OFFICIAL.fullmatch(length)
    if match is None:
        raise ValueError(f"{length!r} is neither a number of tokens nor like 0k, 4k, 1M")
    return int(match[1]) * {"k": 1000, "M": 1_000_000}[match[2]]


@dataclass(frozen=True)
class Ruler:
    """One wanted length: how a context is measured, and what there is to fill it with.

    Attributes:
        name: The length as the config has it.
        budget: Tokens that `size` must not exceed; None means the facts alone, however long.
        size: Tokens of a row with a given context.
        count: Tokens of a text in the same tokenizer.
        background: Sentences to fill with.
    """

    name: int | str
    budget: int | None
    size: Callable[[QuestionType, str, Story], int]
    count: Callable[[str], int]
    background: Background | None

    def max_facts(self, kind: QuestionType) -> int | None:
        """Most facts of a story, by the official rule of thumb; None where there is no bound.

        Raises:
            UserError: The length has no room for the shortest story.
        """
        if self.budget is None:
            return None
        prompt = self.size(kind, "", simulate(kind, np.random.default_rng(0)))
        facts = (self.budget - prompt) // TOKENS_PER_FACT
        if isinstance(self.name, str):
            facts -= 1  # the question's line counts officially
        if facts < SHORTEST[kind]:
            raise UserError(
                f"lengths: {self.name} is too short for {kind}, whose prompt and answer alone take "
                f"{prompt} tokens: give {prompt + 2 * TOKENS_PER_FACT * SHORTEST[kind]} or more"
            )
        return facts

    def fits(self, kind: QuestionType, story: Story) -> bool:
        """Whether the facts alone stay within the length."""
        return self.budget is None or self.size(kind, " ".join(story.facts), story) <= self.budget

    def fill(self, kind: QuestionType, story: Story, rng: np.random.Generator) -> str:
        """The story among as much background as the length takes; the story must fit."""
        context = " ".join(story.facts)
        if self.budget is None or self.background is None:
            return context
        places = np.sort(rng.random(len(story.facts))).tolist()
        room = self.budget - self.size(kind, context, story)
        sentences: list[tuple[str, int]] = []
        total = 0
        for sentence in self.background.stream(rng):
            if total >= room:
                break
            sentences.append(sentence)
            total += sentence[1]
        # Joined text may count more than its parts: take back what is too much and look again.
        while room > 0:
            filled = weave(story.facts, cut(sentences, room, self.count), places)
            excess = self.size(kind, filled, story) - self.budget
            if excess <= 0:
                return filled
            room -= excess
        return context


def make_rulers(
    lengths: Sequence[int | str],
    tokenizer: PreTrainedTokenizerBase,
    count_with: str | None,
    background: str,
) -> list[Ruler]:
    """The rulers of some lengths.

    Args:
        lengths: Numbers (tokens of a whole row) or official names (tokens of the context).
        tokenizer: The model's own.
        count_with: Hub id or folder of the tokenizer that counts official lengths; None: the
            model's own.
        background: Where the background comes from, as `load_documents` takes it.

    Raises:
        UserError: No tokenizer loads from `count_with`, or no background from `background`.
    """
    own = _Counter(tokenizer, background)
    named = own
    if count_with is not None and any(isinstance(length, str) for length in lengths):
        named = _Counter(_load_tokenizer(count_with), background)

    @cache
    def answer_tokens(answer: str) -> int:
        return len(completion_ids(tokenizer, answer))

    def row(kind: QuestionType, context: str, story: Story) -> int:
        prompt = prompt_ids(tokenizer, babilong_prompt(kind, context, story.question))
        return len(prompt) + answer_tokens(answer_sentence(kind, story.question, story.answer))

    def context_alone(kind: QuestionType, context: str, story: Story) -> int:
        return named.count(context)

    rulers = []
    for length in lengths:
        if isinstance(length, int):
            rulers.append(Ruler(length, length, row, own.count, own.background))
        elif nominal(length) == 0:
            rulers.append(Ruler(length, None, context_alone, named.count, None))
        else:
            budget = nominal(length) - OFFICIAL_MARGIN
            rulers.append(Ruler(length, budget, context_alone, named.count, named.background))
    return rulers


def token_counter(name: str) -> Callable[[str], int]:
    """What counts the tokens of a text in the tokenizer of that hub id or folder.

    Raises:
        UserError: No tokenizer loads from there.
    """
    return _Counter(_load_tokenizer(name), "").count


def cut(sentences: Sequence[tuple[str, int]], room: int, count: Callable[[str], int]) -> list[str]:
    """The first sentences (with their lengths) that fit into `room` tokens, the last cut at a word.

    Args:
        sentences: Each sentence and its tokens, a space before it included.
        room: Tokens to fill.
        count: Tokens of a text.
    """
    kept: list[str] = []
    for sentence, tokens in sentences:
        if tokens <= room:
            kept.append(sentence)
            room -= tokens
            continue
        words = sentence.split(" ")
        fitting = bisect_right(
            range(1, len(words)), room, key=lambda n: count(" " + " ".join(words[:n]))
        )
        if fitting:
            kept.append(" ".join(words[:fitting]))
        break
    return kept


def weave(facts: Sequence[str], sentences: Sequence[str], places: Sequence[float]) -> str:
    """Put facts between sentences, in order, everything joined by single spaces.

    Args:
        facts: The facts.
        sentences: The background.
        places: One ascending number in [0, 1) a fact. It picks one of the gaps before, between and
            after the sentences.
    """
    gaps = [int(place * (len(sentences) + 1)) for place in places]
    parts: list[str] = []
    told = 0
    for number in range(len(sentences) + 1):
        while told < len(facts) and gaps[told] == number:
            parts.append(facts[told])
            told += 1
        parts += sentences[number : number + 1]
    return " ".join(parts)


class _Counter:
    """Token counts in one tokenizer, and the background measured by it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
        self._tokenizer = tokenizer
        self._source = source

    def count(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    @cached_property
    def background(self) -> Background:
        return Background(self._source, self._tokenizer)


def _load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"count_with = {name!r}: no tokenizer loads from there; this needs the Hugging Face "
            "hub or its cache (gpt2 is the official one), or the folder of a tokenizer"
        ) from error
    return tokenizer
