"""Spans as a real OTLP endpoint receives them, and endpoints that do not receive them."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from ralph.output.tracing import TracingError, open_tracing
from ralph.output.tracing_spans import LONGEST_NAME, MOST_WAITING_SPANS
from ralph.values import events as ev
from ralph.values.answer import ToolCall, ToolOutput, ToolResult
from ralph.values.outcome import Outcome, ShortageError
from ralph.values.servers import ModelFacts, Price
from ralph.values.usage import RunUsage, TokenUsage
from tests.output.ended import ended as run_ended
from tests.rows import every_row
from tests.services.otlp_collector import FIRST_NS, Collector, collecting
from tests.services.two_addresses import NAME, SIX, two_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.output.tracing_spans import Tracing

DOCS = Path(__file__).parents[3] / "docs" / "telemetry.md"
MODEL = "claude-opus-5-5"
FACTS = ModelFacts(None, None, Price(10, 100, 20, 40, 1))
TOKENS = TokenUsage(input=100, output=20, cache_write=30, cache_read=50)
COST_USD = (100 * 10 + 20 * 100 + 30 * 20 + 50 * 1) / 1e6
CANARY = "canary-3f9a"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OTEL_", "TRACE")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def collector(monkeypatch) -> Iterator[Collector]:
    with collecting() as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.url)
        yield one


@dataclass
class Stage:
    """A `Tracing` with a clock that the test sets, and the lines that it printed."""

    seconds: float = 0.0
    told: list[str] = field(default_factory=list)
    redact: Callable[[str], str] = str

    def __post_init__(self) -> None:
        self.tracing: Tracing = open_tracing(
            "session-1",
            os.environ,
            version="1.2.3",
            tell=self.told.append,
            redact=self.redact,
            now_ns=lambda: FIRST_NS + round(self.seconds * 1e9),
        )

    def observed(self, *steps: ev.Event | float) -> Stage:
        """Emits the events in order. A number sets the clock for the events after it."""
        for step in steps:
            if isinstance(step, int | float):
                self.seconds = step
            else:
                self.tracing.emit(step)
        return self

    def close(self) -> None:
        self.tracing.close()


def attempt(turn: int = 1, number: int = 1, latency_s: float = 1.0, **changes: Any) -> ev.AttemptEnded:
    given = {"tokens": TOKENS, "facts": FACTS, **changes}
    return ev.AttemptEnded(turn, number, "main", MODEL, latency_s, **given)


def streamed(event: dict[str, Any]) -> ev.StreamReceived:
    return ev.StreamReceived(event)


def call(number: int, name: str = "Bash") -> ToolCall:
    return ToolCall(f"toolu_{number}", name, {"command": f"{CANARY} in arguments"})


def finished(one: ToolCall, took_s: float, *, is_error: bool = False) -> ev.ToolFinished:
    return ev.ToolFinished(one, ToolResult(one.id, ToolOutput(f"{CANARY} in output", is_error)), took_s)


def ended(outcome: Outcome = Outcome.COMPLETED) -> ev.RunEnded:
    said = {"result": f"{CANARY} in result", "errors": (f"{CANARY} in errors",)}
    usage = RunUsage().plus(MODEL, TOKENS, FACTS)
    return run_ended(outcome, **said, num_turns=2, api_s=4.5, usage=usage, retries=1, waited_s=2.0)


RETRY = ev.RetryScheduled(
    1, 4, 2.0, 529, "HttpError", "overloaded", f"{CANARY} in message", turn=1, target="main"
)


def about(**fields: Any) -> dict[str, Any]:
    """Attributes of ralph's own, with those of the conventions, which have dots in their names."""
    own = {f"ralph.{name}": value for name, value in fields.items() if name != "more"}
    return {**own, **fields.get("more", {})}


BASH = {"gen_ai.tool.name": "Bash"}
OVERLOADED = {"error.type": "overloaded", "http.response.status_code": 529}
MOMENTS: list[tuple[ev.Event, str, dict[str, Any]]] = [
    (RETRY, "api_retry", about(retry=1, max_retries=4, wait_s=2.0, target="main", more=OVERLOADED)),
    (ev.RetryRecovered(2, 3.5, 1, 3), "retry_recovered", about(attempt=3, retries=2, waited_s=3.5)),
    (ev.RetryExhausted(2, 3.5, CANARY, 1, 3), "retry_exhausted", about(attempt=3, retries=2, waited_s=3.5)),
    (
        ev.ModelFallback("main", "spare", "overloaded", 1, 1),
        "model_fallback",
        about(attempt=1, to="spare", reason="overloaded", more={"ralph.from": "main"}),
    ),
    (ev.ModelFallbackSucceeded("spare", 1, 2), "model_fallback_succeeded", about(attempt=2, target="spare")),
    (ev.ModelFallbackRecovered("main", 2, 1), "model_fallback_recovered", about(attempt=1, target="main")),
    (ev.SyntheticRetry(1, 2, "empty_answer"), "synthetic_retry", about(retry=2, reason="empty_answer")),
    (ev.MalformedCallRefused(1, "Bash", CANARY), "malformed_call", BASH),
    (ev.GuardTripped(1, "repetition", call(1), 3), "guard", about(guard="repetition", refusals=3, more=BASH)),
    (ev.FinalTurnEntered(1, "max_turns"), "final_turn", about(reason="max_turns")),
    (
        ev.TurnsCollapsed(1, "report_failed", 10, 3),
        "turns_collapsed",
        about(reason="report_failed", old_max_turns=10, new_max_turns=3),
    ),
    (
        ev.TurnsCollapsed(1, "report_failed", None, 3),
        "turns_collapsed",
        about(reason="report_failed", new_max_turns=3),
    ),
    (
        ev.ReportAccepted("text", "success", 1, 2, "max_turns"),
        "report_accepted",
        about(source="text", status="success", attempts=2, reason="max_turns"),
    ),
    (
        ev.ContextCompacted("threshold", "model", 9000, 800),
        "compact_boundary",
        about(trigger="threshold", source="model", pre_tokens=9000, post_tokens=800),
    ),
]
SILENT: list[ev.Event] = [
    ev.RunStarted(CANARY, MODEL, ("Bash",), "none"),
    ev.Notice(CANARY),
    ev.Heartbeat(CANARY, 30.0),
    ev.AnswerAccepted({"id": "msg_1", "content": [{"type": "text", "text": CANARY}]}),
    ev.UserMessageCommitted(({"type": "text", "text": CANARY},)),
    ev.TurnAsked(1, 1, 1.0),
    ev.ResponseDiscarded("msg_1"),
    ev.ClockFired("idle", 90.0),
    streamed({"type": "content_block_delta", "delta": {"type": "text_delta", "text": CANARY}}),
]


def whole_run(stage: Stage) -> None:
    """Two turns: a failed attempt, an answered one with two parallel calls, and the final answer."""
    one, two = call(1), call(2, "Read")
    stage.observed(
        *SILENT,
        10.0,
        ev.TurnStarted(1),
        11.0,
        attempt(1, 1, 1.0, tokens=TokenUsage(), status=529, kind="overloaded", error=CANARY),
        RETRY,
        13.0,
        streamed({"type": "message_start", "message": {"id": "msg_1", "model": "opus-dated"}}),
        14.5,
        streamed({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
        15.0,
        attempt(1, 2, 2.0),
        *SILENT,
        ev.ToolStarted(one),
        ev.ToolStarted(two),
        18.0,
        finished(one, 3.0, is_error=True),
        finished(two, 0.5),
        20.0,
        ev.TurnStarted(2),
        21.0,
        attempt(2, 1, 0.5),
        22.0,
        ended(),
    )


@every_row(
    ("api", "provider"),
    [("anthropic", "anthropic"), ("openai-chat", "openai"), ("openai-responses", "openai")],
)
def test_the_provider_is_the_vendor_whose_api_is_spoken(collector, api: str, provider: str) -> None:
    stage = Stage()
    stage.observed(10.0, ev.TurnStarted(1), 11.0, attempt(1, 1, 1.0, api=api), ended())
    stage.close()
    told = {span.name.split()[0]: span.attributes.get("gen_ai.provider.name") for span in collector.spans()}
    assert told == {"invoke_agent": provider, "turn": None, "chat": provider}


def test_a_run_is_a_tree_of_turns_requests_and_tools_each_with_its_own_time(collector) -> None:
    stage = Stage()
    whole_run(stage)
    stage.close()
    tree = {
        (span.name, span.parent, span.from_s, span.to_s, span.kind, span.status) for span in collector.spans()
    }
    internal, client = 1, 3
    unset, error = 0, 2
    assert tree == {
        ("invoke_agent ralph", None, 10.0, 22.0, internal, unset),
        ("turn 1", "invoke_agent ralph", 10.0, 20.0, internal, unset),
        (f"chat {MODEL}", "turn 1", 10.0, 11.0, client, error),
        (f"chat {MODEL}", "turn 1", 13.0, 15.0, client, unset),
        ("execute_tool Bash", "turn 1", 15.0, 18.0, internal, error),
        ("execute_tool Read", "turn 1", 15.0, 15.5, internal, unset),
        ("turn 2", "invoke_agent ralph", 20.0, 22.0, internal, unset),
        (f"chat {MODEL}", "turn 2", 20.5, 21.0, client, unset),
    }
    assert len({span.trace_id for span in collector.spans()}) == 1
    assert stage.told == []


USAGE = {
    "gen_ai.usage.input_tokens": 180,
    "gen_ai.usage.output_tokens": 20,
    "gen_ai.usage.cache_creation.input_tokens": 30,
    "gen_ai.usage.cache_read.input_tokens": 50,
}
ATTEMPT = {
    "gen_ai.provider.name": "anthropic",
    "gen_ai.operation.name": "chat",
    "gen_ai.conversation.id": "session-1",
    "gen_ai.request.model": MODEL,
    "ralph.target": "main",
}


def test_spans_carry_the_attributes_of_the_conventions(collector) -> None:
    stage = Stage()
    whole_run(stage)
    stage.close()
    failed, answered, last = sorted(
        (span for span in collector.spans() if span.name.startswith("chat")), key=lambda span: span.from_s
    )
    assert failed.attributes == {
        **ATTEMPT,
        "http.response.status_code": 529,
        "error.type": "overloaded",
        "ralph.attempt": 1,
        "ralph.turn": 1,
        "ralph.cost_usd": 0.0,
    }
    assert answered.attributes == {
        **ATTEMPT,
        **USAGE,
        "gen_ai.response.id": "msg_1",
        "gen_ai.response.model": "opus-dated",
        "gen_ai.response.finish_reasons": ["tool_use"],
        "ralph.attempt": 2,
        "ralph.turn": 1,
        "ralph.cost_usd": COST_USD,
    }
    assert "gen_ai.response.id" not in last.attributes  # it belongs to another answer
    assert collector.span("turn 2").attributes == {"ralph.turn": 2}
    assert collector.span("execute_tool Bash").attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "Bash",
        "gen_ai.tool.call.id": "toolu_1",
        "gen_ai.tool.type": "function",
        "error.type": "tool_error",
    }
    assert collector.span("invoke_agent ralph").attributes == {
        **USAGE,
        "gen_ai.provider.name": "anthropic",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "ralph",
        "gen_ai.conversation.id": "session-1",
        "ralph.outcome": "completed",
        "ralph.exit_code": 0,
        "ralph.turns": 2,
        "ralph.retries": 1,
        "ralph.waited_s": 2.0,
        "ralph.api_s": 4.5,
        "ralph.cost_usd": COST_USD,
    }


@pytest.mark.parametrize(
    "message", [None, "text", {}, {"id": 7, "model": None}, {"id": ["msg"], "model": {"name": "m"}}]
)
def test_what_a_server_says_of_an_answer_in_another_type_is_left_out(collector, message) -> None:
    stage = Stage().observed(
        ev.TurnStarted(1), streamed({"type": "message_start", "message": message}), attempt(), ended()
    )
    stage.close()
    assert not {
        name for name in collector.span(f"chat {MODEL}").attributes if name.startswith("gen_ai.response")
    }
    assert stage.told == []


def test_what_happens_in_a_turn_is_an_event_of_its_span(collector) -> None:
    Stage().observed(ev.TurnStarted(1), *(event for event, _, _ in MOMENTS), ended()).close()
    assert collector.span("turn 1").events == [(name, attributes) for _, name, attributes in MOMENTS]


def test_tasks_of_a_driven_run_are_traces_of_their_own_without_the_time_between_them(collector) -> None:
    stage = Stage().observed(*SILENT, 10.0, ev.TurnStarted(1), attempt(), 12.0, ended())
    stage.observed(*SILENT, 60.0, *SILENT, 70.0, ev.TurnStarted(1), attempt(), 71.0, ended())
    stage.close()
    runs = [span for span in collector.spans() if span.name == "invoke_agent ralph"]
    assert [(run.from_s, run.to_s, run.parent_id) for run in runs] == [(10.0, 12.0, ""), (70.0, 71.0, "")]
    assert len({run.trace_id for run in runs}) == 2
    for run in runs:
        assert sum(span.trace_id == run.trace_id for span in collector.spans()) == 3


def test_a_call_that_is_stopped_in_the_middle_ends_with_its_turn(collector) -> None:
    Stage().observed(ev.TurnStarted(1), 1.0, ev.ToolStarted(call(1)), 4.0, ended(Outcome.TIMED_OUT)).close()
    tool = collector.span("execute_tool Bash")
    assert (tool.from_s, tool.to_s, tool.status, tool.attributes["error.type"]) == (
        1.0,
        4.0,
        2,
        "interrupted",
    )
    assert tool.parent == "turn 1"


def test_a_run_that_never_tells_its_end_is_delivered_all_the_same(collector) -> None:
    Stage().observed(ev.TurnStarted(1), ev.ToolStarted(call(1)), 2.0).close()
    assert {(span.name, span.to_s) for span in collector.spans()} == {
        ("invoke_agent ralph", 2.0),
        ("turn 1", 2.0),
        ("execute_tool Bash", 2.0),
    }
    assert collector.span("invoke_agent ralph").attributes["error.type"] == "no_result"


def test_no_span_ends_before_it_has_begun_when_the_clock_is_set_back(collector) -> None:
    Stage().observed(
        50.0, ev.TurnStarted(1), ev.ToolStarted(call(1)), 20.0, finished(call(1), 1.0), ended()
    ).close()
    assert collector.spans()
    for span in collector.spans():
        assert span.to_s >= span.from_s


@pytest.mark.parametrize(
    ("traceparent", "is_taken"),
    [
        (PARENT, True),
        (f"  {PARENT}", True),
        ("", False),
        ("no parent", False),
        (PARENT.upper(), False),
        (PARENT[:-1], False),
        (f"{PARENT}-more", False),
        (PARENT.replace("00-", "ff-"), False),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", False),
        (f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01", False),
        ("0" * 10_000, False),
        ("00-\udcff", False),
    ],
)
def test_the_run_is_a_child_of_a_valid_traceparent(
    collector, monkeypatch, traceparent, is_taken, capfd
) -> None:
    monkeypatch.setenv("TRACEPARENT", traceparent)
    monkeypatch.setenv("TRACESTATE", "vendor=1,,=")
    stage = Stage().observed(ev.TurnStarted(1), ended())
    stage.close()
    run = collector.span("invoke_agent ralph")
    parent = (run.trace_id, run.parent_id)
    assert (parent == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")) is is_taken
    assert is_taken or parent[1] == ""
    assert (stage.told, capfd.readouterr()) == ([], ("", ""))


def test_a_parent_that_is_not_sampled_sends_nothing_and_loses_nothing(collector, monkeypatch) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT.removesuffix("01") + "00")
    stage = Stage()
    whole_run(stage)
    stage.close()
    assert (collector.received, stage.told) == ([], [])


def test_nothing_that_was_said_called_with_or_put_out_is_sent(collector) -> None:
    stage = Stage()
    whole_run(stage)
    stage.observed(
        ev.TurnStarted(1), *[event for event, _, _ in MOMENTS], *SILENT, ended(Outcome.TASK_FAILED)
    )
    stage.close()
    sent = b"".join(body for _, _, body in collector.received)
    assert b"invoke_agent ralph" in sent
    assert b"canary" not in sent


def test_secrets_in_names_are_redacted_and_long_or_broken_names_still_arrive(collector) -> None:
    stage = Stage(redact=lambda text: text.replace("hunter2hunter2", "[redacted]"))
    broken, secret = call(1, "Ba\ud800sh"), call(2, "hunter2hunter2" + "x" * 1000)
    stage.observed(ev.TurnStarted(1), finished(broken, 0.1), finished(secret, 0.1), ended())
    stage.close()
    assert "execute_tool Ba?sh" in {span.name for span in collector.spans()}
    [long] = [span for span in collector.spans() if "redacted" in span.name]
    assert len(long.name) == LONGEST_NAME
    assert len(long.attributes["gen_ai.tool.name"]) == LONGEST_NAME
    assert b"hunter2" not in collector.received[0][2]
    assert stage.told == []


def test_standard_variables_name_the_service_the_headers_and_the_resource(collector, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc,x-team=blue")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=ci,service.name=other")
    Stage().observed(ended()).close()
    path, headers, _ = collector.received[0]
    assert (path, headers["authorization"], headers["x-team"]) == ("/v1/traces", "Bearer abc", "blue")
    assert headers["content-type"] == "application/x-protobuf"
    resource = collector.resource()
    assert (resource["service.name"], resource["service.version"]) == ("other", "1.2.3")
    assert resource["deployment.environment.name"] == "ci"


@pytest.mark.parametrize("is_proxy", [False, True], ids=["endpoint", "proxy"])
def test_who_listens_at_the_other_address_of_a_name_later_gets_no_header(
    collector, monkeypatch, is_proxy
) -> None:
    with two_addresses(monkeypatch) as at:
        at.port, url = collector.server_port, f"http://me:word@{NAME}:{collector.server_port}"
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.test" if is_proxy else url)
        stage = Stage()
        at.listen(SIX)
        stage.observed(ended()).close()
        assert at.accepted == 0
        header = "proxy-authorization" if is_proxy else "authorization"
        assert [headers[header] for _, headers, _ in collector.received] == ["Basic bWU6d29yZA=="]
    assert stage.told == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318", "must be a URL such as http://localhost:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://u:hunter2@h:4317", "must be a URL"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://", "must be a URL"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:99999", "must be a URL"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://[::1", "must be a URL"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "is 'grpc'; ralph speaks http/protobuf only"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "is 'http/json'"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "many", "the OTEL_* variables cannot be used"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(monkeypatch, name, value, said, capfd) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(TracingError) as refused:
        Stage()
    text = str(refused.value)
    assert text.startswith("--otel: ")
    assert said in text
    assert name in text
    assert "\n" not in text
    assert "hunter2" not in text
    assert capfd.readouterr() == ("", "")
    assert "ralph-traces" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("status", [401, 302, 503])
def test_an_endpoint_that_refuses_the_spans_is_told_once(monkeypatch, capfd, status) -> None:
    with collecting(status) as collector:
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://user:hunter2@127.0.0.1:{collector.server_port}"
        )
        stage = Stage()
        whole_run(stage)
        stage.close()
        stage.close()
        assert stage.told == [
            f"--otel: 8 of 8 spans could not be delivered to {collector.url}/v1/traces: HTTP {status}"
        ]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("comes_back", [True, False])
def test_p18_spans_wait_for_a_thread_and_are_missed_by_nobody_but_who_watches(
    monkeypatch, capfd, comes_back
) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise ShortageError("thread")

    with collecting() as collector, monkeypatch.context() as short:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        short.setattr("ralph.output.tracing_spans.start_thread", start)
        stage = Stage()
        whole_run(stage)
        if comes_back:
            short.undo()
        stage.close()
        url = collector.url
    why = f"8 of 8 spans could not be delivered to {url}/v1/traces: this machine has no thread left"
    assert stage.told == ([] if comes_back else [f"--otel: {why}"])
    assert capfd.readouterr() == ("", "")


def test_while_an_endpoint_never_answers_the_run_continues_and_memory_is_bounded(monkeypatch) -> None:
    with collecting(None) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        stage = Stage().observed(ev.TurnStarted(1))
        spans = MOST_WAITING_SPANS + 1000  # more than one batch on the way and all that may wait
        for number in range(spans):
            stage.observed(finished(call(number), 0.1))
        collector.was_asked.wait()
        assert len(stage.tracing._delivery._waiting) <= MOST_WAITING_SPANS
        stage.observed(ended())
        stage.tracing.close(timeout_s=0.1)
        total = spans + 2
        [line] = stage.told
        assert line.startswith(f"--otel: {total} of {total} spans could not be delivered")


def test_a_bug_ends_the_tracing_and_not_the_run(collector) -> None:
    stage = Stage().observed(ev.TurnStarted(1))
    stage.tracing.emit(attempt(latency_s="soon"))  # type: ignore[arg-type]
    stage.observed(ev.TurnStarted(2), ended())
    stage.close()
    assert len(stage.told) == 1
    assert stage.told[0].startswith("--otel: tracing has stopped: a bug in ralph: TypeError")
    assert {span.name for span in collector.spans()} == {"invoke_agent ralph", "turn 1"}


def test_no_global_provider_is_set_and_no_span_is_ever_current(collector) -> None:
    before = trace.get_tracer_provider()
    stage = Stage().observed(ev.TurnStarted(1), ev.ToolStarted(call(1)))
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert trace.get_tracer_provider() is before
    stage.close()


def documented(header: str) -> dict[str, set[str]]:
    """The rows of the table whose first column has this header: the names in code quotes in the second cell, by the
    first cell.
    """
    rows: dict[str, set[str]] = {}
    inside = False
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith(f"| {header} |"):
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and not line.startswith("| ---"):
            rows[cells[0].strip("`")] = set(re.findall(r"`([^`]+)`", cells[1]))
    return rows


def test_the_page_lists_every_attribute_and_every_event(collector) -> None:
    stage = Stage()
    whole_run(stage)
    stage.observed(ev.TurnStarted(1), *[event for event, _, _ in MOMENTS], ended(Outcome.TASK_FAILED))
    stage.close()
    attributes: dict[str, set[str]] = {}
    for span in collector.spans():
        attributes.setdefault(span.name.split()[0], set()).update(span.attributes)
    assert documented("Span") == attributes
    moments: dict[str, set[str]] = {}
    for _, name, about in MOMENTS:
        moments.setdefault(name, set()).update(about)
    assert documented("Event") == moments
