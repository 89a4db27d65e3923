"""Curriculum: the right span at every step, in whole numbers."""

from __future__ import annotations

import pytest

from ryarn.curriculum import Curriculum
from ryarn.errors import UserError

PAPER = Curriculum((8192, 10240, 12288, 16384, 16384))


def spans_by_step(curriculum: Curriculum, total_steps: int) -> list[int]:
    return [curriculum.span(step, total_steps) for step in range(total_steps)]


@pytest.mark.parametrize("steps_per_epoch", [1, 3, 7, 1000])
def test_with_one_span_an_epoch_it_changes_exactly_at_epoch_borders(steps_per_epoch: int) -> None:
    expected = [span for span in PAPER.spans for _ in range(steps_per_epoch)]
    assert spans_by_step(PAPER, len(expected)) == expected


def test_borders_stay_exact_where_floating_point_would_not() -> None:
    # 2**53 + 1 is the first whole number that float64 lacks.
    per_epoch = 2**53 + 1
    for epoch in range(1, 5):
        assert PAPER.span(epoch * per_epoch, 5 * per_epoch) == PAPER.spans[epoch]
        assert PAPER.span(epoch * per_epoch - 1, 5 * per_epoch) == PAPER.spans[epoch - 1]


def test_fractional_epochs_share_the_steps_out() -> None:
    # 2.5 epochs of 4 steps, 3 spans: step * 3 // 10
    assert spans_by_step(Curriculum((1, 2, 3)), 10) == [1, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_fewer_steps_than_spans_still_grow() -> None:
    assert spans_by_step(PAPER, 2) == [8192, 12288]
    assert spans_by_step(PAPER, 1) == [8192]


def test_past_the_end_the_last_span_holds() -> None:
    curriculum = Curriculum((10, 20))
    assert [curriculum.span(step, 4) for step in (3, 4, 5, 400)] == [20, 20, 20, 20]


@pytest.mark.parametrize(("step", "total_steps"), [(-1, 10), (0, 0), (0, -1)])
def test_impossible_progress_is_refused(step: int, total_steps: int) -> None:
    with pytest.raises(UserError, match=f"step = {step} of total_steps = {total_steps}"):
        PAPER.span(step, total_steps)


def test_decreasing_spans_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="spans decreases from 12288 to 10240"):
        Curriculum((8192, 12288, 10240, 16384))


@pytest.mark.parametrize(
    ("spans", "message"),
    [((), "spans is empty"), ((0, 1), "spans holds 0"), ((-8, 1), "spans holds -8")],
)
def test_unusable_spans_are_refused(spans: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Curriculum(spans)


@pytest.mark.parametrize(
    ("arguments", "spans"),
    [
        ((8192, 16384, 5, "linear"), (8192, 10240, 12288, 14336, 16384)),
        ((8192, 131072, 5, "geometric"), (8192, 16384, 32768, 65536, 131072)),
        ((8192, 16384, 3, "constant"), (16384, 16384, 16384)),
        # between the ends, the nearest whole token: 10 + 1.25 i, and 10 * 2 ** (i / 4)
        ((10, 15, 5, "linear"), (10, 11, 13, 14, 15)),
        ((10, 20, 5, "geometric"), (10, 12, 14, 17, 20)),
        ((8, 16, 2, "linear"), (8, 16)),
        ((8, 16, 2, "geometric"), (8, 16)),
        ((8, 8, 3, "linear"), (8, 8, 8)),
        ((8, 8, 1, "geometric"), (8,)),
        ((8, 16, 1, "constant"), (16,)),
    ],
)
def test_ramp(arguments: tuple[int, int, int, str], spans: tuple[int, ...]) -> None:
    start, end, epochs, shape = arguments
    assert Curriculum.ramp(start, end, epochs, shape) == Curriculum(spans)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ["linear", "geometric"])
@pytest.mark.parametrize("epochs", [2, 3, 10, 97])
@pytest.mark.parametrize(("start", "end"), [(1, 2), (7, 1000), (8191, 2**31), (2**31 - 1, 2**31)])
def test_ramp_keeps_its_ends_and_never_falls(shape: str, epochs: int, start: int, end: int) -> None:
    spans = Curriculum.ramp(start, end, epochs, shape).spans  # type: ignore[arg-type]
    assert len(spans) == epochs
    assert (spans[0], spans[-1]) == (start, end)
    assert list(spans) == sorted(spans)
    assert all(type(span) is int for span in spans)


def test_ramp_is_linear_unless_told() -> None:
    assert Curriculum.ramp(10, 30, 3).spans == (10, 20, 30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8, 3, "linear"), "start = 0"),
        ((8, 16, 0, "linear"), "epochs = 0"),
        ((16, 8, 3, "constant"), "end = 8 is below start = 16"),
        ((8, 16, 1, "linear"), "epochs = 1 has no room"),
        ((8, 16, 3, "cubic"), "shape = 'cubic'"),
        ((8, 8, 3, "cubic"), "shape = 'cubic'"),
    ],
)
def test_unusable_ramps_are_refused(arguments: tuple[int, int, int, str], message: str) -> None:
    start, end, epochs, shape = arguments
    with pytest.raises(UserError, match=message):
        Curriculum.ramp(start, end, epochs, shape)  # type: ignore[arg-type]
