"""The three dialects that the server speaks, as a table of what differs between them, and the plan of a response: its bytes and
pauses, which `connection.py` sends. No I/O happens here.
"""

from __future__ import annotations

import enum
import http
import json
from collections.abc import Callable, Mapping  # noqa: TC003 - msgspec reads the types of fields
from typing import Any

from msgspec import Struct

from ralph.mock_api import chat, responses, validation
from ralph.mock_api.events import (
    DEFAULT_MODEL,
    PING,
    Event,
    Line,
    ScriptedAnswer,
    as_message,
    break_order,
    encode_broken,
    encode_event,
    message_events,
    with_pings,
)
from ralph.mock_api.scenario import (
    STAND_IN,
    ErrorEvent,
    Fault,
    Framing,
    ScenarioError,
    Step,
    anthropic_error,
    openai_error,
)


class ServedApi(Struct, frozen=True, kw_only=True):
    api: str
    """The name in recorded requests, and in ralph's settings."""
    message_id: str
    """The beginning of the ids of answers."""
    call_id: str
    request_id_header: str
    key_headers: frozenset[str]
    no_key: str
    """The message for a request without a key."""
    ping: Line
    without: frozenset[str] = frozenset()
    """The parts of a fault that have no counterpart."""
    find_refusal: Callable[[Event, Mapping[str, str], bool], Fault | None]
    """The answer that refuses a request, or None if it is valid. Takes the body, the headers, and whether the last
    answer ended with `pause_turn`."""
    conversation: Callable[[Event], list[Event]]
    """The messages of a request in the form of the Messages API."""
    error_body: Callable[[int, str | None, str], Event]
    """The body of an error. Takes the status, the text or None for the usual one, and the id of the request."""
    error_event: Callable[[ErrorEvent, int, ScriptedAnswer], Event]
    """The error in a stream. The number is that of the events before it."""
    whole: Callable[[ScriptedAnswer], Event]
    """The answer to a request without `stream`."""
    lines: Callable[[ScriptedAnswer, list[Event]], list[Line]]
    """The stream that says what these events of the Messages API say."""

    def answer(self, step: Step, *, index: int, model: str, payload: Mapping[str, Any]) -> ScriptedAnswer:
        turn = step.turn or STAND_IN
        ids = {"message_id": self.message_id, "call_id": self.call_id}
        return ScriptedAnswer(turn, as_message(turn, index=index, model=model, **ids), payload)

    def stream(self, answer: ScriptedAnswer, fault: Fault) -> list[Line]:
        """The events as the fault leaves them; what it does to single bytes comes later. Raises `ScenarioError` if a
        part of it has no counterpart.
        """
        for name in self.without:
            if getattr(fault, name):
                raise ScenarioError(f"{name}: has no counterpart in {self.api}")
        events = break_order(message_events(answer.turn, answer.message), fault)
        lines = with_pings(self.lines(answer, events), answer.turn, self.ping)
        if fault.error_event is None:
            return lines
        before = lines[: fault.error_event.after_events]
        number = sum(line != self.ping for line in before)
        return [*before, self.error_event(fault.error_event, number, answer)]


ANTHROPIC = ServedApi(
    api="anthropic",
    message_id="msg_mock",
    call_id="toolu_mock",
    request_id_header="request-id",
    key_headers=frozenset({"x-api-key", "authorization"}),
    no_key="x-api-key header is required",
    ping=PING,
    find_refusal=validation.find_refusal,
    conversation=lambda payload: payload["messages"],
    error_body=anthropic_error,
    error_event=lambda error, _, __: {
        "type": "error",
        "error": {"type": error.type, "message": error.message},
    },
    whole=lambda answer: answer.message,
    lines=lambda _, events: list(events),
)
_OPENAI: dict[str, Any] = {
    "call_id": "call_mock",
    "request_id_header": "x-request-id",
    "key_headers": frozenset({"authorization", "api-key"}),  # the latter is Azure's
    "no_key": (
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer "
        "auth (i.e. Authorization: Bearer YOUR_KEY)."
    ),
    "ping": ": ping",
    "error_body": openai_error,
}
CHAT = ServedApi(
    api="openai-chat",
    message_id="chatcmpl-mock",
    find_refusal=lambda payload, _, __: chat.find_refusal(payload),
    conversation=chat.conversation,
    error_event=chat.error_chunk,
    whole=chat.completion,
    lines=chat.chunks,
    **_OPENAI,
)
RESPONSES = ServedApi(
    api="openai-responses",
    message_id="resp_mock",
    without=frozenset({"omit_message_delta"}),  # the reason for the end is in the last event
    find_refusal=lambda payload, _, __: responses.find_refusal(payload),
    conversation=responses.conversation,
    error_event=responses.error_event,
    whole=responses.response,
    lines=responses.stream,
    **_OPENAI,
)
BY_API = {dialect.api: dialect for dialect in (ANTHROPIC, CHAT, RESPONSES)}
_OPENAI_BASES = ("/v1", "/v1beta/openai", "/openai/v1")  # OpenAI's own, Gemini's and Azure's
BY_PATH = {
    "/v1/messages": ANTHROPIC,
    **{f"{base}/chat/completions": CHAT for base in _OPENAI_BASES},
    **{f"{base}/responses": RESPONSES for base in _OPENAI_BASES},
}


def lookup_path(path: str) -> str | None:
    """The part of the path behind `/models`. None if the path is not about models."""
    base, mark, rest = path.partition("/models")
    return rest if mark and base in _OPENAI_BASES else None


def dialect_at(path: str, headers: Mapping[str, str]) -> ServedApi:
    """The dialect of a request to this path. If the path leaves it open, the header of the Messages API decides."""
    if path in BY_PATH:
        return BY_PATH[path]
    is_openais = lookup_path(path) is not None and "anthropic-version" not in headers
    return CHAT if is_openais else ANTHROPIC


EVENT_STREAM = "text/event-stream; charset=utf-8"

# Python's table lacks status 529, which only this API uses.
_PHRASES = {known.value: known.phrase for known in http.HTTPStatus} | {529: "Overloaded"}


class Send(Struct, frozen=True):
    """Bytes of the body to send. They contain no chunk sizes."""

    data: bytes


class Fill(Struct, frozen=True):
    """A part of the body that consists only of the byte `x`, `size` times."""

    size: int


class Pause(Struct, frozen=True):
    duration_s: float | None
    """The length of the pause in seconds, or None if the pause has no end."""
    ping_interval_s: float | None
    """The seconds between pings, or None for no pings."""
    ping: bytes = b""


BodyPart = Send | Fill | Pause


class ConnectionEnding(enum.Enum):
    """How the connection ends after the last byte of the response."""

    KEEP_ALIVE = "keep-alive"
    CLOSE = "close"
    RESET = "reset"


class Plan(Struct, frozen=True):
    ending: ConnectionEnding
    wait_s: float = 0
    """The seconds to wait before the first byte."""
    head: bytes = b""
    """The status line and the headers with their end, or the bytes that are sent in place of a response."""
    parts: tuple[BodyPart, ...] = ()
    chunked: bool = False
    """Whether the body is sent with chunked encoding."""
    terminator: bytes = b""
    """The bytes that mark the end of a chunked body. Empty if the body is not chunked or lacks its end."""
    drip_s: float | None = None
    """The seconds between two bytes of the body. The body is then sent byte by byte. None if there is no such delay."""


class Context(Struct, frozen=True):
    """The facts about a request on which the response depends. The step is not included."""

    index: int = 0
    """The number of the answer, counted from 0."""
    request_id: str = "req_mock_000000"
    dialect: ServedApi = ANTHROPIC
    model: str = DEFAULT_MODEL
    payload: Mapping[str, Any] = {}
    """The body of the request. Empty if it was not parsed."""
    stream: bool = True
    keep_alive: bool = True
    """True if the client allows the connection to be used again."""
    accepts_chunks: bool = True
    """True if the client understands chunked encoding. An HTTP/1.0 client does not."""


class _Body(Struct, frozen=True):
    content_type: str
    parts: tuple[BodyPart, ...]
    cut_at: int | None = None
    """The number of bytes after which the body is cut off, or None if the body is complete."""


def plan_step(step: Step, context: Context) -> Plan:
    """Plans the response for a step. `context` holds the facts about the request."""
    fault = step.fault or Fault()
    if fault.replaces_answer():
        return _plan_replacement(fault, context)
    if context.stream and not fault.json_instead_of_sse:
        return _frame(200, _stream_body(step, fault, context), fault, context)
    return _frame(200, _json_body(context.dialect.whole(_answer(step, context))), fault, context)


def plan_error(
    status: int, message: str | None, context: Context, *, headers: Mapping[str, str] | None = None
) -> Plan:
    """Plans an error response whose body is the API's error object."""
    return plan_step(Step(fault=Fault(status=status, message=message, headers=headers or {})), context)


def plan_json(value: Any, context: Context, fault: Fault) -> Plan:
    """Plans a response with status 200 whose body is a JSON value. No part of the fault may need an event stream."""
    if fault.replaces_answer():
        return _plan_replacement(fault, context)
    return _frame(200, _json_body(value), fault, context)


def _plan_replacement(fault: Fault, context: Context) -> Plan:
    wait_s = fault.stall_before_headers_s
    if fault.reset_before_headers:
        return Plan(ConnectionEnding.RESET, wait_s)
    if fault.close_before_headers:
        return Plan(ConnectionEnding.CLOSE, wait_s)
    if fault.garbage is not None:
        return Plan(ConnectionEnding.CLOSE, wait_s, head=_as_bytes(fault.garbage))
    status = 200 if fault.status is None else fault.status
    return _frame(status, _plain_body(fault, status, context), fault, context)


def _answer(step: Step, context: Context) -> ScriptedAnswer:
    return context.dialect.answer(step, index=context.index, model=context.model, payload=context.payload)


def _as_bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _json_body(value: Any) -> _Body:
    return _Body("application/json", (Send(json.dumps(value).encode()),))


def _plain_body(fault: Fault, status: int, context: Context) -> _Body:
    content_type = "application/json"
    parts: tuple[BodyPart, ...] = ()
    if isinstance(fault.body, (str, bytes)):
        parts = (Send(_as_bytes(fault.body)),)
        content_type = "text/html; charset=utf-8" if parts[0] != Send(b"") else "text/plain"
    elif fault.body is not None:
        parts = _json_body(fault.body).parts
    elif fault.huge_body_bytes is not None:
        content_type = "text/plain"
    elif status >= http.HTTPStatus.BAD_REQUEST:
        error = context.dialect.error_body(status, fault.message, context.request_id)
        parts = _json_body(error).parts
    if fault.huge_body_bytes is not None:
        parts = (*parts, Fill(fault.huge_body_bytes))
    return _Body(content_type, parts)


def _stream_body(step: Step, fault: Fault, context: Context) -> _Body:
    encoded = encode_broken(context.dialect.stream(_answer(step, context), fault), fault)
    cut_at = None
    if fault.cut_after_events is not None:
        cut_at = len(b"".join(encoded[: fault.cut_after_events]))
    if fault.stall_after_events is None:
        return _Body(EVENT_STREAM, (Send(b"".join(encoded)),), cut_at)
    before = b"".join(encoded[: fault.stall_after_events])
    after = b"".join(encoded[fault.stall_after_events :])
    pause = Pause(fault.stall_s, fault.ping_interval_s, encode_event(context.dialect.ping, fault.line_ending))
    return _Body(EVENT_STREAM, (Send(before), pause, Send(after)), cut_at)


def _frame(status: int, body: _Body, fault: Fault, context: Context) -> Plan:
    framing: Framing = fault.framing or ("chunked" if body.content_type == EVENT_STREAM else "length")
    if framing == "chunked" and not context.accepts_chunks:
        framing = "close"
    cuts = [cut for cut in (body.cut_at, fault.cut_after_bytes) if cut is not None]
    ending = ConnectionEnding.RESET if framing == "reset" else ConnectionEnding.CLOSE
    if framing in {"length", "chunked"} and not cuts and context.keep_alive:
        ending = ConnectionEnding.KEEP_ALIVE
    headers = {
        "content-type": fault.content_type or body.content_type,
        **_framing_headers(framing, body, keep_alive=context.keep_alive),
        context.dialect.request_id_header: context.request_id,
        **{name.lower(): str(value) for name, value in fault.headers.items()},
    }
    head = _encode_head(status, headers)
    if fault.partial_headers_bytes is not None:
        return Plan(ConnectionEnding.RESET, fault.stall_before_headers_s, head[: fault.partial_headers_bytes])
    return Plan(
        ending=ending,
        wait_s=fault.stall_before_headers_s,
        head=head,
        parts=_cut(body.parts, min(cuts)) if cuts else body.parts,
        chunked=framing == "chunked",
        terminator=b"0\r\n\r\n" if framing == "chunked" and not cuts else b"",
        drip_s=fault.drip_s,
    )


def _framing_headers(framing: Framing, body: _Body, *, keep_alive: bool) -> dict[str, str]:
    headers = {"cache-control": "no-cache"} if body.content_type == EVENT_STREAM else {}
    if framing == "length":
        headers["content-length"] = str(sum(_size(part) for part in body.parts))
    elif framing == "chunked":
        headers["transfer-encoding"] = "chunked"
    if framing in {"close", "reset"} or not keep_alive:
        headers["connection"] = "close"
    return headers


def _encode_head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_PHRASES.get(status, '')}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def _size(part: BodyPart) -> int:
    if isinstance(part, Send):
        return len(part.data)
    return part.size if isinstance(part, Fill) else 0


def _cut(parts: tuple[BodyPart, ...], limit: int) -> tuple[BodyPart, ...]:
    """A pause that is exactly at the limit is kept: the answer stalls before it is cut off."""
    kept: list[BodyPart] = []
    left = limit
    for part in parts:
        size = _size(part)
        if size <= left:
            kept.append(part)
            left -= size
            continue
        kept.append(Send(part.data[:left]) if isinstance(part, Send) else Fill(left))
        break
    return tuple(kept)
