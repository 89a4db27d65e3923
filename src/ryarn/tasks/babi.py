"""The bAbI world of tasks qa1 to qa3 (Weston et al. 2015): simulate stories, and solve them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeVar, get_args

import numpy as np

T = TypeVar("T")

QuestionType = Literal["qa1", "qa2", "qa3"]
QUESTION_TYPES: tuple[QuestionType, ...] = get_args(QuestionType)

ACTORS = ("John", "Mary", "Sandra", "Daniel")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
OBJECTS = ("football", "apple", "milk")
MOVES = ("went to", "moved to", "journeyed to", "travelled to", "went back to")
TAKES = ("picked up", "got", "grabbed", "took")
DROPS = ("put down", "dropped", "discarded", "left")

QUESTIONS_PER_STORY = 5
FACTS_PER_ROUND = 2
"""Original stories go in rounds of two facts; a question may follow each round."""
SHORTEST: dict[QuestionType, int] = {"qa1": 2, "qa2": 2, "qa3": 4}
"""Facts of the shortest possible stories."""
RECENT = 5
"""An actor is asked about only if one of the last five facts moved it, an object only if one of
them took or dropped it."""
THERE = {"qa2": {"take": 1.0, "drop": 0.21}, "qa3": {"take": 0.19, "drop": 0.22}}
"""Share of takes and drops that end in "there", measured on the original files."""

FACT = re.compile(
    rf"(?P<actor>{'|'.join(ACTORS)}) "
    rf"(?:(?P<move>{'|'.join(MOVES)}) the (?P<place>{'|'.join(PLACES)})"
    rf"|(?:(?P<take>{'|'.join(TAKES)})|(?P<drop>{'|'.join(DROPS)})) "
    rf"the (?P<object>{'|'.join(OBJECTS)})(?: there)?)\."
)
"""One fact in a text, whatever stands around it: BABILong may cut a sentence inside a word and tell
the next fact right behind it, with no space between."""

_QUESTION = re.compile(
    rf"Where is (?P<actor>{'|'.join(ACTORS)})\?"
    rf"|Where is the (?P<object>{'|'.join(OBJECTS)})\?"
    rf"|Where was the (?P<past>{'|'.join(OBJECTS)}) before the (?P<place>{'|'.join(PLACES)})\?"
)


@dataclass(frozen=True)
class Story:
    """The facts before one question, the question and its answer.

    Attributes:
        facts: The sentences, in order; earlier questions of the same story are left out.
        question: The question, as the original words it.
        answer: One of `PLACES`.
        support: Indices into `facts` of the facts that the answer rests on, as the original orders
            them: qa1 the move; qa2 the drop (or take) and the move; qa3 the drop (or take), the
            move into the asked place and the move before it.
        multi_entry: qa3 only: the object came to the asked place at least twice, so the answer is
            where it was before the latest time.
    """

    facts: tuple[str, ...]
    question: str
    answer: str
    support: tuple[int, ...]
    multi_entry: bool


def simulate(
    question: QuestionType, rng: np.random.Generator, max_facts: int | None = None
) -> Story:
    """Draw one story as the original generator would have told it.

    A story of the original has five questions and each becomes a sample with all the facts before
    it; so the question's place among the five is drawn first, then the world runs until then.

    Args:
        question: Which task.
        rng: Source of all randomness.
        max_facts: Stories with more facts are drawn again, as BABILong leaves them out.

    Raises:
        ValueError: `max_facts` is below the shortest story: 2 facts (4 for qa3).
    """
    if max_facts is not None and max_facts < SHORTEST[question]:
        raise ValueError(
            f"max_facts = {max_facts}: a {question} story has at least {SHORTEST[question]}"
        )
    draws = _Draws(rng)
    while True:
        story = _run(question, draws, max_facts)
        if story is not None:
            return story


def solve(facts: Sequence[str], question: str) -> str:
    """Answer a question from the sentences alone, independently of the simulator.

    Raises:
        ValueError: A sentence is not of this world, or the text doesn't tell.
    """
    asked = _parse_question(question)
    places, histories = _read(facts)
    if asked["actor"]:
        answer = places.get(asked["actor"])
    elif asked["object"]:
        answer = (histories.get(asked["object"]) or [None])[-1]
    else:
        answer = (_befores(histories.get(asked["past"], []), asked["place"]) or [None])[-1]
    if answer is None:
        raise ValueError(f"the facts don't answer {question!r}")
    return answer


def is_multi_entry(facts: Sequence[str], question: str) -> bool:
    """Whether the object of a qa3 question came to the asked place at least twice.

    Only times count for which the text tells where it was before: the paper's example is moved
    into the garden "first from the bedroom and later from the bathroom" (appendix A.2). Such
    questions are the hard ones: several facts match, and only the latest counts. False for
    questions of other types.

    Raises:
        ValueError: A sentence is not of this world.
    """
    return sum(before is not None for before in entries(facts, question)) > 1


def entries(facts: Sequence[str], question: str) -> list[str | None]:
    """Where the object of a qa3 question was before each time it was moved into the asked place.

    None stands for a place that the text doesn't tell. Empty for questions of other types.

    Raises:
        ValueError: A sentence is not of this world.
    """
    asked = _parse_question(question)
    if not asked["past"]:
        return []
    return _befores(_read(facts)[1].get(asked["past"], []), asked["place"])


def question_type(question: str) -> QuestionType:
    """Which task a question is of.

    Raises:
        ValueError: Of none of the three.
    """
    asked = _parse_question(question)
    return "qa1" if asked["actor"] else "qa2" if asked["object"] else "qa3"


def find_facts(text: str) -> tuple[str, ...]:
    """The facts of this world in a longer text, in order."""
    return tuple(match.group() for match in FACT.finditer(text))


def _parse_question(question: str) -> dict[str, str]:
    match = _QUESTION.fullmatch(question.strip())
    if match is None:
        raise ValueError(f"not a question of qa1, qa2 or qa3: {question!r}")
    return match.groupdict(default="")


def _read(facts: Sequence[str]) -> tuple[dict[str, str | None], dict[str, list[str | None]]]:
    """Last place of each actor and all places of each object; None stands for a place untold."""
    places: dict[str, str | None] = {}
    holder: dict[str, str] = {}
    histories: dict[str, list[str | None]] = {}
    for fact in facts:
        match = FACT.fullmatch(fact.strip())
        if match is None:
            raise ValueError(f"not a fact of qa1, qa2 or qa3: {fact!r}")
        actor, thing = match["actor"], match["object"]
        if match["move"]:
            places[actor] = match["place"]
            for held in (o for o, who in holder.items() if who == actor):
                if histories[held][-1] != match["place"]:
                    histories[held].append(match["place"])
        elif match["take"]:
            holder[thing] = actor
            history = histories.setdefault(thing, [None])
            # Who takes a thing stands where the thing lies: either place may be told by the other.
            here = places.get(actor) or history[-1]
            places[actor] = history[-1] = here
        else:
            holder.pop(thing, None)
    return places, histories


def _befores(history: Sequence[str | None], place: str) -> list[str | None]:
    """Where the object was before each time it was moved into `place`."""
    return [before for before, now in pairwise(history) if now == place]


class _Draws:
    """Uniform draws from a generator in blocks: a story needs hundreds, one call each is slow."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._stream = self._blocks(rng)

    @staticmethod
    def _blocks(rng: np.random.Generator) -> Iterator[float]:
        while True:
            yield from rng.random(256).tolist()

    def chance(self, probability: float) -> bool:
        return next(self._stream) < probability

    def below(self, bound: int) -> int:
        return int(next(self._stream) * bound)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


@dataclass
class _Carry:
    """The last time an object was carried: by whom, the take or drop fact, the moves meanwhile."""

    actor: str
    handled: int
    held: bool = True
    dropped_at: tuple[int, str] | None = None
    moves: list[tuple[int, str]] = field(default_factory=list)


class _World:
    """Actors walk, take and drop; what is true, which the text tells only in part."""

    def __init__(self, question: QuestionType, draws: _Draws) -> None:
        self.question = question
        self.draws = draws
        self.facts: list[str] = []
        self.actor_place = {actor: draws.choice(PLACES) for actor in ACTORS}
        self.object_place = {thing: draws.choice(PLACES) for thing in OBJECTS}
        self.last_move: dict[str, tuple[int, str]] = {}
        self.carries: dict[str, _Carry] = {}

    def act(self) -> None:
        """One fact: actor, deed and place are drawn together until they can happen.

        This rejection is what gives the original's shares: an actor with an object to take or to
        drop acts more often, and moves are 64% of the facts.
        """
        kinds = ("move",) if self.question == "qa1" else ("move", "take", "drop")
        while True:
            actor = self.draws.choice(ACTORS)
            kind = self.draws.choice(kinds)
            if kind == "move":
                place = self.draws.choice(PLACES)
                if place != self.actor_place[actor]:
                    return self._move(actor, place)
            else:
                held = kind == "drop"
                things = [thing for thing in OBJECTS if self._within_reach(actor, thing, held)]
                if things:
                    return self._handle(actor, kind, self.draws.choice(things))

    def _within_reach(self, actor: str, thing: str, held: bool) -> bool:
        carry = self.carries.get(thing)
        if carry is not None and carry.held:
            return held and carry.actor == actor
        return not held and self.object_place[thing] == self.actor_place[actor]

    def _move(self, actor: str, place: str) -> None:
        self.actor_place[actor] = place
        self.last_move[actor] = (len(self.facts), place)
        for thing, carry in self.carries.items():
            if carry.held and carry.actor == actor:
                self.object_place[thing] = place
                carry.moves.append((len(self.facts), place))
        self.facts.append(f"{actor} {self.draws.choice(MOVES)} the {place}.")

    def _handle(self, actor: str, kind: str, thing: str) -> None:
        if kind == "take":
            self.carries[thing] = _Carry(actor, len(self.facts))
        else:
            carry = self.carries[thing]
            carry.held, carry.handled = False, len(self.facts)
            carry.dropped_at = self.last_move.get(actor)
        verb = self.draws.choice(TAKES if kind == "take" else DROPS)
        there = " there" if self.draws.chance(THERE[self.question][kind]) else ""
        self.facts.append(f"{actor} {verb} the {thing}{there}.")

    def ask(self) -> Story | None:
        """The question that may follow now, if there is anything to ask."""
        if self.question == "qa1":
            recent = len(self.facts) - RECENT
            actors = [actor for actor, (index, _) in self.last_move.items() if index >= recent]
            actor = self.draws.choice(actors)
            index, place = self.last_move[actor]
            return self._story(f"Where is {actor}?", place, (index,))
        recent = len(self.facts) - RECENT
        candidates = [
            (thing, carry)
            for thing, carry in self.carries.items()
            if carry.handled >= recent and _askable(self.question, carry)
        ]
        if not candidates:
            return None
        thing, carry = self.draws.choice(candidates)
        if self.question == "qa2":
            index, place = carry.dropped_at or carry.moves[-1]
            return self._story(f"Where is the {thing}?", place, (carry.handled, index))
        before, after = self.draws.choice(_steps(carry))
        return self._story(
            f"Where was the {thing} before the {after[1]}?",
            before[1],
            (carry.handled, after[0], before[0]),
        )

    def _story(self, question: str, answer: str, support: tuple[int, ...]) -> Story:
        facts = tuple(self.facts)
        return Story(facts, question, answer, support, is_multi_entry(facts, question))


def _askable(question: QuestionType, carry: _Carry) -> bool:
    if question == "qa3":
        return len(carry.moves) > 1
    # A held object is asked about only once it has been carried somewhere.
    return bool(carry.moves) if carry.held else carry.dropped_at is not None


def _steps(carry: _Carry) -> list[tuple[tuple[int, str], tuple[int, str]]]:
    """Neighbouring moves of one carry whose second place the object did not come back to later."""
    pairs = list(pairwise(carry.moves))
    return [
        (before, after)
        for number, (before, after) in enumerate(pairs, start=2)
        if after[1] not in {place for _, place in carry.moves[number:]}
    ]


def _run(question: QuestionType, draws: _Draws, max_facts: int | None) -> Story | None:
    """Run a new world up to a random question of its five; None if that takes too many facts."""
    world = _World(question, draws)
    wanted = draws.below(QUESTIONS_PER_STORY)
    asked = 0
    while max_facts is None or len(world.facts) + FACTS_PER_ROUND <= max_facts:
        for _ in range(FACTS_PER_ROUND):
            world.act()
        if asked < wanted and question == "qa1":
            asked += 1
            continue
        story = world.ask()
        if story is not None:
            if asked == wanted:
                return story
            asked += 1
    return None
