"""YaRN's equations: against numbers worked out by hand, and against transformers."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ryarn.errors import UserError
from ryarn.yarn import Yarn, attention_factor, rope_inv_freq

# --- by hand -----------------------------------------------------------------------------------
#
# Dimension d of |D| turns L / (2 pi b^(2d/|D|)) times in the window L, so the dimension that turns
# n times is |D| ln(L / (2 pi n)) / (2 ln b). `low` is that for beta_fast, rounded down, and `high`
# for beta_slow, rounded up. ramp(d) = (d - low) / (high - low), kept in 0..1, and a frequency is
# multiplied by 1 - ramp (1 - 1/s).
#
# RATIO(x) is the beta that puts an end of the ramp at dimension x, for |D| = 8 and b = 10,000:
# there the formula is log10(L / (2 pi n)) = x.
#
# A   |D| 8, b 10000, L 4096, s 8: plain 1, .1, .01, .001.
#     low  = 8 ln(4096 / 201.06) / 18.4207 = 8 * 3.0141 / 18.4207 = 1.309 -> 1
#     high = 8 ln(4096 / 6.2832) / 18.4207 = 8 * 6.4799 / 18.4207 = 2.814 -> 3
#     ramp 0, 0, 1/2, 1; times 1, 1, 1 - .5 * 7/8 = .5625, 1/8
# B   |D| 4, b 100, L 64, s 4: plain 1, .1.
#     low  = 4 ln(64 / 201.06) / 9.2103 = 4 * -1.1447 / 9.2103 = -0.497 -> -1, kept at 0
#     high = 4 ln(64 / 6.2832) / 9.2103 = 4 *  2.3210 / 9.2103 =  1.008 -> 2
#     ramp 0, 1/2; times 1, 1 - .5 * 3/4 = .625
# C   as A but s 4, ends put at .5 and 2.5, not rounded: ramp 0, .25, .75, 1;
#     times 1, 1 - .25 * .75 = .8125, 1 - .75 * .75 = .4375, .25
# D   as C, rounded to 0 and 3: ramp 0, 1/3, 2/3, 1; times 1, .75, .5, .25
# E   as C, both ends at 1.5: a step; ramp 0, 0, 1, 1; times 1, 1, .25, .25
# F   |D| 8, b 10, L 1024, s 4: plain 10^0, 10^-.25, 10^-.5, 10^-.75.
#     low  = 8 ln(1024 / 201.06) / 4.6052 = 8 * 1.6279 / 4.6052 = 2.828 -> 2
#     high = 8 ln(1024 / 6.2832) / 4.6052 = 8 * 5.0937 / 4.6052 = 8.849 -> 9, kept at |D| - 1 = 7
#     ramp 0, 0, 0, 1/5; the last times 1 - .2 * .75 = .85
RATIO = {x: 4096 / (2 * math.pi * 10**x) for x in (0.5, 1.5, 2.5)}
BY_HAND = {
    "A": (Yarn(10_000, 8, 4096, 8), [1, 0.1, 0.005625, 0.000125]),
    "B": (Yarn(100, 4, 64, 4), [1, 0.0625]),
    "C": (
        Yarn(10_000, 8, 4096, 4, beta_fast=RATIO[0.5], beta_slow=RATIO[2.5], truncate=False),
        [1, 0.08125, 0.004375, 0.00025],
    ),
    "D": (
        Yarn(10_000, 8, 4096, 4, beta_fast=RATIO[0.5], beta_slow=RATIO[2.5]),
        [1, 0.075, 0.005, 0.00025],
    ),
    "E": (
        Yarn(10_000, 8, 4096, 4, beta_fast=RATIO[1.5], beta_slow=RATIO[1.5], truncate=False),
        [1, 0.1, 0.0025, 0.00025],
    ),
    "F": (Yarn(10, 8, 1024, 4), [1, 10**-0.25, 10**-0.5, 0.85 * 10**-0.75]),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_frequencies_worked_out_by_hand(case: str) -> None:
    yarn, expected = BY_HAND[case]
    frequencies = yarn.inv_freq()
    assert frequencies.dtype == np.float64
    assert frequencies.shape == (yarn.rotary_size // 2,)
    np.testing.assert_allclose(frequencies, expected, rtol=1e-12)


def test_frequencies_of_a_qwen_sized_head_worked_out_by_hand() -> None:
    # low  = 128 ln(32768 / 201.06) / 27.631 = 128 * 5.0937 / 27.631 = 23.60 -> 23
    # high = 128 ln(32768 / 6.2832) / 27.631 = 128 * 8.5594 / 27.631 = 39.65 -> 40
    # dimension 32: plain 1e6^(-1/2) = .001, ramp 9/17, times 1 - 9/17 * 3/4 = 41/68
    yarn = Yarn(1e6, 128, 32_768, 4)
    assert yarn.correction_range() == (23, 40)
    plain, frequencies = rope_inv_freq(1e6, 128), yarn.inv_freq()
    np.testing.assert_array_equal(frequencies[:24], plain[:24])
    np.testing.assert_allclose(frequencies[32], 0.001 * 41 / 68, rtol=1e-12)
    np.testing.assert_allclose(frequencies[40:], plain[40:] / 4, rtol=1e-12)


@pytest.mark.parametrize(
    ("factor", "expected"),
    # ln 4 = 1.386294, ln 8 = 2.079442, ln 16 = 2.772589, ln 64 = 4.158883
    [(0.5, 1), (1, 1), (4, 1.138629), (8, 1.207944), (16, 1.277259), (64, 1.415888)],
)
def test_attention_factor_worked_out_by_hand(factor: float, expected: float) -> None:
    assert attention_factor(factor) == pytest.approx(expected, abs=5e-7)
    if factor >= 1:
        assert Yarn(1e4, 64, 2048, factor).attention_scaling == attention_factor(factor)


def test_attention_factor_with_mscale_worked_out_by_hand() -> None:
    # s = 4: (0.2 ln 4 + 1) / (0.05 ln 4 + 1) = 1.277259 / 1.069315
    assert attention_factor(4, mscale=2, mscale_all_dim=0.5) == pytest.approx(1.194465, abs=1e-6)
    assert attention_factor(40, mscale=1, mscale_all_dim=1) == 1
    assert attention_factor(1, mscale=2, mscale_all_dim=0.5) == 1


@pytest.mark.parametrize(("mscale", "mscale_all_dim"), [(2, None), (None, 2), (0, 2), (2, 0)])
def test_one_mscale_alone_changes_nothing(
    mscale: float | None, mscale_all_dim: float | None
) -> None:
    assert attention_factor(8, mscale, mscale_all_dim) == attention_factor(8)


def test_a_given_attention_factor_overrides() -> None:
    assert Yarn(1e4, 64, 2048, 8, attention_factor=1.5).attention_scaling == 1.5


# --- properties --------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("rotary_size", [2, 80, 128])
def test_at_factor_one_it_is_plain_rope_exactly(theta: float, rotary_size: int) -> None:
    yarn = Yarn(theta, rotary_size, 4096, 1)
    np.testing.assert_array_equal(yarn.inv_freq(), rope_inv_freq(theta, rotary_size))
    assert yarn.attention_scaling == 1.0


def test_plain_rope_worked_out_by_hand() -> None:
    np.testing.assert_allclose(rope_inv_freq(10_000, 8), [1, 0.1, 0.01, 0.001], rtol=1e-14)


def test_frequencies_lie_between_interpolated_and_plain_and_fall() -> None:
    for truncate in (True, False):
        yarn = Yarn(5e5, 128, 8192, 16, truncate=truncate)
        plain, frequencies = rope_inv_freq(5e5, 128), yarn.inv_freq()
        assert (frequencies <= plain).all()
        assert (frequencies >= plain / 16 * (1 - 1e-12)).all()
        assert (np.diff(frequencies) < 0).all()
        assert (np.diff(yarn.ramp()) >= 0).all()


def test_the_oracle_loads_no_model_library() -> None:
    code = (
        "import sys, ryarn.yarn\n"
        "print(sorted({'torch', 'transformers', 'scipy'} & sys.modules.keys()))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"


# --- against transformers ----------------------------------------------------------------------


def transformers_yarn(yarn: Yarn, **more: float) -> tuple[np.ndarray, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=yarn.rotary_size,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=yarn.rotary_size,
        max_position_embeddings=int(yarn.original_length * yarn.factor),
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": yarn.theta,
            "factor": float(yarn.factor),
            "original_max_position_embeddings": yarn.original_length,
            "beta_fast": float(yarn.beta_fast),
            "beta_slow": float(yarn.beta_slow),
            "truncate": yarn.truncate,
            "attention_factor": yarn.attention_factor,
            **more,
        },
    )
    frequencies, scaling = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    return frequencies.double().numpy(), scaling


def assert_as_in_transformers(yarn: Yarn) -> None:
    """Equal within what float32 costs transformers.

    The exponent 2d/|D| in float32 costs up to ln(theta) / 2^24 = 8e-7 at theta 1e6, the power one
    more rounding: 1e-6 in all. On the ramp, 1 - ramp is rounded in float32 and then weighs
    frequencies up to s times larger than their sum: s / 2^23 on top.
    """
    theirs, scaling = transformers_yarn(yarn)
    ours, ramp = yarn.inv_freq(), yarn.ramp()
    on_ramp = (ramp > 0) & (ramp < 1)
    tolerance = 1e-6 + on_ramp * yarn.factor / 2**23
    assert (np.abs(theirs / ours - 1) < tolerance).all(), yarn
    assert scaling == pytest.approx(yarn.attention_scaling, rel=1e-15)


@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
@pytest.mark.parametrize("rotary_size", [32, 64, 80, 128, 256])
def test_grid_equals_transformers(theta: float, rotary_size: int) -> None:
    for length, factor, (fast, slow), truncate in itertools.product(
        (2048, 8192, 32_768), (1, 2, 4, 8, 40), ((32, 1), (16, 2), (8, 8)), (True, False)
    ):
        assert_as_in_transformers(
            Yarn(theta, rotary_size, length, factor, fast, slow, truncate=truncate)
        )


@pytest.mark.parametrize("case", BY_HAND)
def test_edge_cases_equal_transformers(case: str) -> None:
    assert_as_in_transformers(BY_HAND[case][0])


@pytest.mark.parametrize(
    "yarn",
    [
        Yarn(1e4, 16, 64, 4),  # a toy model: low is kept at 0
        Yarn(1e4, 16, 64, 4, truncate=False),
        Yarn(1e4, 16, 6, 4),  # both ends kept at 0: a step after the first dimension
        Yarn(1e4, 2, 2048, 4),  # a single dimension
        Yarn(1e6, 128, 40_960, 3.2),
        Yarn(1e4, 64, 4096, 16, attention_factor=0.9),
    ],
    ids=str,
)
def test_unusual_models_equal_transformers(yarn: Yarn) -> None:
    assert_as_in_transformers(yarn)


@pytest.mark.parametrize(("mscale", "all_dim"), [(1.0, 1.0), (0.707, 1.0), (1.0, 0.5), (0.0, 1.0)])
def test_mscale_equals_transformers(mscale: float, all_dim: float) -> None:
    _, scaling = transformers_yarn(Yarn(1e4, 64, 4096, 40), mscale=mscale, mscale_all_dim=all_dim)
    assert scaling == pytest.approx(attention_factor(40, mscale, all_dim), rel=1e-15)


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": 0.5}, "factor = 0.5: "),
        ({"factor": math.nan}, "factor = nan"),
        ({"factor": math.inf}, "factor = inf"),
        ({"theta": 1.0}, "theta = 1.0"),
        ({"theta": math.nan}, "theta = nan"),
        ({"rotary_size": 63}, "rotary_size = 63"),
        ({"rotary_size": 0}, "rotary_size = 0"),
        ({"original_length": 0}, "original_length = 0"),
        ({"beta_fast": 0.5}, "beta_slow = 1.0, beta_fast = 0.5"),
        ({"beta_slow": 0.0}, "beta_slow = 0.0"),
        ({"attention_factor": 0.0}, "attention_factor = 0.0"),
        ({"attention_factor": -1.0}, "attention_factor = -1.0"),
        # every dimension turns less than once, or more than 32 times: see Yarn.__post_init__
        ({"original_length": 1}, "original_length = 1 with theta"),
        ({"theta": 2.0, "rotary_size": 4}, "ramp outside"),
    ],
)
def test_numbers_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"theta": 1e4, "rotary_size": 64, "original_length": 4096, "factor": 4.0}
    Yarn(**good)
    with pytest.raises(UserError, match=message):
        Yarn(**{**good, **change})


@pytest.mark.parametrize(("theta", "rotary_size"), [(1.0, 8), (10_000, 7), (10_000, 0)])
def test_plain_rope_refuses_numbers_out_of_range(theta: float, rotary_size: int) -> None:
    with pytest.raises(UserError):
        rope_inv_freq(theta, rotary_size)
