"""Made conversations: an independent reader answers them; lengths, splits, and what scores mean."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from word_level import row_length, word_level

from ryarn.errors import UserError
from ryarn.records import Example
from ryarn.tasks.background import PACKAGED
from ryarn.tasks.mrcr_conversations import (
    CODE_LENGTH,
    MIN_FILL,
    ORDINALS,
    Conversations,
    _Filler,
)
from ryarn.tasks.mrcr_lexicon import FORMS, TOPICS
from ryarn.tasks.mrcr_score import mrcr
from ryarn.tasks.mrcr_writing import HELD_OUT, SENTENCES, TEST, Grammar, Passages, Piece, compose
from ryarn.tasks.splits import SPLITS, content_hash, split_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUESTION = re.compile(
    r"Prepend (\w{10}) to the (\d\w\w) \(1 indexed\) (.+ about \w+)\. "
    r"Do not include any other text in your response\."
)


def make(
    wanted: list[tuple[int, int]],
    split: str = "test",
    needles: tuple[int, ...] = (2,),
    texts: str = "grammar",
    seed: int = 0,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[Example]:
    maker = Conversations(needles, texts, seed)
    return list(maker.rows(tokenizer or word_level(), split, wanted))


@cache
def some() -> list[Example]:
    return make([(4000, 24)], needles=(2, 4, 8))


def turns(example: Example) -> list[tuple[str, str]]:
    *pairs, last = example.prompt
    assert last == {"role": "user", "content": example.question}
    assert [message["role"] for message in pairs] == ["user", "assistant"] * (len(pairs) // 2)
    texts = [message["content"] for message in pairs]
    return list(zip(texts[::2], texts[1::2], strict=True))


def needles(example: Example) -> list[str]:
    """The pieces that the question may mean, read from the prompt alone."""
    match = QUESTION.fullmatch(example.question)
    assert match
    return [piece for request, piece in turns(example) if request == f"Write a {match[3]}."]


def test_rows_are_answered_from_their_text_alone() -> None:
    for row in some():
        match = QUESTION.fullmatch(row.question)
        assert match
        pieces = needles(row)
        assert len(pieces) == len(set(pieces)) == row.info["needles"]
        answer = match[1] + pieces[ORDINALS.index(match[2])]
        assert row.completion == row.target == answer
        assert row.info["prefix"] == match[1]
        assert row.info["asked"] == ORDINALS.index(match[2]) + 1
        assert row.info["turns"] == len(turns(row))


def test_needle_counts_take_turns() -> None:
    assert [row.info["needles"] for row in some()] == [2, 4, 8] * 8
    assert [row.info["needles"] for row in make([(3000, 5)], needles=(8, 2))] == [2, 8, 2, 8, 2]


def test_every_look_alike_is_asked_for_and_codes_differ() -> None:
    rows = make([(900, 60)])
    asked = Counter(row.info["asked"] for row in rows)
    # 60 throws of a coin: fewer than 15 of one side once in 20,000
    assert min(asked[1], asked[2]) >= 15
    codes = {row.info["prefix"] for row in rows}
    assert len(codes) == 60
    assert {len(code) for code in codes} == {CODE_LENGTH}
    letters = "".join(codes)
    assert any(c.isupper() for c in letters)
    assert any(c.isdigit() for c in letters)


def test_a_right_answer_another_needle_and_a_near_copy_score_apart() -> None:
    """The official ratio on these texts, as on published ones: 1, near 0, and high."""
    rng = np.random.default_rng(0)
    right, others, near, half = [], [], [], []
    for row in some():
        prefix, target = row.info["prefix"], row.target
        text = target.removeprefix(prefix)
        assert len(text) >= 400  # difflib sets frequent letters aside from 200 on
        right.append(mrcr(target, target, prefix))
        wrong = [piece for piece in needles(row) if piece != text]
        others += [mrcr(prefix + piece, target, prefix) for piece in wrong]
        words = text.split(" ")
        words[int(rng.integers(len(words)))] = "thing"
        near.append(mrcr(prefix + " ".join(words), target, prefix))
        half.append(mrcr(prefix + text[: len(text) // 2], target, prefix))
    assert set(right) == {1.0}
    assert len(others) > 60
    assert max(others) < 0.2
    assert statistics.median(others) < 0.06
    assert statistics.median(near) > 0.97
    assert min(near) > 0.5
    assert half == pytest.approx([2 / 3] * len(half), abs=0.01)


def test_without_the_code_nothing_is_scored() -> None:
    row = some()[0]
    assert mrcr(row.target[CODE_LENGTH:], row.target, row.info["prefix"]) == 0


@pytest.mark.parametrize("length", [1200, 3001])
def test_a_row_never_exceeds_its_length_and_comes_close(length: int) -> None:
    for row in make([(length, 12)]):
        tokens = row_length(word_level(), row)
        assert length - 40 <= tokens <= length
        assert row.bin == row.info["length"] == length


def test_a_tokenizer_that_merges_across_turns_keeps_the_length(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    for row in make([(5000, 3)], tokenizer=tokenizer):
        assert MIN_FILL * 5000 <= row_length(tokenizer, row) <= 5000


def test_turns_are_taken_back_where_the_whole_counts_more_than_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = _Filler._size_of
    monkeypatch.setattr(_Filler, "_size_of", lambda self, turn: real(self, turn) - 20)
    for row in make([(3000, 4)]):
        assert 2600 <= row_length(word_level(), row) <= 3000


def test_the_story_is_the_same_at_every_length_and_the_rest_is_not() -> None:
    rows = make([(1000, 4), (2000, 6)])
    short, long = rows[:4], rows[4:]
    for one, other in zip(short, long, strict=False):
        assert one.source == other.source
        assert one.question == other.question
        assert needles(one) == needles(other)
        assert one.id != other.id
        shared = set(turns(one)) & set(turns(other))
        assert shared == {turn for turn in turns(one) if turn[1] in needles(one)}
    assert len({row.source for row in long}) == 6
    for one in long:
        assert sum(bool(set(turns(one)) & set(turns(other))) for other in long) == 1


def test_more_rows_and_other_lengths_leave_a_row_as_it_was() -> None:
    few = make([(1000, 2)])
    assert make([(1000, 5), (1500, 2)])[:2] == few
    assert make([(1000, 2)], seed=1) != few


def test_look_alikes_stand_anywhere_and_others_are_near_misses() -> None:
    firsts, near = [], []
    for row in make([(3000, 40)]):
        found = turns(row)
        mine = needles(row)
        places = [place for place, turn in enumerate(found) if turn[1] in mine]
        firsts.append(places[0] / len(found))
        form, topic = found[places[0]][0].removeprefix("Write a ").rstrip(".").split(" about ")
        rest = [request for request, piece in found if piece not in mine]
        near += [f"Write a {form} about" in r or r.endswith(f"about {topic}.") for r in rest]
    assert min(firsts) < 0.1
    assert max(firsts) > 0.5
    assert 0.4 < statistics.mean(near) < 0.65


def test_no_text_is_asked_for_in_one_split_and_stands_in_another() -> None:
    texts = {}
    for split in SPLITS:
        for seed in (0, 1):
            rows = make([(1500, 12)], split, seed=seed)
            texts[split, seed] = (
                {row.target[CODE_LENGTH:] for row in rows},
                {piece for row in rows for _, piece in turns(row)},
            )
    for (split, seed), (asked, _) in texts.items():
        for (other, other_seed), (_, pieces) in texts.items():
            assert (split, seed) == (other, other_seed) or not asked & pieces


def test_the_grammar_s_look_alikes_belong_to_a_split_by_their_text() -> None:
    pairs = [("poem", "tapirs")] * 12
    for split in SPLITS:
        for row in Grammar().needles([2] * 12, pairs, split, np.random.default_rng):
            key = content_hash([piece.text for piece in row])
            assert split_of(key, HELD_OUT, TEST) == split


def test_a_length_without_room_is_refused_before_any_row() -> None:
    with pytest.raises(UserError) as error:
        next(iter(Conversations([2, 8], "grammar", 0).rows(word_level(), "test", [(900, 4)])))
    match = re.fullmatch(
        r"lengths: 900 is too short for 8 look-alikes, .* take up to (\d+) tokens: .*",
        str(error.value),
    )
    assert match
    assert make([(int(match[1]), 4)], needles=(2, 8))


# Pieces


def test_pieces_of_every_form_are_text_and_differ() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for form in FORMS:
        for topic in TOPICS[:12]:
            piece = compose((form, topic), rng)
            assert SENTENCES[0] <= len(piece.sentences) <= SENTENCES[1]
            text = piece.text
            assert text == text.strip()
            assert "  " not in text
            assert not re.search(r"[{}]|\bNone\b", text)
            assert text not in seen
            seen.add(text)
    told = [topic in compose(("speech", topic), rng).text for topic in TOPICS]
    assert statistics.mean(told) > 0.8


def test_a_sentence_of_the_grammar_is_seldom_told_twice() -> None:
    rng = np.random.default_rng(1)
    sentences = [s for _ in range(200) for s in compose(("speech", "tapirs"), rng).sentences]
    assert len(set(sentences)) > 0.995 * len(sentences)
    assert all(s[0].isupper() or s[0] == '"' for s in sentences)
    assert all(s.endswith(".") for s in sentences)


def test_a_piece_is_cut_at_its_sentences() -> None:
    piece = Piece(("One.", "Two.", "Three."), joint="\n", head="Dear Nell,\n\n", tail="\n\nYours")
    assert piece.cut(2).text == "Dear Nell,\n\nOne.\nTwo.\n\nYours"


# The user's own texts


def library(folder: Path, documents: int = 6) -> str:
    rng = np.random.default_rng(3)
    folder.mkdir(exist_ok=True)
    for number in range(documents):
        pieces = [compose(("speech", TOPICS[number]), rng).text for _ in range(40)]
        (folder / f"{number}.txt").write_text("\n\n".join(pieces), encoding="utf-8")
    return str(folder)


def test_passages_are_whole_sentences_of_the_texts(tmp_path: Path) -> None:
    source = library(tmp_path / "texts")
    whole = " ".join(
        " ".join(file.read_text(encoding="utf-8").split())
        for file in sorted(Path(source).glob("*.txt"))
    )
    rows = make([(2000, 3)], "train", texts=source)
    for row in rows:
        for _, piece in turns(row):
            assert piece in whole
        assert all(len(piece.split()) >= 110 for piece in needles(row))
        pieces = [piece for _, piece in turns(row)]
        assert len(set(pieces)) == len(pieces)


def test_passages_of_prose_score_apart_too() -> None:
    for row in make([(3000, 4)], "train", texts=str(PACKAGED)):
        prefix, (one, two) = row.info["prefix"], needles(row)
        assert mrcr(prefix + one, prefix + two, prefix) < 0.25


def test_a_passage_asked_for_is_asked_for_once_and_in_no_other_split(tmp_path: Path) -> None:
    source = library(tmp_path / "texts")
    asked, standing = {}, {}
    for split in SPLITS:
        rows = make([(2000, 8)], split, texts=source)
        asked[split] = {row.target[CODE_LENGTH:] for row in rows}
        standing[split] = {piece for row in rows for _, piece in turns(row)}
        assert len(asked[split]) == 8
    assert not asked["test"] & (standing["train"] | standing["held-out"])
    assert not asked["held-out"] & standing["train"]


def test_a_look_alike_stands_in_its_row_once_even_where_all_passages_are_taken(
    tmp_path: Path,
) -> None:
    source = library(tmp_path / "texts", 1)
    of_split = Passages(source)._passages["train"]
    tokens = sum(len(word_level()(piece.text)["input_ids"]) for piece in of_split)
    for row in make([(tokens, 3)], "train", texts=source):
        pieces = [piece for _, piece in turns(row)]
        assert len(pieces) > 0.8 * len(of_split)
        assert len(set(pieces)) == len(pieces)


def test_a_text_that_stands_twice_is_one_passage(tmp_path: Path) -> None:
    source = library(tmp_path / "texts", 1)
    once = Passages(source)._passages
    (tmp_path / "texts" / "copy.txt").write_text((tmp_path / "texts" / "0.txt").read_text())
    assert Passages(source)._passages == once


def test_too_little_text_is_said_with_what_is_needed(tmp_path: Path) -> None:
    source = library(tmp_path / "texts", 1)
    with pytest.raises(
        UserError, match=r"\d+ passages of about 110 words fall to the test split, "
    ):
        make([(4000, 30)], texts=source)
    with pytest.raises(UserError, match=r"fill only \d+ of 100000 tokens: give more text"):
        make([(100_000, 1)], texts=source, split="train")
    with pytest.raises(UserError, match="no such file or folder"):
        make([(4000, 1)], texts=str(tmp_path / "none.txt"))


def test_writers_give_as_many_as_asked_and_none_twice(tmp_path: Path) -> None:
    counts = [2, 8] * 6
    pairs = [("poem", "tapirs")] * 12
    for writer in (Grammar(), Passages(library(tmp_path / "texts", 1))):
        rows = writer.needles(counts, pairs, "train", np.random.default_rng)
        assert [len({piece.text for piece in row}) for row in rows] == counts
        assert len({row[0].text for row in rows}) == 12
