"""Reads the headers of an answer, and computes how long the server asks ralph to wait. Malformed headers raise no
error.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RATE_LIMITED = 429
# About three centuries. Without this limit, a header of 35 digits would lead to numbers that are too large to add.
LONGEST_REQUESTED_S = 1e10
# A number in a reset header that would be a delay of more than a year is a Unix time.
_LONGEST_DELAY_S = 365 * 86400.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def requested_wait_s(headers: Mapping[str, str], now: datetime, status: int) -> float | None:
    """The number of seconds, counted from `now`, for which the server asks ralph to wait. It is 0 or more. None if
    the server does not ask for a wait.

    `headers` has lower-case names, and `now` has a time zone. If the answer has a `date` header, that date replaces
    `now`, because the local clock may be hours off. `retry-after-ms` takes precedence over `retry-after`, which is a
    number of seconds or an HTTP date. If both headers are missing, the wait lasts until all exhausted rate limits
    have been reset. A limit that is not exhausted did not cause this failure, so its reset is ignored.
    """
    now = _http_date(headers.get("date", "")) or now
    if "retry-after-ms" in headers or "retry-after" in headers:
        milliseconds = _number(headers.get("retry-after-ms", ""))
        if milliseconds is not None:
            return _bounded(milliseconds / 1000)
        return _delay_or_date(headers.get("retry-after", ""), now)
    waits_s = _exhausted_limits(headers, now, is_limited=status == RATE_LIMITED)
    # `x-ratelimit-*` headers describe a single limit, so a 429 is about that limit.
    if status == RATE_LIMITED or _is_used_up(headers, "x-ratelimit"):
        waits_s.append(_reset(headers.get("x-ratelimit-reset-ms", ""), now, unit_s=0.001))
        waits_s.append(_reset(headers.get("x-ratelimit-reset", ""), now, unit_s=1.0))
    return max((wait_s for wait_s in waits_s if wait_s is not None), default=None)


def _exhausted_limits(headers: Mapping[str, str], now: datetime, *, is_limited: bool) -> list[float | None]:
    """For each exhausted `anthropic-ratelimit-*` limit, the seconds until it is reset. None in place of a malformed
    time.

    A limit is exhausted if its `-remaining` header says that nothing remains. If the status is 429 (`is_limited`), a
    limit without this header is treated as exhausted too.
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
    """The date and time of an HTTP date, with a time zone. None if the text has none of the three forms of RFC 9110. The
    module `email.utils` reads more forms, but takes 5 ms of each start.
    """
    match value.replace("-", " ").split():
        case [_, day, month, year, time, "GMT"] | [_, month, day, time, year]:
            pass
        case _:
            return None
    try:
        century = 0 if len(year) > 2 else 1900 if int(year) > 68 else 2000
        hour, minute, second = map(int, time.split(":"))
        month_number = _MONTHS.index(month) + 1
        return datetime(century + int(year), month_number, int(day), hour, minute, second, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _reset(value: str, now: datetime, unit_s: float) -> float | None:
    """The seconds until a limit is reset, or None if the header's value is malformed or negative. `value` is a
    number, or a date and time. A number is a delay or a Unix time, in units of `unit_s` seconds.
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
    """The seconds until `moment`, or 0 if `moment` has passed. None if the difference is too large to compute."""
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
    """The number of seconds, but at most `LONGEST_REQUESTED_S`. None if the number is negative, because a negative wait
    makes no sense.
    """
    if seconds < 0:
        return None
    return min(seconds, LONGEST_REQUESTED_S)
