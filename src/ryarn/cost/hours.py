"""How long a recipe takes on a named accelerator: operations and bytes over stated rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ryarn.cost.sizes import Sizes
from ryarn.recipe import Recipe, recipe_method

PASSES, CHECKPOINTED = 2, 3
"""A training token in forward passes: forward and back through frozen matrices, whose own
gradients nobody needs; with checkpointing once more forward."""
ATTENTION_BACK = 2.5
"""A backward pass of flash attention in forward passes: five products for two."""


@dataclass(frozen=True)
class Accelerator:
    """Rates, and how much of them is reached.

    Attributes:
        name: What it is called.
        flops: Operations a second in bfloat16, dense.
        bandwidth: Bytes a second from its memory.
        share: What is reached of both.
    """

    name: str
    flops: float
    bandwidth: float
    share: float

    def __str__(self) -> str:
        """The assumption in words."""
        return (
            f"one {self.name} at {self.share:.0%} of {self.flops / 1e12:.0f} TFLOP/s and of "
            f"{self.bandwidth / 1e12:.2f} TB/s"
        )


H100 = Accelerator("H100", flops=989e12, bandwidth=3.35e12, share=0.4)


def gpu_hours(
    sizes: Sizes,
    recipe: Recipe,
    trained: Mapping[int, int],
    answered: Mapping[int, int],
    on: Accelerator = H100,
) -> float:
    """Hours of one cell: its training and its evaluation, every answer spending its budget.

    Args:
        sizes: The model's.
        recipe: The cell's.
        trained: Length in tokens to training rows of that length.
        answered: The same for evaluation rows.
        on: Rates.
    """
    matrices = sizes.parameters - sizes.embedding
    config = recipe.train
    seconds = 0.0
    if recipe_method(recipe.method).trains:
        passes = CHECKPOINTED if config.gradient_checkpointing else PASSES
        back = ATTENTION_BACK + (passes - 1)
        operations = sum(
            count * (passes * 2 * matrices * length + back * _attention(sizes, length))
            for length, count in trained.items()
        )
        seconds += _epochs(recipe, sum(trained.values())) * operations / (on.share * on.flops)
    for length, count in answered.items():
        read = 2 * matrices * length + _attention(sizes, length)
        together = max(1, recipe.evaluate.batch_tokens // length)
        # A token of an answer reads all weights (once for a batch) and the row's own cache.
        cache = (sizes.layers - sizes.sliding) * length + sizes.sliding * min(sizes.window, length)
        moved = 2 * matrices / together + 4 * sizes.keys * cache
        seconds += count * read / (on.share * on.flops)
        seconds += count * recipe.evaluate.max_new_tokens * moved / (on.share * on.bandwidth)
    return seconds / 3600


def _attention(sizes: Sizes, length: int) -> float:
    """Operations of a row's attention: scores and values, two for each pair and channel."""
    return 4 * sizes.queries * sizes.seen(length)


def _epochs(recipe: Recipe, rows: int) -> float:
    """How often each row is seen."""
    config = recipe.train
    if config.max_steps is None:
        return config.epochs
    return config.max_steps * config.batch_size * config.gradient_accumulation / max(1, rows)
