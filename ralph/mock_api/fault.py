"""Faults of an answer, as values. Refuses combinations in which a part would silently have no effect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field


class ScenarioError(ValueError):
    """A scenario that cannot be played. Its text is one line that names the key and its place."""


class ErrorEvent(Struct, frozen=True, forbid_unknown_fields=True):
    """An `error` event inside a stream that began with 200. The stream ends after it."""

    type: str = "overloaded_error"
    message: str = "Overloaded"
    after_events: int = 0
    """The number of events of the answer that are sent before the error."""


Framing = Literal["length", "chunked", "close", "reset"]
LineEnding = Literal["\n", "\r\n", "\r"]
Body = str | bytes | Mapping[str, Any] | Sequence[Any]


class Fault(Struct, frozen=True):
    """One fault. The defaults break nothing; events are counted from 1, so `message_start` is event 1."""

    status: int | None = None
    """HTTP status of an answer without a turn. If only `body` or `huge_body_bytes` is set, the status is 200."""
    message: str | None = None
    """The text inside the API's error object. None: the API's own words for that status."""
    body: Body | None = None
    """Body of an answer without a turn. Mappings and lists become JSON. None: the API's error object, if the status is
    400 or more.
    """
    huge_body_bytes: int | None = None
    """Number of `x` bytes sent after `body`. They are generated while sending, and never all in memory."""
    garbage: str | bytes | None = None
    """Text or bytes to send instead of an HTTP answer. The connection closes afterwards."""
    reset_before_headers: bool = False
    """Reset the connection instead of sending an answer."""
    close_before_headers: bool = False
    """End the connection cleanly instead of sending an answer."""
    at_accept: bool = False
    """Reset or close a new connection before reading from it. This uses up the step, and no request is recorded."""
    partial_headers_bytes: int | None = None
    """The number of bytes of the status line and headers that are sent before a RST."""

    headers: Mapping[str, str | int | float] = field(default_factory=dict)
    """Headers added to the answer's headers. They replace headers of the same name. Numbers are sent as text."""
    content_type: str | None = None
    framing: Framing | None = None
    """How the body ends: `length` (Content-Length), `chunked`, `close` (clean end of the connection) or `reset` (RST after
    the last byte). None: `chunked` for streams, `length` otherwise."""
    json_instead_of_sse: bool = False
    """Answer with the whole message as JSON although the request asked for a stream."""

    stall_before_headers_s: float = 0
    """Seconds of silence before the first byte."""
    stall_after_events: int | None = None
    """Stall after this number of events. The other events follow after the stall."""
    stall_s: float | None = None
    """Seconds of the stall after events. None: until the client or the server gives up."""
    ping_interval_s: float | None = None
    """Seconds between `ping` events during the stall. None: silence."""
    drip_s: float | None = None
    """Seconds between two bytes of the body, which is then sent one byte at a time."""

    cut_after_events: int | None = None
    """End the connection after this number of events. Without `framing`, a chunked body is left unfinished."""
    cut_after_bytes: int | None = None
    """End the connection after this number of bytes of the body. Headers and chunk sizes are not counted."""

    error_event: ErrorEvent | None = None
    malformed_json_at_event: int | None = None
    """Send only the first half of the JSON of this event."""
    interleaved: bool = False
    """The blocks' deltas take turns, and all `content_block_stop` events come at the very end, as with llama.cpp."""
    omit_message_stop: bool = False
    omit_message_delta: bool = False
    omit_tool_input: bool = False
    """No `input` in the `content_block_start` of a tool call, as llama.cpp sends it."""
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
        """True if nothing of a turn would be sent."""
        return (
            self.is_plain_answer()
            or self.garbage is not None
            or self.reset_before_headers
            or self.close_before_headers
        )

    def is_plain_answer(self) -> bool:
        """True if the fault answers with a status and a body of its own."""
        return self.status is not None or self.body is not None or self.huge_body_bytes is not None

    def refuse_parts_of_streams(self) -> None:
        """Refuses a fault that only an event stream can have. Raises `ScenarioError`: a test with a fault that has no
        effect would prove nothing.
        """
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
