"""Makes errors from answers that contain no message. Such an answer is an HTTP error, a 2xx answer that is not an
event stream, or an error object. No I/O happens here.

This module reads the error objects of Anthropic, OpenAI, Azure, Google, Mistral, xAI, FastAPI and MiniMax, and the pages of proxies. It ignores fields of
the wrong type, whereas a typed decoder would reject the whole object. `http_error` and `not_a_stream` redact the
texts in their errors, and `stream_error` does not.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.api.retry_after import requested_wait_s
from ralph.values.classify import PERMANENT_KINDS, STATUS_OF_TYPE, kind_of, status_meant, words_of
from ralph.values.errors import AgentError, HttpError, StreamParse, StreamTransient
from ralph.values.servers.refusals import ACCOUNT_CODES, REFUSAL_CODES, exhausted_account

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime


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
