"""The ends of a response that are no ordinary ones: an error, and an answer that is incomplete. No I/O happens here."""

from __future__ import annotations

from typing import Any

_INCOMPLETE = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}


def incomplete_reason(response: dict[str, Any]) -> str:
    """The stop reason of an incomplete response. An unknown reason is taken as the limit on tokens, because the last call may
    have been cut off then too, and must not run.
    """
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return _INCOMPLETE.get(str(reason), "max_tokens")


def failure_event(response: dict[str, Any]) -> dict[str, Any]:
    """The error of a response that has failed, as an `error` event of the Messages API. An error that has only a code gets it as
    its type, whose status `STATUS_OF_TYPE` knows.
    """
    told = response.get("error")
    error = told if isinstance(told, dict) else {}
    code = error.get("code")
    said = error.get("message") or code or f"the response ended with the status {response.get('status')}"
    return {"type": "error", "error": {**error, "type": error.get("type") or code, "message": said}}
