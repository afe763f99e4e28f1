"""Refusals for which a server's words say what the user has to do."""

from __future__ import annotations

import time

import pytest

from ralph import __version__
from ralph.agent.run_end import hints_for
from ralph.conversation.target import Target
from ralph.mock_api import ToolUse, Turn
from ralph.values.errors import HttpError
from tests.api.foreign.wire import DONE, QUICKLY, answering, refusal, run, stream
from tests.api.harness import RawServer, read_request
from tests.program.conftest import ralph_in
from tests.rows import every_row

TOOLS = "A run needs tools"
ROWS = [
    (
        "DeepSeek, max_tokens",
        "openclaude#35",
        400,
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
        "--max-tokens 8192",
    ),
    (
        "Anthropic, max_tokens",
        "claude-code#11302",
        400,
        "max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for claude-3-5",
        "--max-tokens 8192",
    ),
    (
        "OpenAI, max_tokens",
        "CLIProxyAPI#599",
        400,
        "max_tokens is too large: 32000. This model supports at most 4096 completion tokens",
        "--max-tokens 4096",
    ),
    (
        "the version of the API",
        "vendors' documentation",
        400,
        "anthropic-version: 2026-10-21 is not a valid version",
        "anthropic-version: 2023-06-01",
    ),
    (
        "Ollama, tools",
        "vendors' documentation",
        400,
        "registry.ollama.ai/library/x does not support tools",
        TOOLS,
    ),
    ("OpenRouter, tools", "vendors' documentation", 404, "No endpoints found that support tool use", TOOLS),
    ("llama.cpp", "LLMKube#126", 500, "tools param requires --jinja flag", "llama-server with --jinja"),
    (
        "Kimi Code, clients by name",
        "openclaw#42499",
        403,
        "Kimi For Coding is currently only available for Coding Agents such as Kimi CLI, Claude Code, etc.",
        f"User-Agent: ralph/{__version__}",
    ),
]


def hints(status: int, message: str) -> str:
    error = HttpError(status, None, "", message=message, error_type="odd")
    return " ".join(hints_for(error, Target("m", "m", "http://host.test"), "K"))


@every_row(("vendor", "source", "status", "message", "advice"), ROWS)
def test_a_refusal_has_the_advice_that_helps(vendor, source, status, message, advice) -> None:
    assert advice in hints(status, message)


@every_row(
    ("status", "message"),
    [
        (400, "messages: at least one message is required"),
        (400, "temperature must be at most 1"),
        (401, "invalid x-api-key"),
        (503, "the model is loading"),
    ],
)
def test_other_words_have_no_such_advice(status, message) -> None:
    advice = ("--max-tokens", "anthropic-version", TOOLS, "jinja", "User-Agent")
    assert not [one for one in advice if one in hints(status, message)]


def test_the_result_of_a_run_has_the_advice(tmp_path) -> None:
    _, _, status, message, advice = ROWS[0]
    with answering([refusal(status, {"error": {"type": "odd", "message": message}})]) as (server, _):
        ran = run(ralph_in(tmp_path), server)
    (hint,) = [one for one in ran.result["hints"] if not one.startswith("continue with")]
    assert advice in hint


HELD_BACK_S = 1.5


@pytest.mark.parametrize("pieces", [1, 5])
def test_the_doctor_tells_when_a_stream_arrives_in_one_piece(pieces, tmp_path) -> None:
    call = stream(Turn([ToolUse("tell_word", {"word": "ready"})]))

    def serve(sock) -> None:
        if not read_request(sock).startswith(b"POST"):
            sock.sendall(refusal(404, {}))
            return
        size = len(call) // pieces + 1
        for at in range(0, len(call), size):
            time.sleep(HELD_BACK_S / pieces)
            sock.sendall(call[at : at + size])

    server = RawServer(serve)
    ralph = ralph_in(tmp_path)
    ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
    told = ralph("doctor", "--probe").stdout
    server.close()
    assert "as a stream and called the tool" in told
    assert ("its stream arrived in one piece" in told) == (pieces == 1)
    assert ("`ralph help gateways`" in told) == (pieces == 1)


def test_a_request_names_ralph_and_its_version(tmp_path) -> None:
    heads: list[bytes] = []

    def serve(sock) -> None:
        heads.append(read_request(sock).partition(b"\r\n\r\n")[0])
        sock.sendall(DONE if heads[-1].startswith(b"POST") else refusal(404, {}))

    server = RawServer(serve)
    ran = run(ralph_in(tmp_path), server, settings=QUICKLY)
    server.close()
    assert ran.code == 0
    assert all(f"user-agent: ralph/{__version__}\r\n".encode() in head.lower() + b"\r\n" for head in heads)
