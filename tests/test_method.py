"""The paper's seven methods: what each one changes, and which numbers it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ryarn.errors import UserError
from ryarn.method import METHODS, make_method
from ryarn.positions import Contiguous, RandomChunks, SentenceChunks, SkipWise, UniformSubset
from ryarn.recipe import ChunksConfig, MethodConfig, recipe_method

# name: trains, s, s', sampler, spans; worked out by hand from the paper's sections 3 and B.
TABLE: dict[str, tuple[bool, float | None, float | None, Any, tuple[int, ...] | None]] = {
    "zero-shot": (False, None, None, Contiguous(), None),
    "zero-shot+yarn": (False, None, 8, Contiguous(), None),
    "lora": (True, None, None, Contiguous(), None),
    "trained-yarn": (True, 4, 8, Contiguous(), None),
    "rpe": (True, None, 8, UniformSubset(), (8192, 16384)),
    "pose": (True, 4, 8, SkipWise(chunks=2), (16384,)),
    "randomized-yarn": (True, 4, 8, UniformSubset(), (8192, 16384)),
    "chunked-yarn": (True, 4, 8, RandomChunks(), (8192, 16384)),
    "sentence-yarn": (True, 4, 8, SentenceChunks(), (8192, 16384)),
}


def test_the_table_has_the_seven_of_the_paper_and_ours() -> None:
    assert list(METHODS) == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_each_method_takes_the_numbers_it_uses(name: str) -> None:
    method = make_method(name, factor=4, eval_factor=8, spans=[8192, 16384])
    trains, train_factor, eval_factor, sampler, spans = TABLE[name]
    assert method.trains == trains
    assert (method.train_factor, method.eval_factor) == (train_factor, eval_factor)
    assert method.sampler == sampler
    assert (method.curriculum.spans if method.curriculum else None) == spans
    assert method.randomizes == (spans is not None)


def test_chunks_can_be_cut_otherwise() -> None:
    method = make_method("chunked-yarn", spans=[16], chunks=RandomChunks(2, 1))
    assert method.sampler == RandomChunks(mean_length=2, whole=1)
    method = make_method("sentence-yarn", spans=[16], chunks=SentenceChunks(whole=0, plain=0.5))
    assert method.sampler == SentenceChunks(whole=0, plain=0.5)


@pytest.mark.parametrize(
    ("name", "numbers", "sampler"),
    [
        ("chunked-yarn", {}, RandomChunks()),
        ("chunked-yarn", {"mean_length": 2, "plain": 0.25}, RandomChunks(2, 0.5, 0.25)),
        ("sentence-yarn", {"plain": 0.5}, SentenceChunks(whole=0.5, plain=0.5)),
        ("sentence-yarn", {"plain": 0.5, "whole": 0.25}, SentenceChunks(0.25, 0.5)),
    ],
)
def test_a_recipe_changes_the_numbers_it_names(
    name: str, numbers: dict[str, float], sampler: RandomChunks | SentenceChunks
) -> None:
    config = MethodConfig(name=name, spans=[16], chunks=ChunksConfig(**numbers))
    assert recipe_method(config).sampler == sampler


def test_a_resolved_recipe_has_the_numbers_of_the_chunks() -> None:
    config = MethodConfig(name="sentence-yarn", spans=[16])
    assert config.model_dump()["chunks"] == {"mean_length": None, "whole": 0.5, "plain": 0.0}
    again = MethodConfig(**config.model_dump())
    assert again == config
    assert MethodConfig(name="chunked-yarn", chunks=ChunksConfig(whole=1)).chunks == ChunksConfig(
        mean_length=4, whole=1, plain=0
    )
    assert MethodConfig(name="pose").chunks is None


@pytest.mark.parametrize(
    ("name", "numbers", "sentence"),
    [
        ("pose", {"plain": 0.5}, "for chunked-yarn and sentence-yarn, not for 'pose'"),
        ("sentence-yarn", {"mean_length": 4}, "method.chunks.mean_length = 4: 'sentence-yarn' has"),
        ("sentence-yarn", {"plain": 0.75}, "method.chunks: whole = 0.5 and plain = 0.75 are"),
        ("sentences", {"plain": 0.5}, "method.name 'sentences' is unknown"),
    ],
)
def test_chunks_that_do_not_fit_the_method(
    name: str, numbers: dict[str, float], sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        recipe_method(MethodConfig(name=name, spans=[16], chunks=ChunksConfig(**numbers)))
    assert sentence in str(caught.value)


def test_the_inference_factor_is_the_training_factor_unless_given() -> None:
    assert make_method("trained-yarn", factor=2).eval_factor == 2


@pytest.mark.parametrize("name", TABLE)
def test_which_methods_do_not_apply_to_a_model_pretrained_with_yarn(name: str) -> None:
    method = make_method(name, spans=[8192])
    assert method.why_not(None) is None
    reason = method.why_not(8.0)
    assert (reason is not None) == (name in ("lora", "rpe"))
    if reason:
        assert "pretrained with YaRN (factor 8)" in reason
        assert "appendix B.1" in reason


@pytest.mark.parametrize(
    ("name", "numbers", "sentence"),
    [
        ("randomised-yarn", {"spans": [8]}, "did you mean 'randomized-yarn'?"),
        ("dpo", {}, "known: zero-shot, "),
        ("trained-yarn", {"factor": 0.5}, "method.factor = 0.5 is below 1"),
        ("trained-yarn", {"factor": 4, "eval_factor": 2}, "s' must be at least s"),
        ("trained-yarn", {"factor": math.nan}, "method.factor = nan: give a finite number"),
        ("trained-yarn", {"eval_factor": math.inf}, "method.eval_factor = inf: give a finite"),
        ("rpe", {}, "method.spans is missing: 'rpe' draws positions"),
        ("randomized-yarn", {"spans": [16, 8]}, "decreases from 16 to 8"),
        ("sentence-yarn", {"spans": [8], "draw": "batch"}, "by each document's own sentences"),
        ("pose", {"spans": [8], "chunks": RandomChunks()}, "is for chunked-yarn, not for 'pose'"),
        ("chunked-yarn", {"chunks": SentenceChunks()}, "is for sentence-yarn, not for 'chunked-"),
    ],
)
def test_wrong_numbers_are_one_sentence(name: str, numbers: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        make_method(name, **numbers)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
