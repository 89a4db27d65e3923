"""How much memory a recipe takes where it runs, part by part, before anything is loaded.

What autograd keeps is counted layer by layer for transformers' modules with PEFT's LoRA. Attention
keeps no scores, as PyTorch's kernels don't, unless it is transformers' eager one. What an allocator
loses and what a kernel needs for a moment is not in it.
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
class Held:
    """How numbers are held where a recipe runs.

    Attributes:
        value: Bytes of a weight, and of what the layers compute.
        mask: Bytes that dropout keeps of each value.
        mapped: Weights are pages of their safetensors file, read when they are asked for: of an
            embedding table that no product is taken with, next to nothing.
    """

    value: int = HALF
    mask: int = MASK
    mapped: bool = False

    def weights(self, sizes: Sizes) -> int:
        """Bytes of a base model."""
        return self.value * (sizes.parameters - (sizes.embedding if self.mapped else 0))


ACCELERATOR = Held()
"""bfloat16 on an accelerator."""


@dataclass(frozen=True)
class Batch:
    """Rows that are held at once, filled up to the longest.

    Attributes:
        rows: How many.
        longest: Tokens of the longest.
        padded: Whether some are shorter: then attention is given a mask of tokens by tokens.
        scored: Places of the row at which logits are computed: wherever any row has a label.
    """

    rows: int
    longest: int
    padded: bool
    scored: int

    @property
    def tokens(self) -> int:
        """Of all rows, padding included."""
        return self.rows * self.longest


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


def layer_activations(sizes: Sizes, rank: int, mask: int = MASK, value: int = HALF) -> int:
    """Bytes that one layer keeps of one token for the backward pass.

    A frozen matrix keeps nothing of its input. The LoRA beside each keeps its input (a copy of its
    own after dropout, and in bfloat16, where it computes in float32), what comes out of its first
    matrix, and dropout's mask; norms keep their input in float32, the attention its queries, keys,
    values and output, the gated MLP the gate, its activation and the other half.

    Args:
        sizes: The model's.
        rank: LoRA's.
        mask: Bytes that dropout keeps of each value; 0 without dropout.
        value: Bytes of what the layers compute.
    """
    if mask or value < FULL:
        inputs = sum(into for into, _ in sizes.linears) * (value + mask)
    else:
        # Shared by the matrices that read it; the attention's output is counted there.
        inputs = value * (2 * sizes.hidden + sizes.inner)
    adapters = inputs + len(sizes.linears) * value * rank
    norms = 2 * FULL * sizes.hidden
    if sizes.head_norms:
        norms += FULL * (sizes.queries + sizes.keys)
    attention = value * 2 * (sizes.queries + sizes.keys)
    return adapters + norms + attention + 3 * value * sizes.inner


def pair_activations(sizes: Sizes, recipe: Recipe, batch: Batch, held: Held = ACCELERATOR) -> int:
    """Bytes that one layer keeps of a batch because attention has a mask, or keeps its scores.

    Args:
        sizes: The model's.
        recipe: Says which attention.
        batch: What is held at once.
        held: How numbers are held.
    """
    pairs = batch.rows * batch.longest**2
    # A key head is repeated for each of its query heads.
    repeated = batch.tokens * held.value * 2 * (sizes.queries - sizes.keys)
    if recipe.model.attention == "eager":
        softmax = FULL + (held.value if held.value < FULL else 0)
        return repeated + pairs * sizes.heads * softmax
    if recipe.model.attention == "sdpa" and batch.padded:
        # The mask as numbers, made anew in each layer.
        return repeated + pairs * held.value
    return 0


def training_memory(
    sizes: Sizes,
    recipe: Recipe,
    longest: int,
    held: Held = ACCELERATOR,
    batch: Batch | None = None,
) -> Training:
    """Memory of a training step.

    Args:
        sizes: The model's.
        recipe: What is trained.
        longest: Tokens of the longest row.
        held: How numbers are held.
        batch: What is held at once; None is a full batch of rows as long as the longest, with
            answers of `evaluate.max_new_tokens`.
    """
    config = recipe.train
    if batch is None:
        scored = min(longest, recipe.evaluate.max_new_tokens)
        batch = Batch(config.batch_size, longest, False, scored)
    mask = held.mask if config.lora_dropout else 0
    layer = batch.tokens * layer_activations(sizes, config.lora_rank, mask, held.value)
    layer += pair_activations(sizes, recipe, batch, held)
    return Training(
        weights=held.weights(sizes),
        adapter=4 * FULL * sizes.adapter(config.lora_rank),
        checkpointed=batch.tokens * held.value * sizes.hidden * sizes.layers + layer,
        kept=layer * sizes.layers,
        # Themselves, in float32, and their gradient.
        logits=batch.rows * batch.scored * sizes.vocabulary * (held.value + 2 * FULL),
    )


def answering_memory(
    sizes: Sizes,
    recipe: Recipe,
    longest: int,
    held: Held = ACCELERATOR,
    batch: Batch | None = None,
) -> Answering:
    """Memory of an evaluation, with the adapter beside the model.

    Args:
        sizes: The model's.
        recipe: What is evaluated.
        longest: Tokens of the longest row, prompt and answer.
        held: How numbers are held.
        batch: What is answered together; None is as many such rows as `evaluate.batch_tokens`
            allows.
    """
    rows = batch.rows if batch else max(1, recipe.evaluate.batch_tokens // longest)
    full, near = sizes.layers - sizes.sliding, min(sizes.window, longest)
    cached = full * longest + sizes.sliding * near
    # Gate, its activation and the other half; LoRA reads their product in float32.
    widest = sizes.inner * (3 * held.value + FULL) + 2 * held.value * sizes.hidden
    # A mask of truth values, and the same as numbers in the layer at work.
    mask = rows * longest**2 * (1 + held.value) if batch and batch.padded else 0
    return Answering(
        weights=held.weights(sizes) + FULL * sizes.adapter(recipe.train.lora_rank),
        cache=rows * cached * 2 * sizes.keys * held.value,
        prefill=rows * longest * widest + mask,
        tokens=longest,
        rows=rows,
    )
