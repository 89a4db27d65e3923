"""Greedy generation with transformers: whole prompts, clean settings, any batch the same."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from ryarn.backends import Prompt
from ryarn.backends.hf import HfBackend, batches, end_ids

VOCABULARY, HIDDEN = 300, 64


class NumberTokenizer:
    """Decodes ids to numbers: all that the backend asks of a tokenizer."""

    eos_token_id = 1
    pad_token_id = None
    chat_template = None

    def decode(self, ids, skip_special_tokens=False):
        return " ".join(map(str, ids)) + ("" if skip_special_tokens else " <special>")


class ThinkingTokenizer(NumberTokenizer):
    """Its answers open or close a thinking block with special tokens, as does its template."""

    chat_template = "yes"
    all_special_ids = ()
    added_tokens_decoder: ClassVar[dict[int, str]] = {}

    def __init__(self, template, answer):
        self._template, self._answer = template, answer

    def apply_chat_template(self, messages, add_generation_prompt=False, **_):
        return self._template if add_generation_prompt else messages[-1]["content"]

    def __call__(self, text, **_):
        return {"input_ids": []}

    def decode(self, ids, skip_special_tokens=False):
        return "answer" if skip_special_tokens else self._answer


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        eos_token_id=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).to(torch.float32)


@pytest.fixture
def prompts():
    rng = np.random.default_rng(0)
    lengths = [5, 40, 17, 18, 90, 33, 6, 21]
    return [
        Prompt(f"row-{i}", (), rng.integers(3, VOCABULARY, size=n, dtype=np.int32))
        for i, n in enumerate(lengths)
    ]


def answers(model, prompts, batch_tokens, tokenizer=None, tokens=12):
    backend = HfBackend(model, tokenizer or NumberTokenizer(), batch_tokens=batch_tokens)
    return dict(backend.generate(prompts, tokens))


def by_hand(model, prompt, tokens):
    """Greedy decoding of one row without cache, padding or generate()."""
    model.eval()
    ids, new = torch.tensor([prompt.ids.tolist()]), []
    with torch.no_grad():
        for _ in range(tokens):
            new.append(int(model(ids).logits[0, -1].argmax()))
            if new[-1] in (1, 2):
                return " ".join(map(str, new[:-1])), "stop"
            ids = torch.cat([ids, torch.tensor([new[-1:]])], dim=1)
    return " ".join(map(str, new)), "length"


def test_batches_of_one_and_eight_give_the_same_greedy_answers(model, prompts):
    alone = answers(model, prompts, batch_tokens=1)
    together = answers(model, prompts, batch_tokens=10_000)
    assert alone == together
    assert list(alone) != [p.id for p in prompts]
    for prompt in prompts:
        got = alone[prompt.id]
        assert (got.text, got.finish) == by_hand(model, prompt, 12)


def test_logits_are_made_for_the_last_token_only(model, prompts):
    shapes = []
    model.lm_head.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    answers(model, prompts, batch_tokens=10_000, tokens=3)
    assert shapes[0] == (8, 1, HIDDEN)
    assert {shape[1] for shape in shapes} == {1}


def test_prompts_are_never_cut_and_the_cache_is_used(model, prompts):
    seen = []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    answers(model, prompts[4:5], batch_tokens=1, tokens=3)
    assert [tuple(shape) for shape in seen] == [(1, 90), (1, 1), (1, 1)]


def test_settings_that_the_model_ships_do_not_change_the_answer(model, prompts):
    plain = answers(model, prompts, batch_tokens=300)
    first = int(plain["row-0"].text.split()[0])
    shipped = GenerationConfig(
        do_sample=True,
        temperature=3.0,
        repetition_penalty=5.0,
        no_repeat_ngram_size=1,
        suppress_tokens=[first],
        min_new_tokens=12,
        eos_token_id=2,
        bos_token_id=0,
    )
    model.generation_config = shipped
    assert answers(model, prompts, batch_tokens=300) == plain
    assert model.generation_config is shipped


def test_answer_stops_at_the_end_tokens_of_model_and_tokenizer(model, prompts):
    text = answers(model, prompts[:1], 1)["row-0"].text.split()
    # the first token that has not come before, so that stopping there is unambiguous
    at = next(i for i in range(1, 12) if text[i] not in text[:i])
    model.generation_config.eos_token_id = [2, int(text[at])]
    assert end_ids(model, NumberTokenizer()) == {1, 2, int(text[at])}
    got = answers(model, prompts[:1], 1)["row-0"]
    assert (got.text, got.finish) == (" ".join(text[:at]), "stop")


def test_dropout_and_random_positions_are_off(model, prompts):
    model.train()
    modes = []
    model.model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    answers(model, prompts[:1], 1, tokens=2)
    assert modes == [False, False]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_takes_part_and_leaves_the_shipped_settings_alone(model, prompts):
    from peft import LoraConfig, get_peft_model

    plain = answers(model, prompts, 300)
    shipped = model.generation_config
    lora = {"target_modules": ["q_proj"], "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    adapted = get_peft_model(model, LoraConfig(**lora))
    assert answers(adapted, prompts, 300) != plain
    assert model.generation_config is shipped


@pytest.mark.parametrize("batch_tokens", [1, 36, 100, 10_000])
def test_batches_hold_their_token_limit(prompts, batch_tokens):
    groups = list(batches(prompts, batch_tokens))
    for group in groups:
        longest = max(len(prompt.ids) for prompt in group)
        assert len(group) == 1 or len(group) * longest <= batch_tokens
    lengths = [len(prompt.ids) for group in groups for prompt in group]
    assert lengths == sorted((len(p.ids) for p in prompts), reverse=True)
    assert len(groups) == (8 if batch_tokens == 1 else len(groups))
    assert len(list(batches(prompts, 36))) < 8


@pytest.mark.parametrize(
    ("template", "answer", "inside"),
    [
        ("<user>?<assistant>", "<think>so", True),
        ("<user>?<assistant>", "<think>so</think>kitchen", False),
        ("<user>?<assistant>", "kitchen", False),
        ("<user>?<assistant><think>", "so it is", True),
        ("<user>?<assistant><think>", "so</think>kitchen", False),
        ("<user>?<assistant><think></think>", "kitchen", False),
    ],
)
def test_answers_that_end_inside_a_thinking_block(model, prompts, template, answer, inside):
    tokenizer = ThinkingTokenizer(template, answer)
    for got in answers(model, prompts[:2], 10_000, tokenizer, tokens=3).values():
        assert got.text == "answer"
        assert (got.finish == "thinking") == inside
