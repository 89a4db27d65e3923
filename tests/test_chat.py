"""Prompts and the token that ends a turn."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from ryarn.backends.hf import end_ids
from ryarn.chat import completion_ids, end_of_turn, prompt_ids, render_prompt
from ryarn.errors import UserError
from ryarn.tiny import build, byte_tokenizer

LLAMA3 = (
    "{% for m in messages %}<|start|>{{ m.role }}<|eot_id|>{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


@pytest.fixture
def llama3() -> PreTrainedTokenizerFast:
    """A turn ends with a special token that is in no named place, and `eos` is another one."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<|eot_id|>", special=True)])
    tokenizer.chat_template = LLAMA3
    return tokenizer


def test_a_turn_ends_as_the_template_ends_it(llama3: PreTrainedTokenizerFast) -> None:
    end = llama3.convert_tokens_to_ids("<|eot_id|>")
    assert end != llama3.eos_token_id
    assert end_of_turn(llama3) == end
    assert completion_ids(llama3, "ok")[-1] == end


def test_generation_stops_where_training_targets_end(llama3: PreTrainedTokenizerFast) -> None:
    model, _ = build("llama")
    assert end_ids(model, llama3) >= {end_of_turn(llama3), llama3.eos_token_id}


def test_without_a_special_token_the_tokenizers_own_ends_a_turn() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    assert end_of_turn(tokenizer) == tokenizer.eos_token_id


def test_a_target_is_the_answer_and_the_end_and_the_prompt_is_what_is_rendered() -> None:
    tokenizer = byte_tokenizer()
    turns = [{"role": "user", "content": "Wo? \u2603"}]
    assert tokenizer.decode(prompt_ids(tokenizer, turns)) == render_prompt(tokenizer, turns)
    assert tokenizer.decode(completion_ids(tokenizer, " hier")) == " hier<|end|>"


def test_a_template_that_refuses_a_role_is_one_sentence() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(UserError, match=r"refuses a prompt with the roles system: System role"):
        render_prompt(tokenizer, [{"role": "system", "content": "x"}])


def test_no_chat_template_is_one_sentence() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="has no chat template"):
        render_prompt(tokenizer, [{"role": "user", "content": "x"}])
