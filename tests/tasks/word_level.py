"""A tokenizer with a token for every word and mark, as the packaged tiny base has."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from ryarn.chat import completion_ids, prompt_ids
from ryarn.tasks import words
from ryarn.tasks.background import PACKAGED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ryarn.records import Example

TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@cache
def word_level() -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    texts = [file.read_text(encoding="utf-8") for file in PACKAGED.glob("*.txt")]
    texts += [" ".join(getattr(words, name)) for name in dir(words) if name.isupper()]
    known = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)})
    vocabulary = {"<unk>": 0, **{word: i for i, word in enumerate(known, start=1)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
        chat_template=TEMPLATE,
    )


def row_length(tokenizer: PreTrainedTokenizerBase, example: Example) -> int:
    """Tokens of the whole row, counted as training counts them."""
    answer = completion_ids(tokenizer, example.completion)
    return len(prompt_ids(tokenizer, example.prompt)) + len(answer)
