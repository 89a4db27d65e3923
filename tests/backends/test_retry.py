"""Pauses between tries: growing, spread, bounded, and as the server asks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ryarn.backends.retry import LONGEST, PATIENCE, may_pass, pause, retry_after


def test_pauses_double_up_to_a_limit():
    assert [pause(n, None, 0.0) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert pause(5000, None, 0.0) == LONGEST


def test_jitter_spreads_over_half_of_the_pause():
    assert pause(4, None, 0.5) == 6
    assert pause(4, None, 0.999) == pytest.approx(4, abs=0.01)


def test_what_the_server_asks_for_is_never_undercut():
    assert [pause(1, 20.0, jitter) for jitter in (0.0, 0.25)] == [20, 20.25]
    assert pause(9, 0.0, 0.5) == 0.5
    assert pause(1, PATIENCE, 0.0) == PATIENCE
    assert pause(1, PATIENCE + 1, 0.0) is None
    assert pause(1, float("inf"), 0.0) is None


NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "5"}, 5),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30"}, 30),
        ({"retry-after": "Thu, 01 Jan 2026 13:00:10 +0100"}, 10),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0),
        ({"retry-after-ms": "1500", "retry-after": "60"}, 1.5),
        ({"retry-after-ms": "", "retry-after": "60"}, 60),
    ],
)
def test_retry_after(headers, seconds):
    assert retry_after(headers, NOW) == seconds


def test_which_statuses_may_pass():
    passing = [code for code in range(100, 600) if may_pass(code)]
    assert passing == [408, 409, 429, *range(500, 600)]
