"""Reads how long a server asks ralph to wait: in the headers of an answer, in the fields of its error, or in the words of the
error's message. Malformed values raise no error. `retry/backoff.py` decides how much of that a run waits.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ralph.values.servers.refusals import Account, window_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


RATE_LIMITED = 429
# About three centuries. Without this limit, a header of 35 digits would lead to numbers that are too large to add.
LONGEST_REQUESTED_S = 1e10
# A number that would be a delay of more than a year is a Unix time, and a larger one is a Unix time in milliseconds.
_LONGEST_DELAY_S = 365 * 86400.0
_LARGEST_UNIX_TIME_S = 1e11
_LONGEST_VALUE = 200
"""A longer value names no time. The limit keeps the search for repetitions short."""

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"  # RFC 9110, 10.2.3, and fractions, which some servers send
# `6m0s` in OpenAI's headers, `34.5s` in Google's RetryInfo, `5 days 22 hours` in messages.
_PART = rf"({_NUMBER})\s*(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)(?![a-z])[\s,]*"
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DATE = r"\d{4}-\d\d-\d\d(?:(?:T| at | )\d\d:\d\d(?::\d\d(?:\.\d+)?)?\s?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)?)?"
_SAID = (
    r"(?:\bresets?|\bregain access|\btry again|\bretry)\s+(?:at|on|in|after):?\s+"
    rf"(?:(?P<date>{_DATE})|(?P<delay>(?:{_PART})+))"
    r"|usage limit reached\|(?P<unix>[0-9]{10})\b"
)

_RESET = r"(?P<limit>anthropic-ratelimit-.+|(?:x-)?ratelimit)-reset(?P<unit>-ms)?(?P<what>-[a-z-]+)?"
"""The headers that say when a limit is reset: Anthropic's for each limit, `ratelimit-reset` of the IETF's draft, and
`x-ratelimit-reset`, which OpenAI sends for each limit too."""

_ENDED_LIMIT = r";\s*r=0+(?![0-9])[^,]*?;\s*t=([0-9]+)"
"""A limit without remainder in the field `RateLimit` of the IETF's newer draft: `"default";r=0;t=45`. Cloudflare sends it."""

_FIELDS_S = {
    "retryafter": 1.0,
    "retryafters": 1.0,
    "retryafterseconds": 1.0,
    "retryafterms": 0.001,
    "retrydelay": 1.0,  # google.rpc.RetryInfo
    "resetsinseconds": 1.0,
    "resetsat": 1.0,
    "resetat": 1.0,
}
"""The fields of an error that hold a time, without `_` and in lower case, with the seconds in one unit."""
_HOLDERS = ("error", "details", "detail", "metadata")
"""The fields of an error that hold such fields, at most `_DEEPEST` levels below each other."""
_DEEPEST = 4


def requested_wait_s(
    headers: Mapping[str, str],
    now: datetime,
    status: int | None,
    *,
    body: object = None,
    message: str = "",
    account: Account | None = None,
) -> float | None:
    """The number of seconds, counted from `now`, for which the server asks ralph to wait, 0 or more. None if it
    does not ask for a wait.

    `headers` has lower-case names, and `now` has a time zone. A `date` header replaces `now`, because the local
    clock may be hours off. `body` is the decoded body, and `message` the error's text.

    `retry-after-ms` takes precedence over `retry-after`, both over the other headers, and headers over the body.
    `account` is the exhausted account that the error is about, or None. Then the longest time counts, because a
    gateway's own header does not know of the account. If no time is named, the length of the account's window
    counts.
    """
    if account is not None and not account.is_refilled:
        return None
    now = _http_date(_once(headers.get("date", "")[:_LONGEST_VALUE])) or now
    zone = timezone(timedelta(hours=account.utc_offset_h)) if account is not None else UTC
    in_headers = _in_headers(headers, now, is_limited=status == RATE_LIMITED or account is not None)
    if account is None and in_headers is not None:
        return in_headers
    told_s = (in_headers, *_in_fields(body, now, zone), *_in_words(message, now, zone))
    window = None if account is None else window_s(account, message)
    return max((one_s for one_s in told_s if one_s is not None), default=window)


def _in_headers(headers: Mapping[str, str], now: datetime, *, is_limited: bool) -> float | None:
    """The wait that headers ask for. It lasts until all exhausted limits have been reset, if no header names the wait
    itself. A limit that is not exhausted did not cause this failure, so its reset is ignored.
    """
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (wait_s := _wait_s(headers.get(name, ""), now, unit_s)) is not None:
            return wait_s
    ended = re.findall(_ENDED_LIMIT, headers.get("ratelimit", "")[:_LONGEST_VALUE])
    waits_s = [_wait_s(seconds, now) for seconds in ended]
    for name, value in headers.items():
        found = re.fullmatch(_RESET, name)
        if found is not None and _is_exhausted(headers, found["limit"], found["what"] or "", is_limited):
            waits_s.append(_wait_s(value, now, unit_s=0.001 if found["unit"] else 1.0))
    return max((wait_s for wait_s in waits_s if wait_s is not None), default=None)


def _is_exhausted(headers: Mapping[str, str], limit: str, what: str, is_limited: bool) -> bool:
    """Whether a limit has caused this failure. `is_limited` is True if some limit has. A limit whose state no header tells is
    then taken for that one, and so is a limit without a name: it is the only one.
    """
    status, remaining = headers.get(f"{limit}-status"), headers.get(f"{limit}-remaining{what}")
    if status is not None:  # Anthropic's subscriptions
        return status == "rejected"
    is_alone = not what and limit.endswith("ratelimit")
    if remaining is None or (is_alone and is_limited):
        return is_limited
    return re.fullmatch(r"-.*|0+(?:\.0+)?(?:\s*,.*)?", remaining.strip()) is not None


def _in_fields(value: object, now: datetime, zone: timezone, depth: int = _DEEPEST) -> Iterator[float | None]:
    """Yields the waits in the fields of a decoded body, and None for each field that names none."""
    if depth == 0:
        return
    if isinstance(value, list):
        for entry in value[:5]:
            yield from _in_fields(entry, now, zone, depth - 1)
    if not isinstance(value, dict):
        return
    for name, field in value.items():
        unit_s = _FIELDS_S.get(str(name).replace("_", "").lower())
        if unit_s is not None and isinstance(field, str | int | float) and not isinstance(field, bool):
            yield _wait_s(str(field), now, unit_s, zone)
    headers = value.get("headers")
    if isinstance(headers, dict):  # OpenRouter repeats those of the server behind it
        texts = {str(name).lower(): str(text) for name, text in headers.items()}
        yield _in_headers(texts, now, is_limited=True)
    for name in _HOLDERS:
        yield from _in_fields(value.get(name), now, zone, depth - 1)


def _in_words(message: str, now: datetime, zone: timezone) -> Iterator[float | None]:
    """Yields the waits in the words of a message, such as `resets at 2026-05-15T15:00:00Z` or `try again in 6m0s`, and None for
    each that cannot be read.
    """
    for found in re.finditer(_SAID, message, re.IGNORECASE | re.ASCII):
        told = found["date"] or found["unix"] or found["delay"]
        yield _wait_s(told.replace(" at ", " "), now, zone=zone)


def _wait_s(value: str, now: datetime, unit_s: float = 1.0, zone: timezone = UTC) -> float | None:
    """The seconds from `now` that one value means: a number of units, a Unix time, a duration such as `6m0s`, or a date. A date
    without a time zone is one of `zone`. None if the value is none of these.
    """
    if len(value) > _LONGEST_VALUE or not value.isascii() or "_" in value:
        return None
    text = _once(value)
    if re.fullmatch(_NUMBER, text):
        number_s = float(text) * unit_s
        if number_s > _LARGEST_UNIX_TIME_S:
            number_s /= 1000
        return _bounded(number_s - now.timestamp() if number_s > _LONGEST_DELAY_S else number_s)
    if re.fullmatch(rf"(?:{_PART})+", text, re.IGNORECASE):
        return _duration_s(text)
    moment = _http_date(text) or _iso_date(text)
    return None if moment is None else _until(moment if moment.tzinfo else moment.replace(tzinfo=zone), now)


def _once(value: str) -> str:
    """The value, without its repetitions: a field that was sent twice arrives as both values, joined by a comma."""
    found = re.fullmatch(r"(.+?)(?:\s*,\s*\1)+", value.strip())
    return found[1] if found is not None else value.strip()


def _duration_s(text: str) -> float:
    return _bounded(
        sum(
            float(number) * (0.001 if unit.lower().startswith(("ms", "mil")) else _UNITS_S[unit[0].lower()])
            for number, unit in re.findall(_PART, text, re.IGNORECASE)
        )
    )


def _http_date(value: str) -> datetime | None:
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - few runs wait for a server, and it takes 5 ms

    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None and value[-1:].isdigit():  # the form of asctime, which names no zone
        return moment.replace(tzinfo=UTC)
    return moment if moment.tzinfo else None


def _iso_date(value: str) -> datetime | None:
    try:
        return datetime.fromisoformat(re.sub(r"\s?(?:UTC|GMT|Z)$", "+00:00", value))
    except ValueError:
        return None


def _until(moment: datetime, now: datetime) -> float | None:
    """The seconds until `moment`, or 0 if `moment` has passed. None if the difference is too large to compute."""
    try:
        return _bounded((moment - now).total_seconds())
    except OverflowError:
        return None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_REQUESTED_S)
