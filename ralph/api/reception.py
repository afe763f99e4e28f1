"""Receives one answer: waits for its parts until their deadlines, and parses the parts into a message. If this does
not produce a complete answer, it raises one of the five errors in `values/errors.py`. Nothing here retries.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ralph.api.error_body import (
    http_error,
    not_a_stream,
    out_of_list,
    reports_error,
    request_id_of,
    stream_error,
)
from ralph.api.stream import StreamAssembler, answer_from_message
from ralph.api.transport import (
    ENOUGH_BYTES,
    OBJECT_START,
    STREAM_START,
    BodyEnd,
    Connected,
    Exchange,
    Failed,
    ResponseHead,
    codings_of,
    error_before_answer,
    error_inside_answer,
    httpx,
    httpx_sse,
)
from ralph.values.errors import AgentError, Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient
from ralph.values.events import ClockFired, Notice, ResponseDiscarded, StreamReceived
from ralph.values.ports import TIMED_OUT, Clock, Events, Interrupted
from ralph.values.strict_json import strict_json
from ralph.values.usage import tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.api.client import Dialect
    from ralph.values.answer import Answer
    from ralph.values.limits import ClockLimits

ERROR_BODY_BYTES = 64 * 1024
# This limit is lower than `ANSWER_BYTES`, because a message sent as one JSON object has the same text in fewer bytes.
JSON_BODY_BYTES = 8 * 1024 * 1024
# A larger event is refused, because an event must fit into memory.
EVENT_BYTES = 8 * 1024 * 1024
# A longer stream is refused. The longest answer of a model takes a third of this, with one word in each delta.
ANSWER_BYTES = 64 * 1024 * 1024

# Where no byte has arrived, the second is no garbage either.
_ENDS_OF_CONNECTION = (NetworkCause.RESET, NetworkCause.PROTOCOL_GARBAGE)

_BEGINNINGS = frozenset({"chat.completion.chunk", "message_start", "response.created"})
"""The first events of streams in all APIs have these words as their `object` or `type`."""

_E = TypeVar("_E", bound=BaseException)


class Reception:
    """Receives the answer to one request."""

    def __init__(
        self,
        exchange: Exchange,
        clocks: ResponseClocks,
        clock: Clock,
        *,
        events: Events,
        redact: Callable[[str], str],
        host: str,
        answered: set[str],
        dialect: Dialect | None = None,
        is_whole: bool = False,
    ) -> None:
        """`redact` removes credentials from the texts in errors. `answered` is the set of hosts that have answered
        before. When `host`, the host of the request, answers, it is added. `dialect` translates the answer, unless
        it is None. `is_whole` is True if the answer was asked for as one JSON object.
        """
        self.exchange = exchange
        self._clocks = clocks
        self._clock = clock
        self._events = events
        self._redact = redact
        self._host = host
        self._answered = answered
        self._dialect = dialect
        self._translator = None if dialect is None else dialect.translator()
        self._is_whole = is_whole
        self._catch_up = CatchUp()
        self._text = StreamText()
        self._arrived_s = 0.0
        """The time on the run's clock at which the main thread took the newest bytes of the body."""
        self._bytes_since_event = 0
        self._has_beginning = False
        self._answer_bytes = 0
        self._is_over = False

    def receive(self) -> Answer:
        """Waits for the answer and returns it. Raises `AgentError` or `Interrupted`."""
        head = self._head()
        if not 200 <= head.status < 300:
            raise self._http_error(head)
        request_id = request_id_of(head.headers, self._redact)
        # Some gateways send the content type twice, joined by a comma.
        content_type = re.split("[;,]", head.headers.get("content-type", ""))[0].strip()
        coding = head.headers.get("content-encoding", "identity").strip()
        if coding.lower() not in {"", "identity"} and not codings_of(head.headers):
            self._events.emit(
                Notice(f"the server names a content-encoding {self._redact(coding)[:40]!r} that there is not")
            )
        first = self._beginning()
        is_labelled = content_type.lower() == "text/event-stream"
        if is_labelled and not re.match(OBJECT_START, first):
            return self._stream_answer(first, request_id, content_type)
        if re.match(STREAM_START, first):
            label = self._redact(content_type)[:100] or "no content type"
            self._events.emit(Notice(f"the server labelled its stream as {label}"))
            return self._stream_answer(first, request_id, content_type)
        return self._answer_of_other_type(first, content_type, request_id)

    def _beginning(self) -> bytes:
        """Reads the body until it can be seen what it is. Returns all that was read. Raises the errors of `_next_of_body`."""
        first = b""
        while len(first) <= EVENT_BYTES and len(first.strip()) < ENOUGH_BYTES:
            chunk = self._next_of_body("the answer to continue")
            if chunk is None:
                break
            first += chunk
        return first

    def _http_error(self, head: ResponseHead) -> HttpError:
        try:
            body = self._error_body()
        except Interrupted as stop:
            raise stop from http_error(head.status, head.headers, b"", self._clock.utc_now(), self._redact)
        return http_error(head.status, head.headers, body, self._clock.utc_now(), self._redact)

    def _head(self) -> ResponseHead:
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
                has_answered = self._host in self._answered
                error = error_before_answer(item.error, self._host, self._redact, has_answered=has_answered)
                if item.was_idle and isinstance(error, Api) and error.cause in _ENDS_OF_CONNECTION:
                    error.cause, error.was_idle = NetworkCause.RESET, True
                raise error from item.error
            if isinstance(item, ResponseHead):
                self._answered.add(self._host)
                return item
            if isinstance(item, Connected):
                self._clocks.connected(self._clock.now_s() if item.is_new else None)

    def _stream_answer(self, first: bytes, request_id: str | None, content_type: str) -> Answer:
        assembler = StreamAssembler(self._clock.utc_now())
        response = _TextResponse(self._texts(first))
        has_event = False
        try:
            for sse in httpx_sse.EventSource(response).iter_sse():
                self._bytes_since_event, has_event = 0, True
                self._feed(assembler, self._events_in(sse.event, sse.data), sse.data)
                if assembler.is_complete:
                    break
            if self._translator is not None and not assembler.is_complete:
                self._feed(assembler, self._translator.end())
            is_readable = has_event or re.match(STREAM_START, first) is not None
            is_of_another_api = assembler.message_id is None and self._has_beginning
            if is_of_another_api or (not is_readable and len(first.strip(b"\0\r\n ")) >= ENOUGH_BYTES):
                raise not_a_stream(self._host, content_type, first[:ERROR_BODY_BYTES], self._redact)
            answer = assembler.answer(request_id)
        except (AgentError, Interrupted) as error:
            if assembler.message_id is not None:
                self._events.emit(ResponseDiscarded(assembler.message_id))
            # The server bills an answer that has begun, but most servers report its count only at the end.
            counted, least = tokens_of(assembler.usage), int(assembler.message_id is not None)
            error.tokens = replace(counted, output=max(counted.output, assembler.streamed_tokens, least))
            raise _redacted(error, self._redact) from error.__cause__
        return answer

    def _feed(self, assembler: StreamAssembler, events: Iterable[dict[str, Any]], data: str = "") -> None:
        has_invalid_utf8 = self._text.has_invalid_utf8 and "\ufffd" in data
        for event in events:
            if event.get("type") != "ping":
                self._clocks.got_progress(self._arrived_s)
            assembler.feed(event, has_invalid_utf8=has_invalid_utf8)
            self._events.emit(StreamReceived(event))

    def _events_in(self, name: str, data: str) -> Iterable[dict[str, Any]]:
        """The events of the Messages API in a piece of the stream with this name and this data. Raises the errors of `_event`."""
        if self._translator is not None and name != "error":
            more = self._translator.more(data)
            if more is not None:
                return (more,)
        event = self._event(name, data)
        if event is not None and not self._has_beginning:
            self._has_beginning = not _BEGINNINGS.isdisjoint(
                map(str, (event.get("object"), event.get("type")))
            )
        if self._translator is None:
            return () if event is None else (event,)
        if event is None:
            return self._translator.end() if data.strip() else ()
        return self._translator.events(name, event)

    def _texts(self, first: bytes) -> Iterator[str]:
        """Yields the text of the body as it arrives, beginning with `first`, in the form that the parser needs. Raises
        StreamParse if an event or the answer is too large, and the errors of `_next_of_body`.
        """
        item: bytes | None = first
        while item is not None:
            self._answer_bytes += len(item)
            if self._answer_bytes > ANSWER_BYTES:
                raise StreamParse(f"the answer is larger than {ANSWER_BYTES >> 20} MiB")
            self._bytes_since_event += len(item)
            if self._bytes_since_event > EVENT_BYTES:
                raise StreamParse(f"one stream event is larger than {EVENT_BYTES >> 20} MiB")
            yield self._text.decoded(item)
            try:
                item = self._next_of_body("the answer to continue")
            except StreamTransient:
                # Servers of other APIs leave connections open behind an answer that has ended, or break them.
                if self._translator is None or not self._translator.end():
                    raise
                item = None

    def _next_of_body(self, waiting_for: str) -> bytes | None:
        if self._is_over:
            return None
        deadline = self._clocks.next_deadline()
        item = self._next(deadline, waiting_for)
        if item is TIMED_OUT and deadline is not None:
            self._fire(deadline)
            raise StreamTransient(f"the answer stalled: {deadline.clock} for {deadline.after_s:g}s")
        if isinstance(item, Failed):
            raise error_inside_answer(item.error, self._redact) from item.error
        if isinstance(item, BodyEnd):
            self._is_over = True
            return None
        self._arrived_s = self._clock.now_s()
        self._clocks.got_bytes(self._arrived_s)
        chunk: bytes = item
        return chunk

    def _next(self, deadline: Deadline | None, waiting_for: str) -> Any:
        if deadline is None:
            return self.exchange.next_item(None, waiting_for)
        while (until_s := self._catch_up.wait_until_s(deadline, self._clock.now_s())) is not None:
            item = self.exchange.next_item(until_s, waiting_for)
            if item is not TIMED_OUT or not CatchUp.woke_late(deadline, self._clock.now_s()):
                return item
        return TIMED_OUT

    def _fire(self, deadline: Deadline) -> None:
        self._events.emit(ClockFired(deadline.clock, deadline.after_s))

    def _event(self, name: str, data: str) -> dict[str, Any] | None:
        """The event with this name and this data, or None if the data says nothing."""
        try:
            event = strict_json(data)
        except (ValueError, RecursionError) as error:
            if name == "error":
                raise stream_error({"error": data.strip()}, self._clock.utc_now()) from error
            if data.strip() in {"", "[DONE]"}:
                return None  # OpenAI ends a stream with [DONE], the Messages API with message_stop alone
            raise Json(str(error), self._excerpt(data)) from error
        if name == "error":
            told = out_of_list(event)
            told = told if isinstance(told, dict) else {"error": event}
            raise stream_error(told, self._clock.utc_now())
        event = out_of_list(event)
        if not isinstance(event, dict) or not isinstance(event.get("type", ""), str):
            raise StreamParse(f"a stream event that is not an object with a type: {self._excerpt(data)}")
        if "type" not in event and name != "message":
            event["type"] = name
        return event

    def _excerpt(self, data: str) -> str:
        return self._redact(data[:4096])[:200]

    def _error_body(self) -> bytes:
        limit = self._clocks.error_body(self._clock.now_s())
        body = b""
        while len(body) < ERROR_BODY_BYTES:
            item = self._next(limit, "the body of an error")
            if not isinstance(item, bytes):
                break
            body += item
        return body[:ERROR_BODY_BYTES]

    def _answer_of_other_type(self, first: bytes, content_type: str, request_id: str | None) -> Answer:
        body = bytearray(first)
        while (chunk := self._next_of_body("the body of the answer")) is not None:
            body += chunk
            if len(body) > JSON_BODY_BYTES:
                break
        if not body.strip():
            raise StreamTransient("the answer was empty")
        text = body.decode("utf-8", "replace")
        try:
            value = strict_json(text)
        except (ValueError, RecursionError):
            value = None
        value = out_of_list(value)
        if isinstance(value, dict) and reports_error(value):
            raise _redacted(stream_error(value, self._clock.utc_now()), self._redact)
        has_invalid_utf8 = "\ufffd" in text and b"\xef\xbf\xbd" not in body
        try:
            answer = self._whole_answer(value, request_id, has_invalid_utf8=has_invalid_utf8)
        except AgentError as error:
            raise _redacted(error, self._redact) from error.__cause__
        if answer is not None:
            if not self._is_whole:
                self._events.emit(Notice("the server ignored `stream` and sent the whole message as JSON"))
            return answer
        raise not_a_stream(self._host, content_type, bytes(body[:ERROR_BODY_BYTES]), self._redact)

    def _whole_answer(
        self, value: object, request_id: str | None, *, has_invalid_utf8: bool
    ) -> Answer | None:
        if not isinstance(value, dict):
            return None
        if self._dialect is None:
            is_message = value.get("type") == "message"
            return (
                answer_from_message(value, request_id, has_invalid_utf8=has_invalid_utf8)
                if is_message
                else None
            )
        events = self._dialect.whole(value)
        if events is None:
            return None
        assembler = StreamAssembler(self._clock.utc_now())
        for event in events:
            assembler.feed(event, has_invalid_utf8=has_invalid_utf8)
        return assembler.answer(request_id)


class _TextResponse(httpx.Response):
    """A response in the form that httpx-sse reads. Its text is already decoded, and arrives while httpx-sse reads
    it.
    """

    def __init__(self, texts: Iterator[str]) -> None:
        super().__init__(200, headers={"content-type": "text/event-stream"})
        self._texts = texts

    def iter_text(self, chunk_size: int | None = None) -> Iterator[str]:  # noqa: ARG002 - as in httpx.Response
        return self._texts


def _redacted(error: _E, redact: Callable[[str], str]) -> _E:
    if isinstance(error, StreamParse | StreamTransient):
        error.message = redact(error.message)
        # A code or a type that is not a credential is not changed, so the error is classified as before.
        error.error_type, error.error_code, error.request_id = (
            text and redact(text) for text in (error.error_type, error.error_code, error.request_id)
        )
    return error


class StreamText:
    """Decodes the bytes of a stream for the parser. Removes the byte order mark, changes every line break to LF,
    and detects invalid UTF-8, which becomes U+FFFD.

    The parser (httpx-sse) keeps the mark. It also waits for more text after a CR, so it would lose a last line that
    ends in CR.
    """

    def __init__(self) -> None:
        self.has_invalid_utf8 = False
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_at_start = True
        self._after_cr = False

    def decoded(self, chunk: bytes) -> str:
        """The text of a chunk. It may be empty, for example if the chunk contains only a part of a character."""
        try:
            text = self._decoder.decode(chunk)
        except UnicodeDecodeError:
            self.has_invalid_utf8 = True
            self._decoder.errors = "replace"
            text = self._decoder.decode(chunk)
        if self._is_at_start and text:
            self._is_at_start = False
            text = text.removeprefix("\ufeff")
        return self._with_lf(text) if self._after_cr or "\r" in text else text

    def _with_lf(self, text: str) -> str:
        if not text:
            return text
        if self._after_cr:
            text = text.removeprefix("\n")
        self._after_cr = text.endswith("\r")
        return text.replace("\r\n", "\n").replace("\r", "\n")


# --- The deadlines of an answer
# They follow from the time limits. The read timeout of an HTTP library is not enough. A stream of pings never exceeds
# such a timeout, and neither does a stream that arrives very slowly.

ERROR_BODY_S = 5.0


class Deadline(Struct, frozen=True):
    clock: str
    """The name of the time limit, such as "first byte"."""
    at_s: float
    """The time on the run's clock, in seconds, at which the time limit is reached."""
    after_s: float
    """The length of the time limit, in seconds."""


class ResponseClocks:
    """Stores when the parts of an answer arrived, in seconds of the run's clock, and computes the next deadline."""

    def __init__(self, limits: ClockLimits, now_s: float) -> None:
        self._limits = limits
        self._started_s = now_s
        self._connected_s: float | None = None
        self._byte_s: float | None = None
        self._progress_s: float | None = None

    def connected(self, now_s: float | None) -> None:
        """Stores when the connection was open. None means that it was open at the start."""
        self._connected_s = self._started_s if now_s is None else now_s

    def got_bytes(self, now_s: float) -> None:
        self._byte_s = now_s
        if self._progress_s is None:
            self._progress_s = now_s

    def got_progress(self, now_s: float) -> None:
        """Stores the time of a stream event. Must be called for each event that is not a ping."""
        self._progress_s = now_s

    def error_body(self, now_s: float) -> Deadline:
        """The deadline for reading the body of an error. It is near, because the status is already known and
        matters more.
        """
        ends_s = now_s + ERROR_BODY_S
        if self._limits.response_s > 0:
            ends_s = min(ends_s, self._started_s + self._limits.response_s)
        return Deadline("error body", ends_s, ERROR_BODY_S)

    def next_deadline(self) -> Deadline | None:
        """The earliest deadline of the limits that apply now. None if no limit applies."""
        limits = self._limits
        later: tuple[tuple[str, float, float], ...]
        if self._byte_s is not None and self._progress_s is not None:
            later = (
                ("bytes idle", self._byte_s, limits.bytes_idle_s),
                ("progress idle", self._progress_s, limits.progress_idle_s),
            )
        elif self._connected_s is not None:
            later = (("first byte", self._connected_s, limits.first_byte_s),)
        else:
            later = (("connect", self._started_s, limits.connect_s),)
        # This is done for each piece of an answer, so only the earliest becomes a Deadline.
        name, since_s, limit_s = "response", self._started_s, limits.response_s
        for each in later:
            if each[2] > 0 and (limit_s <= 0 or each[1] + each[2] < since_s + limit_s):
                name, since_s, limit_s = each
        return Deadline(name, since_s + limit_s, limit_s) if limit_s > 0 else None


CATCH_UP_S = 1.0
"""The seconds after a late wake-up in which data may still be read, although a deadline has passed."""
_WOKE_LATE_S = 0.2


class CatchUp:
    """Allows data to be read for a short time after a deadline has passed.

    If the process was stopped or the machine slept, data may have arrived in time and still be unread. The time is
    short, so that a server that never stops sending cannot postpone the deadline.
    """

    def __init__(self) -> None:
        self._ends_s: float | None = None

    def wait_until_s(self, deadline: Deadline, now_s: float) -> float | None:
        """The time until which the caller may wait for data. If the deadline has just passed, it is `now_s`: only
        data that has already arrived may be taken. None if the caller must stop waiting.
        """
        if now_s < deadline.at_s:
            self._ends_s = None
            return deadline.at_s
        if self._ends_s is None:
            if not self.woke_late(deadline, now_s):
                return now_s
            self._ends_s = now_s + CATCH_UP_S
        return self._ends_s if now_s < self._ends_s else None

    @staticmethod
    def woke_late(deadline: Deadline, now_s: float) -> bool:
        """Whether a wait ended so long after its deadline that the process was probably stopped during the wait."""
        return now_s - deadline.at_s >= _WOKE_LATE_S
