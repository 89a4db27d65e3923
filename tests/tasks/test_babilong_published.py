"""Published BABILong rows: real loading of local copies, what is refused, what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import published_babilong as copies
import pytest

from ryarn.config import build
from ryarn.data import describe, write_rows
from ryarn.errors import UserError
from ryarn.records import Example, read_jsonl
from ryarn.tasks import babilong_tally
from ryarn.tasks.babi import entries, is_multi_entry, solve
from ryarn.tasks.babilong import Babilong, BabilongConfig
from ryarn.tasks.babilong_apart import check_babilong_apart
from ryarn.tasks.babilong_published import Place, read_published
from ryarn.tasks.overlap import check_apart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COMMIT, OTHER = "c50a37d2a9a07076336701c290118cd980f5c5b3", "0" * 40


@pytest.fixture(autouse=True)
def _no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def config(source: str, **settings: Any) -> BabilongConfig:
    settings = {"questions": ["qa3"], "lengths": ["4k"], "rows": 1000, **settings}
    return build(BabilongConfig, {"task": "babilong", "source": source, **settings})


def serve(source: str, split: str = "test", **settings: Any) -> list[Example]:
    return list(Babilong(config(source, **settings)).published(split))


def facts_alone(folder: Path, rows: copies.Rows) -> str:
    return copies.json_copy(folder, {("0k", "qa3"): rows})


def in_prose(count: int, seed: int = 0) -> list[Any]:
    return copies.rows("qa3", count, seed, copies.PROSE)


@pytest.mark.parametrize("make", [copies.json_copy, copies.parquet_copy])
def test_the_published_layouts_load(make: Any, tmp_path: Path) -> None:
    source = make(
        tmp_path / "copy",
        {
            ("0k", "qa3"): copies.rows("qa3", 6),
            ("4k", "qa1"): copies.rows("qa1", 5),
            ("4k", "qa3"): in_prose(7),
        },
    )
    rows = serve(source, questions=["qa1", "qa3"], lengths=["4k"])
    assert [row.info["kind"] for row in rows] == ["qa1"] * 5 + ["qa3"] * 7
    assert {row.bin for row in rows} == {4000}
    told = [story.facts for story in copies.stories("qa3", 7)]
    assert [row.info["facts"] for row in rows[5:]] == [len(facts) for facts in told]
    assert len(serve(source, lengths=["0k"])) == 6


@pytest.mark.parametrize("path", ["data/qa3/4k.json", "qa3/4k.json"])
def test_files_alone_load_where_the_generator_writes_them(path: str, tmp_path: Path) -> None:
    file = tmp_path / "copy" / path
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(in_prose(4)), encoding="utf-8")
    assert len(serve(str(tmp_path / "copy"))) == 4


def test_parquet_files_alone_load(tmp_path: Path) -> None:
    source = copies.parquet_copy(tmp_path / "copy", {("4k", "qa3"): in_prose(4)})
    (tmp_path / "copy" / "README.md").unlink()
    assert len(serve(source)) == 4


def test_facts_run_into_cut_sentences_are_found(tmp_path: Path) -> None:
    rows = in_prose(8)
    assert all(copies.CUT + story["input"].rpartition(copies.CUT)[2] for story in rows)
    source = copies.json_copy(tmp_path / "copy", {("4k", "qa3"): rows})
    found = list(read_published(Place(source, "qa3", "4k")))
    for row, story in zip(found, copies.stories("qa3", 8), strict=True):
        assert row.story.facts == story.facts
        assert row.solved
        assert row.story.multi_entry == story.multi_entry
        assert row.befores == tuple(entries(story.facts, story.question))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    from datasets import load_dataset

    source = copies.json_copy(tmp_path / "copy", {("4k", "qa3"): in_prose(5)})
    assert len(serve(source)) == 5
    # `datasets` keeps the rows of a folder as they were, and their counts.
    assert len(load_dataset(source, "4k", split="qa3")) == 5
    copies.json_copy(tmp_path / "copy", {("4k", "qa3"): in_prose(3, seed=1)})
    assert len(load_dataset(source, "4k", split="qa3")) == 5
    assert len(serve(source)) == 3


def test_an_incomplete_copy_is_named(tmp_path: Path) -> None:
    from datasets import Dataset

    source = copies.parquet_copy(tmp_path / "copy", {("4k", "qa3"): in_prose(5)})
    Dataset.from_list(in_prose(4)).to_parquet(tmp_path / "copy/4k/qa3-00000-of-00001.parquet")
    with pytest.raises(UserError, match=r"4 where README.md there counts 5: .* get the files"):
        serve(source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": None}, r"row 2: input = None: must be a text"),
        ({"question": " "}, r"row 2: question = ' ': must be a text"),
        ({"input": "No fact here."}, "row 2: input has no fact of bAbI"),
        ({"target": "It was in the kitchen."}, "row 2: target = 'It was in the kitchen.': must be"),
        ({"question": "Where is the milk? "}, r"row 2: question = .* is none of qa3"),
        ({"question": "Who is it?"}, r"row 2: question = 'Who is it\?' is none of qa3"),
    ],
)
def test_a_changed_field_is_named_with_its_row(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    rows = in_prose(3)
    rows[1] |= change
    source = copies.json_copy(tmp_path / "copy", {("4k", "qa3"): rows})
    with pytest.raises(UserError, match=message):
        serve(source)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    rows = [{"context": r["input"], "question": r["question"]} for r in in_prose(3)]
    source = copies.json_copy(tmp_path / "copy", {("4k", "qa3"): rows})
    with pytest.raises(UserError, match="no column input, target among context, question"):
        serve(source)


def test_targets_of_other_facts_are_named(tmp_path: Path) -> None:
    rows = in_prose(9)
    turned = {"kitchen": "office"}
    for values in rows[:5]:
        values["target"] = turned.get(values["target"], "kitchen")
    source = copies.json_copy(tmp_path / "copy", {("4k", "qa3"): rows})
    with pytest.raises(UserError, match="in 5 of 9 the target is not what the facts in input tell"):
        serve(source)
    rows[0]["target"] = copies.stories("qa3", 1)[0].answer
    source = copies.json_copy(tmp_path / "less", {("4k", "qa3"): rows})
    task = Babilong(config(source))
    assert len(list(task.published("test"))) == 9
    assert any("in 4 rows the facts found in the context don't give" in n for n in task.notes)


def test_equal_rows_are_named(tmp_path: Path) -> None:
    rows = in_prose(4)
    source = copies.json_copy(tmp_path / "copy", {("4k", "qa3"): [*rows, rows[1]]})
    with pytest.raises(UserError, match="4k: rows 2 and 5 are the same"):
        serve(source)
    alone = facts_alone(tmp_path / "alone", [*copies.rows("qa3", 2), *copies.rows("qa3", 1)])
    with pytest.raises(UserError, match="0k: rows 1 and 3 are the same"):
        serve(alone, lengths=["0k"])


def test_one_story_in_two_proses_is_no_equal_row(tmp_path: Path) -> None:
    rows = [*in_prose(2), *copies.rows("qa3", 2, 0, copies.PROSE[::-1])]
    found = serve(copies.json_copy(tmp_path / "copy", {("4k", "qa3"): rows}))
    assert (len(found), len({row.source for row in found})) == (4, 2)


def test_stories_of_two_facts_may_meet_by_chance(tmp_path: Path) -> None:
    rows = copies.rows("qa1", 2)
    source = copies.json_copy(tmp_path / "copy", {("0k", "qa1"): [*rows, rows[0]]})
    assert len(serve(source, questions=["qa1"], lengths=["0k"])) == 3


def test_without_the_hub_one_sentence_says_what_to_do() -> None:
    with pytest.raises(UserError) as refusal:
        serve("RMT-team/babilong-1k-samples")
    text = str(refusal.value)
    assert text.startswith("source = 'RMT-team/babilong-1k-samples': no qa3 rows of length 4k load")
    assert "needs the Hugging Face hub or its cache" in text
    assert "hf download RMT-team/babilong-1k-samples --repo-type dataset --local-dir" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("./nowhere", {}, r"source = './nowhere': no such folder"),
        ("a/b/c", {}, r"source = 'a/b/c': no such folder"),
        ("{copy}", {"revision": "main"}, r"revision = 'main': source = .* is a local folder"),
        ("{copy}", {"lengths": ["8k"]}, r"BuilderConfig '8k' not found.*README.md and files"),
        ("{copy}", {"questions": ["qa1"]}, r"README.md there has qa3 only"),
        ("{empty}", {}, r"no README.md, and no such file.*data/qa3/4k.json or qa3/4k.json or 4k/"),
        ("{copy}", {"exclude": ["./gone"]}, r"exclude = './gone': no such folder"),
    ],
)
def test_what_does_not_load_is_one_sentence(
    source: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    copy = copies.json_copy(tmp_path / "copy", {("4k", "qa3"): in_prose(2)})
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        serve(source.format(copy=copy, empty=tmp_path / "empty"), **settings)


@pytest.fixture
def cached(tmp_path: Path) -> str:
    """A hub dataset in the cache, as `datasets` leaves it there, of one commit."""
    from datasets import load_dataset

    name = "RMT-team/babilong-1k-samples"
    copy = copies.parquet_copy(tmp_path / "babilong-1k-samples", {("4k", "qa3"): in_prose(12)})
    table = load_dataset(copy, "4k", split="qa3")
    [made] = {Path(file["filename"]).parent for file in table.cache_files}
    place = tmp_path / "cache" / name.replace("/", "___") / "4k" / "0.0.0"
    place.mkdir(parents=True)
    made.rename(place / COMMIT)
    return name


def test_the_commit_of_cached_rows_is_told(cached: str) -> None:
    task = Babilong(config(cached, revision=COMMIT))
    rows = list(task.published("test"))
    assert [row.info["revision"] for row in rows] == [COMMIT] * 12
    assert task.notes == [f"qa3 4k: 12 rows read from {cached} at {COMMIT[:12]}, 12 serve as test"]


def test_another_commit_in_the_cache_is_named(cached: str) -> None:
    with pytest.raises(UserError, match=rf"revision = '{OTHER}'.*cache holds {cached} at {COMMIT}"):
        serve(cached, revision=OTHER)
    assert len(serve(cached)) == 12


def test_the_papers_training_rows(tmp_path: Path) -> None:
    """4 x 1,000 rows in small: so many of each length, the rest of the 5,000 unused."""
    lengths = ["0k", "2k", "4k", "8k"]
    sets = {(n, "qa3"): copies.rows("qa3", 30, i, copies.PROSE) for i, n in enumerate(lengths)}
    source = copies.json_copy(tmp_path / "copy", sets)
    settings = {"lengths": lengths, "serves": "train", "rows": 20}
    task = Babilong(config(source, **settings))
    rows = list(task.published("train"))
    assert [row.info["length"] for row in rows] == [n for n in lengths for _ in range(20)]
    assert task.notes[0] == f"qa3 0k: 30 rows read from {source}, 20 serve as train"
    held_out = serve(source, "held-out", **settings)
    assert not {row.source for row in rows} & {row.source for row in held_out}
    task = Babilong(config(source, **{**settings, "rows": 500}))
    list(task.published("train"))
    assert all(note.endswith("serve as train (500 were asked for)") for note in task.notes)


def test_excluded_stories_are_left_out_and_counted(tmp_path: Path) -> None:
    train = copies.json_copy(
        tmp_path / "train", {("4k", "qa3"): [*in_prose(6, seed=1), *in_prose(4)]}
    )
    test = facts_alone(tmp_path / "test", copies.rows("qa3", 20))
    everything = serve(train, "train", serves="train")
    task = Babilong(config(train, serves="train", exclude=[test]))
    rows = list(task.published("train"))
    barred = {row.source for row in serve(test, lengths=["0k"])}
    assert [row.source for row in rows] == [r.source for r in everything if r.source not in barred]
    left_out = len(everything) - len(rows)
    assert left_out > 0
    assert f"qa3 4k: {left_out} rows left out: their stories stand in {test}, too" in task.notes


def test_simulated_stories_keep_apart_from_published_ones(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    # Two-fact stories: few enough that the published ones are met by chance.
    plain = {"task": "babilong", "questions": ["qa1"], "lengths": ["0k"], "max_facts": 2}

    def simulated(**settings: Any) -> set[str]:
        task = Babilong(build(BabilongConfig, {**plain, "rows": 200, **settings}))
        return {row.source for row in task.examples(tokenizer, "train")}

    rows = Babilong(build(BabilongConfig, {**plain, "rows": 40})).examples(tokenizer, "train")
    told = [(row.prompt[0]["content"], row.question, row.target) for row in rows]
    published = [
        {"input": t.rpartition("<context>\n")[2].partition("\n<")[0], "question": q, "target": a}
        for t, q, a in told
    ]
    source = copies.json_copy(tmp_path / "copy", {("0k", "qa1"): published})
    barred = {row.source for row in serve(source, questions=["qa1"], lengths=["0k"])}
    assert len(barred & simulated()) == 40
    assert not barred & simulated(exclude=[source])


def test_nothing_left_to_serve_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = copies.rows("qa3", 5)
    one, two = facts_alone(tmp_path / "one", rows), facts_alone(tmp_path / "two", rows)
    nothing = Babilong(config(one, lengths=["0k"], exclude=[two]))
    with pytest.raises(UserError, match="no row is left to serve as test: check serves"):
        list(nothing.examples(tokenizer, "test"))
    with pytest.raises(UserError, match="is the source itself"):
        config(one, exclude=[one])


def test_training_and_evaluation_apart_by_content(tmp_path: Path) -> None:
    lengths = {("0k", "qa3"): copies.rows("qa3", 30), ("4k", "qa3"): in_prose(30)}
    test = config(copies.json_copy(tmp_path / "test", lengths), lengths=["4k"])
    mixed = [*in_prose(24), *in_prose(6, seed=1)]
    source = copies.json_copy(tmp_path / "train", {("8k", "qa3"): mixed})
    train = config(source, lengths=["8k"], serves="train")
    learned = ("train", "held-out")
    learnt = [
        {row.source for row in serve(source, part, lengths=["8k"], serves="train")}
        for part in learned
    ]
    told = {row.source for row in serve(test.source)}
    both, trained = told & (learnt[0] | learnt[1]), told & learnt[0]
    assert len(both) == 24 > len(trained)
    with pytest.raises(UserError, match=r"evaluate.data: 24 of its stories are in train.data, too"):
        check_apart(train, test, "test")
    # Rows held out of the training may be chosen by: they are not learned from.
    with pytest.raises(UserError, match=rf"{len(trained)} of its stories are in train.data"):
        check_babilong_apart(train, test, "test", ("train",))
    apart = train.model_copy(update={"exclude": [test.source]})
    check_babilong_apart(apart, test, "test", learned)
    check_babilong_apart(train.model_copy(update={"source": "simulator"}), test, "test", learned)
    shared = config(source, lengths=["8k"], serves="all")
    check_babilong_apart(shared, shared, "test", learned)


def test_multi_entry_rows_are_counted_beside_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = copies.stories("qa3", 60)
    source = facts_alone(tmp_path / "copy", [copies.row(story) for story in stories])
    befores = [entries(story.facts, story.question) for story in stories]
    multi = sum(is_multi_entry(story.facts, story.question) for story in stories)
    moved = sum(len(each) > 1 for each in befores)
    different = sum(len({*each} - {None}) > 1 for each in befores)
    assert 0 < different < multi < moved
    found = (
        f"qa3 0k: {multi} multi-entry rows, {different} of them from different places "
        f"({moved} with untold places)"
    )
    task = Babilong(config(source, lengths=["0k"], multi_entry=True, rows=5))
    assert len(list(task.published("test"))) == 5
    assert task.notes[1] == f"{found}; the paper has 305, not {multi}"
    monkeypatch.setitem(babilong_tally.PAPER_ROWS, "0k", multi)
    assert list(task.published("test"))
    assert task.notes[1] == f"{found}; the paper has {multi}, too"


def test_the_papers_counts_cover_its_nine_bins() -> None:
    assert ",".join(babilong_tally.PAPER_ROWS) == "0k,1k,2k,4k,8k,16k,32k,64k,128k"
    assert [n for n in babilong_tally.PAPER_ROWS.values() if n != 305] == [264, 304]


def test_context_tokens_by_another_tokenizer(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer.save_pretrained(tmp_path / "counter")
    source = copies.json_copy(tmp_path / "copy", {("4k", "qa3"): in_prose(4)})
    counter = str(tmp_path / "counter")
    for row, values in zip(serve(source, count_with=counter), in_prose(4), strict=True):
        ids = tokenizer(values["input"], add_special_tokens=False)["input_ids"]
        assert row.info["context_tokens"] == len(ids)
    assert "context_tokens" not in serve(source)[0].info
    with pytest.raises(UserError, match=r"count_with = './no'.*or the folder of a tokenizer"):
        serve(source, count_with="./no")


def test_the_audit_names_rows_that_exceed_the_window(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer.save_pretrained(tmp_path / "counter")
    source = copies.json_copy(
        tmp_path / "copy", {("0k", "qa3"): copies.rows("qa3", 9), ("4k", "qa3"): in_prose(9)}
    )
    settings = config(source, lengths=["0k", "4k"], count_with=str(tmp_path / "counter"))
    out = tmp_path / "rows.jsonl"
    longest = sorted(row["info"]["tokens"] for row in _written(settings, tokenizer, out))
    # The answers are shorter than the 20 tokens that evaluation sets aside.
    window = longest[-8] + 5
    summary = write_rows(settings, tokenizer, "test", out, window)
    rows = list(read_jsonl(out))
    expected = {
        row["id"] for row in rows if row["info"]["tokens"] + 20 - _answer(tokenizer, row) > window
    }
    assert {key for rows in summary.bins.values() for key in rows.too_long} == expected
    assert len(expected) > 7
    prompts = {row["id"]: row["info"]["tokens"] - _answer(tokenizer, row) for row in rows}
    for found in summary.bins.values():
        sizes = [prompts[key] for key in found.too_long]
        assert sizes == sorted(sizes, reverse=True)
    lines = describe(summary, "gpt2", window)
    contexts = [row["info"]["context_tokens"] for row in rows if row["bin"] == 4000]
    line = next(line for line in lines if line.startswith("bin 4000"))
    assert line.endswith(f"; contexts of {min(contexts)} to {max(contexts)} by gpt2")
    count = len(summary.bins[4000].too_long)
    named = ", ".join(summary.bins[4000].too_long[:5])
    assert f"  {count} don't fit into {window} tokens: {named} and {count - 5} more" in lines
    assert "every row fits" not in "\n".join(lines)
    fits = write_rows(settings, tokenizer, "test", out, 10_000)
    assert "every row fits into 10000 tokens" in describe(fits, "gpt2", 10_000)
    assert "fit" not in "\n".join(describe(fits, "gpt2", None))


def _written(settings: BabilongConfig, tokenizer: Any, out: Path) -> list[dict[str, Any]]:
    write_rows(settings, tokenizer, "test", out)
    return list(read_jsonl(out))


def _answer(tokenizer: Any, row: dict[str, Any]) -> int:
    from ryarn.chat import completion_ids

    return len(completion_ids(tokenizer, row["completion"][0]["content"]))


def test_official_lengths_bound_the_lines_of_a_story(tokenizer: PreTrainedTokenizerBase) -> None:
    """At 2k 1,700 tokens are 212 lines, one of them the question: at most 211 facts."""
    from ryarn.tasks.babilong_context import make_rulers

    [named, plain] = make_rulers(["2k", 1700], tokenizer, None, "packaged")
    assert named.max_facts("qa3") == 211
    assert plain.max_facts("qa3") != 211
    assert solve(("Mary took the milk.", "Mary went to the office."), "Where is the milk?")


def test_the_command_prints_the_audit(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from ryarn.cli import app

    sets = {("0k", "qa3"): copies.rows("qa3", 40), ("4k", "qa3"): in_prose(40)}
    source = copies.json_copy(tmp_path / "copy", sets)
    out = str(tmp_path / "rows.jsonl")
    arguments = ["data", "babilong", "questions=[qa3]", "lengths=[0k,4k]", "rows=1000"]
    arguments += ["multi_entry=true", f"source={source}", "--split", "test", "--out", out]
    arguments += ["--model", "tiny:llama"]
    result = CliRunner().invoke(app, [*arguments, "--window", "500"], catch_exceptions=False)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("bin 0: ")
    assert any(" don't fit into 500 tokens: qa3-4k-" in line for line in lines)
    assert any(line.startswith("qa3 4k: 40 rows read from") for line in lines)
    assert any(line.startswith("qa3 4k: ") and "; the paper has 305, not" in line for line in lines)
    assert lines[-1].endswith(f"rows in {out}")
    with pytest.raises(UserError, match="--window 0: give at least 1"):
        CliRunner().invoke(app, [*arguments, "--window", "0"], catch_exceptions=False)


def test_evaluation_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ryarn.evaluate import evaluate
    from tiny_run import make_recipe

    source = copies.json_copy(tmp_path / "copy", {("0k", "qa1"): copies.rows("qa1", 3)})
    data = f"{{task: babilong, questions: [qa1], lengths: [0k], rows: 9, source: {source}}}"
    evaluate(make_recipe(tmp_path, "method={name: zero-shot}", f"evaluate.data={data}"))
    assert f"qa1 0k: 3 rows read from {source}, 3 serve as test" in capsys.readouterr().err
