"""The forward hooks through which drawn positions reach the rotary embedding, and only it.

The model is always given ordinary positions, so that masks, caches, packing and attention kernels
stay as they are: transformers reads gaps in `position_ids` as borders of packed documents, and
would cut attention at every gap (docs/design/0001-where-positions-enter.md).

Where windowed layers share the rotary module of the full ones, its output carries a second one at
ordinary positions, which a hook on their attention takes instead.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ryarn.draws import generator, row_key
from ryarn.errors import UserError
from ryarn.method import Method
from ryarn.positions import Contiguous
from ryarn.rope.documents import Document, find_documents
from ryarn.rope.inspect import RopeMap

Positions = NDArray[np.int64]
_ORDINARY = "_ryarn_ordinary"
"""Attribute of a rotary embedding at drawn positions: the same at ordinary ones. It travels with
the tensor, so that a layer that gradient checkpointing runs again finds what it found before."""


@dataclass
class DrawStats:
    """What was drawn in one optimizer step.

    Attributes:
        span: L_t, the range that positions were drawn from.
        documents: Documents seen.
        contiguous: Documents longer than the span, which kept contiguous positions.
        max_position: Largest position drawn.
        mean_stretch: Mean over documents of (last - first position) / (length - 1); contiguous
            ones have 1.
    """

    span: int = 0
    documents: int = 0
    contiguous: int = 0
    max_position: int = 0
    mean_stretch: float = 0.0

    def add(self, positions: Positions, contiguous: bool) -> None:
        """Count one document's positions, shape [length]."""
        stretch = float(positions[-1] - positions[0]) / max(1, len(positions) - 1)
        self.mean_stretch += (stretch - self.mean_stretch) / (self.documents + 1)
        self.documents += 1
        self.contiguous += contiguous
        self.max_position = max(self.max_position, int(positions[-1]))


class Remapper:
    """Draws positions while the decoder trains and hands them to its rotary modules.

    Args:
        rope_map: The model's RoPEs.
        method: Sampler, curriculum and draw.
        seed: First part of every draw's address.
    """

    def __init__(self, rope_map: RopeMap, method: Method, seed: int) -> None:
        self.rope_map = rope_map
        self.method = method
        self.seed = seed
        self.stats = DrawStats()
        self._progress: tuple[int, int] | None = None
        self._twins: Counter[int] = Counter()
        self._forced: torch.Tensor | None = None
        self._held: torch.Tensor | None = None
        self._given: tuple[Any, Any] = ((), {})
        self.packing_fault: str | None = None
        """Why packed rows can't be trained on, as the self-test found; None where they can."""
        if rope_map.recurrent:
            self.packing_fault = "its recurrent layers may carry a document's state into the next"
        self._decoder_signature = inspect.signature(rope_map.decoder.forward)
        rotaries = {id(rope.module): rope.module for rope in rope_map.extended}
        self._extended = {(id(rope.module), rope.layer_type) for rope in rope_map.extended}
        self._signatures = {key: inspect.signature(m.forward) for key, m in rotaries.items()}
        self._signatures |= {id(m): inspect.signature(m.forward) for m in rope_map.local}
        self._handles = [
            rope_map.decoder.register_forward_pre_hook(self._before_decoder, with_kwargs=True)
        ]
        for module in rotaries.values():
            before = module.register_forward_pre_hook(self._before_rotary, with_kwargs=True)
            self._handles.append(before)
            if rope_map.local:
                self._handles.append(module.register_forward_hook(self._after_rotary))
        for module in rope_map.local:
            before = module.register_forward_pre_hook(self._before_local, with_kwargs=True)
            self._handles.append(before)

    def set_progress(self, step: int, total_steps: int) -> None:
        """Say which optimizer step (0-based) of how many comes next; statistics start anew."""
        self._progress = (step, total_steps)
        self._twins.clear()
        self.stats = DrawStats(span=self.span or 0)

    @property
    def span(self) -> int | None:
        """L_t of the step at hand; None before progress is known or where nothing is drawn."""
        if self.method.curriculum is None or self._progress is None:
            return None
        return self.method.curriculum.span(*self._progress)

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    @contextlib.contextmanager
    def forced(self, positions: torch.Tensor) -> Iterator[None]:
        """Give these positions, shape [B, T], to the rotary modules, in training and evaluation."""
        self._forced = positions
        try:
            yield
        finally:
            self._forced = self._held = None

    def _before_decoder(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._held = self._forced
        if self._forced is not None or not module.training:
            return
        given = self._decoder_signature.bind_partial(*args, **kwargs).arguments
        given = {**given, **given.pop("kwargs", {})}
        self._refuse_packed(given.get("position_ids"))
        if not self.method.randomizes:
            return
        if given.get("cache") is not None or given.get("past_key_values") is not None:
            return  # generation, even where somebody left the model in training mode
        if self._progress is None:
            raise UserError(
                "training has no progress, so the curriculum has no span: give the trainer "
                "callbacks=[ryarn.ExtensionCallback(extension)], or call "
                "extension.set_progress(step, total_steps) before each step"
            )
        tokens = given.get("input_ids")
        if tokens is None:
            raise UserError("drawing positions needs input_ids; the model was given inputs_embeds")
        self._held = self._draw(tokens, given.get("attention_mask"), given.get("position_ids"))

    def _refuse_packed(self, position_ids: torch.Tensor | None) -> None:
        if self.packing_fault is None or position_ids is None or position_ids.ndim != 2:
            return
        # Padding on the left repeats its position, restarts go back.
        if bool((position_ids.diff(dim=1) < 0).any()):
            raise UserError(
                f"{type(self.rope_map.decoder).__name__}: rows are packed, but this model can't "
                f"keep documents apart ({self.packing_fault}); turn packing off"
            )

    def _before_rotary(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._held is None:
            return None
        bound = self._signatures[id(module)].bind(*args, **kwargs)
        if (id(module), bound.arguments.get("layer_type")) not in self._extended:
            return None
        self._given = args, kwargs
        bound.arguments["position_ids"] = self._in_layout(module, bound.arguments["position_ids"])
        return bound.args, bound.kwargs

    def _in_layout(self, module: nn.Module, ordinary: torch.Tensor) -> torch.Tensor:
        """The held positions in the shape of the ordinary ones: [B, T], or an axis more."""
        assert self._held is not None
        held = self._held.to(ordinary.device)
        if ordinary.ndim == 2 and ordinary.shape[1] == held.shape[1]:
            return held
        if ordinary.ndim == 3 and ordinary.shape[2] == held.shape[1]:
            # Multimodal RoPE has an axis each for time, height and width: equal for text.
            if bool((ordinary == ordinary[:1]).all()):
                return held.expand(ordinary.shape[0], *held.shape)
            raise UserError(
                f"{type(module).__name__}: a row has positions of an image or a video; ryarn draws "
                "positions for text alone, so train on rows of text"
            )
        raise RuntimeError(
            f"{type(module).__name__} was given position_ids of shape {tuple(ordinary.shape)} for "
            f"drawn positions of shape {tuple(held.shape)}: ryarn does not know this layout"
        )

    def _after_rotary(self, module: nn.Module, args: Any, out: Any) -> None:
        if self._held is not None:
            args, kwargs = self._given
            first = out if isinstance(out, torch.Tensor) else out[0]
            setattr(first, _ORDINARY, module.forward(*args, **kwargs))

    def _before_local(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        bound = self._signatures[id(module)].bind(*args, **kwargs)
        given = bound.arguments.get("position_embeddings")
        first = given if given is None or isinstance(given, torch.Tensor) else given[0]
        ordinary = getattr(first, _ORDINARY, None)
        if ordinary is not None:
            bound.arguments["position_embeddings"] = ordinary
            return bound.args, bound.kwargs
        if self._held is not None and first is not None:
            raise RuntimeError(
                f"{type(module).__name__}: something between the rotary module and this windowed "
                "layer copies the embedding, so drawn positions would reach the layer"
            )
        return None

    def _draw(self, tokens: torch.Tensor, mask: Any, position_ids: Any) -> torch.Tensor:
        """Positions for a batch: [B, T] int64; padding keeps 0, which no real token can see."""
        ids = tokens.detach().cpu().numpy().astype(np.int64)
        padding = mask.detach().cpu().numpy().astype(bool) if _is_padding_mask(mask) else None
        ordinary = None if position_ids is None else position_ids.detach().cpu().numpy()
        positions = np.zeros(ids.shape, dtype=np.int64)
        documents = find_documents(ids.shape, padding, ordinary)
        shared = self._batch_draw(documents) if self.method.draw == "batch" else None
        for row, where in documents:
            drawn = self._document_draw(ids[row, where]) if shared is None else shared
            contiguous = len(drawn) > (self.span or 0)
            drawn = drawn[: where.stop - where.start]
            self.stats.add(drawn, contiguous)
            positions[row, where] = drawn
        return torch.from_numpy(positions)

    def _document_draw(self, tokens: Positions) -> Positions:
        """Positions of one document, addressed by its own tokens; shape [length]."""
        assert self._progress is not None
        key = row_key(tokens)
        rng = generator(self.seed, self._progress[0], key, self._twins[key])
        self._twins[key] += 1
        return self._sample(len(tokens), rng)

    def _batch_draw(self, documents: list[Document]) -> Positions:
        """One draw for a batch, as long as its longest document; shape [longest]."""
        assert self._progress is not None
        longest = max((where.stop - where.start for _, where in documents), default=1)
        # Micro-batches of one optimizer step are numbered, as equal documents are.
        rng = generator(self.seed, self._progress[0], 0, self._twins[0])
        self._twins[0] += 1
        return self._sample(longest, rng)

    def _sample(self, length: int, rng: np.random.Generator) -> Positions:
        span = self.span
        assert span is not None
        sampler = self.method.sampler if length <= span else Contiguous()
        return sampler(length, max(length, span), rng)


def _is_padding_mask(mask: Any) -> bool:
    return isinstance(mask, torch.Tensor) and mask.ndim == 2
