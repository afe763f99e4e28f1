"""Plans the bytes and the pauses of a response, which `connection.py` sends."""

from __future__ import annotations

import enum
import http
import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.mock_api.dialect import ANTHROPIC, ServedApi
from ralph.mock_api.events import DEFAULT_MODEL, ScriptedAnswer, encode_broken, encode_event
from ralph.mock_api.fault import Fault, Framing
from ralph.mock_api.scenario import Step

if TYPE_CHECKING:
    from collections.abc import Mapping


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
