"""Where sentences begin in a row of tokens, as far as its tokens tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ryarn.chat import end_of_turn, opening_of_answer, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLOSING = (".", "!", "?", "\u2026", "\u3002", "\uff01", "\uff1f")
"""Marks that close a sentence."""
_BEHIND = "\"')]}\u201d\u2019\u00bb"
"""What may stand behind such a mark, in its token or in one of its own."""


_SPACES = (" ", "\u0120", "\u2581")
"""How a vocabulary writes a space in front: as it is, byte-level, SentencePiece."""


class Sentences:
    """Finds sentences by the tokens that close them.

    A sentence ends with a token whose text ends with one of `CLOSING`, quotes and brackets behind
    it not counted, or with the token that ends a turn. So "Mr." and "3." end one, too:
    a border more does no harm. Line breaks end none: chat templates have them in their headers.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        size = len(tokenizer)
        special = special_ids(tokenizer)
        self._special = np.zeros(size, dtype=bool)
        self._special[list(special)] = True
        self._closes = np.zeros(size, dtype=bool)
        self._behind = np.zeros(size, dtype=bool)
        # Decoded: in byte-level vocabularies only ASCII marks stand as themselves. As it stands: a
        # space in front, which decoding may take off, tells an opening quote from a closing one.
        texts = tokenizer.batch_decode([[i] for i in range(size)])
        pieces = tokenizer.convert_ids_to_tokens(list(range(size)))
        for token, (text, piece) in enumerate(zip(texts, pieces, strict=True)):
            bare = text.rstrip(_BEHIND)
            self._closes[token] = bare.endswith(CLOSING)
            self._behind[token] = bool(text) and not bare and not piece.startswith(_SPACES)
        self._closes &= ~self._special
        self._ends = self._closes.copy()
        self._opening = np.array([], dtype=np.int64)
        if tokenizer.chat_template:
            self._ends[end_of_turn(tokenizer)] = True
            opening = opening_of_answer(tokenizer)
            # A line break alone is in any text.
            if len(opening) > 1 or special.intersection(opening):
                self._opening = np.array(opening, dtype=np.int64)

    def borders(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where sentences begin, but for the first.

        Between two tokens that both close one there is no border, and none before a special token:
        the end of a turn belongs to the sentence that it ends. Nor is there one between a question
        and its answer, which at inference is generated right behind it.

        Args:
            tokens: Token ids of one document, shape [length].

        Returns:
            Increasing indices from 1 to length - 1.
        """
        closed, ended = self._closes[tokens], self._ends[tokens]
        for place in np.flatnonzero(self._behind[tokens]):
            if place and ended[place - 1]:
                closed[place] = ended[place] = True
        last = ~ended[1:] & ~(closed[:-1] & self._special[tokens[1:]])
        borders = 1 + np.flatnonzero(ended[:-1] & last)
        return borders[~self._opens(tokens)[borders]]

    def _opens(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which tokens lead from a question to its answer; the answer's first is one of them."""
        size = len(self._opening)
        opens = np.zeros(len(tokens), dtype=bool)
        if 0 < size <= len(tokens):
            windows = np.lib.stride_tricks.sliding_window_view(tokens, size)
            for start in np.flatnonzero((windows == self._opening).all(axis=-1)):
                opens[start : start + size + 1] = True
        return opens
