"""The LongBench v2 task: official prompt, the paper's split, what is left out is counted."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ryarn.chat import prompt_ids
from ryarn.config import build
from ryarn.data import write_rows
from ryarn.errors import UserError
from ryarn.recipe import Recipe
from ryarn.records import Completion, Example, read_jsonl
from ryarn.tasks import longbench_v2, longbench_v2_data
from ryarn.tasks.jsonl import JsonlConfig
from ryarn.tasks.longbench_v2 import LongBenchV2, LongBenchV2Config
from ryarn.tasks.longbench_v2_data import REVISION
from ryarn.tasks.longbench_v2_prompt import (
    TEMPLATE,
    answer_sentence,
    cut_middle,
    longbench_v2_prompt,
)
from ryarn.tasks.registry import make_task
from tests.tasks.longbench_v2_rows import Rows, published_row, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The tokenizer of the tests has 4 tokens a word of these documents, and about 175 for the rest.
EDGES = [400, 800, 1600]
SHORT, MIDDLE, LONG, LONGER = 20, 140, 280, 2000


def rows() -> Rows:
    """6 training rows (1 Legal), 3 + 2 to evaluate, 2 of a rare sub-domain, 1 longer."""
    words = [SHORT] * 6 + [MIDDLE] * 3 + [LONG] * 2 + [MIDDLE, LONG, LONGER]
    rare = {5, 11, 12}
    return [
        published_row(n, count + n, sub_domain="Legal" if n in rare else "Academic")
        for n, count in enumerate(words)
    ]


class Named:
    """The tests' tokenizer under another name."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.tokenizer, self.name_or_path = tokenizer, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self.tokenizer(*args, **settings)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write_json(tmp_path / "data.json", rows())


def make(
    tokenizer: PreTrainedTokenizerBase, split: str, source: str, **settings: Any
) -> list[Example]:
    config = LongBenchV2Config(**{"source": source, "edges": EDGES, **settings})
    return list(LongBenchV2(config).examples(tokenizer, split))


def numbers(examples: list[Example]) -> list[int]:
    return [int(example.id[-4:], 16) for example in examples]


def test_the_template_is_the_official_file_to_the_byte() -> None:
    digest = hashlib.sha256(TEMPLATE.encode()).hexdigest()
    assert digest == "68a162252bc9ff71d5d7abca3d69bb31aac3c35f832d657a2866f2018b8a6950"


def test_the_prompt_is_the_filled_template(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    example = make(tokenizer, "train", source)[1]
    assert example.prompt == (
        {
            "role": "user",
            "content": "Please read the following text and answer the question below.\n\n"
            f"<text>\n{rows()[1]['context']}\n</text>\n\n"
            "What is the correct answer to this question: What is number 1 about?\n"
            "Choices:\n(A) Rivers\n(B) Clocks\n(C) Bread\n(D) Winter\n\n"
            'Format your response as follows: "The correct answer is (insert answer here)".',
        },
    )
    assert example.completion == "The correct answer is (B)"
    assert example.target == "B"
    assert example.question == "What is number 1 about?"
    assert example.task == "longbench-v2"


def test_parts_are_stripped_and_put_in_one_after_the_other() -> None:
    text = longbench_v2_prompt(" a $Q$ of $C_B$\n", "\twhy $C_A$? ", [" 1", "2\n", "3", "$DOC$"])
    assert "<text>\na why 1? of 2\n</text>" in text
    assert "question: why 1?\n" in text
    assert "(A) 1\n(B) 2\n(C) 3\n(D) $DOC$\n" in text


@pytest.mark.parametrize("letter", "ABCD")
def test_the_answer_to_learn_is_one_that_the_rule_finds(letter: str) -> None:
    task = LongBenchV2(LongBenchV2Config())
    example = Example("i", (), "", letter, "longbench-v2", 1, "s")
    completion = Completion("i", answer_sentence(letter), 1, "stop")
    assert set(task.score(example, completion).scores.values()) == {1.0}


def test_rows_are_split_by_the_length_of_the_chat_prompt(
    tokenizer: PreTrainedTokenizerBase, source: str
) -> None:
    train, test = (make(tokenizer, split, source) for split in ("train", "test"))
    assert numbers(train) == [0, 1, 2, 3, 4, 5]
    assert numbers(test) == [6, 7, 8, 9, 10]
    assert [example.bin for example in train] == [400] * 6
    assert [example.bin for example in test] == [800] * 3 + [1600] * 2
    for example in train + test:
        assert example.info["prompt_tokens"] == len(prompt_ids(tokenizer, example.prompt))
        below = [0, *EDGES][EDGES.index(example.bin)]
        assert below < example.info["prompt_tokens"] <= example.bin


def test_the_edge_is_exact(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    longest = make(tokenizer, "train", source)[-1].info["prompt_tokens"]
    assert len(make(tokenizer, "train", source, edges=[longest, 1600])) == 6
    assert len(make(tokenizer, "train", source, edges=[longest - 1, 1600])) == 5


def test_each_tokenizer_measures_anew_and_the_same_one_only_once(
    tokenizer: PreTrainedTokenizerBase, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = longbench_v2.load

    def watched(name: str, revision: str | None) -> Any:
        loads.append(name)
        return load(name, revision)

    monkeypatch.setattr(longbench_v2, "load", watched)
    task = LongBenchV2(LongBenchV2Config(source=source, edges=EDGES))
    first = list(task.examples(tokenizer, "test"))
    assert list(task.examples(tokenizer, "test")) == first
    assert len(list(task.examples(tokenizer, "train"))) == 6
    assert len(loads) == 1
    other: Any = Named(tokenizer, "other")
    assert list(task.examples(other, "test")) == first
    assert len(loads) == 2


def test_the_rows_say_what_they_are(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    example = make(tokenizer, "test", source)[0]
    assert example.id == rows()[6]["_id"]
    assert example.info == {
        "domain": "Single-Document QA",
        "sub_domain": "Academic",
        "difficulty": "hard",
        "length": "short",
        "prompt_tokens": len(prompt_ids(tokenizer, example.prompt)),
        "truncated": False,
        "document_trained_on": False,
        "revision": f"sha256:{digest}",
    }


def test_a_sub_domain_is_evaluated_with_enough_training_rows(
    tokenizer: PreTrainedTokenizerBase, source: str
) -> None:
    assert numbers(make(tokenizer, "test", source, min_training_rows=1)) == [6, 7, 8, 9, 10, 11, 12]
    assert numbers(make(tokenizer, "test", source, min_training_rows=5)) == [6, 7, 8, 9, 10]
    with pytest.raises(
        UserError, match=r"none of 14 rows falls into the test split \(train / test"
    ):
        make(tokenizer, "test", source, min_training_rows=6)


def test_held_out_rows_are_a_share_of_the_training_rows(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    many = [published_row(n, SHORT if n < 40 else MIDDLE) for n in range(44)]
    source = write_json(tmp_path / "many.json", many)
    parts = {
        split: numbers(make(tokenizer, split, source, held_out=0.3))
        for split in ("train", "held-out", "test")
    }
    assert sorted(parts["train"] + parts["held-out"]) == list(range(40))
    assert 4 <= len(parts["held-out"]) <= 20
    assert parts["test"] == [40, 41, 42, 43]
    assert numbers(make(tokenizer, "held-out", source, held_out=0.3)) == parts["held-out"]
    assert numbers(make(tokenizer, "held-out", source, held_out=0.3, seed=1)) != parts["held-out"]
    # More is held out, and what was stays so.
    assert set(numbers(make(tokenizer, "held-out", source, held_out=0.6))) > set(parts["held-out"])


def test_rows_of_one_document_are_held_out_together(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    pairs = [published_row(n, context=f"Document {n // 2}." + " word" * 9) for n in range(40)]
    source = write_json(tmp_path / "pairs.json", pairs)
    held_out = make(tokenizer, "held-out", source, held_out=0.4)
    train = make(tokenizer, "train", source, held_out=0.4)
    assert {e.source for e in held_out}.isdisjoint(e.source for e in train)
    assert len({e.source for e in held_out}) == len(held_out) // 2 > 2


def test_nothing_is_held_out_by_default(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    with pytest.raises(UserError, match=r"held_out = 0\.0: no row is held out; give a share"):
        make(tokenizer, "held-out", source)


def test_an_unknown_split(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    with pytest.raises(UserError, match="split = 'dev': must be one of train, held-out, test"):
        make(tokenizer, "dev", source)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edges": [400]}, "at least 2 items"),
        ({"edges": [400, 400]}, "must ascend"),
        ({"edges": [800, 400]}, "must ascend"),
        ({"edges": [0, 400]}, "greater than 0"),
        ({"held_out": 1.0}, "less than 1"),
        ({"truncate": 0}, "greater than 0"),
        ({"min_training_rows": -1}, "greater than or equal to 0"),
        ({"bins": [1]}, "unknown key 'bins'"),
    ],
)
def test_config_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(LongBenchV2Config, settings)


def test_cut_middle_keeps_both_ends(tokenizer: PreTrainedTokenizerBase) -> None:
    text = " ".join(f"n{number}" for number in range(50))
    ids = tokenizer(text)["input_ids"]
    assert cut_middle(text, len(ids), tokenizer) == text
    # Of an odd limit, the official code's `ids[-limit // 2:]` takes one more from the end.
    for limit in (20, 21):
        cut = cut_middle(text, limit, tokenizer)
        assert cut == tokenizer.decode(ids[: limit // 2] + ids[-limit // 2 :])
        assert len(tokenizer(cut)["input_ids"]) == limit
    assert cut_middle(text, 1, tokenizer) == tokenizer.decode(ids[-1:])


def test_nothing_is_cut_unless_asked_for_and_each_cut_row_says_so(
    tokenizer: PreTrainedTokenizerBase, source: str
) -> None:
    whole = make(tokenizer, "test", source)
    cut = make(tokenizer, "test", source, truncate=1000)
    assert not any(example.info["truncated"] for example in whole)
    assert [example.info["truncated"] for example in cut] == [False] * 3 + [True] * 2
    for before, after in zip(whole, cut, strict=True):
        # The bin is that of the whole row.
        assert (after.id, after.bin, after.info["prompt_tokens"]) == (
            *(before.id, before.bin),
            before.info["prompt_tokens"],
        )
        if after.info["truncated"]:
            text = after.prompt[0]["content"]
            assert len(tokenizer(text)["input_ids"]) <= 1002
            assert text.startswith("Please read the following text")
            assert text.endswith('"The correct answer is (insert answer here)".')
        else:
            assert after == before


def test_rows_beyond_the_last_edge_can_be_had_cut(
    tokenizer: PreTrainedTokenizerBase, source: str
) -> None:
    test = make(tokenizer, "test", source, edges=[*EDGES, 9000], truncate=1000)
    assert numbers(test)[-1] == 13
    assert (test[-1].bin, test[-1].info["truncated"]) == (9000, True)


def test_much_longer_rows_are_not_tokenized_to_the_end(
    tokenizer: PreTrainedTokenizerBase, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Watched(Named):
        def __call__(self, text: str, **settings: Any) -> Any:
            seen.append(len(text))
            return self.tokenizer(text, **settings)

    whole = make(tokenizer, "test", source)
    monkeypatch.setattr(longbench_v2, "_SLACK", 10)
    monkeypatch.setattr(longbench_v2, "_HEAD", 4)
    watched: Any = Watched(tokenizer, "")
    assert make(watched, "test", source) == whole
    assert max(seen) == 4 * EDGES[-1] < max(len(row["context"]) for row in rows())


def notes(tokenizer: Any, source: str, **settings: Any) -> list[str]:
    task = LongBenchV2(LongBenchV2Config(**{"source": source, "edges": EDGES, **settings}))
    list(task.examples(tokenizer, "test"))
    return task.notes


def test_the_notes_count_every_row(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    first, second = notes(tokenizer, source)
    assert first == (
        f"14 rows of {source} (SHA-256 {digest[:12]}), not the data.json of the pinned revision "
        "2b48e494f2c7a2f0af81aae178e05c7e1dde0fe9"
    )
    assert second == (
        "train / test: 6 / 3 + 2 rows of at most 400, 800, 1,600 tokens; left out: 1 longer, 2 of "
        "sub-domains with fewer than 3 training rows (Legal 1)"
    )


def test_the_notes_name_the_revision(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longbench_v2_data, "ROWS", 14)
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: rows())
    hub = "zai-org/LongBench-v2"
    assert notes(tokenizer, hub)[0] == f"14 rows of {hub}, the pinned revision {REVISION}"
    assert notes(tokenizer, hub, revision="main")[0] == (
        f"14 rows of {hub} at main, not the pinned revision {REVISION}"
    )


def test_a_document_on_both_sides_is_named(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    # The same document with a much longer question falls into another bin.
    twin = published_row(99, context=rows()[0]["context"], question="Why? " * 100)
    source = write_json(tmp_path / "data.json", [*rows(), twin])
    assert notes(tokenizer, source)[-1] == (
        f"overlap: training rows have the documents of test rows {twin['_id']}"
    )
    test = make(tokenizer, "test", source)
    assert [e.id for e in test if e.info["document_trained_on"]] == [twin["_id"]]
    assert not any(e.info["document_trained_on"] for e in make(tokenizer, "train", source))


def counted(lengths: list[int], monkeypatch: pytest.MonkeyPatch, frame: int = 100) -> None:
    """Give rows these lengths, and their prompts without a document `frame` tokens."""
    left = iter(lengths)

    def length(_: Any, text: str, __: int) -> int:
        return frame if "<text>\n\n</text>" in text else next(left)

    monkeypatch.setattr(longbench_v2, "_length", length)


def test_the_paper_s_counts_are_checked_for_its_models(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [20_000] * 116 + [40_000] * 66 + [100_000] * 65 + [500_000] * 256
    source = write_json(tmp_path / "d.json", [published_row(n) for n in range(len(lengths))])
    defaults = {"edges": [32_768, 65_536, 131_072]}

    def last(name: str, found: list[int], **settings: Any) -> list[str]:
        counted(found, monkeypatch)
        return notes(Named(tokenizer, name), source, **{**defaults, **settings})[2:]

    qwen, olmo = "Qwen/Qwen2.5-7B-Instruct", "allenai/Olmo-3-7B-Instruct"
    assert last(qwen, lengths) == ["the paper has 116 / 66 + 65 for Qwen2.5-7B-Instruct: the same"]
    assert last(olmo, lengths)[0].startswith(
        "the paper has 119 / 71 + 67 for Olmo-3-7B-Instruct: NOT the same; see that source is the "
        "pinned revision 2b48e494"
    )
    assert last("Qwen/Qwen2.5-14B-Instruct", lengths) == []
    assert last(qwen, lengths, edges=[32_768, 65_536]) == []
    assert last(qwen, lengths, min_training_rows=2) == []


def test_other_readings_are_counted_when_the_paper_s_counts_are_not_met(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 32,800 is short without the 100 tokens around the document, 32,500 is long where 1K is 1,000,
    # and of the two domains that have a sub-domain Legal, one trains on a single row.
    lengths = [20_000] * 3 + [32_800, 32_500] + [40_000] * 3
    domains = ["Single-Document QA"] * 2 + ["Multi-Document QA"] + ["Single-Document QA"] * 5
    domains[7] = "Multi-Document QA"
    built = [
        published_row(n, domain=domain, sub_domain="Legal") for n, domain in enumerate(domains)
    ]
    source = write_json(tmp_path / "d.json", built)
    counted(lengths, monkeypatch)
    named = Named(tokenizer, "Qwen/Qwen2.5-7B-Instruct")
    said = notes(named, source, edges=[32_768, 65_536, 131_072])
    assert said[1].startswith("train / test: 4 / 4 + 0 rows of at most 32,768, 65,536, 131,072")
    assert said[3:] == [
        "with the document's tokens alone it would be 5 / 3 + 0",
        "with 1K as 1,000 tokens it would be 3 / 5 + 0",
        "with sub-domains told apart by domain it would be 4 / 3 + 0",
    ]


def test_data_prints_what_became_of_the_rows_and_writes_rows_that_score_again(
    tokenizer: PreTrainedTokenizerBase, source: str, tmp_path: Path
) -> None:
    config = LongBenchV2Config(source=source, edges=EDGES)
    summary = write_rows(config, tokenizer, "test", tmp_path / "rows.jsonl")
    assert {bin_: found.rows for bin_, found in summary.bins.items()} == {800: 3, 1600: 2}
    assert len(summary.notes) == 2
    assert summary.notes[1].startswith("train / test: 6 / 3 + 2 rows of at most")
    assert len(list(read_jsonl(summary.path))) == 5
    again = make_task(JsonlConfig(path=str(summary.path)))
    examples = list(again.examples(tokenizer, "test"))
    assert [e.bin for e in examples] == [800] * 3 + [1600] * 2
    score = again.score(examples[0], Completion(examples[0].id, examples[0].completion, 9, "stop"))
    assert next(iter(score.scores.items())) == ("longbench-v2", 1.0)


def recipe(train: dict[str, Any], evaluate: dict[str, Any]) -> Recipe:
    return build(
        Recipe,
        {
            "model": {"name": "tiny:llama"},
            "method": {"name": "lora"},
            "train": {"data": {"task": "longbench-v2", **train}, "max_length": 500},
            "evaluate": {"data": {"task": "longbench-v2", **evaluate}},
            "output": "runs/x",
        },
    )


@pytest.mark.parametrize(
    ("train", "evaluate", "key"),
    [
        ({"edges": [400, 800]}, {"edges": [200, 800]}, "edges"),
        ({"held_out": 0.1}, {"held_out": 0.2}, "held_out"),
        ({"held_out": 0.1}, {"held_out": 0.1, "seed": 1}, "seed"),
        ({}, {"min_training_rows": 1}, "min_training_rows"),
    ],
)
def test_a_recipe_whose_rows_could_overlap_is_refused(
    train: dict[str, Any], evaluate: dict[str, Any], key: str
) -> None:
    with pytest.raises(UserError, match=rf"differently \({key}: .*give both the same {key}"):
        recipe(train, evaluate)


def test_training_and_evaluation_may_differ_in_what_does_not_share_rows_out() -> None:
    made = recipe({"source": "a.json"}, {"source": "b.json", "truncate": 100})
    assert made.evaluate.data.task == "longbench-v2"
