"""Rows of `lookalikes`: an independent reader answers them; lengths, splits and scores."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from word_level import row_length, word_level

from ryarn import tiny
from ryarn.chat import completion_ids
from ryarn.config import build
from ryarn.errors import UserError
from ryarn.models import PACKAGED, load_tokenizer
from ryarn.recipe import ModelConfig
from ryarn.records import Completion, Example
from ryarn.tasks import lookalikes
from ryarn.tasks.lookalikes import ORDINALS, PROSE_FROM, Lookalikes, LookalikesConfig, _draw
from ryarn.tasks.miniature import Measure
from ryarn.tasks.words import FORMS, PREFIXES, TOPICS, WRITING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ALONE = 49
"""Tokens of a row of two look-alikes of a title and five words alone, where a word is a token."""


def make(
    split: str = "test", tokenizer: PreTrainedTokenizerBase | None = None, **settings: Any
) -> list[Example]:
    settings = {"task": "lookalikes", "lengths": [64], "rows": 8, **settings}
    task = Lookalikes(build(LookalikesConfig, settings))
    return list(task.examples(tokenizer or word_level(), split))


def turns(example: Example) -> list[tuple[str, str]]:
    *pairs, last = example.prompt
    assert last == {"role": "user", "content": example.question}
    roles = [message["role"] for message in pairs]
    assert roles == ["user", "assistant"] * (len(pairs) // 2)
    texts = [message["content"] for message in pairs]
    return list(zip(texts[::2], texts[1::2], strict=True))


def needles(example: Example) -> list[str]:
    """The pieces that answer the request that the question speaks of."""
    match = re.fullmatch(r"Prepend \w+ to the \w+ (\w+) about (\w+)\.", example.question)
    assert match
    return [
        piece
        for request, piece in turns(example)
        if request.split()[2::2] == [match[1], f"{match[2]}."]
    ]


def is_written(piece: str) -> bool:
    """Whether the words after the title are a piece's, not prose."""
    return set(piece.split()[1:]) <= set(WRITING)


@pytest.mark.parametrize(("count", "length"), [(2, 64), (2, 300), (4, 300), (8, 400)])
def test_rows_are_answered_from_their_text_alone(count: int, length: int) -> None:
    asked = Counter()
    for row in make(lengths=[length], needles=count, rows=40):
        words = row.question.split()
        pieces = needles(row)
        assert len(pieces) == len(set(pieces)) == count
        assert row.completion == row.target == f"{words[1]} {pieces[ORDINALS.index(words[4])]}"
        assert row.info["prefix"] == words[1]
        assert row.info["asked"] == ORDINALS.index(words[4]) + 1
        assert row.info["needles"] == count
        assert row.info["turns"] == len(turns(row))
        assert row.task == "lookalikes"
        asked[words[4]] += 1
    assert set(asked) == set(ORDINALS[:count])


def test_no_two_look_alikes_are_the_same() -> None:
    # One word of 120 each: eight drawn without care would often meet.
    for row in make(lengths=[200], needles=8, words=1, rows=20):
        assert len(set(needles(row))) == 8


def test_what_is_written() -> None:
    rows = make(lengths=[300], words=7, rows=30)
    for row in rows:
        for piece in needles(row):
            title, *words = piece.split()
            assert f"about {title}." in row.question
            assert len(words) == len(set(words)) == 7
            assert is_written(piece)
        for request, piece in turns(row):
            match = re.fullmatch(r"Write a (\w+) about (\w+)\.", request)
            assert match
            assert match[1] in FORMS
            assert match[2] in TOPICS
            assert piece.split()[0] == match[2]
        assert row.info["prefix"] in PREFIXES
    assert len({row.info["prefix"] for row in rows}) > 5


def test_other_turns_have_other_topics_each_once() -> None:
    shares = Counter()
    for row in make(lengths=[800], rows=30):
        requests = Counter(request for request, _ in turns(row))
        (own,) = [request for request, count in requests.items() if count > 1]
        assert requests[own] == 2
        shares["form"] += sum(r != own and r.split()[2] == own.split()[2] for r in requests)
        topics = [request.split()[4] for request in requests]
        assert len(set(topics)) == len(topics)
        shares["all"] += len(requests) - 1
    # One in eight is near: the same form.
    assert 0.08 < shares["form"] / shares["all"] < 0.17


def test_the_look_alikes_stand_anywhere_in_their_own_order() -> None:
    places: list[float] = []
    edges = Counter()
    for row in make(lengths=[512], rows=150):
        found = [place for place, (_, piece) in enumerate(turns(row)) if piece in needles(row)]
        places += [place / (len(turns(row)) - 1) for place in found]
        edges["first"] += found[0] == 0
        edges["last"] += found[-1] == len(turns(row)) - 1
    assert 0.45 < statistics.mean(places) < 0.55
    quarters = Counter(min(3, int(4 * place)) for place in places)
    assert all(50 < quarters[quarter] < 100 for quarter in range(4))
    assert edges["first"] > 3
    assert edges["last"] > 3


def test_a_row_fills_its_length_and_never_exceeds_it() -> None:
    lengths = [64, 2 * ALONE, 128, 256, 1024, 2048]
    rows = make(lengths=lengths, rows=20)
    assert Counter(row.bin for row in rows) == dict.fromkeys(lengths, 20)
    for row in rows:
        assert row_length(word_level(), row) <= row.bin
        if row.bin >= 2 * ALONE:
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
    for row in make(tokenizer=tokenizer, lengths=[700, 1500], rows=10):
        assert 0.85 * row.bin <= row_length(tokenizer, row) <= row.bin


def test_tokens_that_joining_adds_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if every sentence counted only half before it is joined.
    half = [(text, tokens // 2) for text, tokens in Measure(word_level()).prose]
    monkeypatch.setattr(Measure, "prose", half)
    for row in make(lengths=[400], rows=10):
        assert row_length(word_level(), row) <= 400
        assert len(needles(row)) == 2


def test_a_length_that_holds_just_the_look_alikes_has_no_other_turn() -> None:
    for row in make(lengths=[ALONE], rows=5):
        assert row_length(word_level(), row) == ALONE
        assert len(turns(row)) == 2


def test_half_of_the_other_turns_are_prose_in_long_rows_and_none_in_short() -> None:
    assert not [
        piece
        for row in make(lengths=[PROSE_FROM * ALONE - 1], rows=20)
        for _, piece in turns(row)
        if not is_written(piece)
    ]
    known = Measure(word_level()).prose
    written = prose = 0
    for row in make(lengths=[PROSE_FROM * ALONE, 500], rows=30):
        for _, piece in turns(row):
            if is_written(piece):
                written += 1
                assert len(piece.split()) == 6
                continue
            prose += 1
            left = piece.partition(" ")[2]
            for sentence, _ in sorted(known, key=lambda item: -len(item[0])):
                left = left.replace(sentence, "")
            assert left.strip() == ""
    written -= 2 * 60
    assert 0.4 < prose / (written + prose) < 0.6


def test_a_row_longer_than_all_topics_has_longer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookalikes, "TOPICS", TOPICS[:6])
    for row in make(lengths=[600], rows=5):
        assert len(turns(row)) == 7
        assert 0.95 * 600 <= row_length(word_level(), row) <= 600


def test_look_alikes_are_shared_over_lengths_and_the_other_turns_are_not() -> None:
    rows = make(lengths=[256, 64, 512], rows=10)
    long, short, longer = rows[:10], rows[10:20], rows[20:]
    for one, two, three in zip(long, short, longer, strict=True):
        assert one.source == two.source == three.source
        assert one.question == two.question == three.question
        assert one.completion == two.completion == three.completion
        assert needles(one) == needles(two) == needles(three)
    assert len({row.source for row in rows}) == 10
    assert len({row.id for row in rows}) == 30
    others = [next(t for t in turns(row) if t[1] not in needles(row)) for row in [*long, *longer]]
    assert len(set(others)) == 20


def test_look_alikes_with_another_question_are_the_same_story() -> None:
    # Else the test split might ask in another way for what training has shown.
    found = defaultdict(set)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        story = _draw(LookalikesConfig(lengths=[64], rows=1), rng)
        again = type(story)(story.pair, story.pieces, 1 - story.asked, "zo")
        found[story.id].add(again.id)
        assert again.question != story.question
    assert all(ids == {story_id} for story_id, ids in found.items())
    assert len(found) == 40


@pytest.mark.parametrize("asked", [[1], [3], [1, 3]])
def test_only_those_named_are_asked_for(asked: list[int]) -> None:
    rows = make(lengths=[128], needles=3, asked=asked, rows=40)
    assert {row.info["asked"] for row in rows} == set(asked)
    for row in rows:
        assert ORDINALS[row.info["asked"] - 1] in row.question
        assert row.completion.endswith(needles(row)[row.info["asked"] - 1])


def test_asking_for_any_is_asking_for_all_by_name() -> None:
    assert make(needles=2, asked=[1, 2]) == make(needles=2)


def test_more_rows_or_lengths_change_no_row() -> None:
    few = make(lengths=[128], rows=3)
    more = make(lengths=[256, 128, 64], rows=6)
    assert few == [row for row in more if row.bin == 128][:3]
    few, more = (make("train", lengths=[128], rows=n) for n in (3, 6))
    assert few == more[:3]


def test_the_seed_changes_stories() -> None:
    zero, again, one = (make(seed=seed, lengths=[128]) for seed in (0, 0, 1))
    assert zero == again
    assert {row.source for row in zero}.isdisjoint(row.source for row in one)


def test_no_story_is_in_two_splits_or_twice_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # One word a piece of 120, two pairs: few enough stories that seeds meet by chance.
    monkeypatch.setattr(lookalikes, "FORMS", FORMS[:1])
    monkeypatch.setattr(lookalikes, "TOPICS", TOPICS[:2])
    sources: dict[str, set[str]] = defaultdict(set)
    for split in ("train", "held-out", "test"):
        for seed in range(2):
            rows = make(split, words=1, rows=200, seed=seed)
            assert len({row.source for row in rows}) == 200
            sources[split].update(row.source for row in rows)
    # Within a split they do meet, so a leak between splits would show.
    assert len(sources["held-out"]) < 400
    assert len(sources["test"]) < 400
    assert not sources["train"] & sources["held-out"]
    assert not sources["train"] & sources["test"]
    assert not sources["held-out"] & sources["test"]


def test_training_rows_have_all_lengths_and_one_bin() -> None:
    rows = make("train", lengths=[64, 446], rows=150)
    assert Counter(row.bin for row in rows) == {446: 150}
    sizes = [row_length(word_level(), row) for row in rows]
    assert max(sizes) <= 446
    assert min(sizes) < ALONE + 20
    assert 220 < statistics.mean(sizes) < 270
    quarters = Counter((size - ALONE) // 100 for size in sizes)
    assert min(quarters[quarter] for quarter in range(4)) > 20


def test_too_short_a_length_is_refused_with_what_is_needed() -> None:
    sentence = r"lengths: 48 is too short for needles = 2 of words = 5, .* up to 49 tokens"
    with pytest.raises(UserError, match=sentence):
        make(lengths=[128, 48])
    assert len(make("train", lengths=[128, 48])) == 8


def test_unknown_split_is_refused() -> None:
    with pytest.raises(UserError, match="must be one of train, held-out, test"):
        make("validation")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": [64, 64]}, "name each only once"),
        ({"lengths": []}, "lengths"),
        ({"lengths": [-1]}, "greater than 0"),
        ({"rows": 0}, "rows"),
        ({"needles": 1}, "needles"),
        ({"needles": 9}, "needles"),
        ({"words": 0}, "words"),
        ({"words": 85}, "words"),
        ({"needle": 2}, "did you mean 'needles'"),
        ({"asked": [3]}, "asked = .3.: there are needles = 2 look-alikes"),
        ({"asked": [0]}, "asked"),
        ({"asked": []}, "asked"),
        ({"asked": [2, 2]}, "name each only once"),
    ],
)
def test_config_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("text", "mrcr", "exact", "parsed"),
    [
        ("ka silver moon", 1, 1, True),
        ("ka silver moon\n", 24 / 25, 1, True),
        (" ka silver moon", 0, 1, False),
        ("kasilver moon", 22 / 23, 0, True),
        ("ka quiet", 6 / 18, 0, True),
        ("lo silver moon", 0, 0, False),
        ("silver moon", 0, 0, False),
        ("", 0, 0, False),
    ],
)
def test_score_is_mrcrs_with_the_code_as_prefix(
    text: str, mrcr: float, exact: float, parsed: bool
) -> None:
    score = scored(text)
    assert list(score.scores) == ["mrcr", "exact"]
    assert score.scores == {"mrcr": pytest.approx(mrcr), "exact": exact}
    assert score.parsed == parsed


def scored(text: str, finish: str = "stop") -> Any:
    answer = "ka silver moon"
    example = Example("id", (), answer, answer, "lookalikes", 64, "s", "", {"prefix": "ka"})
    task = Lookalikes(LookalikesConfig(lengths=[64], rows=1))
    return task.score(example, Completion("id", text, 9, finish))


def test_a_right_answer_scores_one() -> None:
    task = Lookalikes(LookalikesConfig(lengths=[64], rows=20))
    for row in task.examples(word_level(), "test"):
        score = task.score(row, Completion(row.id, row.completion, 9, "stop"))
        assert score.scores == {"mrcr": 1, "exact": 1}
        other = next(p for p in needles(row) if p not in row.completion)
        wrong = task.score(row, Completion(row.id, f"{row.info['prefix']} {other}", 9, "stop"))
        assert wrong.scores["mrcr"] < 0.8
        assert wrong.scores["exact"] == 0


def test_a_skipped_row_has_no_score() -> None:
    score = scored("", "skipped")
    assert (score.scores, score.parsed, score.finish) == ({}, False, "skipped")
    assert (score.id, score.bin, score.source) == ("id", 64, "s")


@pytest.mark.parametrize("name", PACKAGED)
def test_a_right_answer_of_a_packaged_base_has_the_full_score(name: str) -> None:
    # Its tokenizer puts a space before a text; left in the answer, no prefix was ever found.
    tokenizer = load_tokenizer(ModelConfig(name=name))
    task = Lookalikes(build(LookalikesConfig, {"task": "lookalikes", "lengths": [64], "rows": 20}))
    for row in task.examples(tokenizer, "test"):
        tokens = completion_ids(tokenizer, row.completion)
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        score = task.score(row, Completion(row.id, text, 1, "stop"))
        assert score.scores == {"mrcr": 1.0, "exact": 1.0}
