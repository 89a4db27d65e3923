"""How long to wait before a request is sent again: longer each time, jittered, or as asked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

FIRST, LONGEST = 1.0, 60.0
"""Seconds before the second try, doubled for each further one, and their upper limit."""
PATIENCE = 300.0
"""Seconds that a server may ask for; of one that asks for more, the row fails."""
RETRIED = frozenset({408, 409, 429})
"""HTTP statuses that may pass by themselves, beside all from 500 on."""


def may_pass(status: int) -> bool:
    """Whether the same request may fare better later."""
    return status in RETRIED or status >= 500


def pause(failures: int, asked: float | None, jitter: float) -> float | None:
    """Seconds until the next try; None if the server asks for more than our patience.

    Requests that failed together should not come back together, so the pause is spread: over half
    of the back-off, or over a second on top of what was asked for.

    Args:
        failures: Tries that have failed, from 1.
        asked: The server's `Retry-After` in seconds.
        jitter: Uniform in [0, 1).
    """
    if asked is not None:
        return None if asked > PATIENCE else asked + jitter
    return min(LONGEST, FIRST * 2.0 ** min(failures - 1, 9)) * (1 - jitter / 2)


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """What a response asks for, in seconds: a number or a date (RFC 9110, section 10.2.3).

    Args:
        headers: The response's, of any case where the mapping knows how to compare.
        now: The present; by default the clock's.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        try:
            seconds = float(text) * unit
        except ValueError:
            continue
        # Neither nan nor less than nothing is an answer.
        return seconds if seconds >= 0 else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    # A date without a zone is one of GMT.
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())
