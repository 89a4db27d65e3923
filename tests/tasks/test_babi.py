"""The simulated bAbI world against an independent reader of its text."""

from __future__ import annotations

import numpy as np
import pytest

from ryarn.tasks import babi
from ryarn.tasks.babi import QUESTION_TYPES, QuestionType, Story, is_multi_entry, simulate, solve

SWAP = ("John got the milk.", "John went to the office.", "John moved to the garden.")


def stories(kind: QuestionType, count: int, max_facts: int | None = None) -> list[Story]:
    rng = np.random.default_rng(7)
    return [simulate(kind, rng, max_facts) for _ in range(count)]


@pytest.mark.parametrize("kind", QUESTION_TYPES)
def test_text_and_world_agree_on_the_answer(kind: QuestionType) -> None:
    for story in stories(kind, 300):
        assert solve(story.facts, story.question) == story.answer


@pytest.mark.parametrize("kind", QUESTION_TYPES)
def test_support_facts_alone_tell_where_the_answer_comes_from(kind: QuestionType) -> None:
    for story in stories(kind, 100):
        # The first names the object or actor asked about, the last move names the answer.
        assert story.facts[story.support[-1]].endswith(f"the {story.answer}.")
        assert len(story.facts) - story.support[0] <= babi.RECENT
        assert len(story.support) == QUESTION_TYPES.index(kind) + 1


@pytest.mark.parametrize("kind", QUESTION_TYPES)
def test_nobody_moves_to_the_place_they_are_known_to_be_in(kind: QuestionType) -> None:
    for story in stories(kind, 100):
        places: dict[str, str] = {}
        for fact in story.facts:
            match = babi.FACT.fullmatch(fact)
            assert match
            if match["move"]:
                assert places.get(match["actor"]) != match["place"]
                places[match["actor"]] = match["place"]


def test_an_object_is_taken_when_free_and_dropped_by_its_holder() -> None:
    for story in stories("qa3", 50):
        holder: dict[str, str] = {}
        for fact in story.facts:
            match = babi.FACT.fullmatch(fact)
            assert match
            if match["take"]:
                assert match["object"] not in holder
                holder[match["object"]] = match["actor"]
            elif match["drop"]:
                assert holder.pop(match["object"]) == match["actor"]


def test_shares_are_those_of_the_original_files() -> None:
    told = stories("qa3", 600)
    assert 45 < np.mean([len(story.facts) for story in told]) < 58
    assert 0.19 < np.mean([story.multi_entry for story in told]) < 0.32
    matches = [babi.FACT.fullmatch(fact) for story in told for fact in story.facts]
    assert 0.61 < np.mean([bool(match and match["move"]) for match in matches]) < 0.67
    there = [match.group().endswith(" there.") for match in matches if match and match["take"]]
    assert 0.15 < np.mean(there) < 0.23


def test_every_take_of_qa2_says_there() -> None:
    for story in stories("qa2", 50):
        for match in (babi.FACT.fullmatch(fact) for fact in story.facts):
            assert match
            assert match.group().endswith(" there.") or not match["take"]


def test_qa1_stories_have_two_to_ten_moves() -> None:
    lengths = {len(story.facts) for story in stories("qa1", 200)}
    assert lengths == {2, 4, 6, 8, 10}


def test_same_generator_state_same_story() -> None:
    first, second = (simulate("qa3", np.random.default_rng(3)) for _ in range(2))
    assert first == second
    assert first != simulate("qa3", np.random.default_rng(4))


@pytest.mark.parametrize(("kind", "bound"), [("qa1", 2), ("qa2", 4), ("qa3", 8)])
def test_max_facts_bounds_the_story(kind: QuestionType, bound: int) -> None:
    assert max(len(story.facts) for story in stories(kind, 20, bound)) == bound


@pytest.mark.parametrize("kind", QUESTION_TYPES)
def test_max_facts_below_the_shortest_story_is_refused(kind: QuestionType) -> None:
    with pytest.raises(ValueError, match=f"{kind} story has at least"):
        simulate(kind, np.random.default_rng(0), babi.SHORTEST[kind] - 1)


@pytest.mark.parametrize(
    ("facts", "question", "answer"),
    [
        (["Mary moved to the office.", "Mary went to the garden."], "Where is Mary?", "garden"),
        (["Mary moved to the office.", "John went to the garden."], "Where is Mary?", "office"),
        (SWAP, "Where is the milk?", "garden"),
        (
            [*SWAP, "John left the milk.", "John went to the office."],
            "Where is the milk?",
            "garden",
        ),
        (SWAP, "Where was the milk before the garden?", "office"),
        (
            ["Mary moved to the office.", "Mary took the milk there.", "Mary went to the garden."],
            "Where was the milk before the garden?",
            "office",
        ),
        # Twice in the garden: the latest time counts.
        (
            [*SWAP, "John went to the kitchen.", "John went back to the garden."],
            "Where was the milk before the garden?",
            "kitchen",
        ),
        # Mary must be in the garden, since she takes the milk that lies there.
        (
            [*SWAP, "John dropped the milk there.", "Mary took the milk."],
            "Where is Mary?",
            "garden",
        ),
    ],
)
def test_solver_on_stories_made_by_hand(facts: list[str], question: str, answer: str) -> None:
    assert solve(facts, question) == answer


@pytest.mark.parametrize(
    ("facts", "question", "message"),
    [
        (["Mary moved to the office."], "Where is John?", "don't answer"),
        (["Mary took the milk."], "Where is the milk?", "don't answer"),
        (SWAP, "Where was the milk before the kitchen?", "don't answer"),
        (["Mary flew to the office."], "Where is Mary?", "not a fact"),
        (SWAP, "Who is John?", "not a question"),
    ],
)
def test_solver_refuses_what_the_text_does_not_tell(
    facts: list[str], question: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        solve(facts, question)


def test_multi_entry_counts_comings_whose_before_is_told() -> None:
    question = "Where was the milk before the garden?"
    again = [*SWAP, "John went to the kitchen.", "John went back to the garden."]
    assert not is_multi_entry(SWAP, question)
    assert is_multi_entry(again, question)
    # The first coming has no told place before it.
    assert not is_multi_entry([again[0], again[2], again[3], again[4]], question)
    assert not is_multi_entry(again, "Where is the milk?")


def test_facts_are_found_in_other_text_even_run_together() -> None:
    text = "It rained.John got the milk there.Then Mary went back to the office. Mary went off."
    assert babi.find_facts(text) == ("John got the milk there.", "Mary went back to the office.")
