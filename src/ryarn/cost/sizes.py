"""What of a decoder's shape its memory and work depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

_SLIDING = "sliding_attention"


@dataclass(frozen=True)
class Sizes:
    """A decoder with gated MLPs, as the Qwen, Llama and Olmo families have.

    Attributes:
        parameters: All of them.
        embedding: Those of the embedding table that no product is taken with.
        vocabulary: Entries of it.
        layers: Decoder layers.
        sliding: Those of them that see only `window` tokens.
        window: What they see; 0 where there are none.
        hidden: Width between the layers.
        inner: Width inside the MLP.
        queries: Width of all query heads together.
        keys: Width of all key heads together; values are as wide.
        head_norms: Whether queries and keys are normalized.
    """

    parameters: int
    embedding: int
    vocabulary: int
    layers: int
    sliding: int
    window: int
    hidden: int
    inner: int
    queries: int
    keys: int
    head_norms: bool

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
        return cls(
            parameters=sum(p.numel() for p in skeleton.parameters()),
            embedding=0 if getattr(config, "tie_word_embeddings", False) else embedding,
            vocabulary=config.vocab_size,
            layers=config.num_hidden_layers,
            sliding=kinds.count(_SLIDING),
            window=(getattr(config, "sliding_window", None) or 0) if _SLIDING in kinds else 0,
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            queries=heads * width,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * width,
            head_norms=any("q_norm" in name for name, _ in skeleton.named_modules()),
        )

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of a layer's matrices: what LoRA adapts."""
        return (
            (self.hidden, self.queries),
            (self.hidden, self.keys),
            (self.hidden, self.keys),
            (self.queries, self.hidden),
            (self.hidden, self.inner),
            (self.hidden, self.inner),
            (self.inner, self.hidden),
        )

    def adapter(self, rank: int) -> int:
        """Parameters of LoRA on every matrix of every layer."""
        return self.layers * rank * sum(sum(linear) for linear in self.linears)

    def seen(self, length: int) -> float:
        """Pairs of tokens that causal attention looks at in one row, summed over the layers."""
        full = length**2 / 2
        near = min(self.window, length)
        return (self.layers - self.sliding) * full + self.sliding * (near * length - near**2 / 2)
