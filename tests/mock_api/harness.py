"""Tools for tests of the scripted server: a request, an answer, and the types of the fixtures."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import httpx

from ralph.mock_api import FOREVER, Fault, MockApi, Step, Text, ToolUse, Turn

# The fixtures of conftest.py.
Serve = Callable[..., MockApi]
Connect = Callable[..., socket.socket]
RawRequest = Callable[..., bytes]
Ask = Callable[..., Any]

REQUEST: dict[str, Any] = {
    "model": "claude-test",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hi"}],
}
STREAMED = {**REQUEST, "stream": True}
HEADERS = {"anthropic-version": "2023-06-01", "x-api-key": "k"}

HELLO = Step(Turn("Hello"), repeat=FOREVER)
TURN = Turn(content=(Text("Größe 🙂"), ToolUse("Bash", {"command": "ls"})), chunk_chars=3)


def breaking(**fault: Any) -> Step:
    return Step(TURN, Fault(**fault))


def sent(method: str, url: str, **request: Any) -> httpx.Response:
    """The answer to one request on a new connection. `verify=False` avoids 20 ms for reading certificates."""
    return httpx.request(method, url, verify=False, **request)


def post(server: MockApi, **changes: Any) -> httpx.Response:
    return sent("POST", f"{server.base_url}/v1/messages", json={**REQUEST, **changes}, headers=HEADERS)
