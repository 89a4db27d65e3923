"""How the packaged base is made: its tokenizer, its documents, its growth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from miniature.documents import Writer
from miniature.pretrain import LAYERS, PLANS, STAGES, Stage, pretrain
from miniature.tokenizer import make_tokenizer
from ryarn.chat import completion_ids, end_of_turn, prompt_ids
from ryarn.models import PACKAGED, load_model, load_skeleton
from ryarn.recipe import ModelConfig
from ryarn.tasks import words

KINDS = ("stream", "pairs", "copies", "questions", "chat", "prose")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(256)


@pytest.fixture
def writer(tokenizer: Any) -> Writer:
    writer = Writer(tokenizer, np.random.default_rng(0))
    writer.adverbs = writer.background = 0.3
    return writer


def test_a_fact_is_four_tokens(tokenizer: Any) -> None:
    for move in words.MOVES:
        assert len(tokenizer(f" Mary {move} the kitchen.")["input_ids"]) == 4


def test_every_word_of_the_tasks_is_one_token(tokenizer: Any) -> None:
    lists = (words.NAMES, words.PLACES, words.FORMS, words.TOPICS, words.WRITING, words.PREFIXES)
    for word in (word for some in lists for word in some):
        assert len(tokenizer(f" {word}")["input_ids"]) == 1, word


def test_an_answer_is_the_same_token_in_a_text_and_as_a_completion(tokenizer: Any) -> None:
    turn = ({"role": "user", "content": "Mary went to the kitchen.\nWhere is Mary?"},)
    assert completion_ids(tokenizer, "kitchen")[0] in prompt_ids(tokenizer, turn)
    assert completion_ids(tokenizer, "kitchen")[1:] == [end_of_turn(tokenizer)]


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    text = "Zürich, 1848: \N{SNOWMAN} — “quoth she”"
    assert tokenizer.decode(tokenizer(text)["input_ids"]).strip() == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_is_what_the_tokenizer_makes_of_its_text(
    tokenizer: Any, writer: Writer, kind: str
) -> None:
    for _ in range(20):
        tokens, targets = writer.kinds[kind](200)
        assert len(tokens) == len(targets) == 200
        text = tokenizer.decode(tokens).removeprefix(" ")
        # The cut can fall inside a word.
        again = tokenizer(text, add_special_tokens=False)["input_ids"]
        if kind != "prose":
            assert again[:190] == tokens[:190]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("prose", "chat")])
@pytest.mark.parametrize("hesitant", [0.0, 1.0])
def test_every_target_was_said_before(writer: Writer, kind: str, hesitant: float) -> None:
    writer.hesitant = hesitant
    for _ in range(20):
        tokens, targets = writer.kinds[kind](200)
        for place in np.flatnonzero(targets).tolist():
            assert tokens[place] in tokens[:place] or tokens[place] == writer.ids("<|end|>")[0]


def test_a_question_is_answered_by_where_its_person_went(tokenizer: Any, writer: Writer) -> None:
    asked = 0
    for _ in range(20):
        text = tokenizer.decode(writer.questions(250)[0])
        place_of: dict[str, str] = {}
        for line in text.replace("<|user|>", "\n").split("\n"):
            question, _, answer = line.strip().partition("?<|assistant|> ")
            if answer.endswith("<|end|>"):
                assert answer.removesuffix("<|end|>") == place_of[question.split()[2]]
                asked += 1
            for sentence in line.split("."):
                found = sentence.split()
                name = next((word for word in found if word in words.NAMES), None)
                place = next((word for word in found if word in words.PLACES), None)
                if name and place and "the" in found:
                    assert place_of.setdefault(name, place) == place
    assert asked > 50


def test_hesitations_stretch_facts(writer: Writer, tokenizer: Any) -> None:
    def told(hesitant: float) -> int:
        writer.hesitant = hesitant
        return sum(
            tokenizer.decode(writer.stream(200)[0]).count(f" {word}")
            for word in ("er", "um", "you know", "let me see")
            for _ in range(20)
        )

    assert told(1.0) > told(0.0) + 100


def test_the_stages_mix_known_kinds() -> None:
    for stage in STAGES:
        assert sum(stage.mix.values()) == pytest.approx(1)
        assert set(stage.mix) <= set(KINDS)


@pytest.mark.parametrize("architecture", PLANS)
def test_it_grows_saves_and_is_the_same_again(tmp_path: Path, architecture: str) -> None:
    first = Stage({"pairs": 1.0}, (16,), 0, 0, 1, goal=-1, patience=1)
    quick = (first, Stage({"chat": 1.0}, (32,), 0, 0, 0))
    exact = torch.ones(64, 64) * 1.001 @ torch.ones(64, 64)
    for name in ("one", "two"):
        plan = replace(PLANS[architecture], stages=quick, steps=2, seed=3)
        pretrain(tmp_path / name, plan)
    assert torch.equal(torch.ones(64, 64) * 1.001 @ torch.ones(64, 64), exact), "still rounded"
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoTokenizer

    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert sum(name.endswith("q_proj.weight") for name in one) == LAYERS
    config = AutoConfig.from_pretrained(tmp_path / "one")
    assert (config.model_type, config.use_cache) == (architecture, True)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "one")) == one["lm_head.weight"].shape[0]
    log = (tmp_path / "one" / "training.jsonl").read_text("utf-8").splitlines()
    assert json.loads(log[-1])["stage"] == 2
    assert json.loads(log[-1])["step"] == 10


@pytest.fixture(scope="module", params=PACKAGED)
def packaged(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return load_model(ModelConfig(name=request.param, dtype="float32"))


def test_each_packaged_base_has_its_architecture() -> None:
    found = [load_skeleton(ModelConfig(name=name)).config for name in PACKAGED]
    assert [config.model_type for config in found] == list(PLANS)
    assert {config.max_position_embeddings for config in found} == {256}


def test_the_packaged_base_has_the_tokenizer_that_the_script_makes(
    packaged: tuple[Any, Any], tokenizer: Any
) -> None:
    made, there = (json.loads(t.backend_tokenizer.to_str()) for t in (tokenizer, packaged[1]))
    assert made["model"] == there["model"]
    assert made["added_tokens"] == there["added_tokens"]
    assert tokenizer.chat_template == packaged[1].chat_template


@pytest.mark.parametrize(("kind", "least"), [("questions", 0.98), ("chat", 0.9)])
def test_what_the_packaged_base_can_do_inside_its_window(
    packaged: tuple[Any, Any], kind: str, least: float
) -> None:
    model, tokenizer = packaged
    writer = Writer(tokenizer, np.random.default_rng(12345))
    writer.adverbs = writer.background = 0.3
    documents = [writer.kinds[kind](256) for _ in range(40)]
    tokens = torch.tensor([ids for ids, _ in documents])
    answers = torch.tensor([marks for _, marks in documents])[:, 1:]
    # The end token is no part of an answer.
    answers &= tokens[:, 1:] != tokenizer.eos_token_id
    with torch.inference_mode():
        foretold = model(input_ids=tokens).logits[:, :-1].argmax(-1) == tokens[:, 1:]
    # The shares that its card gives are a little higher.
    assert foretold[answers].float().mean() > least
