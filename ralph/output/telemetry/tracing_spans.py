"""Turns the events of a run into the spans of one trace: the run, its turns, and their requests and tool calls. Decides
when a span begins, ends and fails, and which attributes it has.

Names, numbers and kinds are exported. Fields that may contain text are not exported: prompts, answers, arguments,
outputs and error messages. If a value is unknown (None), its attribute is left out.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ralph.output.system_events import named_fields
from ralph.values import events as ev
from ralph.values.answer import ToolCall, describe_bug
from ralph.values.servers.endpoint import ANTHROPIC
from ralph.values.usage import TokenUsage, cost_usd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.output.telemetry.tracing_delivery import SpanDelivery

    Attributes = Mapping[str, Any]


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
"""The events that become span events. Maps each type of event to its name in ralph's own output, and to a table that
gives the event's field for each attribute."""


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
    """The attributes that can be read from one event of the API's stream. Values of a wrong type are ignored, because
    a server may send anything.
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
"""The maximum length of a string attribute, in characters. Real names are shorter. A longer name must have been made
up by a model or a server."""


def tracer_for(delivery: SpanDelivery, version: str) -> Tracer:
    """A tracer with a separate provider. Does not change the process's own provider, and registers no function to run
    at exit.
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
    """An `Events` sink that makes spans. `emit` and `close` never raise an exception. A bug in this class ends the
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
        """Sends the remaining spans within `timeout_s` seconds. If there were problems, reports all of them in one
        line.
        """
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
        """Ends the span of the turn. Before that, ends the spans of tool calls that have no result, and marks them as
        interrupted.
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
        """The span of the run. If there is none yet, starts it. The span begins with the run's first event. So the
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
