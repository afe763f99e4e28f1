"""`ralph doctor --probe` against servers with faults: what it finds, what it advises, and how it exits."""

from __future__ import annotations

import ast
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import ralph
from ralph.api.client import HttpSettings
from ralph.cli.checks import Finding, Level, exit_code, fail, machine, ok, verdict, warn
from ralph.cli.checks.machine import look_at_git
from ralph.cli.checks.probe import ProbeTimes, _advice, probe_targets
from ralph.conversation.target import Target
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.mock_api import Fault, MockApi, Scenario, Step, ToolUse, Turn
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.credentials import Credential, Secret
from ralph.values.errors import Api, NetworkCause
from ralph.values.events import StreamReceived
from ralph.values.limits import ClockLimits
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor
from ralph.values.servers import ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES, normal_base_url
from tests.fakes import FakeClock
from tests.rows import every_row

KEY = "sk-ant-api03-0123456789abcdef"
CALL = Turn(content=[ToolUse("tell_word", {"word": "ready"})])
LIMITS = ClockLimits(connect_s=5, first_byte_s=0.3, bytes_idle_s=5, progress_idle_s=5, response_s=10)


def probe(base_url: str, api: str = ANTHROPIC, *, has_key: bool = True) -> dict[str, Finding]:
    """The findings by subject. A warning or a failure replaces the ok of the same subject."""
    clock = SystemClock()
    credentials = (Credential("x-api-key", Secret(KEY), "MY_KEY"),) if has_key else ()
    target = Target("main", "claude-haiku-5-5", base_url, credentials, api=api)
    http = HttpSettings(None, LIMITS, InboxWaiter(clock), clock, Redactor([KEY]).redact_all)
    found: dict[str, Finding] = {}
    for finding in probe_targets([target], http):
        if finding.subject not in found or finding.level is not Level.OK:
            found[finding.subject] = finding
    return found


@every_row(
    ("step", "level", "text", "remedy", "code"),
    [
        (Step(CALL), Level.OK, "answered as a stream and called the tool: head after", "", 0),
        (
            Step(fault=Fault(status=401, message=f"bad {KEY}")),
            Level.FAIL,
            "HTTP 401",
            "valid key into MY_KEY",
            77,
        ),
        (Step(fault=Fault(status=404)), Level.FAIL, "HTTP 404", "correct the model claude-haiku-5-5", 69),
        (
            Step(fault=Fault(status=429, headers={"retry-after": 30})),
            Level.FAIL,
            "the server asks for a wait of 30 s",
            "again",
            75,
        ),
        (
            Step(fault=Fault(status=529)),
            Level.FAIL,
            "; a run would wait and try again",
            "try again later",
            75,
        ),
        (
            Step(fault=Fault(status=400, message="this model does not support tools")),
            Level.FAIL,
            "support tools",
            "choose a model that supports them",
            69,
        ),
        (
            Step(fault=Fault(status=400, message="Your credit balance is too low")),
            Level.FAIL,
            "credit balance",
            "add credit",
            77,
        ),
        (
            Step(CALL, Fault(stall_before_headers_s=60)),
            Level.FAIL,
            "timeout",
            "whether the server is busy",
            75,
        ),
        (
            Step(CALL, Fault(json_instead_of_sse=True)),
            Level.WARN,
            "no stream",
            "switch streaming on",
            0,
        ),
        (
            Step(fault=Fault(body="<html><title>Please log in</title></html>", content_type="text/html")),
            Level.FAIL,
            "Please log in",
            "correct the base URL",
            69,
        ),
        (
            Step(Turn("I am ready.")),
            Level.FAIL,
            "called no tool: in a run it would change no file",
            "--jinja",
            69,
        ),
        (
            Step(Turn("Let me th", stop_reason="max_tokens")),
            Level.WARN,
            "within 128 tokens",
            "one short task",
            0,
        ),
    ],
)
def test_each_fault_of_a_server_has_its_finding_remedy_and_exit_code(step, level, text, remedy, code) -> None:
    with MockApi(Scenario([step])) as server:
        found = probe(server.base_url)
        (request,) = server.requests
    assert (found["target main"].level, exit_code(list(found.values()))) == (level, code)
    assert text in found["target main"].text
    assert remedy in (found["target main"].advice or "")
    assert KEY not in repr(found)
    assert request.json()["max_tokens"] == 128


@every_row(
    ("api", "name", "variable"),
    [
        (ANTHROPIC, "Messages", "ANTHROPIC_API_KEY"),
        (OPENAI_CHAT, "Chat Completions", "OPENAI_API_KEY"),
        (OPENAI_RESPONSES, "Responses", "OPENAI_API_KEY"),
    ],
)
def test_the_probe_speaks_the_api_of_the_target_and_names_its_variable(api, name, variable) -> None:
    page = Fault(body="<html>Please log in</html>", content_type="text/html")
    with MockApi(Scenario([Step(CALL), Step(fault=page)])) as server:
        base_url = normal_base_url(server.base_url, api)
        found = [probe(base_url, api)["target main"] for _ in range(2)]
    assert "answered as a stream and called the tool" in found[0].text
    assert f"this server does not speak the {name} API" in (found[1].advice or "")
    with MockApi(Scenario([Step(CALL)], require_key=True)) as server:
        refused = probe(normal_base_url(server.base_url, api), api, has_key=False)["target main"]
    assert f"asks for one ({variable}, " in (refused.advice or "")


def test_a_proxy_that_is_away_is_named_in_the_advice() -> None:
    error = Api(NetworkCause.REFUSED)
    error.proxy = "127.0.0.1:9 (HTTPS_PROXY)"
    advice = _advice(Target("main", "m", "http://127.0.0.1:1"), 0, error)
    assert advice.startswith("start 127.0.0.1:9 (HTTPS_PROXY), or correct the variable")


def test_a_server_that_is_away_is_named_with_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = probe(f"http://127.0.0.1:{port}")["target main"]
    assert f"connection refused (127.0.0.1:{port})" in found.text
    assert "start the server" in str(found.advice)


@every_row(
    ("date", "level", "text"),
    [
        ("Mon, 01 Jan 2024 00:00:00 GMT", Level.WARN, "ahead of"),
        ("Fri, 01 Jan 2100 00:00:00 GMT", Level.WARN, "behind"),
        ("yesterday", Level.OK, "not compared: no server sent the time"),
    ],
)
def test_a_clock_that_differs_from_the_servers_is_a_warning_even_if_the_request_failed(
    date, level, text
) -> None:
    with MockApi(Scenario([Step(fault=Fault(status=500, headers={"date": date}))])) as server:
        clock = probe(server.base_url)["clock"]
    assert clock.level is level
    assert text in clock.text


def test_the_verdict_names_lasting_failures_first_and_their_exit_code_counts() -> None:
    found = [
        fail("a", "is overloaded", "wait", Outcome.API_UNAVAILABLE),
        warn("b", "odd", "look"),
        fail("c", "refuses the key", "another key", Outcome.AUTH),
    ]
    assert verdict(found) == "not ready for the night: 1. c: refuses the key; 2. a: is overloaded"
    assert (exit_code(found), exit_code(found[:1]), exit_code(found[1:2])) == (77, 75, 0)
    assert verdict([*found[1:2], ok("d", "fine")]) == "ready for the night; see the warnings about b"
    assert verdict([ok("d", "fine")]) == "ready for the night"


def test_no_problem_is_told_without_a_remedy() -> None:
    with pytest.raises(AssertionError, match="without a remedy"):
        warn("a", "odd", "")
    folder = Path(ralph.__file__).parent / "cli"
    calls = [
        (path.name, call)
        for path in [folder / "doctor.py", *sorted((folder / "checks").glob("*.py"))]
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    ]
    problems = [(name, call) for name, call in calls if call.func.id in {"warn", "fail"}]  # type: ignore[attr-defined]  # looked at above
    assert len(problems) > 40
    for name, call in problems:
        remedies = [*call.args[2:3], *(word.value for word in call.keywords if word.arg == "advice")]
        assert remedies, (name, call.lineno)
        assert not (isinstance(remedies[0], ast.Constant) and not remedies[0].value), (name, call.lineno)


def room(gigabytes: float, inodes: int) -> os.statvfs_result:
    blocks = int(gigabytes * 1e9 / 4096)
    return os.statvfs_result((4096, 4096, blocks, blocks, blocks, inodes and 10**6, inodes, inodes, 0, 255))


@every_row(
    ("gigabytes", "inodes", "level"),
    [
        (50, 100_000, Level.OK),
        (50, 0, Level.OK),  # a file system without a fixed number of files
        (1.5, 100_000, Level.WARN),
        (50, 20_000, Level.WARN),
        (0.05, 100_000, Level.FAIL),
        (50, 900, Level.FAIL),
    ],
)
def test_a_disk_needs_room_for_bytes_and_files(gigabytes, inodes, level) -> None:
    found = machine.disk_finding("sessions", Path("/x"), room(gigabytes, inodes))
    assert found.level is level
    assert "sessions" in found.text


def test_few_open_files_are_a_warning_with_the_number() -> None:
    kept = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, kept[1]))
    try:
        found = machine.look_at_process_room()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, kept)
    assert found.level is Level.WARN
    assert "200 open files (ulimit -n)" in found.text


@every_row(
    ("waited_s", "took_s", "is_in_one_piece"),
    [(2.0, 0.01, True), (0.2, 0.0, False), (2.0, 0.3, False), (20.0, 0.05, True), (20.0, 0.5, False)],
)
def test_a_long_wait_before_a_stream_is_no_buffer(
    waited_s: float, took_s: float, *, is_in_one_piece: bool
) -> None:
    clock = FakeClock()
    times = ProbeTimes(clock)
    times.begin()
    for seconds in (waited_s, took_s):
        clock.seconds += seconds
        times.emit(StreamReceived({"type": "ping"}))
    assert times.is_in_one_piece == is_in_one_piece


# --- The machine and the checkout


def found(subject: str) -> Finding:
    (finding,) = [
        finding
        for finding in machine.look_at_machine({}, "1.2.3", SandboxSettings())
        if finding.subject == subject
    ]
    return finding


def test_a_system_that_ralph_is_not_tested_on_is_a_warning(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert found("system").level is Level.WARN
    assert "tested on Linux" in found("system").text


def test_a_push_that_is_not_possible_here_is_a_note_and_not_ok(tmp_path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "--quiet", tmp_path], env=environment, check=True)
    findings = look_at_git(environment, None, tmp_path, SystemClock(), tries_push=True)
    (push,) = [finding for finding in findings if finding.subject == "push"]
    assert (push.level, push.advice) == (Level.NOTE, None)
