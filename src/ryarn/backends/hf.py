"""Greedy generation with transformers: batched by length, never cut, the same for any batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig

from ryarn.backends import Generated, Prompt
from ryarn.backends.reading import Reader, end_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class HfBackend:
    """A transformers model, or the PEFT model around one.

    Decoding is greedy whatever generation settings the model ships. Of those only the end tokens
    are taken over. The model is put into eval mode.

    Args:
        model: Causal language model on its device.
        tokenizer: Its tokenizer.
        batch_tokens: Rows of a batch times the longest of them stay within this; a longer row
            makes a batch of its own.
    """

    name = "hf"

    def __init__(
        self, model: Any, tokenizer: PreTrainedTokenizerBase, *, batch_tokens: int = 8192
    ) -> None:
        # PEFT's own generate overwrites the inner model's generation settings for good. LoRA layers
        # sit inside the base model, so its generate runs them too.
        self._model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._tokenizer = tokenizer
        self._batch_tokens = batch_tokens

    def generate(
        self, prompts: Sequence[Prompt], max_new_tokens: int
    ) -> Iterator[tuple[str, Generated]]:
        """Answer the longest prompts first: if memory is short, it shows at once."""
        self._model.eval()
        for batch in batches(prompts, self._batch_tokens):
            for prompt, answer in zip(batch, self._answer(batch, max_new_tokens), strict=True):
                yield prompt.id, answer

    @torch.inference_mode()
    def _answer(self, batch: Sequence[Prompt], max_new_tokens: int) -> list[Generated]:
        ends = end_ids(self._model, self._tokenizer)
        pad = self._tokenizer.pad_token_id
        config = GenerationConfig(
            do_sample=False,
            num_beams=1,
            use_cache=True,
            max_new_tokens=max_new_tokens,
            eos_token_id=sorted(ends) or None,
            # The mask hides it: any valid id will do.
            pad_token_id=pad if pad is not None else min(ends, default=0),
        )
        longest = max(len(prompt.ids) for prompt in batch)
        input_ids = torch.full((len(batch), longest), config.pad_token_id)
        mask = torch.zeros_like(input_ids)
        for row, prompt in enumerate(batch):
            input_ids[row, longest - len(prompt.ids) :] = torch.from_numpy(prompt.ids)
            mask[row, longest - len(prompt.ids) :] = 1
        device = self._model.device
        with _shipped_settings_aside(self._model):
            output = self._model.generate(
                input_ids=input_ids.to(device),
                attention_mask=mask.to(device),
                generation_config=config,
            )
        reader = Reader(self._tokenizer, ends)
        return [reader.read(row) for row in output[:, longest:].tolist()]


def batches(prompts: Sequence[Prompt], batch_tokens: int) -> Iterator[list[Prompt]]:
    """Group prompts of like length, longest first, ties in the given order.

    Args:
        prompts: Prompts of any lengths.
        batch_tokens: Limit of a batch's rows times its longest prompt; one row is always allowed.
    """
    batch: list[Prompt] = []
    for prompt in sorted(prompts, key=lambda prompt: -len(prompt.ids)):
        if batch and (len(batch) + 1) * len(batch[0].ids) > batch_tokens:
            yield batch
            batch = []
        batch.append(prompt)
    if batch:
        yield batch


@contextmanager
def _shipped_settings_aside(model: Any) -> Iterator[None]:
    # generate() fills whatever is None in the given settings from the model's own: penalties or
    # suppressed tokens that a model ships can't be turned off in any other way.
    shipped = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = shipped
