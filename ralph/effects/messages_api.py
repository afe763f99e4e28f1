"""The Messages API over HTTP: send one request, once, and give back a whole answer or one of the five errors.

It never retries, never follows a redirect and knows no policy. Bytes come from an `Exchange`; every wait is
bounded by a clock of our own; events are parsed on the main thread by httpx-sse.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import httpx_sse

from ralph.core.clocks import ClockLimits, Deadline, ResponseClocks
from ralph.core.errors import AgentError, Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient
from ralph.core.events import ClockFired, Notice, ResponseDiscarded, StreamReceived
from ralph.core.retry_after import server_wish_s
from ralph.core.stream import Answer, StreamAssembler, answer_from_message, stream_error
from ralph.core.usage import tokens_of
from ralph.effects.exchange import Connected, End, Exchange, Failed, Head, Wire
from ralph.effects.network_causes import error_before_answer, error_inside_answer
from ralph.ports import TIMED_OUT, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.ports import Clock, Events, Waiter

API_VERSION = "2026-10-21"

ERROR_BODY_BYTES = 64 * 1024
# As the request limit of the API; a whole message sent as JSON is not larger.
JSON_BODY_BYTES = 32 * 1024 * 1024
# A single event larger than this is no event: it would be held in memory whole.
EVENT_BYTES = 8 * 1024 * 1024
# An error's status is what counts; its body is not waited for longer than this.
ERROR_BODY_S = 10.0
# A connect that our clock has given up goes on in its thread for so long: the clock must be the first.
_CONNECT_GRACE_S = 1.0

_E = TypeVar("_E", bound=BaseException)

_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Endpoint:
    """Where requests go. `headers` hold the credential and are never shown."""

    base_url: str
    headers: tuple[tuple[str, str], ...]

    @property
    def url(self) -> str:
        return f"{self.base_url}/v1/messages"

    @property
    def host(self) -> str:
        return httpx.URL(self.base_url).netloc.decode("ascii", "replace")


class MessagesApi:
    """A `Client` for one endpoint. `redact` cleans every text that leaves this module inside an error."""

    def __init__(
        self,
        endpoint: Endpoint,
        http: httpx.Client,
        *,
        limits: ClockLimits,
        waiter: Waiter,
        clock: Clock,
        events: Events,
        redact: Callable[[str], str],
    ) -> None:
        self._endpoint = endpoint
        self._wire = Wire(http, waiter)
        self._limits = limits
        self._clock = clock
        self._events = events
        self._redact = redact

    def send_message(self, body: bytes) -> Answer:
        """Send `body` once. Raises only `AgentError`, and `Interrupted` when a signal ends the wait."""
        request = self._request(body)
        reception = _Reception(
            self._wire.start(request),
            ResponseClocks(self._limits, self._clock.now_s()),
            self._clock,
            events=self._events,
            redact=self._redact,
            host=self._endpoint.host,
        )
        try:
            answer = reception.receive()
        except BaseException:
            reception.exchange.abort()
            raise
        reception.exchange.leave()
        return answer

    def close(self) -> None:
        self._wire.close()

    def _request(self, body: bytes) -> httpx.Request:
        connect_s = self._limits.connect_s
        timeout = httpx.Timeout(None, connect=connect_s + _CONNECT_GRACE_S if connect_s > 0 else None)
        try:
            return self._wire.http.build_request(
                "POST", self._endpoint.url, content=body, headers=self._request_headers(), timeout=timeout
            )
        except httpx.InvalidURL as error:
            raise Api(NetworkCause.BAD_URL, self._redact(str(error))) from error

    def _request_headers(self) -> list[tuple[bytes, bytes]]:
        headers = (
            ("accept", "text/event-stream, application/json"),
            # A proxy that may compress also buffers; a stream must not wait in its buffer.
            ("accept-encoding", "identity"),
            ("anthropic-version", API_VERSION),
            ("content-type", "application/json"),
            *self._endpoint.headers,
        )
        # httpx would encode text as ASCII.
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]


class _Reception:
    """The receiving side of one request: state that dies with it."""

    def __init__(
        self,
        exchange: Exchange,
        clocks: ResponseClocks,
        clock: Clock,
        *,
        events: Events,
        redact: Callable[[str], str],
        host: str,
    ) -> None:
        self.exchange = exchange
        self._clocks = clocks
        self._clock = clock
        self._events = events
        self._redact = redact
        self._host = host
        self._has_invalid_utf8 = False
        self._bytes_since_event = 0

    def receive(self) -> Answer:
        head = self._head()
        if not 200 <= head.status < 300:
            raise self._http_error(head)
        request_id = head.headers.get("request-id") or head.headers.get("x-request-id")
        content_type = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "text/event-stream":
            return self._stream_answer(request_id)
        return self._answer_of_other_type(content_type, request_id)

    def _head(self) -> Head:
        """Wait for the status line. What fails up to there is `Api`: there was no answer at all."""
        while True:
            deadline = self._clocks.next_deadline()
            item = self._next(deadline, f"an answer from {self._host}")
            if item is TIMED_OUT and deadline is not None:
                self._fire(deadline)
                raise Api(
                    NetworkCause.TIMEOUT,
                    f"nothing within {deadline.after_s:g}s ({deadline.clock})",
                    self._host,
                )
            if isinstance(item, Failed):
                raise error_before_answer(item.error, self._host, self._redact) from item.error
            if isinstance(item, Head):
                return item
            if isinstance(item, Connected):
                self._clocks.connected(self._clock.now_s())

    def _stream_answer(self, request_id: str | None) -> Answer:
        assembler = StreamAssembler()
        # A response of our own around the chunks lets httpx-sse parse them here, on the main thread.
        response = httpx.Response(
            200, headers={"content-type": "text/event-stream; charset=utf-8"}, stream=_Chunks(self._chunks())
        )
        try:
            for sse in httpx_sse.EventSource(response).iter_sse():
                self._bytes_since_event = 0
                if not sse.data.strip():
                    continue
                event = self._event(sse.data)
                if event.get("type") != "ping":
                    self._clocks.got_progress(self._clock.now_s())
                with _strange_shapes_refused():
                    assembler.feed(event, has_invalid_utf8=self._has_invalid_utf8 and "\ufffd" in sse.data)
                self._events.emit(StreamReceived(event))
                if assembler.is_complete:
                    break
            with _strange_shapes_refused():
                answer = assembler.answer(request_id)
        except (AgentError, Interrupted) as error:
            if assembler.message_id is not None:
                self._events.emit(ResponseDiscarded(assembler.message_id, tokens_of(assembler.usage)))
            raise _redacted(error, self._redact) from error.__cause__
        return answer

    def _chunks(self) -> Iterator[bytes]:
        """The body's bytes as they come, each wait bounded by the clocks, its UTF-8 checked on the way."""
        strict = codecs.getincrementaldecoder("utf-8")()
        # httpx-sse keeps a byte order mark and would lose the first field to it. It may come in pieces.
        start: bytes | None = b""
        while True:
            item = self._next_of_body("the answer to go on")
            if item is None:
                return
            self._bytes_since_event += len(item)
            if self._bytes_since_event > EVENT_BYTES:
                raise StreamParse(f"one stream event is larger than {EVENT_BYTES >> 20} MiB")
            try:
                strict.decode(item)
            except UnicodeDecodeError:
                self._has_invalid_utf8 = True
                strict.reset()
            if start is None:
                yield item
                continue
            start += item
            if len(start) >= len(codecs.BOM_UTF8) or not codecs.BOM_UTF8.startswith(start):
                yield start.removeprefix(codecs.BOM_UTF8)
                start = None

    def _next_of_body(self, waiting_for: str, limit: Deadline | None = None) -> bytes | None:
        """The next chunk, None at the body's end. A clock that fires and a broken connection are transient."""
        deadline = limit or self._clocks.next_deadline()
        item = self._next(deadline, waiting_for)
        if item is TIMED_OUT and deadline is not None:
            self._fire(deadline)
            raise StreamTransient(f"the answer stalled: {deadline.clock} for {deadline.after_s:g}s")
        if isinstance(item, Failed):
            raise error_inside_answer(item.error, self._redact) from item.error
        if isinstance(item, End):
            return None
        self._clocks.got_bytes(self._clock.now_s())
        chunk: bytes = item
        return chunk

    def _next(self, deadline: Deadline | None, waiting_for: str) -> Any:
        return self.exchange.next_item(deadline.at_s if deadline else None, waiting_for)

    def _fire(self, deadline: Deadline) -> None:
        self._events.emit(ClockFired(deadline.clock, deadline.after_s))

    def _event(self, data: str) -> dict[str, Any]:
        try:
            event = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Json(str(error), self._excerpt(data)) from error
        if not isinstance(event, dict) or not isinstance(event.get("type", ""), str):
            raise StreamParse(f"a stream event that is no object with a type: {self._excerpt(data)}")
        return event

    def _excerpt(self, data: str) -> str:
        """Its beginning, redacted before it is cut: half a key would not be recognised."""
        return self._redact(data[:4096])[:200]

    def _http_error(self, head: Head) -> HttpError:
        body = self._error_body()
        text = self._redact(body.decode("utf-8", "replace"))
        fields = _error_fields(text)
        should_retry = {"true": True, "false": False}.get(head.headers.get("x-should-retry", "").lower())
        location = head.headers.get("location")
        if 300 <= head.status < 400 and location:
            fields["message"] = (
                f"redirect to {self._redact(location)}, not followed: it would take the key elsewhere"
            )
        request_id = (
            head.headers.get("request-id") or head.headers.get("x-request-id") or fields["request_id"]
        )
        return HttpError(
            head.status,
            server_wish_s(head.headers, self._clock.utc_now()),
            text,
            fields["type"],
            fields["code"],
            fields["message"],
            request_id,
            should_retry,
        )

    def _error_body(self) -> bytes:
        """The first bytes of an error's body. The status has been seen: what fails here changes nothing."""
        limit = Deadline("error body", self._clock.now_s() + ERROR_BODY_S, ERROR_BODY_S)
        body = b""
        while len(body) < ERROR_BODY_BYTES:
            item = self._next(limit, "the body of an error")
            if not isinstance(item, bytes):
                break
            body += item
        return body[:ERROR_BODY_BYTES]

    def _answer_of_other_type(self, content_type: str, request_id: str | None) -> Answer:
        """A 2xx that is no event stream: an error object, a whole message, nothing, or something else."""
        body = bytearray()
        while chunk := self._next_of_body("the body of the answer"):
            body += chunk
            if len(body) > JSON_BODY_BYTES:
                break
        if not body.strip():
            raise StreamTransient("the answer was empty")
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and "error" in value:
            raise _redacted(stream_error(value), self._redact)
        if isinstance(value, dict) and value.get("type") == "message":
            self._events.emit(Notice("the server ignored `stream` and sent the whole message as JSON"))
            try:
                with _strange_shapes_refused():
                    return answer_from_message(value, request_id)
            except AgentError as error:
                raise _redacted(error, self._redact) from error.__cause__
        raise self._not_a_stream(content_type, body)

    def _not_a_stream(self, content_type: str, body: bytearray) -> StreamParse:
        text = self._redact(body[:ERROR_BODY_BYTES].decode("utf-8", "replace"))
        title = _TITLE.search(text)
        page = f', page title "{" ".join(title[1].split())[:100]}"' if title else ""
        start = " ".join(text.split())[:200]
        what = content_type or "no content type"
        return StreamParse(f"{self._host} answered with {what}{page}, not an event stream: {start}")


class _Chunks(httpx.SyncByteStream):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._iterator = chunks

    def __iter__(self) -> Iterator[bytes]:
        return self._iterator


@contextlib.contextmanager
def _strange_shapes_refused() -> Iterator[None]:
    """A server may put anything where text belongs; that is its fault and must not look like ours."""
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise StreamParse(f"the answer breaks the protocol: {error}") from error


def _error_fields(text: str) -> dict[str, str | None]:
    """Type, code, message and request id of an error body, whichever server wrote it; None where absent."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    value = value if isinstance(value, dict) else {}
    error = value.get("error")
    # OpenAI-shaped servers put a string there, or a `message` beside it.
    fields = error if isinstance(error, dict) else {"message": error or value.get("message")}
    details = fields.get("details")
    code = details.get("error_code") if isinstance(details, dict) else None
    found = {
        "type": fields.get("type"),
        "code": code,
        "message": fields.get("message"),
        "request_id": value.get("request_id"),
    }
    return {name: text if isinstance(text, str) else None for name, text in found.items()}


def _redacted(error: _E, redact: Callable[[str], str]) -> _E:
    if isinstance(error, StreamParse | StreamTransient):
        error.message = redact(error.message)
    return error
