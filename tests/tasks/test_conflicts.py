"""Rows of `conflicts`: an independent reader answers them; lengths, splits and scores."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from word_level import row_length, word_level

from ryarn import tiny
from ryarn.config import build
from ryarn.errors import UserError
from ryarn.records import Completion, Example
from ryarn.tasks import conflicts, miniature
from ryarn.tasks.babilong_score import babilong_score
from ryarn.tasks.conflicts import QUESTIONS, Conflicts, ConflictsConfig, _tell
from ryarn.tasks.miniature import Measure
from ryarn.tasks.words import NAMES, PLACES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FACT = re.compile(r"\b(\w+) (?:moved|went|travelled|journeyed) to the (\w+)\.")
FACTS_TOKENS = 57
"""Tokens of a row of two people with four moves each, where a word is a token."""


def make(
    split: str = "test", tokenizer: PreTrainedTokenizerBase | None = None, **settings: Any
) -> list[Example]:
    settings = {"task": "conflicts", "lengths": [64], "rows": 8, **settings}
    task = Conflicts(build(ConflictsConfig, settings))
    return list(task.examples(tokenizer or word_level(), split))


def context(example: Example) -> str:
    (message,) = example.prompt
    text, newline, question = message["content"].rpartition("\n")
    assert newline
    assert message["role"] == "user"
    assert question == example.question
    return text


def visits(example: Example) -> dict[str, list[str]]:
    found = defaultdict(list)
    for person, place in FACT.findall(context(example)):
        found[person].append(place)
    return found


def answer(example: Example) -> str:
    """What a reader who knows nothing of the generator answers."""
    match = re.fullmatch(r"Where (is|was) (\w+) (first|before|now)\?", example.question)
    assert match
    return visits(example)[match[2]][{"first": 0, "before": -2, "now": -1}[match[3]]]


@pytest.mark.parametrize("length", [64, 300])
def test_rows_are_answered_from_their_text_alone(length: int) -> None:
    rows = make(lengths=[length], rows=40)
    assert [row.info["kind"] for row in rows[::40]] == ["first", "previous", "latest"]
    for row in rows:
        assert answer(row) == row.target == row.completion
        assert row.info["facts"] == 8
        assert row.task == "conflicts"


def test_each_question_has_an_answer_of_its_own() -> None:
    wording = {row.info["kind"]: row.question for row in make(rows=1)}
    words = {kind: question.split()[1::2] for kind, question in wording.items()}
    assert words == {
        "first": ["was", "first?"],
        "previous": ["was", "before?"],
        "latest": ["is", "now?"],
    }


def test_everybody_moves_as_often_and_never_twice_to_a_place() -> None:
    for row in make(lengths=[400], rows=20, people=3, moves=5):
        told = visits(row)
        assert len(told) == 3
        assert set(told) <= set(NAMES)
        for places in told.values():
            assert len(places) == len(set(places)) == 5
            assert set(places) <= set(PLACES)


def test_people_take_turns_at_random() -> None:
    orders = Counter()
    for row in make(rows=100, questions=["latest"]):
        people = [person for person, _ in FACT.findall(context(row))]
        asked = row.question.split()[2]
        orders["last"] += people[-1] == asked
        orders["first"] += people[0] == asked
        orders["blocks"] += people == sorted(people) or people == sorted(people, reverse=True)
    assert 30 < orders["last"] < 70
    assert 30 < orders["first"] < 70
    assert orders["blocks"] < 15


def test_a_row_fills_its_length_and_never_exceeds_it() -> None:
    lengths = [64, 2 * FACTS_TOKENS, 128, 256, 1024]
    rows = make(lengths=lengths, rows=30)
    assert Counter(row.bin for row in rows) == dict.fromkeys(lengths, 90)
    for row in rows:
        assert row_length(word_level(), row) <= row.bin
        if row.bin >= 2 * FACTS_TOKENS:
            assert row_length(word_level(), row) >= 0.85 * row.bin


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_tokenizer_of_bytes_counts_bytes(split: str) -> None:
    tokenizer = tiny.byte_tokenizer()
    for row in make(split, tokenizer, lengths=[700, 2000], rows=10):
        assert row_length(tokenizer, row) <= row.bin
        if split == "test":
            assert row_length(tokenizer, row) >= 0.85 * row.bin


def test_a_tokenizer_that_merges_over_spaces_keeps_to_the_length(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    for row in make(tokenizer=tokenizer, lengths=[400, 900], rows=10):
        assert 0.85 * row.bin <= row_length(tokenizer, row) <= row.bin


def test_tokens_that_joining_adds_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if every sentence counted only half before it is joined.
    half = [(text, tokens // 2) for text, tokens in Measure(word_level()).prose]
    monkeypatch.setattr(Measure, "prose", half)
    for row in make(lengths=[200], rows=10):
        assert 170 <= row_length(word_level(), row) <= 200


def test_a_length_that_holds_just_the_facts_has_no_background() -> None:
    for row in make(lengths=[FACTS_TOKENS], rows=5):
        assert row_length(word_level(), row) == FACTS_TOKENS
        assert FACT.sub("", context(row)).strip() == ""


def test_no_background_at_all() -> None:
    rows = make(lengths=[500], background=None)
    assert {row_length(word_level(), row) for row in rows} == {FACTS_TOKENS}


def test_background_is_whole_short_sentences_around_the_facts() -> None:
    known = {sentence for sentence, _ in Measure(word_level()).prose}
    rows = make(lengths=[300], rows=40)
    starts = ends = 0
    for row in rows:
        between = [text.strip() for text in FACT.sub("\n", context(row)).split("\n")]
        starts += bool(between[0])
        ends += bool(between[-1])
        for text in filter(None, between):
            left = text
            for sentence in sorted(known, key=len, reverse=True):
                left = left.replace(sentence, "")
            assert left.strip() == ""
        assert "  " not in context(row)
        assert context(row) == context(row).strip()
    assert starts > 60
    assert ends > 60


def test_background_has_no_name_of_the_people(tmp_path: Path) -> None:
    file = tmp_path / "prose.txt"
    file.write_text(
        "Mary had a lamb. It was as white as snow. One two. "
        "This one has got so many words that it can not be taken. The end came soon.",
        encoding="utf-8",
    )
    prose = Measure(word_level(), str(file)).prose
    assert [sentence for sentence, _ in prose] == ["It was as white as snow.", "The end came soon."]
    (row,) = make(lengths=[100], rows=1, questions=["first"], background=str(file))
    assert set(FACT.sub("", context(row)).split()) <= set(
        ["It", "was", "as", "white", "as", "snow.", "The", "end", "came", "soon."]
    )


def test_background_without_short_sentences_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prose.txt"
    file.write_text("One two.", encoding="utf-8")
    with pytest.raises(UserError, match="no sentence has 3 to 12 words"):
        make(lengths=[200], background=str(file))


def test_background_fills_its_room_nearly_to_the_token() -> None:
    measure = Measure(word_level())
    tokens = dict(measure.prose)
    left = []
    for seed in range(300):
        chosen = measure.fill(20 + seed, np.random.default_rng(seed))
        left.append(20 + seed - sum(tokens[sentence] for sentence in chosen))
    assert min(left) >= 0
    assert max(left) < 9
    assert statistics.mean(left) < 2.5


def test_no_sentence_comes_twice_before_all_have_come() -> None:
    for row in make(lengths=[1024], rows=3, questions=["first"]):
        sentences = [s for s, _ in Measure(word_level()).prose if len(s) > 40]
        assert all(context(row).count(sentence) <= 1 for sentence in sentences)


def test_stories_are_shared_over_lengths_and_backgrounds_are_not() -> None:
    rows = make(lengths=[200, 64, 400], rows=10, questions=["previous"])
    long, short, longer = rows[:10], rows[10:20], rows[20:]
    for one, two, three in zip(long, short, longer, strict=True):
        assert one.source == two.source == three.source
        assert one.question == two.question == three.question
        assert FACT.findall(context(one)) == FACT.findall(context(two))
    assert len({row.source for row in rows}) == 10
    assert len({row.id for row in rows}) == 30
    firsts = [FACT.sub("", context(row))[:60] for row in [*long, *longer]]
    assert len(set(firsts)) > 15


def test_a_story_with_another_question_is_the_same_story() -> None:
    # Else the test split might ask in another way about what training has told.
    stories = [_tell(kind, 2, 4, np.random.default_rng(0)) for kind in QUESTIONS]
    assert len({story.facts for story in stories}) == len({story.id for story in stories}) == 1
    assert len({story.answer for story in stories}) == 3


def test_more_rows_or_lengths_or_questions_change_no_row() -> None:
    few = make(lengths=[128], rows=3, questions=["latest"])
    more = make(lengths=[256, 128, 64], rows=6, questions=["first", "latest"])
    assert few == [r for r in more if r.info["kind"] == "latest" and r.bin == 128][:3]
    few, more = (make("train", lengths=[128], rows=n, questions=["first"]) for n in (3, 6))
    assert few == more[:3]


def test_the_seed_changes_stories() -> None:
    zero, again, one = (make(seed=seed, lengths=[128]) for seed in (0, 0, 1))
    assert zero == again
    assert {row.source for row in zero}.isdisjoint(row.source for row in one)


def test_no_story_is_in_two_splits_or_twice_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # One person and two moves: few enough stories that seeds meet by chance.
    monkeypatch.setattr(conflicts, "NAMES", NAMES[:1])
    settings = {"people": 1, "moves": 2, "rows": 200, "questions": ["first"], "background": None}
    sources: dict[str, set[str]] = defaultdict(set)
    for split in ("train", "held-out", "test"):
        for seed in range(2):
            rows = make(split, **settings, seed=seed)
            assert len({row.source for row in rows}) == 200
            sources[split].update(row.source for row in rows)
    # Within a split they do meet, so a leak between splits would show.
    assert len(sources["held-out"]) < 400
    assert len(sources["test"]) < 400
    assert not sources["train"] & sources["held-out"]
    assert not sources["train"] & sources["test"]
    assert not sources["held-out"] & sources["test"]


def test_training_rows_have_all_lengths_and_one_bin() -> None:
    rows = make("train", lengths=[64, 256], rows=100, questions=["first", "latest"])
    assert Counter(row.bin for row in rows) == {256: 200}
    sizes = [row_length(word_level(), row) for row in rows]
    assert max(sizes) <= 256
    assert min(sizes) < 70
    assert 145 < statistics.mean(sizes) < 167
    quarters = Counter((size - FACTS_TOKENS) // 50 for size in sizes)
    assert min(quarters[quarter] for quarter in range(4)) > 30


def test_too_short_a_length_is_refused_with_what_is_needed() -> None:
    sentence = r"lengths: 56 is too short for people = 2 with moves = 4, .* up to 57 tokens"
    with pytest.raises(UserError, match=sentence):
        make(lengths=[128, 56])
    assert len(make("train", lengths=[128, 56])) == 24


def test_more_rows_than_stories_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(miniature, "_MAX_TRIES", 3)
    with pytest.raises(UserError, match=r"rows = 900: only \d+ different stories found for the te"):
        make(rows=900)


def test_unknown_split_is_refused() -> None:
    with pytest.raises(UserError, match="must be one of train, held-out, test"):
        make("validation")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"questions": ["last"]}, "'first', 'previous' or 'latest'"),
        ({"questions": []}, "questions"),
        ({"questions": ["first", "first"]}, "name each only once"),
        ({"lengths": [64, 64]}, "name each only once"),
        ({"lengths": []}, "lengths"),
        ({"lengths": [0]}, "greater than 0"),
        ({"rows": 0}, "rows"),
        ({"people": 0}, "people"),
        ({"people": 25}, "people"),
        ({"moves": 1}, "moves"),
        ({"moves": 25}, "moves"),
        ({"lengths": [64, 128], "background": None}, "facts alone: give one length"),
        ({"backround": "packaged"}, "did you mean 'background'"),
    ],
)
def test_config_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(**settings)


CASES = json.loads(
    (Path(__file__).parents[1] / "cases" / "babilong.json").read_text(encoding="utf-8")
)


def scored(text: str, question: str, target: str, finish: str = "stop") -> Any:
    example = Example("id", (), target, target, "conflicts", 64, "story", question)
    return Conflicts(ConflictsConfig(lengths=[64], rows=1)).score(
        example, Completion("id", text, 9, finish)
    )


@pytest.mark.parametrize("case", CASES, ids=[case["why"] for case in CASES])
def test_score_is_babilongs(case: dict[str, Any]) -> None:
    score = scored(case["text"], case["question"], case["target"])
    assert list(score.scores) == ["babilong", "exact"]
    example = Example("id", (), "", case["target"], "babilong", 64, "story", case["question"])
    official = babilong_score(example, Completion("id", case["text"], 9, "stop"))
    assert score.scores["babilong"] == official.scores["babilong"] == case["babilong"]
    assert score.parsed == official.parsed == case["parsed"]


@pytest.mark.parametrize(
    ("text", "babilong", "exact", "parsed"),
    [
        ("harbour", 1, 1, True),
        (" harbour\n", 1, 1, True),
        ("Harbour", 1, 0, True),
        ("Mary is in the harbour now. Before it was the museum.", 1, 0, True),
        ("harbour museum", 0, 0, True),
        ("museum", 0, 0, True),
        ("beach", 0, 0, False),
        ("", 0, 0, False),
        (". harbour", 0, 0, False),
        ("harbour <context> museum", 1, 0, True),
        ("harbour <example> museum", 1, 0, True),
    ],
)
def test_score_knows_all_places_of_this_task(
    text: str, babilong: float, exact: float, parsed: bool
) -> None:
    score = scored(text, "Where is Mary now?", "harbour")
    assert score.scores == {"babilong": babilong, "exact": exact}
    assert score.parsed == parsed


def test_a_skipped_row_has_no_score() -> None:
    score = scored("", "Where is Mary now?", "harbour", "skipped")
    assert (score.scores, score.parsed, score.finish) == ({}, False, "skipped")
    assert (score.id, score.bin, score.source) == ("id", 64, "story")


def test_no_place_is_part_of_another() -> None:
    # Or the rule would find two places where one is named.
    assert not [(a, b) for a in PLACES for b in PLACES if a != b and a in b]
