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
from collections.abc import Iterator, Mapping
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
from ryarn.rope.opaque import Drawing
from ryarn.rope.pairs import pair_documents
from ryarn.sentences import Sentences

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
        unbroken: Documents without a border between sentences, where the sampler asks for them.
        max_position: Largest position drawn.
        mean_stretch: Mean over documents of (last - first position) / (length - 1); contiguous
            ones have 1.
        without_gradients: How many of the documents came in a pass without gradients: a reference
            model's, as preference training has it.
    """

    span: int = 0
    documents: int = 0
    contiguous: int = 0
    unbroken: int = 0
    max_position: int = 0
    mean_stretch: float = 0.0
    without_gradients: int = 0

    def add(self, positions: Positions, contiguous: bool) -> None:
        """Count one document's positions, shape [length]."""
        stretch = float(positions[-1] - positions[0]) / max(1, len(positions) - 1)
        self.mean_stretch += (stretch - self.mean_stretch) / (self.documents + 1)
        self.documents += 1
        self.contiguous += contiguous
        self.without_gradients += not torch.is_grad_enabled()
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
        self._twins: Counter[tuple[bool, int]] = Counter()
        self.paired = False
        """Rows i and i + B/2 of a batch are answers to one prompt and share a draw."""
        self.sentences: Sentences | None = None
        """Finds the sentences of a document, where the sampler asks for them."""
        self._forced: torch.Tensor | None = None
        self._held: torch.Tensor | None = None
        self._drawing = Drawing(self._draw)
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
        if not self.method.randomizes:
            self._refuse_packed(given)
            return
        if given.get("cache") is not None or given.get("past_key_values") is not None:
            return  # generation, even where somebody left the model in training mode
        # It reads values of suspicious batches alone: that breaks a compiled graph.
        self._refuse_packed(given)
        tokens = given.get("input_ids")
        if tokens is None:
            raise UserError("drawing positions needs input_ids; the model was given inputs_embeds")
        mask = given.get("attention_mask")
        seen = mask if _tells_documents(mask) else None
        self._held = self._drawing(tokens, seen, given.get("position_ids"))

    def _refuse_packed(self, given: Mapping[str, Any]) -> None:
        """Refuse packed rows whose documents this attention would not keep apart."""
        position_ids, mask = given.get("position_ids"), given.get("attention_mask")
        if position_ids is None or position_ids.ndim != 2:
            return
        flash = "flash" in str(self.rope_map.config._attn_implementation)
        fault, remedy = self.packing_fault, "turn packing off"
        if fault is None and flash and len(position_ids) > 1 and "cu_seq_lens_q" not in given:
            fault = "flash attention tells documents apart by restarts in a batch of one row alone"
            remedy = "make one row of the batch (padding-free)"
        if fault is None and not flash and mask is not None and mask.ndim == 2:
            fault = "given an attention_mask of padding, transformers looks at no restarts"
            remedy = "leave the mask out, or give one of tokens by tokens"
        if fault is not None and _restarts(position_ids, mask):
            raise UserError(
                f"{type(self.rope_map.decoder).__name__}: rows are packed, but this model can't "
                f"keep documents apart ({fault}); {remedy}"
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
        if self._progress is None and not torch.is_grad_enabled():
            raise UserError(
                "a pass in training mode came before the first step, so there is nothing to draw "
                "for: set precompute_ref_log_probs = false (a reference taken at other positions "
                "than the policy's says nothing), or call model.eval() for it"
            )
        if self._progress is None:
            raise UserError(
                "training has no progress, so the curriculum has no span: give the trainer "
                "callbacks=[ryarn.ExtensionCallback(extension)], or call "
                "extension.set_progress(step, total_steps) before each step"
            )
        ids = tokens.detach().cpu().numpy().astype(np.int64)
        seen = None if mask is None else _array(mask)
        ordinary = None if position_ids is None else position_ids.detach().cpu().numpy()
        positions = np.zeros(ids.shape, dtype=np.int64)
        documents = find_documents(ids.shape, seen, ordinary)
        _refuse_shard(documents, ordinary)
        for group in self._groups(documents, len(ids)):
            shared = self._group_draw([ids[row, where] for row, where in group])
            contiguous = len(shared) > (self.span or 0)
            for row, where in group:
                drawn = shared[: where.stop - where.start]
                self.stats.add(drawn, contiguous)
                positions[row, where] = drawn
        return torch.from_numpy(positions)

    def _groups(self, documents: list[Document], rows: int) -> list[list[Document]]:
        """Documents that share a draw."""
        if self.paired:
            return pair_documents(documents, rows)
        if self.method.draw == "batch":
            return [documents] if documents else []
        return [[document] for document in documents]

    def _group_draw(self, documents: list[Positions]) -> Positions:
        """Positions for documents that share a draw, as long as the longest; shape [longest].

        Addressed by the tokens of all, except where a whole batch shares one: its documents are no
        unit that comes again. Equal addresses of a step are numbered, so that twins are drawn
        apart. Passes without gradients count for themselves: a reference pass over the rows of the
        pass before meets the same positions.
        """
        assert self._progress is not None
        by_batch = self.method.draw == "batch" and not self.paired
        key = 0 if by_batch else row_key(np.concatenate(documents))
        place = torch.is_grad_enabled(), key
        rng = generator(self.seed, self._progress[0], key, self._twins[place])
        self._twins[place] += 1
        return self._sample(max(documents, key=len), rng)

    def _sample(self, tokens: Positions, rng: np.random.Generator) -> Positions:
        length, span = len(tokens), self.span
        assert span is not None
        sampler = self.method.sampler if length <= span else Contiguous()
        borders = None
        if self.sentences is not None:
            borders = self.sentences.borders(tokens)
            self.stats.unbroken += not len(borders)
        return sampler(length, max(length, span), rng, borders)


def _refuse_shard(documents: list[Document], ordinary: Positions | None) -> None:
    """A document that does not begin at its beginning is the piece of one: half is elsewhere."""
    if ordinary is None:
        return
    for row, where in documents:
        first = int(ordinary[row % len(ordinary), where.start])
        if first != 0:
            raise UserError(
                f"position_ids begin at {first} where a document begins, so this is a piece of one "
                "that others hold the rest of (context or sequence parallelism): turn that off; "
                "positions are drawn for a whole document"
            )


def _restarts(position_ids: torch.Tensor, mask: Any) -> bool:
    """Whether a position goes back from one real token to the next; padding's means nothing."""
    back = position_ids.diff(dim=1) < 0
    if mask is not None and mask.ndim == 2:
        back = back & (mask[:, 1:] == mask[:, :-1])
    return bool(back.any())


def _tells_documents(mask: Any) -> bool:
    """Whether a mask is of padding, [B, T], or of what each token sees, [B, heads, T, T]."""
    return isinstance(mask, torch.Tensor) and mask.ndim in (2, 4)


def _array(mask: torch.Tensor) -> NDArray[Any]:
    """A mask in NumPy, which has no bfloat16."""
    seen = mask.detach()[:, :1] if mask.ndim == 4 else mask.detach()
    return (seen.float() if seen.is_floating_point() else seen).cpu().numpy()
