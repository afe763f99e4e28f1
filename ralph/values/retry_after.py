"""Reads from an answer's headers how long the server asks ralph to wait. Never raises, whatever the headers hold."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RATE_LIMITED = 429
# This is about three centuries; it keeps arithmetic on a 35-digit header finite.
LONGEST_WISH_S = 1e10
# A reset header over a year ahead is no delay but a Unix time.
_LONGEST_DELAY_S = 365 * 86400.0


def requested_wait_s(headers: Mapping[str, str], now: datetime, status: int) -> float | None:
    """The wait that the server requests, in seconds from `now` (aware), 0 or more; None: it requests none.

    `headers` has lower-case names. `retry-after-ms` wins over `retry-after` (seconds as integer or float, or an HTTP
    date). Only if both are absent, the longest wait for a rate-limit reset counts, and only for limits that are
    exhausted: the others say nothing about this failure. If the answer has a `date`, it replaces `now`, because the
    local clock may be hours off.
    """
    now = _http_date(headers.get("date", "")) or now
    if "retry-after-ms" in headers or "retry-after" in headers:
        milliseconds = _number(headers.get("retry-after-ms", ""))
        if milliseconds is not None:
            return _bounded(milliseconds / 1000)
        return _delay_or_date(headers.get("retry-after", ""), now)
    waits_s = _exhausted_limits(headers, now, is_limited=status == RATE_LIMITED)
    # One limit, so a 429 is about it.
    if status == RATE_LIMITED or _is_used_up(headers, "x-ratelimit"):
        waits_s.append(_reset(headers.get("x-ratelimit-reset-ms", ""), now, unit_s=0.001))
        waits_s.append(_reset(headers.get("x-ratelimit-reset", ""), now, unit_s=1.0))
    return max((wait_s for wait_s in waits_s if wait_s is not None), default=None)


def _exhausted_limits(headers: Mapping[str, str], now: datetime, *, is_limited: bool) -> list[float | None]:
    """The seconds until the exhausted `anthropic-ratelimit-*` limits are reset.

    A limit is exhausted if its header says that nothing remains. After a 429 (`is_limited`), a limit without such a
    header counts as exhausted too.
    """
    waits_s = []
    for name, value in headers.items():
        if name.startswith("anthropic-ratelimit-") and name.endswith("-reset"):
            limit = name.removesuffix("-reset")
            if _is_used_up(headers, limit) or (is_limited and f"{limit}-remaining" not in headers):
                waits_s.append(_rfc3339(value, now))
    return waits_s


def _is_used_up(headers: Mapping[str, str], limit: str) -> bool:
    remaining = _number(headers.get(f"{limit}-remaining", ""))
    return remaining is not None and remaining <= 0


def _delay_or_date(value: str, now: datetime) -> float | None:
    seconds = _number(value)
    if seconds is not None:
        return _bounded(seconds)
    moment = _http_date(value)
    return None if moment is None else _until(moment, now)


def _http_date(value: str) -> datetime | None:
    """The moment that an HTTP date names, aware; None: the text is no date."""
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return _aware(moment)


def _reset(value: str, now: datetime, unit_s: float) -> float | None:
    """The seconds until a limit is reset.

    The header holds a delay or a Unix time, in units of `unit_s`, or a date and time.
    """
    number = _number(value)
    if number is None:
        return _rfc3339(value, now)
    seconds = number * unit_s
    return _bounded(max(0.0, seconds - now.timestamp()) if seconds > _LONGEST_DELAY_S else seconds)


def _rfc3339(value: str, now: datetime) -> float | None:
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return _until(moment, now)


def _until(moment: datetime, now: datetime) -> float | None:
    """Seconds until a moment. A moment that has passed gives 0: the request may be sent again at once."""
    try:
        return _bounded(max(0.0, (_aware(moment) - now).total_seconds()))
    except OverflowError:
        return None


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bounded(seconds: float) -> float | None:
    """The seconds, at most `LONGEST_WISH_S`; None: the number is negative, which makes no sense."""
    if seconds < 0:
        return None
    return min(seconds, LONGEST_WISH_S)
