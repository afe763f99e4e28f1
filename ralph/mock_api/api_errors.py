"""The API's error object for each status, with the words the API uses."""

from __future__ import annotations

from typing import Any

_BY_STATUS = {
    400: ("invalid_request_error", "Invalid request"),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "There is an issue with your billing or payment information."),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "Not found"),
    408: ("timeout_error", "Request timed out"),
    409: ("conflict_error", "Conflict"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your account's rate limit. Please try again later."),
    500: ("api_error", "Internal server error"),
    504: ("timeout_error", "Request timed out"),
    529: ("overloaded_error", "Overloaded"),
}


def error_object(status: int, message: str | None = None, *, request_id: str | None = None) -> dict[str, Any]:
    """The body of an answer with this status. `message` None: the API's own words for it."""
    fallback = _BY_STATUS[400] if status < 500 else _BY_STATUS[500]
    error_type, default_message = _BY_STATUS.get(status, fallback)
    text = default_message if message is None else message
    body: dict[str, Any] = {"type": "error", "error": {"type": error_type, "message": text}}
    if request_id is not None:
        body["request_id"] = request_id
    return body
