"""What of a decoder's shape its memory and work depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

_SLIDING = "sliding_attention"


@dataclass(frozen=True)
class Sizes:
    """A decoder with plain attention and gated MLPs, as Qwen, Llama, Olmo, Phi-3 and others have.

    Attributes:
        parameters: All of them.
        embedding: Those of the embedding table that no product is taken with.
        vocabulary: Entries of it.
        layers: Decoder layers.
        sliding: Those of them that see only `window` tokens.
        window: What they see; 0 where there are none.
        hidden: Width between the layers.
        inner: Width inside the MLP.
        heads: Query heads.
        queries: Width of all query heads together.
        keys: Width of all key heads together; values are as wide.
        head_norms: Whether queries and keys are normalized.
        linears: Inputs and outputs of a layer's matrices: what LoRA adapts.
    """

    parameters: int
    embedding: int
    vocabulary: int
    layers: int
    sliding: int
    window: int
    hidden: int
    inner: int
    heads: int
    queries: int
    keys: int
    head_norms: bool
    linears: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, skeleton: Any) -> Self | None:
        """Read them off a model; None if it is of another build."""
        config = skeleton.config.get_text_config()
        if not hasattr(config, "intermediate_size") or not hasattr(config, "num_attention_heads"):
            return None
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        kinds = list(getattr(config, "layer_types", None) or [])
        embedding = skeleton.get_input_embeddings().weight.numel()
        found = cls(
            parameters=sum(p.numel() for p in skeleton.parameters()),
            embedding=0 if getattr(config, "tie_word_embeddings", False) else embedding,
            vocabulary=config.vocab_size,
            layers=config.num_hidden_layers,
            sliding=kinds.count(_SLIDING),
            window=(getattr(config, "sliding_window", None) or 0) if _SLIDING in kinds else 0,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            heads=heads,
            queries=heads * width,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * width,
            head_norms=any("q_norm" in name for name, _ in skeleton.named_modules()),
            linears=_linears(skeleton) or (),
        )
        return found if found._is_whole() else None

    def _is_whole(self) -> bool:
        """Whether the matrices, fused or not, are those of plain attention and a gated MLP."""
        out = sum(width for _, width in self.linears)
        wanted = (self.queries + 2 * self.keys) + self.hidden + 2 * self.inner + self.hidden
        return out == wanted and (self.inner, self.hidden) in self.linears

    def adapter(self, rank: int) -> int:
        """Parameters of LoRA on every matrix of every layer."""
        return self.layers * rank * sum(sum(linear) for linear in self.linears)

    def seen(self, length: int) -> float:
        """Pairs of tokens that causal attention looks at in one row, summed over the layers."""
        full = length**2 / 2
        near = min(self.window, length)
        return (self.layers - self.sliding) * full + self.sliding * (near * length - near**2 / 2)

    def operations(self, length: int) -> float:
        """Floating point operations of a row's forward pass, its logits left out."""
        return 2 * (self.parameters - self.embedding) * length + 4 * self.queries * self.seen(
            length
        )


def _linears(skeleton: Any) -> tuple[tuple[int, int], ...] | None:
    """The matrices of a layer; None if layers differ in them or hold weights that are none."""
    layers = getattr(skeleton.get_decoder(), "layers", None)
    if not layers:
        return None
    found = {
        tuple(
            (int(module.in_features), int(module.out_features))
            for module in layer.modules()
            if hasattr(module, "in_features")
        )
        for layer in layers
    }
    stacked = any(p.dim() > 2 for layer in layers for p in layer.parameters())
    return found.pop() if len(found) == 1 and not stacked else None
