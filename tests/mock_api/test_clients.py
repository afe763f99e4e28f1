"""Anthropic's official SDK must understand the server."""

from __future__ import annotations

import ssl
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
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def test_the_sdk_sends_the_tool_results_back_and_continues(
    serve: Serve, client_of: Callable[..., Any]
) -> None:
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
    assert (type(caught.value).__name__, caught.value.request_id) == (name, "req_mock_000000")


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
