"""BABILong rows: the prompt's bytes, the length, the facts inside, and which story goes where."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ryarn.chat import completion_ids, prompt_ids
from ryarn.config import build
from ryarn.errors import UserError
from ryarn.records import Example, write_jsonl
from ryarn.tasks import babilong, babilong_context
from ryarn.tasks.babi import QuestionType, find_facts, is_multi_entry, simulate, solve
from ryarn.tasks.babilong import Babilong, BabilongConfig
from ryarn.tasks.babilong_context import cut, nominal, weave
from ryarn.tasks.babilong_prompt import PREFIX, answer_sentence, babilong_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KINDS: list[QuestionType] = ["qa1", "qa2", "qa3"]
CONTEXT = " Mary went to the kitchen. Some prose. \n"
QUESTIONS = {
    "qa1": "Where is Mary?",
    "qa2": "Where is the milk? ",
    "qa3": "Where was the milk before the office? ",
}
# Of the prompts that the official code renders for CONTEXT and QUESTIONS.
OFFICIAL_SHA256 = {
    "qa1": "e843d337dbdec76407252d1cc296378f50c48b4b8737a2e94b21f7c5d03d8993",
    "qa2": "18e2ff5ff5dd2e3944e5998fa2560510f6ddb03ffccbb982f114d3d83b40b29b",
    "qa3": "13d7b7f066d03e60ab3f75cc1751d9a8fe2cc1bc3612413838e60574af46b1f7",
}


def make(
    tokenizer: PreTrainedTokenizerBase, split: str = "train", **settings: Any
) -> list[Example]:
    settings = {"task": "babilong", "questions": ["qa1"], "lengths": [512], "rows": 5, **settings}
    return list(Babilong(build(BabilongConfig, settings)).examples(tokenizer, split))


def context(example: Example) -> str:
    (message,) = example.prompt
    found = re.search(r"<context>\n(.*)\n</context>", message["content"], re.DOTALL)
    assert found
    return found[1]


def row_length(tokenizer: PreTrainedTokenizerBase, example: Example) -> int:
    answer = completion_ids(tokenizer, example.completion)
    return len(prompt_ids(tokenizer, example.prompt)) + len(answer)


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_is_the_official_one_to_the_byte(kind: QuestionType) -> None:
    (message,) = babilong_prompt(kind, CONTEXT, QUESTIONS[kind])
    assert message["role"] == "user"
    assert hashlib.sha256(message["content"].encode()).hexdigest() == OFFICIAL_SHA256[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_completion_has_the_form_of_the_examples_in_the_prompt(kind: QuestionType) -> None:
    shown = re.findall(r"(Where [^?]*\?)\nAnswer: (.*)", PREFIX[kind])
    assert len(shown) == 2
    for question, answer in shown:
        place = answer.rstrip(".").split()[-1]
        assert answer_sentence(kind, question, place) == answer


@pytest.mark.parametrize("kind", KINDS)
def test_row_never_exceeds_its_length_and_comes_close(
    kind: QuestionType, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = make(tokenizer, questions=[kind], lengths=[700, 901], rows=15)
    assert [row.bin for row in rows] == [700] * 15 + [901] * 15
    for row in rows:
        assert row.bin - 12 <= row_length(tokenizer, row) <= row.bin


@pytest.mark.parametrize("kind", KINDS)
def test_facts_in_the_row_answer_the_question(
    kind: QuestionType, tokenizer: PreTrainedTokenizerBase
) -> None:
    for row in make(tokenizer, questions=[kind], lengths=[900]):
        facts = find_facts(context(row))
        assert len(facts) == row.info["facts"]
        assert solve(facts, row.question) == row.target
        assert row.completion == answer_sentence(kind, row.question, row.target)
        assert row.task == "babilong"


def test_context_is_prose_with_single_spaces(tokenizer: PreTrainedTokenizerBase) -> None:
    text = context(make(tokenizer, lengths=[1500], rows=1)[0])
    assert "  " not in text
    assert "\n" not in text
    assert re.search(r"[a-z]\.[A-Z]", text) is None
    assert len(text.split()) > 100


def test_official_lengths_count_the_context_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = make(tokenizer, questions=["qa3"], lengths=["0k", "1k", "2k"], rows=4)
    facts_alone, short, long = rows[:4], rows[4:8], rows[8:]
    for row in facts_alone:
        assert context(row) == " ".join(find_facts(context(row)))
        assert row.bin == 0
    for group, tokens in ((short, 700), (long, 1700)):
        for row in group:
            size = len(tokenizer(context(row), add_special_tokens=False)["input_ids"])
            assert tokens - 12 <= size <= tokens
            assert row.bin == tokens + 300


def test_stories_are_shared_over_lengths_and_backgrounds_are_not(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rows = make(tokenizer, questions=["qa2"], lengths=[700, 1400, "2k"], rows=4)
    short, middle, long = rows[:4], rows[4:8], rows[8:]
    assert [r.source for r in short] == [r.source for r in middle] == [r.source for r in long]
    assert len({r.source for r in rows}) == 4
    assert len({r.id for r in rows}) == 12
    prose = [context(r).replace(fact, "") for r in rows for fact in find_facts(context(r))[:1]]
    assert len({text[:200] for text in prose}) == 12


def test_more_rows_or_lengths_or_questions_change_no_row(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    few = make(tokenizer, questions=["qa2"], lengths=[700], rows=3)
    more = make(tokenizer, questions=["qa1", "qa2"], lengths=[900, 700], rows=6)
    assert few == [row for row in more if row.info["kind"] == "qa2" and row.bin == 700][:3]


def test_the_seed_changes_stories_and_background(tokenizer: PreTrainedTokenizerBase) -> None:
    zero, zero_again, one = (make(tokenizer, seed=seed) for seed in (0, 0, 1))
    assert zero == zero_again
    assert {row.source for row in zero}.isdisjoint(row.source for row in one)


def test_no_story_is_in_two_splits_or_twice_in_one(tokenizer: PreTrainedTokenizerBase) -> None:
    # Two-fact stories: few enough that seeds would meet by chance.
    sources: dict[str, set[str]] = {}
    for split in ("train", "held-out", "test"):
        for seed in range(3):
            rows = make(tokenizer, split, lengths=["0k"], rows=300, max_facts=2, seed=seed)
            assert len({row.source for row in rows}) == 300
            sources.setdefault(split, set()).update(row.source for row in rows)
    # Within a split the seeds do meet, so a leak between splits would show.
    assert len(sources["held-out"]) < 900
    assert not sources["train"] & sources["held-out"]
    assert not sources["train"] & sources["test"]
    assert not sources["held-out"] & sources["test"]


def test_multi_entry_keeps_only_such_questions(tokenizer: PreTrainedTokenizerBase) -> None:
    for row in make(tokenizer, questions=["qa3"], lengths=["0k"], multi_entry=True, rows=10):
        assert is_multi_entry(find_facts(context(row)), row.question)
        assert row.info["multi_entry"]


def test_too_short_a_length_is_refused_with_the_one_to_give(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    with pytest.raises(UserError, match="lengths: 100 is too short for qa1") as refusal:
        make(tokenizer, lengths=[100])
    enough = int(re.findall(r"give (\d+)", str(refusal.value))[0])
    assert len(make(tokenizer, lengths=[enough], rows=2)) == 2


def test_more_rows_than_stories_are_refused(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(babilong, "_MAX_TRIES", 3)
    with pytest.raises(UserError, match=r"rows = 900: only .* different qa1 stories"):
        make(tokenizer, "test", lengths=["0k"], rows=900, max_facts=2)


def test_unknown_split_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UserError, match="must be one of train, held-out, test"):
        make(tokenizer, "validation")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"questions": ["qa4"]}, "qa4"),
        ({"questions": []}, "questions"),
        ({"questions": ["qa1", "qa1"]}, "only once"),
        ({"lengths": ["4kb"]}, "neither a number of tokens nor like 0k"),
        ({"lengths": [0]}, "0 is not a positive number"),
        ({"rows": 0}, "rows"),
        ({"multi_entry": True}, r"set questions: \[qa3\]"),
        ({"source": "RMT-team/babilong"}, "published rows have lengths like 4k, not 512"),
        ({"sead": 1}, "did you mean 'seed'"),
    ],
)
def test_config_refuses(settings: dict[str, Any], message: str) -> None:
    good = {"task": "babilong", "questions": ["qa1"], "lengths": [512], "rows": 5}
    with pytest.raises(UserError, match=message):
        build(BabilongConfig, {**good, **settings})


def test_nominal_lengths() -> None:
    assert [nominal(n) for n in (512, "0k", "4k", "128k", "1M")] == [512, 0, 4000, 128000, 10**6]


def test_weave_puts_each_fact_into_its_gap() -> None:
    facts, sentences = ["A.", "B.", "C.", "D."], ["one", "two"]
    assert weave(facts, sentences, [0.0, 0.3, 0.4, 0.99]) == "A. B. one C. two D."
    assert weave(facts, [], [0.0, 0.3, 0.4, 0.99]) == "A. B. C. D."


def test_cut_fills_the_room_to_the_word() -> None:
    def words(text: str) -> int:
        return len(text.split())

    sentences = [("a b c", 3), ("d e f g", 4), ("h i", 2)]
    assert cut(sentences, 9, words) == ["a b c", "d e f g", "h i"]
    assert cut(sentences, 5, words) == ["a b c", "d e"]
    assert cut(sentences, 3, words) == ["a b c"]
    assert cut(sentences, 0, words) == []


def test_tokens_that_joining_adds_are_taken_back(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tokenizer whose joined text is longer than its parts, as if each sentence counted half.
    def half(sentences: Any, room: int, count: Any) -> list[str]:
        return cut([(text, tokens // 2) for text, tokens in sentences], room, count)

    monkeypatch.setattr(babilong_context, "cut", half)
    for row in make(tokenizer, lengths=[700]):
        assert row_length(tokenizer, row) <= 700


PUBLISHED = [
    ("A calm day.John got the milk.John went to the office.", "Where is the milk? ", "office"),
    ("Mary took the apple. Rain. Mary moved to the garden.", "Where is the apple? ", "garden"),
    ("Daniel got the milk. Daniel moved to the hallway. Fog.", "Where is the milk? ", "hallway"),
]


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A local copy in the layout of the published sets."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "copy"
    rows = [{"input": i, "question": q, "target": t} for i, q, t in PUBLISHED]
    write_jsonl(folder / "data" / "qa2" / "4k.jsonl", rows)
    rng = np.random.default_rng(0)
    stories = [simulate("qa3", rng) for _ in range(60)]
    rows = [
        {"input": "".join(s.facts), "question": s.question, "target": s.answer} for s in stories
    ]
    write_jsonl(folder / "data" / "qa3" / "4k.jsonl", rows)
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: 4k\n  data_files:\n"
        "  - split: qa2\n    path: data/qa2/4k.jsonl\n"
        "  - split: qa3\n    path: data/qa3/4k.jsonl\n---\n",
        encoding="utf-8",
    )
    return str(folder)


def test_published_rows_are_used_as_they_are(
    published: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = make(tokenizer, "test", questions=["qa2"], lengths=["4k"], rows=2, source=published)
    assert [context(row) for row in rows] == [text for text, _, _ in PUBLISHED[:2]]
    assert [row.target for row in rows] == ["office", "garden"]
    assert rows[0].prompt[0]["content"].endswith("Question: Where is the milk?")
    assert rows[0].completion == "The milk is in the office."
    assert {row.bin for row in rows} == {4000}


def test_published_test_rows_are_not_trained_on(
    published: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    settings = {"questions": ["qa2"], "lengths": ["4k"], "source": published}
    with pytest.raises(UserError, match="serves test, but train rows are asked for"):
        make(tokenizer, "train", **settings)
    with pytest.raises(UserError, match="serves train, but test rows are asked for"):
        make(tokenizer, "test", **settings, serves="train")


def test_published_rows_that_serve_all_splits_are_shared_out_by_content(
    published: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    settings = {"questions": ["qa3"], "lengths": ["4k"], "source": published, "rows": 100}
    everything = make(tokenizer, "test", **settings)
    assert len(everything) == 60
    splits = [make(tokenizer, s, **settings, serves="all") for s in ("train", "held-out", "test")]
    assert all(splits)
    assert len(splits[0]) > 30
    assert sorted(row.source for rows in splits for row in rows) == sorted(
        row.source for row in everything
    )


def test_published_rows_are_kept_by_multi_entry(
    published: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    settings = {"questions": ["qa3"], "lengths": ["4k"], "source": published, "rows": 100}
    rows = make(tokenizer, "test", **settings, multi_entry=True)
    everything = make(tokenizer, "test", **settings)
    assert 0 < len(rows) < len(everything)
    assert [row.source for row in rows] == [
        row.source for row in everything if row.info["multi_entry"]
    ]


def test_a_missing_length_of_published_rows_is_one_sentence(
    published: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(UserError, match="no qa2 rows of length 8k load from there"):
        make(tokenizer, "test", questions=["qa2"], lengths=["8k"], source=published)
