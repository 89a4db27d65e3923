"""The task `mrcr`: its settings, rows from files in the published layout, and its scores."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from mrcr_rows import byte_encoding, published_row, write_copy, write_old_copy
from word_level import word_level

from ryarn.backends.echo import EchoBackend
from ryarn.chat import prompt_ids
from ryarn.config import build
from ryarn.data import describe, write_rows
from ryarn.errors import UserError
from ryarn.evaluate import Budget, _edition, run_evaluation
from ryarn.recipe import Recipe
from ryarn.records import Completion, Example, read_jsonl
from ryarn.report.results import build_report
from ryarn.report.settings import settings
from ryarn.report.stage import load_runs
from ryarn.tasks import mrcr
from ryarn.tasks.jsonl import Jsonl, JsonlConfig
from ryarn.tasks.mrcr import Mrcr, MrcrConfig


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(mrcr, "load_encoding", byte_encoding)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A local copy in the published layout: 30 short and 8 longer rows of each of two kinds."""
    rows = {
        needles: [
            published_row(1000 * needles + n, 4200 if n < 30 else 8300, needles, 1 + n % needles)
            for n in range(38)
        ]
        for needles in (2, 4)
    }
    return write_copy(tmp_path / "copy", rows)


def config(**settings: Any) -> MrcrConfig:
    return build(MrcrConfig, {"task": "mrcr", **settings})


def published(copy: Path, split: str = "test", **settings: Any) -> list[Example]:
    settings = {"source": str(copy), "lengths": ["8k"], "needles": [2, 4], **settings}
    return list(Mrcr(config(**settings)).examples(word_level(), split))


def refusal(**settings: Any) -> str:
    with pytest.raises(UserError) as error:
        config(**settings)
    return str(error.value)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": [2000]}, "rows = None: the generator must be told how many"),
        ({"lengths": ["8k"], "rows": 1}, "lengths = '8k': the generator takes numbers of tokens"),
        ({"lengths": [0], "rows": 1}, "lengths = 0: the generator takes numbers"),
        ({"lengths": [8, 8], "rows": 1}, "name each only once"),
        ({"lengths": [], "rows": 1}, "lengths = []"),
        ({"lengths": [8], "rows": 1, "needles": [2, 2]}, "name each only once"),
        ({"lengths": [8], "rows": 1, "needles": [3]}, "needles.0 = 3"),
        ({"lengths": [8], "rows": 1, "needles": []}, "needles = []"),
        ({"lengths": [8], "rows": [1, 2]}, "as many as there are lengths (1)"),
        ({"lengths": [8], "rows": 1, "revision": "main"}, "it is for published rows"),
        ({"lengths": [8], "rows": 1, "uncorrected": True}, "it is for published rows"),
        ({"lengths": [8], "source": "openai/mrcr"}, "published rows have the lengths 8k, 16k"),
        ({"lengths": ["4k"], "source": "openai/mrcr"}, "lengths = '4k': published rows have"),
        ({"lengths": ["8k"], "source": "openai/mrcr", "texts": "a"}, "it is for source: generator"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    assert message in refusal(**settings)


def test_one_number_of_rows_or_one_for_each_length() -> None:
    assert config(lengths=[10, 20], rows=3).wanted == {10: 3, 20: 3}
    assert config(lengths=[10, 20], rows=[3, 4]).wanted == {10: 3, 20: 4}
    some = config(lengths=["8k", "16k"], rows=[3, 4], source="openai/mrcr")
    assert some.wanted == {"8k": 3, "16k": 4}
    assert some.asked == {8192: 3, 16384: 4}
    everything = config(lengths=["8k"], source="openai/mrcr")
    assert everything.wanted == {"8k": None}
    assert everything.asked == {}


# Published rows


def test_published_rows_are_sent_as_they_are(copy: Path) -> None:
    raw = {}
    for file in sorted(copy.rglob("*.parquet")):
        for row in datasets.Dataset.from_parquet(str(file)):
            raw[row["answer"]] = row
    rows = published(copy, lengths=["8k", "16k"])
    assert {row.bin for row in rows} == {8192, 16384}
    for row in rows:
        given = raw[row.target]
        assert list(row.prompt) == json.loads(given["prompt"])
        assert row.completion == row.target == given["answer"]
        assert row.question == row.prompt[-1]["content"]
        assert row.task == "mrcr"
        info = row.info
        assert info["prefix"] == given["random_string_to_prepend"]
        assert info["needles"] == given["n_needles"]
        assert info["asked"] == 1 + [
            i for i, m in enumerate(row.prompt) if m["content"] == "write a poem about tapirs"
        ].index(given["desired_msg_index"])
        assert info["turns"] == given["total_messages"]
        assert info["o200k_tokens"] == given["n_chars"] + len(given["answer"])
        assert info["date_added"] == "04-12-2025"
        assert {8192: "8k", 16384: "16k"}[row.bin] == info["length"]
    assert len({row.id for row in rows}) == len(rows)


def test_splits_are_disjoint_and_the_numbers_asked_for(copy: Path) -> None:
    train = published(copy, "train", rows=10)
    test = published(copy, "test", rows=[6, 8], lengths=["8k", "16k"])
    assert Counter(row.info["needles"] for row in train) == {2: 5, 4: 5}
    assert Counter(row.bin for row in test) == {8192: 6, 16384: 8}
    assert not {row.source for row in train} & {row.source for row in test}
    everything = published(copy, "test", lengths=["8k", "16k"], serves="test")
    assert len(everything) == 76


def test_the_seed_takes_other_rows_and_makes_others(copy: Path) -> None:
    assert published(copy, "train", rows=6) == published(copy, "train", rows=6)
    ids = {seed: {row.id for row in published(copy, "train", rows=6, seed=seed)} for seed in (0, 1)}
    assert ids[0] != ids[1]
    made = [
        list(
            Mrcr(config(lengths=[900], rows=1, needles=[2], seed=seed)).examples(
                word_level(), "test"
            )
        )
        for seed in (0, 1)
    ]
    assert made[0] != made[1]


def test_the_edition_is_told_in_every_row_and_in_the_notes(copy: Path, tmp_path: Path) -> None:
    task = Mrcr(config(source=str(copy), lengths=["8k"], needles=[2, 4], rows=6))
    (edition,) = {row.info["revision"] for row in task.examples(word_level(), "test")}
    assert edition.startswith("files sha256:")
    assert task.notes == [f"edition: {edition}; needles: 3 with 2, 3 with 4"]
    old = write_old_copy(tmp_path / "old", {2: [published_row(n) for n in range(9)]})
    settings: dict[str, Any] = {"needles": [2], "serves": "test"}
    with pytest.raises(UserError, match="before the correction of December 2025"):
        published(old, **settings)
    (edition,) = {row.info["revision"] for row in published(old, **settings, uncorrected=True)}
    assert edition.endswith("(before the correction of December 2025)")


def test_only_short_rows_are_trained_on_and_only_where_rows_are_shared_out(copy: Path) -> None:
    with pytest.raises(UserError, match="of published rows only 8k is trained on"):
        published(copy, "train", lengths=["8k", "16k"])
    for split in ("train", "held-out"):
        with pytest.raises(UserError, match=f"serves test, but {split} rows are asked for"):
            published(copy, split, serves="test")
    with pytest.raises(UserError, match="split = 'dev'"):
        published(copy, "dev")


def test_the_tokenizer_is_looked_for_before_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise UserError("no o200k_base")

    monkeypatch.setattr(mrcr, "load_encoding", missing)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("loaded"))
    with pytest.raises(UserError, match="no o200k_base"):
        published(Path("openai/mrcr"))


# Training and evaluation rows in one recipe


def recipe(train: dict[str, Any], evaluate: dict[str, Any]) -> Recipe:
    return build(
        Recipe,
        {
            "model": {"name": "tiny:llama"},
            "method": {"name": "lora"},
            "train": {"data": {"task": "mrcr", **train}, "max_length": 8192},
            "evaluate": {"data": {"task": "mrcr", **evaluate}},
            "output": "runs/a",
        },
    )


HUB = {"source": "openai/mrcr", "lengths": ["8k"], "rows": 60}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"source": "./copy"}, "source"),
        ({"revision": "main"}, "revision"),
        ({"uncorrected": True}, "uncorrected"),
        ({"serves": "test"}, "serves"),
    ],
)
def test_rows_shared_out_in_two_ways_are_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(UserError, match=f"with {name} = .* rows trained on could be tested on"):
        recipe(HUB, HUB | changes)


def test_needles_of_training_alone_are_refused() -> None:
    with pytest.raises(UserError, match=r"train.data.needles has \[4, 8\], which evaluate"):
        recipe(HUB, HUB | {"needles": [2]})
    assert recipe(HUB | {"needles": [2]}, HUB)


def test_what_is_apart_by_construction_is_allowed() -> None:
    assert recipe(HUB, HUB | {"lengths": ["8k", "128k"], "rows": [26, 31], "seed": 5})
    made = {"lengths": [2000], "rows": 4}
    assert recipe(made, HUB | {"serves": "test"})
    assert recipe(made, made | {"seed": 1})


# From the task to a file, and from there to scores


def test_rows_written_to_a_file_score_again(copy: Path, tmp_path: Path) -> None:
    given = {"source": str(copy), "lengths": ["8k"], "needles": [2, 4], "rows": 6}
    file = tmp_path / "rows.jsonl"
    summary = write_rows(config(**given), word_level(), "test", file)
    assert "needles: 3 with 2, 3 with 4" in "\n".join(describe(summary, None, None))
    written = Jsonl(JsonlConfig(path=str(file), test=1))
    rows = list(written.examples(word_level(), "test"))
    direct = published(copy, rows=6)
    assert [row.prompt for row in rows] == [row.prompt for row in direct]
    task = Mrcr(config(**given))
    for row in rows:
        for text in (row.target, f" {row.target}", row.target[:90], "no", ""):
            completion = Completion(row.id, text, 0, "stop")
            assert written.score(row, completion) == task.score(row, completion)
    assert written.score(rows[0], Completion(rows[0].id, rows[0].target, 0, "stop")).scores == {
        "mrcr": 1.0,
        "mrcr-lstrip": 1.0,
        "mrcr-after-thinking": 1.0,
        "exact": 1.0,
    }


def test_made_rows_written_to_a_file_score_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_rows(config(lengths=[2500], rows=3, needles=[4]), word_level(), "train", file)
    task = Jsonl(JsonlConfig(path=str(file)))
    rows = list(task.examples(word_level(), "train"))
    assert [row.info["needles"] for row in rows] == [4, 4, 4]
    for row in rows:
        assert task.score(row, Completion(row.id, row.target, 0, "stop")).scores["mrcr"] == 1.0
        assert task.score(row, Completion(row.id, "", 0, "stop")).scores["mrcr"] == 0.0


def test_rows_that_do_not_fit_are_skipped_and_counted(copy: Path, tmp_path: Path) -> None:
    rows = published(copy, lengths=["8k", "16k"], rows=[4, 3])
    tokens = {row.id: len(prompt_ids(word_level(), row.prompt)) for row in rows}
    window = max(tokens.values()) + 8
    fitting = {key for key, length in tokens.items() if length + 9 <= window}
    assert 0 < len(fitting) < 7
    summary = run_evaluation(
        rows,
        Mrcr(config(lengths=[1], rows=1)),
        EchoBackend(rows),
        word_level(),
        tmp_path / "evaluation",
        budget=Budget(window=window, max_new_tokens=9),
        fingerprint={},
    )
    assert (summary.rows, summary.scored, summary.skipped) == (7, len(fitting), 7 - len(fitting))
    for score in read_jsonl(tmp_path / "evaluation" / "scores.jsonl"):
        assert score["scores"].get("mrcr") == (1.0 if score["id"] in fitting else None)


def test_the_report_names_the_edition(copy: Path, tmp_path: Path) -> None:
    """From the rows through the evaluation's manifest into the report's settings."""
    rows = published(copy, rows=4)
    folder = tmp_path / "run" / "evaluation"
    about = {"label": "a", "method": {}, "seed": 0, "task": "mrcr", "train_length": 8192}
    run_evaluation(
        rows,
        Mrcr(config(lengths=[1], rows=1)),
        EchoBackend(rows),
        word_level(),
        folder,
        budget=Budget(window=10**6, max_new_tokens=9),
        fingerprint={**about, **_edition(rows)},
    )
    shared, _ = settings(build_report(load_runs([tmp_path / "run"])))
    assert ["edition of the evaluation rows", rows[0].info["revision"]] in shared
    assert _edition([Example("a", (), "", "", "mrcr", 1, "s")]) == {}
