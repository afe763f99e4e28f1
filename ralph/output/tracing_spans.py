"""Turns the events of a run into the spans of one trace: the run, its turns, and their requests and tool calls. Decides
when a span begins, ends and fails, and which attributes it has.

Names, numbers and kinds are exported. Fields that may contain text are not exported: prompts, answers, arguments,
outputs and error messages. If a value is unknown (None), its attribute is left out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from msgspec import Struct
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from urllib3.util import connection as connections

from ralph.machine.connecting import choose_address, connect
from ralph.machine.starting import start_thread
from ralph.output.stream_json import named_fields
from ralph.values import events as ev
from ralph.values.answer import ToolCall, describe_bug
from ralph.values.outcome import ShortageError
from ralph.values.servers import ANTHROPIC
from ralph.values.usage import TokenUsage, cost_usd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Attributes = Mapping[str, Any]
    import socket
    from collections.abc import Sequence


def _named(words: str) -> dict[str, str]:
    """As `named_fields`. A name without a dot is one of ralph's own attributes."""
    return {key if "." in key else f"ralph.{key}": field for key, field in named_fields(words).items()}


# The names of the GenAI conventions, as text. The package no longer has constants for them.
_SPAN_EVENTS: dict[type, tuple[str, dict[str, str]]] = {
    ev.RetryScheduled: (
        "api_retry",
        _named("retry=attempt max_retries wait_s target error.type=kind http.response.status_code=status"),
    ),
    ev.RetryRecovered: ("retry_recovered", _named("attempt retries waited_s=total_wait_s")),
    ev.RetryExhausted: ("retry_exhausted", _named("attempt retries waited_s=total_wait_s")),
    ev.ModelFallback: ("model_fallback", _named("attempt from=from_target to=to_target reason")),
    ev.ModelFallbackSucceeded: ("model_fallback_succeeded", _named("attempt target")),
    ev.ModelFallbackRecovered: ("model_fallback_recovered", _named("attempt target")),
    ev.SyntheticRetry: ("synthetic_retry", _named("retry=number reason")),
    ev.MalformedCallRefused: ("malformed_call", _named("gen_ai.tool.name=tool")),
    ev.GuardTripped: ("guard", _named("guard refusals gen_ai.tool.name=call.name")),
    ev.FinalTurnEntered: ("final_turn", _named("reason")),
    ev.TurnsCollapsed: ("turns_collapsed", _named("reason old_max_turns new_max_turns")),
    ev.ReportAccepted: ("report_accepted", _named("source status attempts reason=forced_reason")),
    ev.ContextCompacted: ("compact_boundary", _named("trigger source pre_tokens post_tokens")),
}
"""The events that become span events. Maps each type of event to its name in ralph's own output, and to a table
that gives the event's field for each attribute."""


def span_event_of(event: ev.Event) -> tuple[str, Attributes] | None:
    """The name and the attributes of the span event for an event. None if the event does not become a span event."""
    if (found := _SPAN_EVENTS.get(type(event))) is None:
        return None
    name, fields = found
    return name, {key: attrgetter(field)(event) for key, field in fields.items()}


def provider_of(api: str) -> Attributes:
    """The provider as the conventions name it: the vendor whose API is spoken, whoever serves it."""
    return {"gen_ai.provider.name": "anthropic" if api == ANTHROPIC else "openai"}


def run_attributes(session_id: str) -> Attributes:
    return {
        **provider_of(ANTHROPIC),
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "ralph",
        "gen_ai.conversation.id": session_id,
    }


def result_attributes(event: ev.RunEnded) -> Attributes:
    return {
        **_usage(event.usage.tokens),
        "ralph.outcome": event.outcome.value,
        "ralph.exit_code": event.exit_code,
        "ralph.turns": event.num_turns,
        "ralph.retries": event.retries,
        "ralph.waited_s": event.waited_s,
        "ralph.api_s": event.api_s,
        "ralph.cost_usd": event.usage.cost_usd,
    }


def attempt_attributes(event: ev.AttemptEnded, session_id: str) -> Attributes:
    return {
        **provider_of(event.api),
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": session_id,
        "gen_ai.request.model": event.model,
        **_usage(event.tokens),
        "http.response.status_code": event.status,
        "ralph.attempt": event.attempt,
        "ralph.target": event.target,
        "ralph.turn": event.turn,
        "ralph.cost_usd": cost_usd(event.facts, event.tokens),
    }


def tool_attributes(call: ToolCall) -> Attributes:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
    }


def stream_attributes(event: Mapping[str, Any]) -> Attributes:
    """The attributes that can be read from one event of the API's stream. Values of a wrong type are ignored,
    because a server may send anything.
    """
    match event:
        case {"type": "message_start", "message": {**message}}:
            return {
                "gen_ai.response.id": _text(message.get("id")),
                "gen_ai.response.model": _text(message.get("model")),
            }
        case {"type": "message_delta", "delta": {"stop_reason": str(reason)}}:
            return {"gen_ai.response.finish_reasons": (reason,)}
        case _:
            return {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _usage(tokens: TokenUsage) -> dict[str, int]:
    if tokens == TokenUsage():
        return {}
    return {
        # by the conventions, cached tokens are a part of the input
        "gen_ai.usage.input_tokens": tokens.prompt,
        "gen_ai.usage.output_tokens": tokens.output,
        "gen_ai.usage.cache_creation.input_tokens": tokens.cache_write,
        "gen_ai.usage.cache_read.input_tokens": tokens.cache_read,
    }


CLOSE_TIMEOUT_S = 2.0
LONGEST_NAME = 128
"""The maximum length of a string attribute, in characters. A longer one was made up by a model or a server."""


def tracer_for(delivery: SpanDelivery, version: str) -> Tracer:
    """A tracer with a separate provider. Does not change the process's own provider, and registers no function to
    run at exit.
    """
    named = OTELResourceDetector().detect().attributes.get("service.name") or "ralph"
    resource = Resource.create({"service.name": named, "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(delivery)
    return provider.get_tracer("ralph", version)


class _Open(Struct, frozen=True):
    span: Span
    started_ns: int

    def fail(self, kind: str) -> None:
        self.span.set_attribute("error.type", kind)
        self.span.set_status(StatusCode.ERROR, kind)

    def end(self, end_ns: int) -> None:
        self.span.end(max(end_ns, self.started_ns))  # a wall clock may be set back


class Tracing:
    """An `Events` sink that makes spans. `emit` and `close` never raise an exception: a bug in this class ends the
    tracing, but not the run.
    """

    def __init__(
        self,
        tracer: Tracer,
        delivery: SpanDelivery,
        *,
        session_id: str,
        environment: Mapping[str, str],
        tell: Callable[[str], None],
        redact: Callable[[str], str],
        now_ns: Callable[[], int],
    ) -> None:
        self._session_id = session_id
        """The session id for the span of the next run. Until a session is open, this is the id that a new session
        would get."""
        self._tracer = tracer
        self._delivery = delivery
        self._tell = tell
        self._redact = redact
        self._now_ns = now_ns
        carrier = {name.lower(): environment.get(name, "") for name in ("TRACEPARENT", "TRACESTATE")}
        self._around = TraceContextTextMapPropagator().extract(carrier, Context())
        """The parent of each run's span. Empty if the environment variables name no valid parent."""
        self._run: _Open | None = None
        self._turn: _Open | None = None
        self._tools: dict[str, _Open] = {}
        self._answer: dict[str, Any] = {}
        """The attributes of the answer that is being received."""
        self._bug: str | None = None
        self._is_closed = False

    def emit(self, event: ev.Event) -> None:
        if self._is_closed or self._bug is not None:
            return
        try:
            self._record(event)
        except Exception as error:  # noqa: BLE001 - tracing must never hurt the run
            self._stop(error)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Sends the remaining spans within `timeout_s` seconds. Reports all problems, if any, in one line."""
        if self._is_closed:
            return
        try:
            if self._run is not None:
                self._end_run(self._now_ns(), "no_result")
        except Exception as error:  # noqa: BLE001 - tracing must never hurt the run
            self._stop(error)
        self._is_closed = True
        problems = [text for text in (self._bug, self._delivery.close(timeout_s)) if text is not None]
        if problems:
            self._tell(f"--otel: {'; '.join(problems)}")

    def _stop(self, error: Exception) -> None:
        self._bug = self._bug or f"tracing has stopped: {self._redact(describe_bug(error))}"

    def _record(self, event: ev.Event) -> None:
        if isinstance(event, ev.StreamReceived):  # first, because these come by the thousand
            self._answer.update(stream_attributes(event.event))
            return
        now_ns = self._now_ns()
        match event:
            case ev.SessionOpened():
                self._session_id = event.session_id
            case ev.TurnStarted():
                self._end_turn(now_ns)
                run = self._run_span(now_ns)
                self._turn = self._start(f"turn {event.turn}", run, now_ns, {"ralph.turn": event.turn})
            case ev.AttemptEnded():
                self._attempt_ended(event, now_ns)
            case ev.ToolStarted():
                self._tools[event.call.id] = self._tool(event.call, now_ns)
            case ev.ToolFinished():
                self._tool_finished(event, now_ns)
            case ev.RunEnded():
                run = self._run_span(now_ns - _ns(event.duration_s))
                run.span.set_attributes(self._fit(result_attributes(event)))
                self._end_run(now_ns, event.outcome.value if event.outcome.is_error else None)
            case _ if (span_event := span_event_of(event)) is not None:
                name, about = span_event
                self._parent(now_ns).span.add_event(name, self._fit(about), now_ns)

    def _attempt_ended(self, event: ev.AttemptEnded, now_ns: int) -> None:
        started_ns = now_ns - _ns(event.latency_s)
        if self._turn is not None:  # which is told when its first request is already on its way
            started_ns = max(started_ns, self._turn.started_ns)
        about = {**attempt_attributes(event, self._session_id), **self._answer}
        self._answer = {}
        parent = self._parent(started_ns)
        opened = self._start(f"chat {event.model}", parent, started_ns, about, SpanKind.CLIENT)
        if event.kind is not None:
            opened.fail(event.kind)
        opened.end(now_ns)
        self._run_span(started_ns).span.set_attributes(self._fit(provider_of(event.api)))

    def _tool(self, call: ToolCall, started_ns: int) -> _Open:
        about = tool_attributes(call)
        return self._start(f"execute_tool {call.name}", self._parent(started_ns), started_ns, about)

    def _tool_finished(self, event: ev.ToolFinished, now_ns: int) -> None:
        """Ends the span of a tool call. Parallel calls are reported together when the last of them has ended. Each
        call has its own duration.
        """
        took_ns = _ns(event.took_s)
        opened = self._tools.pop(event.call.id, None) or self._tool(event.call, now_ns - took_ns)
        if event.result.output.is_error:
            opened.fail("tool_error")
        opened.end(min(now_ns, opened.started_ns + took_ns))

    def _end_run(self, now_ns: int, failure: str | None) -> None:
        self._end_turn(now_ns)
        if self._run is not None:
            if failure is not None:
                self._run.fail(failure)
            self._run.end(now_ns)
        self._run = None
        self._answer = {}

    def _end_turn(self, now_ns: int) -> None:
        """Ends the span of the turn. Before that, ends the spans of tool calls that have no result, and marks them
        as interrupted.
        """
        for opened in self._tools.values():
            opened.fail("interrupted")
            opened.end(now_ns)
        self._tools.clear()
        if self._turn is not None:
            self._turn.end(now_ns)
        self._turn = None

    def _parent(self, started_ns: int) -> _Open:
        return self._turn or self._run_span(started_ns)

    def _run_span(self, started_ns: int) -> _Open:
        """The span of the run, which is started if there is none yet. It begins with the run's first event, so the
        time between two runs of a process is in neither of their spans.
        """
        if self._run is None:
            about = run_attributes(self._session_id)
            self._run = self._start("invoke_agent ralph", None, started_ns, about)
        return self._run

    def _start(
        self,
        name: str,
        parent: _Open | None,
        started_ns: int,
        about: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> _Open:
        # It always has its own context. No span is ever the current one, so no header is added to a request.
        around = self._around if parent is None else trace.set_span_in_context(parent.span, Context())
        span = self._tracer.start_span(
            self._shown(name), around, kind=kind, attributes=self._fit(about), start_time=started_ns
        )
        return _Open(span, started_ns)

    def _fit(self, about: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._shown(value) for key, value in about.items() if value is not None}

    def _shown(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._shown(part) for part in value)
        if not isinstance(value, str):
            return value
        # A lone surrogate cannot be encoded, and would make the whole batch fail.
        plain = value.encode("utf-8", "replace").decode("utf-8")
        return self._redact(plain)[:LONGEST_NAME]


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


# --- Sending spans
# A thread sends finished spans to an OTLP endpoint, and counts the spans that are lost. The run never waits for this thread,
# except for a limited time at its end.

# The SDK's own defaults for its batches: 2,048 spans wait, 512 go at once, after 5 s at the latest.
MOST_WAITING_SPANS = 2048
_BATCH_SPANS = 512
_INTERVAL_S = 5.0


class SpanDelivery(SpanProcessor):
    """A span processor. It replaces the SDK's own, which does not report lost spans and can take 30 s to close."""

    def __init__(self, endpoint: str) -> None:
        self.taken = 0
        """The number of spans that this processor has received."""
        self.delivered = 0
        """The number of spans that the endpoint has accepted."""
        self._endpoint = endpoint
        choose_address(endpoint)
        connections.create_connection = _connected  # type: ignore[assignment]  # requests has no parameter for it
        self._session = _Session()
        self._exporter = OTLPSpanExporter(endpoint=endpoint, session=self._session)
        # The oldest span is dropped, because the newest spans of a trace hold its totals.
        self._waiting: deque[ReadableSpan] = deque(maxlen=MOST_WAITING_SPANS)
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_abandoned = False
        self._thread: threading.Thread | None = None
        self._start_thread()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._changed:
            if not self._is_closing:
                self.taken += 1
                self._waiting.append(span)
                self._changed.notify()
        self._start_thread()

    def close(self, timeout_s: float) -> str | None:
        """Sends the remaining spans, for at most `timeout_s` seconds. Returns the reason why spans were lost, or
        None if all arrived.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._start_thread()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._changed:
            self._is_abandoned = True
            is_late = self._thread is not None and self._thread.is_alive()
            lost = self.taken - self.delivered
        with suppress(Exception):
            # Ends the wait for a retry if the thread is waiting for one.
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK has no types for it
        if lost == 0:
            return None
        why = self._session.problem or (f"no answer within {timeout_s:g}s" if is_late else "not accepted")
        return f"{lost} of {self.taken} spans could not be delivered to {_shown(self._endpoint)}: {why}"

    def _start_thread(self) -> None:
        if self._thread is None:
            try:
                self._thread = start_thread(self._work, name="ralph-traces")
            except ShortageError as error:
                self._session.problem = str(error)

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            is_delivered = self._send(batch)
            with self._changed:
                if is_delivered and not self._is_abandoned:
                    self.delivered += len(batch)

    def _next_batch(self) -> list[ReadableSpan] | None:
        """Waits for a full batch of spans. After some time, returns a batch that is not full.

        After `close`, returns the remaining spans without waiting. None when no spans are left, or when the time
        limit of `close` is over.
        """
        with self._changed:
            ends_s = time.monotonic() + _INTERVAL_S
            while not self._is_closing and len(self._waiting) < _BATCH_SPANS:
                left_s = ends_s - time.monotonic()
                if left_s <= 0 and self._waiting:
                    break
                self._changed.wait(left_s if left_s > 0 else None)
            if self._is_abandoned or not self._waiting:
                return None
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH_SPANS))]

    def _send(self, batch: Sequence[ReadableSpan]) -> bool:
        try:
            result = self._exporter.export(batch)
        except Exception as error:  # noqa: BLE001 - a thread that dies prints a traceback
            self._session.problem = type(error).__name__
            return False
        return result is SpanExportResult.SUCCESS and self._session.problem is None


class _Session(requests.Session):
    """An HTTP session that stores in `problem` why the last request failed, without addresses and headers. None if
    it succeeded.
    """

    problem: str | None = None

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        try:
            response = super().send(request, **kwargs)
        except Exception as error:
            self.problem = type(error).__name__
            raise
        # The exporter follows no redirect, and would take one for success.
        self.problem = None if response.status_code < 300 else f"HTTP {response.status_code}"
        return response


def _connected(address: tuple[str, int], timeout: Any = None, **_: Any) -> socket.socket:
    """Replaces urllib3's own function, which connects to each address of a name."""
    opened = connect(address[0].strip("[]"), address[1], timeout)
    opened.settimeout(timeout)
    return opened


def _shown(endpoint: str) -> str:
    """The endpoint without user, password and query, because these may contain a key."""
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
