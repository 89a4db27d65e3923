"""YaRN's equations in float64, apart from any model: the oracle that live models are checked by.

Source: Peng et al. 2024, "YaRN: Efficient Context Window Extension of Large Language Models",
arXiv 2309.00071, sections 3.2 (NTK-by-parts, definition 2) and 3.4 (attention temperature).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ryarn.errors import UserError


def rope_inv_freq(theta: float, rotary_size: int) -> NDArray[np.float64]:
    """Plain RoPE frequencies theta^(-2d / rotary_size), d = 0..rotary_size/2-1.

    Source: Su et al. 2023, "RoFormer: Enhanced Transformer with Rotary Position Embedding".

    Returns:
        Radians per position, float64, shape [rotary_size / 2].

    Raises:
        UserError: `theta` is not above 1 or `rotary_size` is not even and positive.
    """
    _check_rope(theta, rotary_size)
    return np.float64(theta) ** -(np.arange(0, rotary_size, 2, dtype=np.float64) / rotary_size)


def attention_factor(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """What cos and sin are multiplied by: sqrt(1/t) = 0.1 ln s + 1, and 1 where s <= 1 (sec. 3.4).

    DeepSeek's variant weighs the logarithm by `mscale` and divides by the same with
    `mscale_all_dim`; as in transformers it holds only when both are given and neither is 0.

    Args:
        factor: s.
        mscale: DeepSeek's `mscale`, or None.
        mscale_all_dim: DeepSeek's `mscale_all_dim`, or None.
    """
    log_factor = math.log(max(factor, 1.0))
    if mscale and mscale_all_dim:
        return (0.1 * mscale * log_factor + 1.0) / (0.1 * mscale_all_dim * log_factor + 1.0)
    return 0.1 * log_factor + 1.0


@dataclass(frozen=True)
class Yarn:
    """YaRN on one kind of rotary module.

    Attributes:
        theta: RoPE base b, above 1.
        rotary_size: Dimensions of a head that are rotated, |D|: even.
        original_length: L_pre in tokens, the window that the model was pretrained with.
        factor: s, relative to `original_length`, at least 1.
        beta_fast: Dimensions that turn more often than this in the original window keep their
            frequency (the paper's beta).
        beta_slow: Dimensions that turn less often than this are fully interpolated (its alpha).
        truncate: Whether the ramp's ends are rounded outwards to whole dimensions.
        attention_factor: What cos and sin are multiplied by; None means 0.1 ln s + 1.

    Raises:
        UserError: A number is out of range, or the ramp would have no direction.
    """

    theta: float
    rotary_size: int
    original_length: int
    factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        _check_rope(self.theta, self.rotary_size)
        if not 1 <= self.factor < math.inf:
            raise UserError(
                f"factor = {self.factor}: YaRN only extends a window, so give a number from 1 up"
            )
        if self.original_length < 1:
            raise UserError(
                f"original_length = {self.original_length}: give the model's pretraining window "
                "in tokens, at least 1"
            )
        if not 0 < self.beta_slow <= self.beta_fast < math.inf:
            raise UserError(
                f"beta_slow = {self.beta_slow}, beta_fast = {self.beta_fast}: expected "
                "0 < beta_slow <= beta_fast"
            )
        if self.attention_factor is not None and not 0 < self.attention_factor < math.inf:
            raise UserError(
                f"attention_factor = {self.attention_factor}: give a positive number, or none for "
                "0.1 ln(factor) + 1"
            )
        low, high = self.correction_range()
        if low > high:
            # Seen only outside any real model (a window under 7 tokens, a theta of a few units).
            # The formula in use would turn the ramp upside down there, against the paper.
            raise UserError(
                f"original_length = {self.original_length} with theta = {self.theta} and "
                f"rotary_size = {self.rotary_size} puts YaRN's whole ramp outside the rotary "
                "dimensions: check the three numbers"
            )

    @property
    def attention_scaling(self) -> float:
        """What cos and sin are multiplied by: the given attention factor, else 0.1 ln s + 1."""
        if self.attention_factor is not None:
            return self.attention_factor
        return attention_factor(self.factor)

    def correction_dim(self, rotations: float) -> float:
        """The dimension d that turns `rotations` times in the original window.

        Solves r(d) = L_pre / wavelength(d) = L_pre * theta^(-2d / |D|) / 2 pi for d (sec. 3.2);
        fractional, and outside 0..|D|/2-1 when no dimension turns that often.
        """
        turns = self.original_length / (2 * math.pi * rotations)
        return self.rotary_size * math.log(turns) / (2 * math.log(self.theta))

    def correction_range(self) -> tuple[float, float]:
        """First and last dimension of the ramp.

        Its upper bound is rotary_size - 1, not the last dimension rotary_size / 2 - 1: so the
        authors and transformers have it, and a ramp may leave the lowest frequency short of s.
        """
        low, high = self.correction_dim(self.beta_fast), self.correction_dim(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, self.rotary_size - 1)

    def ramp(self) -> NDArray[np.float64]:
        """Share of interpolation in each dimension: 0 keeps the frequency, 1 divides it by s.

        The paper's 1 - gamma, with one difference: gamma is linear in the number of turns r(d) in
        the paper but linear in d in the authors' code and in every implementation since, and models
        are trained with the latter.

        Returns:
            Values in [0, 1], never falling, float64, shape [rotary_size / 2].
        """
        low, high = self.correction_range()
        # A range of no width is a step just above it, as in transformers.
        width = high - low if high > low else 0.001
        dims = np.arange(self.rotary_size // 2, dtype=np.float64)
        return np.clip((dims - low) / width, 0.0, 1.0)

    def inv_freq(self) -> NDArray[np.float64]:
        """Frequencies h(theta_d) = (1 - ramp) theta_d + ramp theta_d / s (definition 2).

        Returns:
            Radians per position, float64, shape [rotary_size / 2]; at s = 1 exactly plain RoPE.
        """
        plain = rope_inv_freq(self.theta, self.rotary_size)
        return plain * (1.0 - self.ramp() * (1.0 - 1.0 / self.factor))


def _check_rope(theta: float, rotary_size: int) -> None:
    if not 1 < theta < math.inf:
        raise UserError(f"theta = {theta}: RoPE needs a base above 1, e.g. 10000")
    if rotary_size < 2 or rotary_size % 2:
        raise UserError(
            f"rotary_size = {rotary_size}: RoPE turns pairs of dimensions, so give an even number"
        )
