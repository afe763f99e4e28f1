"""Clients that are not part of ralph must understand the server: the official SDK and curl."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ralph.mock_api import (
    ErrorEvent,
    Fault,
    MockApi,
    Model,
    Scenario,
    Step,
    Text,
    Thinking,
    ToolUse,
    Turn,
    as_message,
)
from tests.patience import PATIENCE_S
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Serve = Callable[..., MockApi]

TURN = Turn(
    content=(
        Thinking("Two looks are better than one.", "c2lnbmF0dXJl"),
        Text("Größe 🙂: let me look."),
        ToolUse("Bash", {"command": "ls", "note": "\u2028 and 'quotes'"}),
        ToolUse("Read", {"path": "a.py", "range": [1, 2], "deep": {"x": None}}),
    ),
    usage={
        "input_tokens": 11,
        "output_tokens": 22,
        "cache_read_input_tokens": 33,
        "cache_creation_input_tokens": 0,
    },
    ping_every=4,
)
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("Bash", "Read")]
REQUEST: dict[str, Any] = {
    "model": "claude-test",
    "max_tokens": 100,
    "tools": TOOLS,
    "messages": [{"role": "user", "content": "hi"}],
}


@pytest.fixture
def client_of(anthropic: Any) -> Iterator[Callable[..., Any]]:
    clients: list[Any] = []
    # Each client would load the usual certificates, which takes longer than its requests. The server speaks plain HTTP.
    no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def make(server: MockApi) -> Any:
        http_client = anthropic.DefaultHttpxClient(verify=no_certificates)
        clients.append(
            anthropic.Anthropic(base_url=server.base_url, api_key="k", max_retries=0, http_client=http_client)
        )
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def plain(message: Any) -> tuple[Any, ...]:
    content = [block.to_dict() for block in message.content]
    return content, message.stop_reason, message.usage.input_tokens, message.usage.output_tokens


@every_row("fault", [None, Fault(interleaved=True, omit_tool_input=True), Fault(framing="close")])
def test_the_sdk_streams_and_gets_the_same_message(
    serve: Serve, client_of: Callable[..., Any], fault: Fault | None
) -> None:
    client = client_of(serve(Step(TURN, fault)))

    with client.messages.stream(**REQUEST) as stream:
        message = stream.get_final_message()

    assert plain(message) == (as_message(TURN)["content"], "tool_use", 11, 22)
    assert message.usage.cache_read_input_tokens == 33


def test_the_sdk_gets_the_same_message_without_a_stream(serve: Serve, client_of: Callable[..., Any]) -> None:
    message = client_of(serve(TURN)).messages.create(**REQUEST)

    assert plain(message) == (as_message(TURN)["content"], "tool_use", 11, 22)


def test_the_sdk_sends_the_tool_results_back_and_goes_on(serve: Serve, client_of: Callable[..., Any]) -> None:
    server = serve(TURN, Turn("Done."))
    client = client_of(server)
    asked = client.messages.create(**REQUEST)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "ok"}
        for block in asked.content
        if block.type == "tool_use"
    ]
    messages = [
        *REQUEST["messages"],
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": results},
    ]

    answer = client.messages.create(**{**REQUEST, "messages": messages})

    assert answer.content[0].text == "Done."
    assert server.requests[1].json()["messages"][2]["content"] == results


@every_row(
    ("status", "name"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (429, "RateLimitError"),
        (529, "OverloadedError"),
    ],
)
def test_the_sdk_raises_its_error_for_the_status(
    serve: Serve, client_of: Callable[..., Any], anthropic: Any, status: int, name: str
) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        client_of(serve(Fault(status=status))).messages.create(**REQUEST)

    assert type(caught.value).__name__ == name
    assert caught.value.request_id == "req_mock_000000"


def test_the_sdk_raises_for_an_error_event(
    serve: Serve, client_of: Callable[..., Any], anthropic: Any
) -> None:
    server = serve(Step(TURN, Fault(error_event=ErrorEvent(after_events=3))))

    with (
        pytest.raises(anthropic.APIStatusError, match="Overloaded"),
        client_of(server).messages.stream(**REQUEST) as s,
    ):
        s.get_final_message()


def test_the_sdk_reads_what_is_said_of_a_model(client_of: Callable[..., Any]) -> None:
    models = [Model("claude-x", 200_000, 64_000), Model("team/claude-y")]
    with MockApi(Scenario(models=models)) as server:
        described = client_of(server).models.retrieve("claude-x")
        silent = client_of(server).models.retrieve("team/claude-y")

    assert (described.type, described.id, described.lifecycle) == ("model", "claude-x", "active")
    assert (described.max_input_tokens, described.max_tokens) == (200_000, 64_000)
    assert (silent.id, silent.max_input_tokens, silent.max_tokens) == ("team/claude-y", None, None)


def test_the_sdk_raises_for_a_model_that_is_not_described(
    serve: Serve, client_of: Callable[..., Any], anthropic: Any
) -> None:
    with pytest.raises(anthropic.NotFoundError, match="model: claude-x") as caught:
        client_of(serve(TURN)).models.retrieve("claude-x")

    assert caught.value.request_id == "req_mock_model_000000"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("stream", [True, False])
def test_curl_gets_an_answer_by_hand_also_for_a_large_body(
    serve: Serve, tmp_path: Path, stream: bool
) -> None:
    server = serve(Turn("Hello"))
    body = tmp_path / "body.json"
    # Over 1 MiB, so that every curl asks with `Expect: 100-continue` before it sends.
    messages = [{"role": "user", "content": "x" * 2_000_000}]
    body.write_text(json.dumps({**REQUEST, "messages": messages, "stream": stream}))

    command = [
        "curl",
        "-sS",
        "--max-time",
        "10",
        f"{server.base_url}/v1/messages",
        "--data-binary",
        f"@{body}",
    ]
    headers = [
        "-H",
        "anthropic-version: 2026-10-21",
        "-H",
        "x-api-key: k",
        "-H",
        "content-type: application/json",
    ]
    done = subprocess.run([*command, *headers], capture_output=True, check=True)

    assert server.requests[0].headers["expect"] == "100-continue"
    if stream:
        assert done.stdout.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    else:
        assert json.loads(done.stdout)["content"][0]["text"] == "Hello"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@every_row(
    ("fault", "exit_code"),
    [
        (Fault(cut_after_bytes=100), 18),  # transfer closed with data outstanding
        (Fault(cut_after_bytes=100, framing="close"), 0),  # looks whole
        (Fault(framing="reset"), 56),  # connection reset while receiving
        (Fault(close_before_headers=True), 52),  # empty reply
    ],
)
def test_curl_sees_the_fault_that_was_asked_for(serve: Serve, fault: Fault | None, exit_code: int) -> None:
    server = serve(fault)
    body = json.dumps({**REQUEST, "stream": True})

    command = ["curl", "-sS", "--max-time", str(PATIENCE_S), f"{server.base_url}/v1/messages", "-d", body]
    done = subprocess.run([*command, "-H", "anthropic-version: 2026-10-21"], capture_output=True, check=False)

    assert done.returncode == exit_code
