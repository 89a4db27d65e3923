"""The tokenizer of the miniature: byte-level BPE in which a word of its tasks is one token."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ryarn.tasks import words
from ryarn.tasks.background import load_documents

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
VOCABULARY = 2048
_TASK_WORDS = (
    *(*words.NAMES, *words.PLACES, *words.FORMS, *words.TOPICS, *words.WRITING, *words.PREFIXES),
    *("moved", "went", "travelled", "journeyed", "to", "the", "Where", "is", "was", "did", "now"),
    *("first", "second", "third", "fourth", "fifth", "sixth", "last", "before", "start", "come"),
    *("from", "Write", "Prepend", "a", "about", "again", "then", "Then", "later", "Later"),
    *("quietly", "slowly", "once", "more", "in", "morning", "evening", "with", "friend", "after"),
    *("lunch", "er", "um", "well", "so", "you", "know", "I", "mean", "let", "me", "see", "ah"),
)
_PHRASES = (
    *(f" {move} the" for move in words.MOVES),
    *("\nWhere is", "\nWhere was", "Write a", "Write the", " to the"),
)
"""Turns of speech that are one token each: a fact is then four tokens, and rows are short."""
_WEIGHT = 300
"""How often a task's word stands in the training text, so that its merges come first."""
_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer(window: int) -> PreTrainedTokenizerFast:
    """Train it on the packaged prose and the words of the tasks.

    A word after a special token gets the space before it that it has inside a text, so that an
    answer is the same token in a prompt and as a completion.

    Args:
        window: `model_max_length`, in tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    # The space that a text is given in front is taken off again: an answer has to begin with what
    # was asked for (the official MRCR rule), not with a space that only the tokenizer knows of.
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(_PHRASES),
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    weighted = [f" {word}" for word in _TASK_WORDS for _ in range(_WEIGHT)]
    tokenizer.train_from_iterator([*load_documents("packaged"), *weighted], trainer)
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in _PHRASES])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=window,
    )
