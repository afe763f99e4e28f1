"""Reads answers that are not a message: an HTTP error, or a 2xx that is no event stream.

It reads the bodies of any server: Anthropic's error object, OpenAI's, a proxy's page. All texts in its errors are
redacted.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ralph.api.error_body import ErrorFields, error_fields
from ralph.values.errors import HttpError, StreamParse
from ralph.values.retry_after import requested_wait_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

_TITLE = r"(?is:<title[^>]*>(.*?)</title)"
_SHOULD_RETRY = {"true": True, "false": False}


def http_error(
    status: int, headers: Mapping[str, str], body: bytes, now: datetime, redact: Callable[[str], str]
) -> HttpError:
    """The error of an answer outside 2xx. `headers` finds names in lower case; `body` may be cut."""
    text = redact(body.decode("utf-8", "replace"))
    fields = _error_fields(text)
    message = fields.message
    location = headers.get("location")
    if 300 <= status < 400 and location:
        message = f"redirect to {redact(location)}, not followed: it would take the key elsewhere"
    return HttpError(
        status,
        requested_wait_s(headers, now, status),
        text,
        error_type=fields.type,
        error_code=fields.code,
        message=message,
        request_id=request_id_of(headers) or fields.request_id,
        should_retry=_SHOULD_RETRY.get(headers.get("x-should-retry", "").lower()),
    )


def request_id_of(headers: Mapping[str, str]) -> str | None:
    return headers.get("request-id") or headers.get("x-request-id")


def not_a_stream(host: str, content_type: str, body: bytes, redact: Callable[[str], str]) -> StreamParse:
    """The error for a 2xx of another kind, a captive portal's page for example: its type, its title and its
    beginning.
    """
    text = redact(body.decode("utf-8", "replace"))
    kind = redact(content_type)[:100] or "no content type"
    title = re.search(_TITLE, text)
    page = f', page title "{" ".join(title[1].split())[:100]}"' if title else ""
    start = " ".join(text.split())[:200]
    return StreamParse(f"{host} answered with {kind}{page}, not an event stream: {start}")


def _error_fields(text: str) -> ErrorFields:
    """The fields of an error's body; empty if it is no JSON, or cut."""
    try:
        return error_fields(json.loads(text))
    except (ValueError, RecursionError):
        return ErrorFields()
