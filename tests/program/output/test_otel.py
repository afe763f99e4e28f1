"""`--otel` with whole runs: the tree of spans that arrives, endpoints that accept nothing, and keys that reach
nobody else.
"""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.patience import wait_until
from tests.program.model_answers import DONE, bash, look, results
from tests.services.otlp_collector import Collector, collecting

if TYPE_CHECKING:
    from collections.abc import Iterator


HEADER_SECRET = "canary-of-the-collector"
CHAT = "chat claude-sonnet-5-5"
UNSET, ERROR = 0, 2


@pytest.fixture
def collector(ralph) -> Iterator[Collector]:
    with collecting() as one:
        ralph.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = one.url
        yield one


@pytest.fixture
def silent(ralph) -> Iterator[Collector]:
    """An endpoint that receives spans and never answers."""
    with collecting(None) as one:
        ralph.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = one.url
        yield one


def test_a_run_arrives_as_one_tree_of_turns_requests_and_tools(ralph, serve, collector) -> None:
    ralph.retry_quickly()
    serve(bash("true"), Fault(status=529), Turn(), bash("false"), DONE)
    ran = ralph("go", "--otel", "--output-format", "json", code=0)
    assert [(span.name, span.parent, span.status) for span in collector.spans()] == [
        (CHAT, "turn 1", UNSET),
        ("execute_tool Bash", "turn 1", UNSET),
        ("turn 1", "invoke_agent ralph", UNSET),
        (CHAT, "turn 2", ERROR),
        (CHAT, "turn 2", UNSET),
        (CHAT, "turn 2", UNSET),
        ("execute_tool Bash", "turn 2", ERROR),
        ("turn 2", "invoke_agent ralph", UNSET),
        (CHAT, "turn 3", UNSET),
        ("turn 3", "invoke_agent ralph", UNSET),
        ("invoke_agent ralph", None, UNSET),
    ]
    assert len({span.trace_id for span in collector.spans()}) == 1
    whole = collector.span("invoke_agent ralph").attributes
    assert whole["gen_ai.conversation.id"] == ran.result["session_id"]
    assert (whole["ralph.outcome"], whole["ralph.exit_code"], whole["ralph.turns"]) == ("completed", 0, 3)
    assert whole["gen_ai.usage.output_tokens"] == ran.result["usage"]["output_tokens"]


def test_an_endpoint_that_never_answers_costs_two_seconds_and_changes_nothing(ralph, serve, silent) -> None:
    serve(look(), DONE)
    ran = ralph("go", "--otel", code=0)
    lost = (
        f"[notice] --otel: 6 of 6 spans could not be delivered to {silent.url}/v1/traces: no answer within 2s"
    )
    assert ran.stderr.splitlines()[-2] == lost
    assert ran.last_line.startswith("[ralph] completed")


def test_a_signal_waits_for_an_endpoint_that_never_answers_no_longer_than_half_a_second(
    ralph, serve, silent
) -> None:
    server = serve(Step(DONE, Fault(stall_before_headers_s=math.inf)))
    process = ralph.start("go", "--otel")
    wait_until(lambda: server.request_count == 1)
    ran = ralph.stopped_by(process, signal.SIGTERM, code=143)
    assert "no answer within 0.5s" in ran.stderr


def test_without_the_extra_one_line_says_what_to_install_and_nothing_is_sent(ralph, serve, tmp_path) -> None:
    server = serve(DONE)
    (tmp_path / "bare" / "opentelemetry").mkdir(parents=True)
    (tmp_path / "bare" / "opentelemetry" / "__init__.py").write_text("raise ImportError('not installed')\n")
    ralph.environment["PYTHONPATH"] = f"{tmp_path}/bare:{ralph.environment['PYTHONPATH']}"
    ran = ralph("go", "--otel", "--output-format", "json")
    assert (ran.code, server.request_count) == (78, 0)
    [line] = ran.stderr.splitlines()
    assert (
        line
        == "[ralph] config (exit 78): --otel needs the extra: pip install '.[otel]' in ralph's clone, with ralph's Python"
    )


SPELLINGS = {
    "bearer": f"authorization=Bearer%20{HEADER_SECRET},x-team=a-team",
    "quoted": f"x-team=a-team, authorization=Basic {HEADER_SECRET}",
}


@pytest.mark.parametrize(
    ("name", "spelling"),
    [("OTEL_EXPORTER_OTLP_HEADERS", "quoted"), ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "bearer")],
)
def test_the_key_of_the_endpoint_reaches_it_and_nobody_else(
    ralph, serve, collector, tmp_path, name, spelling
) -> None:
    (tmp_path / "notes").write_text(f"the key is {HEADER_SECRET}\n")
    ralph.environment[name] = SPELLINGS[spelling]
    looks = ["env", "cat /proc/$PPID/environ", f"cat {tmp_path}/notes"]
    server = serve(*map(bash, looks), DONE)
    ran = ralph("go", "--otel", "--output-format", "stream-json", code=0)
    assert results(server) == [("the key is [redacted]", False)]
    journals = [path.read_text() for path in Path(ralph.environment["HOME"]).rglob("*.jsonl")]
    bodies = [request.body.decode() for request in server.requests]
    assert journals
    for text in (*bodies, ran.stdout, ran.stderr, *journals):
        assert HEADER_SECRET not in text
    [(_, headers, _)] = collector.received
    assert any(HEADER_SECRET in value for value in headers.values())
    assert HEADER_SECRET.encode() not in collector.received[0][2]
