"""Faults of an answer, and the bodies of errors. If a part of a fault would have no effect, the fault is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field


class ScenarioError(ValueError):
    """A scenario cannot be played. The message is one line that names the wrong key and the position of this key."""


class ErrorEvent(Struct, frozen=True, forbid_unknown_fields=True):
    """An `error` event in a stream that began with status 200. After this event, the stream ends."""

    type: str = "overloaded_error"
    message: str = "Overloaded"
    after_events: int = 0
    """The number of events of the answer that are sent before the error event."""


Framing = Literal["length", "chunked", "close", "reset"]
LineEnding = Literal["\n", "\r\n", "\r"]
Body = str | bytes | Mapping[str, Any] | Sequence[Any]


class Fault(Struct, frozen=True):
    """A fault of one answer, in one or several parts. Events are counted from 1: `message_start` is event 1."""

    status: int | None = None
    """The HTTP status of a response that replaces the turn: 200 if only `body` or `huge_body_bytes` is set."""
    message: str | None = None
    """The text in the API's error object. If it is None, the text is the API's own message for the status."""
    body: Body | None = None
    """Replaces the turn. Mappings and lists are sent as JSON. From status 400 on, None is the API's error object."""
    huge_body_bytes: int | None = None
    """The number of bytes `x` to send after `body`. These bytes are never all in memory at the same time."""
    garbage: str | bytes | None = None
    """Text or bytes to send in place of an HTTP response. The connection is closed afterwards."""
    reset_before_headers: bool = False
    """True if the connection is reset and no response is sent."""
    close_before_headers: bool = False
    """True if the connection is closed and no response is sent."""
    at_accept: bool = False
    """Resets or closes a new connection before anything is read. Uses up the step, and records no request."""
    partial_headers_bytes: int | None = None
    """After this number of bytes of the status line and the headers, the connection is reset."""

    headers: Mapping[str, str | int | float] = field(default_factory=dict)
    """Added to the response, or in place of its own of the same name. Numbers are sent as text."""
    content_type: str | None = None
    framing: Framing | None = None
    """How the body ends: `length` (Content-Length), `chunked`, `close`, or `reset` after the last byte. None is
    `chunked` for streams and `length` otherwise."""
    json_instead_of_sse: bool = False
    """True if the complete message is sent as JSON, although the request asked for a stream."""

    stall_before_headers_s: float = 0
    """The seconds to wait before the first byte."""
    stall_after_events: int | None = None
    """The number of events before a pause. The other events follow after the pause."""
    stall_s: float | None = None
    """The pause after `stall_after_events` in seconds. None lasts until one side ends the connection."""
    ping_interval_s: float | None = None
    """The seconds between `ping` events during the pause after `stall_after_events`. None means no pings."""
    drip_s: float | None = None
    """The seconds between two bytes of the body, which is then sent byte by byte. None is no such delay."""

    cut_after_events: int | None = None
    """The connection ends after this many events. Without `framing`, the body is chunked, and its end is missing."""
    cut_after_bytes: int | None = None
    """The number of bytes of the body after which the connection ends. Headers and chunk sizes are not counted."""

    error_event: ErrorEvent | None = None
    malformed_json_at_event: int | None = None
    """The number of the event whose JSON is cut off in the middle."""
    interleaved: bool = False
    """The deltas of the blocks alternate, and all `content_block_stop` come at the end, as with llama.cpp."""
    omit_message_stop: bool = False
    omit_message_delta: bool = False
    omit_tool_input: bool = False
    """True if the `content_block_start` of a tool call has no field `input`. llama.cpp does this."""
    line_ending: LineEnding = "\n"

    def __post_init__(self) -> None:
        _refuse_bad_numbers(self)
        if self.at_accept and not (self.reset_before_headers or self.close_before_headers):
            raise ScenarioError("at_accept: needs reset_before_headers or close_before_headers")
        for name in ("stall_s", "ping_interval_s"):
            if getattr(self, name) is not None and self.stall_after_events is None:
                raise ScenarioError(f"{name}: needs stall_after_events")
        if self.framing == "length" and self.ping_interval_s is not None:
            raise ScenarioError("ping_interval_s: a body of known length has no room for pings")
        if self.message is not None and (self.status is None or self.body is not None):
            raise ScenarioError("message: needs a status, and no body")
        if self.replaces_answer() or self.json_instead_of_sse:
            self.refuse_parts_of_streams()

    def replaces_answer(self) -> bool:
        """Whether the fault replaces the whole answer, so that nothing of the step's turn is sent."""
        return (
            self.is_plain_answer()
            or self.garbage is not None
            or self.reset_before_headers
            or self.close_before_headers
        )

    def is_plain_answer(self) -> bool:
        """Whether the fault replaces the normal response by a response with the fault's own status and body."""
        return self.status is not None or self.body is not None or self.huge_body_bytes is not None

    def refuse_parts_of_streams(self) -> None:
        """Raises `ScenarioError` for a part that has no effect without a stream: a test with it would prove nothing."""
        default = Fault()
        for name in _NEEDS_EVENTS:
            if getattr(self, name) != getattr(default, name):
                raise ScenarioError(f"{name}: has no effect here, the answer has no events")


_NEEDS_EVENTS = (
    "stall_after_events",
    "cut_after_events",
    "error_event",
    "malformed_json_at_event",
    "interleaved",
    "omit_message_stop",
    "omit_message_delta",
    "omit_tool_input",
    "line_ending",
)


def _refuse_bad_numbers(fault: Fault) -> None:
    for name in fault.__struct_fields__:
        value = getattr(fault, name)
        if isinstance(value, (int, float)) and (math.isnan(value) or value < 0):
            raise ScenarioError(f"{name}: must not be negative")
    if fault.status is not None and not 200 <= fault.status <= 999:
        raise ScenarioError("status: must be between 200 and 999")
    if fault.malformed_json_at_event == 0:
        raise ScenarioError("malformed_json_at_event: events are counted from 1")
    if fault.ping_interval_s == 0:
        raise ScenarioError("ping_interval_s: must be above 0")


# --- The bodies of errors
# The bodies of errors: Anthropic's, and OpenAI's, which its two APIs share. No I/O happens here.

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
    """As `anthropic_error`, but with the request id in a header only. "Prompt is too long" is put in OpenAI's words."""
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
