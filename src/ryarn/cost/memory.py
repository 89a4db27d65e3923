"""How much memory a recipe takes on one accelerator, part by part, before anything is loaded.

What autograd keeps is counted layer by layer for transformers' modules with PEFT's LoRA in bfloat16
and an attention kernel that keeps no scores (PyTorch's flash attention); what an allocator loses
and what a kernel needs for a moment is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ryarn.cost.sizes import Sizes
from ryarn.recipe import Recipe

GIB = 2**30
HALF, FULL = 2, 4
"""Bytes of a bfloat16 and of a float32."""
MASK = 1
"""Bytes that dropout keeps of each value on an accelerator (on a CPU it keeps floats)."""


@dataclass(frozen=True)
class Training:
    """Bytes of a training step.

    Attributes:
        weights: The base model.
        adapter: LoRA's weights, their gradients and AdamW's two moments, in float32.
        checkpointed: What is kept for the backward pass with `train.gradient_checkpointing`: each
            layer's input, and one layer in full while it is done again.
        kept: The same without it.
        logits: Of the labelled tokens alone.
    """

    weights: int
    adapter: int
    checkpointed: int
    kept: int
    logits: int

    def total(self, checkpointing: bool) -> int:
        """All of it together."""
        activations = self.checkpointed if checkpointing else self.kept
        return self.weights + self.adapter + activations + self.logits


@dataclass(frozen=True)
class Answering:
    """Bytes of an evaluation, at its longest row.

    Attributes:
        weights: The base model and LoRA's weights.
        cache: Keys and values of prompt and answer.
        prefill: What the widest layer holds while it reads the whole prompt at once.
        tokens: Of the longest row.
        rows: How many rows of that length are answered together.
    """

    weights: int
    cache: int
    prefill: int
    tokens: int
    rows: int

    @property
    def total(self) -> int:
        """All of it together."""
        return self.weights + self.cache + self.prefill


def layer_activations(sizes: Sizes, rank: int, mask: int = MASK) -> int:
    """Bytes that one layer keeps of one token for the backward pass.

    A frozen matrix keeps nothing of its input. The LoRA beside each keeps a copy of its own, what
    comes out of its first matrix, and dropout's mask; norms keep their input in float32, the
    attention its queries, keys, values and output, the gated MLP the gate, its activation and the
    other half.

    Args:
        sizes: The model's.
        rank: LoRA's.
        mask: Bytes that dropout keeps of each value; 0 without dropout.
    """
    inputs = sum(into for into, _ in sizes.linears)
    adapters = inputs * (HALF + mask) + len(sizes.linears) * HALF * rank
    norms = 2 * FULL * sizes.hidden
    if sizes.head_norms:
        norms += FULL * (sizes.queries + sizes.keys)
    attention = HALF * 2 * (sizes.queries + sizes.keys)
    return adapters + norms + attention + 3 * HALF * sizes.inner


def training_memory(sizes: Sizes, recipe: Recipe, longest: int) -> Training:
    """Memory of a training step in bfloat16.

    Args:
        sizes: The model's.
        recipe: What is trained.
        longest: Tokens of the longest row.
    """
    config = recipe.train
    tokens = config.batch_size * longest
    layer = layer_activations(sizes, config.lora_rank, MASK if config.lora_dropout else 0)
    labelled = config.batch_size * min(longest, recipe.evaluate.max_new_tokens)
    return Training(
        weights=HALF * sizes.parameters,
        adapter=4 * FULL * sizes.adapter(config.lora_rank),
        checkpointed=tokens * (HALF * sizes.hidden * sizes.layers + layer),
        kept=tokens * layer * sizes.layers,
        # Themselves, in float32, and their gradient.
        logits=labelled * sizes.vocabulary * (HALF + 2 * FULL),
    )


def answering_memory(sizes: Sizes, recipe: Recipe, longest: int) -> Answering:
    """Memory of an evaluation in bfloat16, with the adapter beside the model.

    Args:
        sizes: The model's.
        recipe: What is evaluated.
        longest: Tokens of the longest row, prompt and answer.
    """
    rows = max(1, recipe.evaluate.batch_tokens // longest)
    full, near = sizes.layers - sizes.sliding, min(sizes.window, longest)
    cached = full * longest + sizes.sliding * near
    # Gate, its activation and the other half; LoRA reads their product in float32.
    widest = sizes.inner * (3 * HALF + FULL) + 2 * HALF * sizes.hidden
    return Answering(
        weights=HALF * sizes.parameters + FULL * sizes.adapter(recipe.train.lora_rank),
        cache=rows * cached * 2 * sizes.keys * HALF,
        prefill=rows * longest * widest,
        tokens=longest,
        rows=rows,
    )
