"""Where sentences begin, read off tokens; and that the draws of training keep them whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ryarn import Extension, ExtensionCallback, extend, make_method, tiny
from ryarn.chat import completion_ids, prompt_ids
from ryarn.errors import UserError
from ryarn.models import load_tokenizer
from ryarn.recipe import ModelConfig
from ryarn.sentences import Sentences


@pytest.fixture(scope="module")
def miniature() -> Any:
    return load_tokenizer(ModelConfig(name="miniature"))


def split(tokenizer: Any, ids: list[int]) -> list[str]:
    borders = Sentences(tokenizer).borders(np.array(ids, dtype=np.int64))
    assert borders.dtype == np.int64
    return [tokenizer.decode(part) for part in np.split(np.array(ids), borders)]


def test_a_sentence_begins_behind_what_closes_one(miniature: Any) -> None:
    text = "Mary went to the park. Where is Mary? John moved to the office!"
    assert split(miniature, miniature(text)["input_ids"]) == [
        "Mary went to the park.",
        "Where is Mary?",
        "John moved to the office!",
    ]


def test_quotes_belong_to_the_sentence_that_they_close(miniature: Any) -> None:
    text = "He said: 'It was late.' John moved to the office."
    parts = split(miniature, miniature(text)["input_ids"])
    assert " ".join(parts) == text
    assert parts[-1] == "John moved to the office."


def test_an_opening_quote_begins_the_next_sentence(miniature: Any) -> None:
    text = 'It was late. "Where is Mary?" John moved to the office.'
    assert " ".join(split(miniature, miniature(text)["input_ids"])) == text


def test_marks_in_a_row_close_one_sentence(miniature: Any) -> None:
    assert (
        split(miniature, miniature("Mary went to the park... John ?! Well")["input_ids"])[
            -1
        ].strip()
        == "Well"
    )


def test_turns_part_and_the_answer_stays_with_its_question(miniature: Any) -> None:
    turns = [
        {"role": "user", "content": "Write a poem about cows."},
        {"role": "assistant", "content": "cows sand little"},
        {"role": "user", "content": "Mary went to the park. Where is Mary?"},
    ]
    ids = prompt_ids(miniature, turns) + completion_ids(miniature, "park")
    first, second, last = split(miniature, ids)
    assert first.endswith(" cows sand little<|end|>")
    assert second == "<|user|> Mary went to the park."
    assert last == "Where is Mary?<|assistant|> park<|end|>"


CHATML = """{% for m in messages %}<|{{ m.role }}|>
{% if m.role == 'assistant' and loop.last %}(no thoughts)
{% endif %}{{ m.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% if enable_thinking is false %}(no thoughts)
{% endif %}{% endif %}"""
"""Both turns end with one token and a line break, and thoughts come in some renderings alone."""


@pytest.mark.parametrize("template", [None, CHATML])
@pytest.mark.parametrize("question", ["Where is Mary?", "So where is she"])
def test_the_answer_stays_with_its_question_where_a_user_s_turn_is_closed(
    template: str | None, question: str
) -> None:
    _, tokenizer = tiny.build("llama")
    tokenizer.chat_template = template or tokenizer.chat_template
    turns = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "Here. There."},
        {"role": "user", "content": question},
    ]
    ids = prompt_ids(tokenizer, turns) + completion_ids(tokenizer, "Here.")
    first, second, last = split(tokenizer, ids)
    assert question in first
    assert first.endswith("Here.")
    assert second == " There.<|end|>"
    assert question in last
    assert last.endswith("Here.<|end|>")


def test_a_template_of_line_breaks_alone_parts_sentences_as_ever() -> None:
    _, tokenizer = tiny.build("llama")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    assert split(tokenizer, tokenizer("Here.\nThere.")["input_ids"]) == ["Here.", "\nThere."]


@pytest.mark.parametrize("ids", [[], [5]])
def test_a_row_of_no_sentence_has_no_border(miniature: Any, ids: list[int]) -> None:
    assert not len(Sentences(miniature).borders(np.array(ids, dtype=np.int64)))


def test_marks_of_other_scripts_are_found_in_byte_level_vocabularies() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    marks = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("\u3002")[0][0]
    vocabulary = {token: i for i, token in enumerate([*"ab.", marks, "[PAD]"])}
    backend = Tokenizer(models.WordLevel(vocabulary))
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]")
    borders = Sentences(tokenizer).borders(np.array([0, 3, 1, 2, 0]))
    assert borders.tolist() == [2, 4]


def test_drawn_rows_keep_their_sentences_whole(miniature: Any) -> None:
    model, _ = tiny.build("llama")
    tokenizer = miniature
    method = make_method("sentence-yarn", factor=4, spans=[4096])
    extension = extend(model, method)
    extension.read_sentences(tokenizer)
    extension.set_progress(0, 1)
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, min(200, len(tokenizer)), (8, 40)))
    stop = tokenizer(".")["input_ids"][-1]
    tokens[:, 9::10] = stop
    positions = extension._remapper._draw(tokens, None, None).numpy()
    sentences = Sentences(tokenizer)
    moved = 0
    for row, drawn in zip(tokens.numpy(), positions, strict=True):
        jumps = 1 + np.flatnonzero(np.diff(drawn) != 1)
        assert set(jumps) <= set(sentences.borders(row).tolist())
        moved += len(jumps)
    assert moved > 8


def test_packed_documents_are_cut_at_their_own_sentences(miniature: Any) -> None:
    model, _ = tiny.build("llama")
    extension = extend(model, make_method("sentence-yarn", factor=4, spans=[1 << 20]))
    extension.read_sentences(miniature)
    extension.set_progress(0, 1)
    one = miniature("Mary went to the park. John went to the office.")["input_ids"]
    two = miniature("Where is Mary? Mary went to the park.")["input_ids"]
    packed = torch.tensor([[*one, *two]])
    ordinary = torch.tensor([[*range(len(one)), *range(len(two))]])
    drawn = extension._remapper._draw(packed, None, ordinary).numpy()[0]
    found = [drawn[: len(one)], drawn[len(one) :]]
    for ids, positions in zip((one, two), found, strict=True):
        jumps = 1 + np.flatnonzero(np.diff(positions) != 1)
        assert jumps.tolist() == Sentences(miniature).borders(np.array(ids)).tolist()
        assert len(jumps) == 1
    # What a document gets does not depend on its company.
    alone = extension._remapper
    alone.set_progress(0, 1)
    again = alone._draw(torch.tensor([two]), None, None).numpy()[0]
    np.testing.assert_array_equal(again, found[1])


def test_training_without_the_text_says_what_to_do() -> None:
    model, _ = tiny.build("llama")
    extension = extend(model, make_method("sentence-yarn", factor=4, spans=[4096]))
    extension.set_progress(0, 1)
    model.train()
    with pytest.raises(UserError, match=r"read_sentences\(tokenizer\)"):
        model(input_ids=torch.arange(12)[None])


def test_other_methods_do_not_read_the_tokenizer() -> None:
    model, _ = tiny.build("llama")
    extension = extend(model, make_method("randomized-yarn", factor=4, spans=[4096]))
    extension.read_sentences(None)  # type: ignore[arg-type]
    assert extension._remapper.sentences is None


def trained_on(text: str, folder: Path, steps: int) -> tuple[Extension, int]:
    """An extension after some steps of a plain trainer on one text, and the text's tokens."""
    from transformers import Trainer, TrainingArguments

    model, tokenizer = tiny.build("llama")
    extension = extend(model, make_method("sentence-yarn", factor=4, spans=[512]))
    ids = tokenizer(text)["input_ids"]
    arguments = TrainingArguments(folder, max_steps=steps, report_to=[], use_cpu=True)
    Trainer(
        model,
        arguments,
        train_dataset=[{"input_ids": ids, "labels": ids}] * 8,
        processing_class=tokenizer,
        callbacks=[ExtensionCallback(extension)],
    ).train()
    return extension, len(ids)


def test_a_trainer_tells_the_sampler_by_itself(tmp_path: Path) -> None:
    text = "Mary is here. John is there. Where is Mary?"
    extension, length = trained_on(text, tmp_path, steps=5)
    assert extension._remapper.sentences is not None
    assert extension.stats.unbroken == 0
    assert extension.stats.max_position > length


def test_text_without_sentences_is_refused_not_silently_left_as_it_is(tmp_path: Path) -> None:
    sentence = r"32 of 32 documents have no border .*: use method chunked-yarn"
    with pytest.raises(UserError, match=sentence):
        trained_on("def f(x): return x", tmp_path, steps=5)
