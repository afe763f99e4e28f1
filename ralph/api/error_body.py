"""Makes errors from answers that contain no message. Such an answer is an HTTP error, a 2xx answer that is not an
event stream, or an error object. No I/O happens here.

This module reads the error objects of Anthropic, OpenAI, Azure, Google, Mistral, xAI, FastAPI and MiniMax, and the pages of proxies. It ignores fields of
the wrong type, whereas a typed decoder would reject the whole object. `http_error` and `not_a_stream` redact the
texts in their errors, and `stream_error` does not.

It also reads how long a server asks ralph to wait: in the headers, in the fields of the error, or in the words of its message.
Malformed values raise no error. `retry/backoff.py` decides how much of that a run waits.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.values.errors import (
    PERMANENT_KINDS,
    STATUS_OF_TYPE,
    AgentError,
    HttpError,
    StreamParse,
    StreamTransient,
    kind_of,
    status_meant,
    words_of,
)
from ralph.values.refusals import ACCOUNT_CODES, REFUSAL_CODES, Account, exhausted_account, window_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_MINIMAX_STATUS = {
    **dict.fromkeys((1000, 1024, 1033), 500),
    **dict.fromkeys((1002, 1039, 2045, 2056), 429),
    **dict.fromkeys((1004, 2049), 401),
    1001: 504,
    1008: 402,
    2013: 400,
}
"""The HTTP status that MiniMax's `base_resp.status_code` means. The vendor's page of error codes lists them
(platform.minimax.io/docs/api-reference/errorcode). They come with status 200."""


def out_of_list(value: object) -> object:
    """The error object in a list of one, in which Gemini's compatible endpoint sends it (Simpleyyt/ai-manus#101).
    Any other value is returned as it is.
    """
    is_listed = isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict)
    return value[0] if is_listed and isinstance(value, list) and "error" in value[0] else value


def reports_error(value: object) -> bool:
    """Whether the decoded body of a 2xx answer is an error object. `value` may be anything."""
    return isinstance(value, dict) and bool(
        value.get("error")
        or "error" in (value.get("type"), value.get("object"))
        or _minimax_code(value)
        # z.ai, of a refused key.
        or (value.get("success") is False and str(value.get("code")).startswith("4"))
    )


def _minimax_code(value: dict[str, Any]) -> int:
    base = value.get("base_resp")
    code = base.get("status_code") if isinstance(base, dict) else 0
    return code if isinstance(code, int) else 0


def stream_error(event: dict[str, Any], now: datetime | None = None) -> AgentError:
    """The error that the server reports in an `error` event, or in an error object in a 2xx body. `now` serves to
    compute the wait if the error names the time at which an exhausted account is filled again.

    The error is StreamParse if it is permanent, otherwise StreamTransient. A known error code or message, such as a
    spend limit, decides first, then `error.type`, and for an unknown type the HTTP status in the field `code`.
    Without a field `error`, the whole event is the error.
    """
    is_whole = event.get("error") or event.get("object") == "error" or _minimax_code(event)
    fields = error_fields(event if is_whole else {"error": event})
    message = fields.message or str(event.get("error") or "the server reported an error without a message")
    account = exhausted_account((fields.type, fields.code), message)
    own_status = fields.status or (402 if account is not None else None)
    wait_s = None
    if account is not None and now is not None:
        wait_s = requested_wait_s({}, now, own_status, body=event, message=message, account=account)
    status = status_meant(fields.type, own_status)
    is_permanent = kind_of(status, fields.type, fields.code, message, wait_s) in PERMANENT_KINDS
    if is_permanent and status is None:
        own_status = 400  # a known text has told that the request was refused
    error = (StreamParse if is_permanent else StreamTransient)(
        message, fields.type, fields.code, fields.request_id, own_status
    )
    error.retry_after = wait_s
    return error


class ErrorFields(Struct, frozen=True):
    """The fields of a server's error object. A field is None if the object does not contain it."""

    type: str | None = None
    code: str | None = None
    """The API's `details.error_code`. If it is missing, the field `code`, but only if it is in `ACCOUNT_CODES` or
    `REFUSAL_CODES`."""
    status: int | None = None
    """The HTTP status, if the server wrote it into one of `_STATUS_FIELDS`, or the error's code has one."""
    message: str | None = None
    request_id: str | None = None


def error_fields(value: object) -> ErrorFields:
    """Reads the fields of an error object. The object may have one of these forms: `{"error": {...}}` (Anthropic,
    OpenAI), `{"error": "text"}`, `{"object": "error", ...}` (Mistral, vLLM),
    `{"code": ..., "message": ...}` (DashScope), `{"code": ..., "error": "text"}` (xAI), `{"detail": ...}` or `{"base_resp": {...}}`
    (MiniMax).

    `value` is the decoded body, without the list of `out_of_list`. If it is not an object, all fields are None. Never raises an exception.
    """
    if not isinstance(value, dict):
        return ErrorFields()
    error = value.get("error")
    fields: dict[str, Any] = error if isinstance(error, dict) else {}
    if value.get("object") == "error":
        fields = value
    details = fields.get("details")
    holder = fields or value
    codes = [str(holder.get("code")), *_reasons(details)]
    api_code = details.get("error_code") if isinstance(details, dict) else None
    known = (code for code in codes if code in ACCOUNT_CODES | REFUSAL_CODES)
    statuses = (str(holder.get(name)) for name in _STATUS_FIELDS)
    status = next((int(one) for one in statuses if re.fullmatch(r"[1-5]\d\d", one)), None)
    return ErrorFields(
        type=_text_or_none(fields.get("type")) or _text_or_none(fields.get("status")),
        code=_text_or_none(api_code) or next(known, None),
        status=status or _MINIMAX_STATUS.get(_minimax_code(value)) or STATUS_OF_TYPE.get(codes[0]),
        message=_sentence(value),
        request_id=_text_or_none(value.get("request_id")),
    )


_STATUS_FIELDS = ("code", "status", "status_code", "raw_status_code")
"""The fields in which servers write the HTTP status: LiteLLM and Azure as text, Groq and Mistral in fields of its own."""


def _reasons(details: object) -> list[str]:
    """The reasons in Google's `details` of an error, such as `API_KEY_INVALID` (google.rpc.ErrorInfo)."""
    entries = details[:5] if isinstance(details, list) else ()
    return [str(entry["reason"]) for entry in entries if isinstance(entry, dict) and "reason" in entry]


def _sentence(value: object, depth: int = 4) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    if depth == 0:
        return None
    if isinstance(value, list):  # FastAPI: one entry for each field that is wrong
        return "; ".join(filter(None, (_sentence(entry, depth - 1) for entry in value[:5]))) or None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("msg"), str):
        place = value.get("loc")
        where = ".".join(map(str, place)) if isinstance(place, list) else ""
        return f"{where}: {value['msg']}" if where else value["msg"]
    found = (
        _sentence(value.get(name), depth - 1)
        for name in ("error", "message", "detail", "base_resp", "status_msg")
    )
    sentence = next(filter(None, found), None)
    cause = _cause_behind(value.get("metadata"))
    return f"{sentence}: {cause}" if sentence and cause else sentence


def _cause_behind(metadata: object) -> str | None:
    """The message of the server behind OpenRouter, or None. OpenRouter's own is only "Provider returned error"."""
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if not isinstance(raw, str):
        return None
    return (error_fields(_decoded(raw)).message or raw.strip())[:_LONGEST_CAUSE] or None


_LONGEST_CAUSE = 1_000
"""In characters. Some servers repeat the request in their message."""


def _text_or_none(value: object) -> str | None:
    # Some servers in Python write None as "None"; "error" is the type of the event.
    return value if isinstance(value, str) and value not in {"", "None", "error"} else None


_TITLE = r"(?is:<title[^>]*>(.*?)</title)"
_SHOULD_RETRY = {"true": True, "false": False}


def http_error(
    status: int, headers: Mapping[str, str], body: bytes, now: datetime, redact: Callable[[str], str]
) -> HttpError:
    """The error for an answer whose status is not 2xx. The names in `headers` are in lower case, or `headers`
    ignores case. `body` may be incomplete. `now` is the current time, which is needed if `Retry-After` is a date.
    """

    def cut(text: str | None) -> str | None:
        return text and redact(text)

    raw = body.decode("utf-8", "replace")
    # Decoded before it is cut: the escapes of JSON may break a credential apart.
    value = _decoded(raw)
    fields = error_fields(value)
    text, message = redact(raw), cut(fields.message)
    words = words_of(message, text)
    account = exhausted_account((fields.type, fields.code), words)
    wait_s = requested_wait_s(headers, now, status, body=value, message=words, account=account)
    location = headers.get("location")
    if 300 <= status < 400 and location:
        message = f"redirect to {redact(location)}, not followed: it would take the key elsewhere"
    return HttpError(
        status,
        wait_s,
        text,
        error_type=cut(fields.type),
        error_code=cut(fields.code),
        message=message,
        request_id=request_id_of(headers, redact) or cut(fields.request_id),
        should_retry=_SHOULD_RETRY.get(headers.get("x-should-retry", "").lower()),
    )


def request_id_of(headers: Mapping[str, str], redact: Callable[[str], str]) -> str | None:
    return redact(headers.get("request-id") or headers.get("x-request-id") or "") or None


def not_a_stream(host: str, content_type: str, body: bytes, redact: Callable[[str], str]) -> StreamParse:
    """The error for a 2xx answer that contains neither a stream nor a message, for example the login page of a
    public network. Its message quotes the content type, the page's title and the beginning of the text.
    """
    text = redact(body.decode("utf-8", "replace"))
    kind = redact(content_type)[:100] or "no content type"
    title = re.search(_TITLE, text)
    page = f', page title "{" ".join(title[1].split())[:100]}"' if title else ""
    start = " ".join(text.split())[:200]
    return StreamParse(f"{host} answered with {kind}{page}, not an event stream: {start}")


def _decoded(text: str) -> object:
    """The decoded body of an error, without the list of `out_of_list`. None if the body is incomplete or not JSON."""
    try:
        return out_of_list(json.loads(text))
    except (ValueError, RecursionError):
        return None


# --- How long the server asks ralph to wait

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
