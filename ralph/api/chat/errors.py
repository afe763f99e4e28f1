"""Recognises errors inside an answer of Chat Completions. `api/error_body.py` reads their fields. No I/O happens here."""

from __future__ import annotations

from typing import Any

from ralph.api.error_body import reports_error

_ENDED_BY_ERROR = {
    "error": "api_error",
    "network_error": "api_error",
    "insufficient_system_resource": "overloaded_error",
}
"""The values of `finish_reason` that end an answer early, with the type of error that each means: OpenRouter's, z.ai's and
DeepSeek's.
"""


def error_event(event: dict[str, Any]) -> dict[str, Any] | None:
    """The `error` event of the Messages API for an event that reports an error, in whatever form. None for any other event."""
    if reports_error(event):
        return {**event, "type": "error"}
    if "choices" not in event and "type" not in event and ("message" in event or "detail" in event):
        return {"type": "error", "error": event}
    return None


def ending_error(reason: str) -> dict[str, Any] | None:
    """The `error` event for an answer that ended with this `finish_reason`. None if that is no error."""
    kind = _ENDED_BY_ERROR.get(reason.lower())
    message = f"the server ended its answer with finish_reason {reason!r}"
    return None if kind is None else {"type": "error", "error": {"type": kind, "message": message}}
