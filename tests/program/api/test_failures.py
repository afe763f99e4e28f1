"""Bad input and bad servers: one clear line, the right exit code, and no repetition of requests that must not be
repeated.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from ralph.mock_api import Fault, MockApi, Scenario, Step, Text, ToolUse, Turn
from tests.patience import PATIENCE_S
from tests.program.conftest import KEY
from tests.program.faulty import HELLO, linux_only, peak_mb
from tests.rows import every_row

USAGE = {
    "unknown flag": (["--bogus"], "--bogus"),
    "empty prompt": (["-p", ""], "prompt is empty"),
    "no prompt": ([], "prompt on standard input is empty"),
    "unreadable prompt file": (["-f", "nowhere.md"], "nowhere.md"),
    "missing directory": (["-C", "nowhere", "x"], "nowhere"),
    "prompt twice": (["-f", "a.md", "x"], "both"),
    "tool pattern": (["x", "--tools", "Bash(git:*)"], "'Bash(git:*)' is a pattern"),
    "unfinished tool pattern": (["x", "--allowed-tools", "Bash(git:*"], "closing parenthesis"),
    "no host": (["--allow-host", "", "x"], "--allow-host must name a host"),
    "unknown tool": (["x", "--disallowed-tools", "Launch"], "Launch"),
    "bad format": (["--output-format", "yaml", "x"], "yaml"),
    "bad session id": (["--session-id", "42", "x"], "42"),
    "bad max tokens": (["--max-tokens", "0", "x"], "max-tokens"),
    "bad base url": (["--base-url", "ftp://x", "x"], "http"),
    "result file nowhere": (["--result-file", "no/where.json", "x"], "does not exist"),
    "result file is a directory": (["--result-file", ".", "x"], "is a directory"),
    "prompt file without end": (["-f", "/dev/zero"], "16 MiB"),
    "prompt file is a directory": (["-f", "."], "irectory"),
    "key in the wrong place": (["--session-id", KEY, "x"], "[redacted]"),
    "two system prompts": (["--system-prompt", "a", "--system-prompt-file", "b", "x"], "--system-prompt"),
    "no turns": (["--max-turns", "0", "x"], "--max-turns must be a whole number of at least 1, not 0"),
    "no money": (["--max-budget-usd", "0", "x"], "--max-budget-usd must be a number of dollars, more than 0"),
    "no schema": (["--json-schema", "nothing.json", "x"], "nothing.json"),
    "metrics in no directory": (["--metrics-file", "gone/run.prom", "x"], "--metrics-file"),
    "nothing to resume": (["-c"], "there is no session of"),
    "no such session": (["-r", "0000"], "begins with '0000'"),
    "two sessions": (["-c", "-r", "0000"], "--continue, --resume"),
    "copy of nothing": (["--fork-session", "x"], "--continue or --resume"),
    "id for an old session": (["-c", "--session-id", "0" * 32], "--fork-session"),
    "old session not kept": (["-c", "--no-session-persistence"], "--no-session-persistence"),
    "partial without stream": (["--include-partial-messages", "x"], "stream-json"),
    "negative speed": (["demo", "--speed", "-1"], "--speed"),
    "missing scenario": (["mock-api", "nowhere.toml"], "nowhere.toml"),
}


@every_row(("arguments", "says"), USAGE.values())
def test_misuse_is_one_line_and_exit_2_without_a_result(ralph_here, arguments, says) -> None:
    ran = ralph_here(*arguments, code=2)
    assert len(ran.stderr.splitlines()) == 1
    assert says in ran.stderr
    assert ran.stdout == ""


def test_a_process_ends_with_the_line_and_the_code(ralph, ralph_here) -> None:
    ralph.starts_afresh = True
    ran = ralph("--bogus")
    assert ran == ralph_here("--bogus")
    assert ran.code == 2


def test_a_working_directory_that_is_gone_is_an_io_error_with_a_result(ralph) -> None:
    gone = ralph.cwd / "gone"
    gone.mkdir()
    command = f"rmdir '{gone}'; exec {sys.executable} -m ralph -p hi --output-format json -f PROMPT.md"
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=gone,
        env=ralph.environment,
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 74
    assert json.loads(ran.stdout)["terminal_reason"] == "io_error"
    assert b"Traceback" not in ran.stderr


def test_a_custom_header_is_the_users_last_word(ralph, serve) -> None:
    server = serve(HELLO)
    ralph.environment["ANTHROPIC_CUSTOM_HEADERS"] = "anthropic-version: 2023-06-01\nX-Team: blue"
    assert ralph("hi").code == 0
    headers = server.requests[0].headers
    assert headers["anthropic-version"] == "2023-06-01"
    assert headers["x-team"] == "blue"


LOW_CREDIT = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."

# status, message, exit code, what the lines must say
REJECTIONS = [
    (400, LOW_CREDIT, 77, "billing"),
    (400, "messages: at least one is required", 69, "messages: at least one is required"),
    (401, "invalid x-api-key", 77, "ANTHROPIC_API_KEY"),
    (403, "not yours", 77, "permissions"),
]


@pytest.mark.parametrize(("status", "message", "code", "says"), REJECTIONS)
def test_a19_a_permanent_status_is_asked_exactly_once_exits_69_or_77(
    ralph, serve, status, message, code, says
) -> None:
    server = serve(Fault(status=status, message=message))
    ran = ralph("hi", "--output-format", "json")
    assert (ran.code, len(server.requests)) == (code, 1)
    assert says in ran.stderr
    assert "req_" in ran.stderr
    assert ran.result["is_error"] is True
    assert ran.result["api_error_status"] == status
    assert ran.result["subtype"] == "error_during_execution"


def test_a1_a_server_that_comes_back_is_waited_for_exits_0(ralph, serve) -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
    process = ralph.start("hi", "--base-url", f"http://127.0.0.1:{port}")
    assert process.stderr is not None
    while b"[retry] Attempt 1/4: Api" not in process.stderr.readline():
        assert process.poll() is None
    with MockApi(Scenario([HELLO]), port=port):
        ran = ralph.finish(process)
    assert ran.code == 0


def test_retries_that_a_settings_file_switches_off_are_none(ralph, serve) -> None:
    server = serve(Fault(status=529))
    (ralph.cwd / "mine.toml").write_text("[retry]\nenabled = false\n")
    ran = ralph("hi", "--config", "mine.toml")
    assert (ran.code, len(server.requests)) == (75, 1)
    assert "[retry]" not in ran.stderr


CANARIES = {
    "ANTHROPIC_API_KEY": KEY,
    "MY_DATABASE_PASSWORD": "hunter2-canary-0001",
    "GITHUB_TOKEN": "ghp_canary0002canary0002canary0002cana",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Gateway-Token: canary-header-0003",
    "SERVICE_URL": "https://bob:canary-0004-pass@db.example/x",
}
VALUES = [KEY, "hunter2-canary-0001", CANARIES["GITHUB_TOKEN"], "canary-header-0003", "canary-0004-pass"]


def test_no_secret_reaches_a_tool_an_event_an_error_or_a_file(ralph, serve) -> None:
    """Searches everything that ralph has written for secrets from the environment, headers and command output."""
    ralph.environment |= CANARIES
    (ralph.cwd / "leak.txt").write_text("\n".join(VALUES))
    leaky = {"error": {"type": "api_error", "message": f"your key {KEY} and {VALUES[3]} failed"}}
    commands = "env; cat /proc/self/environ /proc/$PPID/environ; cat leak.txt; seq 20000"
    server = serve(
        Fault(status=500, body=leaky, headers={"retry-after": "0"}),
        Turn(
            content=[
                Text(f"Let me look at {VALUES[1]}."),
                ToolUse("Bash", {"command": f"{commands}; echo {VALUES[1]}"}),
                ToolUse("Grep", {"pattern": "canary", "output_mode": "content"}),
            ]
        ),
        HELLO,
    )
    ran = ralph(
        "hi",
        "--output-format",
        "stream-json",
        "--include-partial-messages",
        "--result-file",
        "result.json",
        code=0,
    )
    artefacts = ran.stdout + ran.stderr + (ralph.cwd / "result.json").read_text()
    # The model's own text is sent back to the model unchanged, but not the output of tools.
    results = json.dumps(json.loads(server.requests[-1].body)["messages"][-1])
    for value in VALUES:
        assert value not in artefacts
        assert value not in results
    assert "[redacted]" in results
    assert "GITHUB_TOKEN" in ran.stderr, "a variable that is kept back is named"


def test_what_read_shows_is_shown_as_it_is_or_no_edit_would_match(ralph, serve) -> None:
    (ralph.cwd / "config.ini").write_text(f"key = {KEY}\n")
    server = serve(Turn(content=[ToolUse("Read", {"file_path": "config.ini"})]), HELLO)
    ralph("hi")
    assert KEY.encode() in server.requests[-1].body


# --- Statuses: A14, A17, A18 and A20


@linux_only
def test_a14_an_error_body_of_1_gb_is_neither_read_nor_held_exits_0(ralph, serve) -> None:
    ralph.retry_quickly()
    server = serve(Fault(status=502, body="<h1>Bad gateway</h1>", huge_body_bytes=10**15), HELLO)
    code, mb = peak_mb(ralph, "hi")
    assert (code, len(server.requests)) == (0, 2)
    assert mb < 60


def test_a17_the_wait_is_what_the_server_requested_to_the_millisecond_exits_0(ralph, serve) -> None:
    server = serve(Fault(status=429, headers={"retry-after": "0.25"}), HELLO)
    ran = ralph("hi", code=0)
    first, second = server.requests
    assert second.monotonic_s - first.monotonic_s >= 0.25
    assert "[retry] Using retry-after: 0.25s" in ran.stderr


def test_a18_an_outage_that_lasts_is_recorded_in_the_result_exits_75(ralph, serve) -> None:
    ralph.retry_quickly()
    server = serve(Step(fault=Fault(status=529), repeat="forever"))
    ran = ralph("hi", "--output-format", "json")
    assert (ran.code, len(server.requests)) == (75, 5)
    assert (ran.result["retries"], ran.result["api_error_status"]) == (4, 529)
    assert "[retry] Failed after 4 retries" in ran.stderr
