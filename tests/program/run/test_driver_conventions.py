"""Drivers that were not written for ralph: one that does what SDKs are known to do, and the example of the
documentation.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import Fault, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "driver.py"
# The seconds for which such a driver waits for the response to `initialize`.
INITIALIZE_S = 60

INIT = (
    "cwd session_id tools mcp_servers model permissionMode slash_commands apiKeySource output_style skills plugins "
    "claude_code_version"
)
INITIALIZED = "commands agents models account output_style available_output_styles claude_code_version current_permission_mode"
RESULT = (
    "duration_ms duration_api_ms is_error num_turns session_id stop_reason total_cost_usd usage modelUsage "
    "permission_denials"
)
# The keys that readers use without testing for them, by the type of an object and by the subtype of a system event.
REQUIRED = {
    "system": "subtype uuid session_id",
    "system/init": INIT,
    "system/api_retry": "attempt max_retries retry_delay_ms error_status error",
    "assistant": "message uuid session_id parent_tool_use_id",
    "user": "message uuid session_id parent_tool_use_id",
    "stream_event": "uuid session_id event",
    "result": f"subtype uuid {RESULT}",
    "control_response": "response",
}
REQUIRED_OF_BLOCKS = {
    "text": "text",
    "thinking": "thinking signature",
    "tool_use": "id name input",
    "tool_result": "tool_use_id content is_error",
}


def lacking(line: dict[str, Any]) -> list[str]:
    """The required keys that an object lacks."""
    kinds = [line["type"], f"{line['type']}/{line.get('subtype')}"]
    missing = [key for kind in kinds for key in REQUIRED.get(kind, "").split() if key not in line]
    message = line["message"] if line["type"] in ("assistant", "user") else {}
    if line["type"] == "assistant":
        missing += [key for key in ("id", "model", "role", "content", "usage") if key not in message]
    for block in message.get("content", []):
        missing += [key for key in REQUIRED_OF_BLOCKS[block["type"]].split() if key not in block]
    return missing


class SdkLike:
    """A driver that behaves like an SDK with a `cli_path`. It shares no code with the driver of the other tests."""

    def __init__(self, ralph, *options: str) -> None:
        begin = ["--output-format", "stream-json", "--verbose", "--system-prompt", ""]
        argv = [*begin, *options, "--input-format", "stream-json"]
        self.process = ralph.start(*argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.patience = threading.Timer(INITIALIZE_S, self.process.kill)
        self.patience.start()
        self.lines: list[dict[str, Any]] = []
        self.request("initialize", hooks=None)
        while self.read()["type"] != "control_response":
            pass

    def write(self, **line: Any) -> None:
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, subtype: str, **fields: Any) -> None:
        request_id = f"req_{subtype}"
        self.write(type="control_request", request_id=request_id, request={"subtype": subtype, **fields})

    def query(self, prompt: str) -> None:
        message = {"role": "user", "content": prompt}
        self.write(type="user", session_id="", message=message, parent_tool_use_id=None)

    def read(self) -> dict[str, Any]:
        """The next JSON object. Skips other lines, as SDKs do."""
        for raw in self.process.stdout:
            try:
                line: dict[str, Any] = json.loads(raw)
            except ValueError:
                continue
            self.lines.append(line)
            return line
        raise EOFError

    def read_to_end(self) -> int:
        self.process.stdin.close()
        with suppress(EOFError):
            while True:
                self.read()
        self.process.wait()
        return int(self.process.returncode)

    def close(self) -> None:
        self.patience.cancel()
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def response(self, subtype: str) -> dict[str, Any]:
        found: dict[str, Any]
        (found,) = [
            line["response"]
            for line in self.lines
            if line["type"] == "control_response" and line["response"]["request_id"] == f"req_{subtype}"
        ]
        return found


@pytest.fixture
def query_with(ralph) -> Iterator[Callable[..., SdkLike]]:
    with ExitStack() as begun:
        yield lambda *options: begun.enter_context(closing(SdkLike(ralph, *options)))


@pytest.mark.parametrize("options", [[], ["--include-partial-messages"]], ids=["whole", "partial"])
def test_a_query_of_an_sdk_is_worked_on_to_its_result(ralph, serve, query_with, options) -> None:
    ralph.retry_quickly()
    serve(
        Fault(status=529),
        Turn([Thinking("hm"), ToolUse("Bash", {"command": "echo hi"})]),
        Turn([Thinking("unsigned", signature=""), Text("All done.")]),
    )
    sdk = query_with(*options)
    sdk.query("do it")
    assert sdk.read_to_end() == 0
    initialized = sdk.response("initialize")
    assert (initialized["subtype"], initialized["request_id"]) == ("success", "req_initialize")
    assert [name for name in INITIALIZED.split() if name not in initialized["response"]] == []
    assert [(line["type"], missing) for line in sdk.lines if (missing := lacking(line))] == []
    kinds = [line["type"] for line in sdk.lines]
    assert {"system", "assistant", "user", "result", "control_response"} <= set(kinds)
    assert ("stream_event" in kinds) is bool(options)
    assert (kinds.count("result"), kinds[-1]) == (1, "result")
    assert sdk.lines[-1]["result"] == "All done."


def test_the_later_requests_of_an_sdk_are_answered(serve, query_with) -> None:
    server = serve(Turn("one"), Turn("two"))
    sdk = query_with("--permission-mode", "bypassPermissions", "--model", "opus")
    sdk.query("first")
    while sdk.read()["type"] != "result":
        pass
    sdk.request("interrupt")
    sdk.request("set_permission_mode", mode="acceptEdits")
    sdk.request("set_model", model="haiku")
    sdk.request("get_context_usage")
    sdk.query("second")
    assert sdk.read_to_end() == 0
    answered = [sdk.response(name)["subtype"] for name in ("interrupt", "set_permission_mode", "set_model")]
    assert answered == ["success"] * 3
    usage = sdk.response("get_context_usage")["response"]
    assert {"categories", "totalTokens", "maxTokens", "rawMaxTokens", "percentage", "model"} <= set(usage)
    assert sum(part["tokens"] for part in usage["categories"]) == pytest.approx(usage["maxTokens"], abs=3)
    assert [sent.json()["model"] for sent in server.requests] == ["claude-opus-5-5", "claude-haiku-5-5"]


def test_the_context_names_the_instruction_files_that_the_model_has(ralph, serve, query_with) -> None:
    serve(Turn("one"))
    (ralph.cwd / "CLAUDE.md").write_text("Use tabs. @style.md\n")
    (ralph.cwd / "style.md").write_text("Lines are short. " * 400)
    (ralph.cwd / "CLAUDE.local.md").write_text("My port is 8080.\n")
    own = Path(ralph.environment["HOME"], ".claude/CLAUDE.md")
    own.parent.mkdir()
    own.write_text("I am Ada.\n")
    sdk = query_with()
    sdk.query("go")
    sdk.request("get_context_usage")
    assert sdk.read_to_end() == 0
    usage = sdk.response("get_context_usage")["response"]
    files = {file["path"]: (file["type"], file["tokens"]) for file in usage["memoryFiles"]}
    kinds = {path: kind for path, (kind, _) in files.items()}
    assert kinds == {
        str(own): "User",
        f"{ralph.cwd}/CLAUDE.md": "Project",
        f"{ralph.cwd}/style.md": "Project",
        f"{ralph.cwd}/CLAUDE.local.md": "Local",
    }
    sizes = {part["name"]: part["tokens"] for part in usage["categories"]}
    assert files[f"{ralph.cwd}/style.md"][1] > 10 * files[f"{ralph.cwd}/CLAUDE.md"][1] > 0
    assert sum(tokens for _, tokens in files.values()) == pytest.approx(sizes["Memory files"], abs=3)


def test_the_driver_of_the_documentation_works_and_cancels_a_long_wait(ralph, serve) -> None:
    example = EXAMPLE.read_text()
    assert len(list(filter(None, example.splitlines()))) <= 26
    (ralph.cwd / "ralph").write_text(f'#!/bin/sh\nexec {sys.executable} -m ralph "$@"\n')
    (ralph.cwd / "ralph").chmod(0o755)
    serve(Turn("It is made."), Fault(status=529, headers={"retry-after": "100"}))
    environment = ralph.environment | {"PATH": f"{ralph.cwd}:{ralph.environment['PATH']}"}
    ran = subprocess.run(
        [sys.executable, "-c", example],
        cwd=ralph.cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=INITIALIZE_S,
        check=False,
    )
    made, cancelled, code = ran.stdout.splitlines()
    assert (made, code) == ("completed It is made.", "exit 75"), ran.stderr
    assert cancelled.startswith("api_unavailable API Error: Retry cancelled, after: HTTP 529")
