"""The messages between ralph and its MCP helper process. Each is one line of JSON on a socket. Pure.

The descriptors of a stdio server travel beside the `Connect` that needs them, in the order of its docstring.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

# --- From ralph to the helper


class Connect(Struct, frozen=True, tag="connect", tag_field="kind"):
    """Connects to a server and lists its tools. The answer is `ServerConnected` or `ServerLost`. With stdio, three descriptors are
    sent beside it: the server's standard input, output and error, as seen from outside.
    """

    server: str
    connection: int
    """A number that no other connection of the run has. A server that is started again gets another one."""
    transport: Literal["stdio", "http", "sse"]
    url: str = ""
    headers: dict[str, str] = {}


class Call(Struct, frozen=True, tag="call", tag_field="kind"):
    """Calls a tool. The answer is `CallReturned`, `CallRefused` or `CallNotSent`, or the
    `ServerLost` of its connection.
    """

    id: int
    connection: int
    tool: str
    arguments: dict[str, Any]


class Cancel(Struct, frozen=True, tag="cancel", tag_field="kind"):
    """Tells the server that nobody waits for a call any more. There is no answer to it."""

    id: int


class Disconnect(Struct, frozen=True, tag="disconnect", tag_field="kind"):
    """Ends a connection. There is no answer to it."""

    connection: int


# --- From the helper to ralph


class HelperReady(Struct, frozen=True, tag="ready", tag_field="kind"):
    """The helper has begun to take orders. It is the first thing that it sends."""


class ServerConnected(Struct, frozen=True, tag="connected", tag_field="kind"):
    connection: int
    tools: list[dict[str, Any]]
    """The tools as the server lists them, with the names of the protocol (`inputSchema`)."""


class ServerLost(Struct, frozen=True, tag="lost", tag_field="kind"):
    """A connection could not be made, or has ended."""

    connection: int
    error: str
    stderr: str = ""
    """The end of what a stdio server has written to its standard error."""


class CallReturned(Struct, frozen=True, tag="returned", tag_field="kind"):
    id: int
    result: dict[str, Any]
    """The result of `tools/call`, with the names of the protocol (`isError`)."""


class CallRefused(Struct, frozen=True, tag="refused", tag_field="kind"):
    """A call has no result, because the server answered with an error of the protocol or not at all."""

    id: int
    error: str


class CallNotSent(Struct, frozen=True, tag="not_sent", tag_field="kind"):
    """A call did not reach the server, because the connection had ended before."""

    id: int


Order = Connect | Call | Cancel | Disconnect
News = HelperReady | ServerConnected | ServerLost | CallReturned | CallRefused | CallNotSent

_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_news: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)


def encoded(message: Order | News) -> bytes:
    """The message as a line."""
    return msgspec.json.encode(message) + b"\n"


def order_of(line: bytes) -> Order:
    """Raises msgspec.MsgspecError for a line that is no order."""
    return _orders.decode(line)


def news_of(line: bytes) -> News:
    """Raises msgspec.MsgspecError for a line that is no news."""
    return _news.decode(line)


class Lines:
    """Splits a stream of bytes into lines."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Adds a chunk, and returns the lines that it completes, without their line breaks."""
        head, *rest = chunk.split(b"\n")
        self._parts.append(head)
        if not rest:
            return []
        first, self._parts = b"".join(self._parts), [rest.pop()]
        return [first, *rest]
