"""The bodies of errors: Anthropic's, and OpenAI's, which its two APIs share. No I/O happens here."""

from __future__ import annotations

import re
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
_OPENAI = {
    "invalid_request_error": ("invalid_request_error", None),
    "authentication_error": ("invalid_request_error", "invalid_api_key"),
    "billing_error": ("insufficient_quota", "insufficient_quota"),
    "permission_error": ("invalid_request_error", "missing_scope"),
    "not_found_error": ("invalid_request_error", "model_not_found"),
    "timeout_error": ("server_error", "timeout"),
    "conflict_error": ("invalid_request_error", "conflict"),
    "request_too_large": ("invalid_request_error", "request_too_large"),
    "rate_limit_error": ("requests", "rate_limit_exceeded"),
    "api_error": ("server_error", "server_error"),
    "overloaded_error": ("service_unavailable_error", "server_is_overloaded"),
}
"""OpenAI's type and code for each type of Anthropic's."""
_OPENAI_TEXTS = {
    "authentication_error": "Incorrect API key provided: mock.",
    "billing_error": "You exceeded your current quota, please check your plan and billing details.",
    "permission_error": "You have insufficient permissions for this operation.",
    "not_found_error": "The model does not exist or you do not have access to it.",
    "rate_limit_error": "Rate limit reached for requests: Limit 3, Used 3, Requested 1. Please try again in 20s.",
    "api_error": "The server had an error while processing your request. Sorry about that!",
    "overloaded_error": "Our servers are currently overloaded. Please try again later.",
}
"""Where OpenAI has other words than Anthropic."""
_TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")


def anthropic_error(status: int, message: str | None, request_id: str) -> dict[str, Any]:
    """The body of an error. If `message` is None, the body contains the API's own message for the status."""
    error_type, text = _type_of(status)
    error = {"type": error_type, "message": text if message is None else message}
    return {"type": "error", "error": error, "request_id": request_id}


def openai_error(status: int, message: str | None, _request_id: str) -> dict[str, Any]:
    """As `anthropic_error`. The number of the request stands in a header only. A prompt that is too long, in
    Anthropic's words, is told in OpenAI's.
    """
    error_type, text = _type_of(status)
    kind, code = _OPENAI[error_type]
    text = _OPENAI_TEXTS.get(error_type, text) if message is None else message
    if too_long := _TOO_LONG.match(text):
        code = "context_length_exceeded"
        text = (
            f"This model's maximum context length is {too_long[2]} tokens. However, your messages resulted in "
            f"{too_long[1]} tokens. Please reduce the length of the messages."
        )
    return openai_body(text, kind=kind, code=code)


def openai_body(
    message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def openai_names(error_type: str) -> tuple[str, str | None]:
    """OpenAI's type and code for a type of Anthropic's. A type of OpenAI's own stands for both."""
    return _OPENAI.get(error_type, (error_type, error_type))


def _type_of(status: int) -> tuple[str, str]:
    return _BY_STATUS.get(status) or _BY_STATUS[400 if status < 500 else 500]
