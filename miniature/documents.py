"""The documents that the miniature is pretrained on: text in which looking far back pays.

Most of a random story can't be foretold, and a model of this size learns nothing from trying. So
each kind marks its targets: the tokens that follow from what was said before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from miniature.tokenizer import ASSISTANT, END, USER
from ryarn.tasks import words
from ryarn.tasks.background import load_documents, split_sentences

Document = tuple[list[int], list[bool]]
"""Token ids, and which of them are targets."""

_ADVERBS = (
    *(" then", " later", " quietly", " slowly", " once more", " in the morning"),
    *(" in the evening", " with a friend", " after lunch"),
)
_BEFORE = (" Then", " Later")
_HESITATIONS = (" er", " um", " well", " so", " you know", " I mean", " let me see", " ah")
_MOVES = tuple(f" {move} the" for move in words.MOVES)
FACTS = ("stream", "questions")
"""Kinds of document that tell facts."""
SHORT = 16
"""Most background sentences have at most so many tokens."""

T = TypeVar("T")


class Writer:
    """Writes documents of a given length.

    Args:
        tokenizer: The miniature's.
        rng: Draws everything.

    Attributes:
        adverbs: Chance of each adverb of a fact: what keeps name and place at no fixed distance.
        background: Chance of one more sentence of prose before a fact.
        bare: Chance that a fact is its name and place alone; how the first stages begin.
        hesitant: Share of documents that are told hesitantly: words like "er" between any two,
            few in some documents and up to four to a word in others. A model that knows text at
            one speed alone can't read it at stretched positions.
        hesitant_kinds: Kinds of document of which that is so; targets always come at full speed.
    """

    def __init__(self, tokenizer: Any, rng: np.random.Generator) -> None:
        self._tokenizer = tokenizer
        self._rng = rng
        self._known: dict[str, list[int]] = {}
        self._prose = [self._tokens(text) for text in load_documents("packaged")]
        sentences = [s for text in load_documents("packaged") for s in split_sentences(text)]
        self._sentences = [self._tokens(sentence) for sentence in sentences]
        self._short = [sentence for sentence in self._sentences if len(sentence) <= SHORT]
        self.adverbs = self.background = self.bare = self.hesitant = 0.0
        self.hesitant_kinds: Sequence[str] = FACTS
        self.kinds: dict[str, Callable[[int], Document]] = {
            "stream": self.stream,
            "pairs": self.pairs,
            "copies": self.copies,
            "questions": self.questions,
            "chat": self.chat,
            "prose": self.prose,
        }

    def stream(self, length: int) -> Document:
        """Facts said again and again; whoever is named is always in the same place."""
        page = _Page(self, hesitates="stream" in self.hesitant_kinds)
        # Bare facts are short, and so can be more; few people keep the others dense at first.
        most = 13 if self.bare == 1 else 6 if self.bare else 9
        people = int(self._rng.integers(4 if self.bare == 1 else 2, most))
        names, places = self._some(words.NAMES, people), self._some(words.PLACES, people)
        said: set[int] = set()
        while len(page) < length:
            self._fill(page)
            person = int(self._rng.integers(people))
            self._fact(page, names[person], places[person], person in said)
            said.add(person)
        return page.cut(length)

    def pairs(self, length: int) -> Document:
        """Pairs of any two words, each said again and again."""
        page = _Page(self)
        number = int(self._rng.integers(4, 13))
        # Of all words it takes many times as long.
        every = (*words.NAMES, *words.PLACES, *words.TOPICS[::6], *words.WRITING[::2])
        drawn = self._some(every, 2 * number)
        said: set[int] = set()
        while len(page) < length:
            pair = int(self._rng.integers(number))
            page.say(f" {drawn[2 * pair]}")
            page.say(f" {drawn[2 * pair + 1]}", target=pair in said)
            said.add(pair)
        return page.cut(length)

    def copies(self, length: int) -> Document:
        """Some pieces of writing, each said again and again: copying over every distance."""
        page = _Page(self, hesitates="copies" in self.hesitant_kinds)
        pieces = [self._piece(2, 7) for _ in range(int(self._rng.integers(2, 6)))]
        said: set[int] = set()
        while len(page) < length:
            number = int(self._rng.integers(len(pieces)))
            first, *others = [*pieces[number], END]
            page.say(first)
            for word in others:
                page.say(word, target=number in said)
            said.add(number)
        return page.cut(length)

    def questions(self, length: int) -> Document:
        """A chat: facts, with questions where somebody is; nobody ever moves."""
        page = _Page(self, hesitates="questions" in self.hesitant_kinds)
        people = int(self._rng.integers(3, 9))
        names, places = self._some(words.NAMES, people), self._some(words.PLACES, people)
        said: list[int] = []
        while len(page) < length:
            page.say(USER)
            for _ in range(int(self._rng.integers(0, 4) if said else self._rng.integers(1, 5))):
                self._fill(page)
                if len(said) < people:
                    self._fact(page, names[len(said)], places[len(said)], False)
                    said.append(len(said))
                elif self._rng.random() < 0.3:
                    person = int(self._rng.integers(people))
                    self._fact(page, names[person], places[person], True)
            self._fill(page)
            person = self._one(said)
            page.say("\nWhere is", f" {names[person]}", "?", ASSISTANT)
            page.say(f" {places[person]}", END, target=True)
        return page.cut(length)

    def chat(self, length: int) -> Document:
        """A chat in which pieces are written, and asked for again, at times with a prefix.

        A piece begins with its topic, as a title. Each topic is written about once: no look-alikes,
        as in `ryarn.tasks.lookalikes`.
        """
        page = _Page(self, hesitates="chat" in self.hesitant_kinds)
        size = int(self._rng.integers(2, 7))
        new = iter(self._some(words.TOPICS, len(words.TOPICS)))
        known: dict[str, tuple[str, list[str | int]]] = {}
        while len(page) < length:
            if len(known) < 2 or self._rng.random() < 0.45:
                form, topic = self._one(words.FORMS), next(new)
                prose = self._rng.random() < 0.1
                piece = self._one(self._short) if prose else self._piece(size, size + 1)
                known[topic] = form, [f" {topic}", *piece]
                self._turn(page, "Write a", f" {form} about {topic}")
                page.say(*known[topic][1], END)
                continue
            topic = self._one(list(known))
            form, said = known[topic]
            if self._rng.random() < 0.5:
                self._turn(page, "Write the", f" {form} about {topic} again")
            else:
                code = self._one(words.PREFIXES)
                self._turn(page, " Prepend", f" {code}", " to the", f" {form} about {topic}")
                page.say(f" {code}", target=True)
            page.say(*said, END, target=True)
        return page.cut(length)

    def prose(self, length: int) -> Document:
        """A stretch of the packaged prose; every token is a target."""
        text = self._one(self._prose)
        start = int(self._rng.integers(len(text) - length))
        return text[start : start + length], [True] * length

    def draw_hesitation(self) -> float:
        """Chance of one more hesitation after a word of the next document."""
        return 0.8 * self._rng.random() if self._rng.random() < self.hesitant else 0.0

    def hesitate(self, chance: float) -> list[int]:
        """Tokens of some hesitations."""
        tokens: list[int] = []
        while self._rng.random() < chance:
            tokens += self.ids(self._one(_HESITATIONS))
        return tokens

    def _fact(self, page: _Page, name: str, place: str, known: bool) -> None:
        if self._rng.random() < self.bare:
            page.say(f" {name}")
            if self._rng.random() < self.adverbs:
                page.say(self._one(_MOVES))
            page.say(f" {place}", target=known)
            return
        if self._rng.random() < self.adverbs:
            page.say(self._one(_BEFORE))
        page.say(f" {name}")
        for _ in range(3):
            if self._rng.random() >= self.adverbs:
                break
            page.say(self._one(_ADVERBS))
        page.say(self._one(_MOVES))
        page.say(f" {place}", target=known)
        if self._rng.random() < self.adverbs:
            page.say(self._one(_ADVERBS))
        page.say(".")

    def _fill(self, page: _Page) -> None:
        while self._rng.random() < self.background:
            page.say(self._one(self._short if self._rng.random() < 0.8 else self._sentences))

    def _turn(self, page: _Page, *pieces: str) -> None:
        *phrases, rest = pieces
        page.say(USER, *phrases, *(f" {word}" for word in rest.split()), ".", ASSISTANT)

    def _piece(self, low: int, high: int) -> list[str]:
        return [
            f" {word}" for word in self._some(words.WRITING, int(self._rng.integers(low, high)))
        ]

    def _one(self, of: Sequence[T]) -> T:
        return of[int(self._rng.integers(len(of)))]

    def _some(self, of: Sequence[T], number: int) -> list[T]:
        return [of[i] for i in self._rng.permutation(len(of))[:number].tolist()]

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def ids(self, piece: str) -> list[int]:
        """Tokens of a piece of text as it stands inside a longer one."""
        if piece not in self._known:
            # The tokenizer puts a space before a text: a piece without one stands after a word.
            whole = piece if piece.startswith((" ", "<")) else f"{words.NAMES[0]}{piece}"
            self._known[piece] = self._tokens(whole)[whole != piece :]
        return self._known[piece]


class _Page:
    """A document being written."""

    def __init__(self, writer: Writer, *, hesitates: bool = False) -> None:
        self._writer = writer
        self._tokens: list[int] = []
        self._targets: list[bool] = []
        self._hesitation = writer.draw_hesitation() if hesitates else 0.0

    def __len__(self) -> int:
        return len(self._tokens)

    def say(self, *pieces: str | int | list[int], target: bool = False) -> None:
        """Add pieces: text (a word with the space before it, a mark), or tokens."""
        for piece in pieces:
            if isinstance(piece, str):
                tokens = self._writer.ids(piece)
            else:
                tokens = [piece] if isinstance(piece, int) else piece
            self._tokens += tokens
            self._targets += [target] * len(tokens)
            if self._hesitation and not target and not str(piece).startswith("<"):
                hesitation = self._writer.hesitate(self._hesitation)
                self._tokens += hesitation
                self._targets += [False] * len(hesitation)

    def cut(self, length: int) -> Document:
        """What was written, cut to a length in tokens."""
        return self._tokens[:length], self._targets[:length]
