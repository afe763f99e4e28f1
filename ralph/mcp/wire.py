"""The messages between ralph and its MCP helper process. Each message is one line of JSON on a socket. No I/O happens
here. The `Connect` message for a stdio server comes together with three file descriptors.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

MOST_PAGES = 100
"""A list of tools may come in pages. A server with more of them would fill the request, or never end its list."""
NO_METHOD = -32601
"""The code of JSON-RPC with which a server without tools may refuse to list them, even if it has announced that it
has tools."""

# --- From ralph to the helper


class Connect(Struct, frozen=True, tag="connect", tag_field="kind"):
    """Orders the helper process to connect to a server and to list its tools. The reply is `ServerConnected` or
    `ServerLost`.

    For a stdio server, three descriptors come with the message: ralph's ends of the server's standard input, output
    and error.
    """

    server: str
    connection: int
    """The number of the connection. No other connection of the run has it. A restarted server gets a new number."""
    transport: Literal["stdio", "http", "sse"]
    url: str = ""
    headers: dict[str, str] = {}
    proxy: str | None = None
    """The URL of the proxy for `url`, with its password."""
    address: str | None = None
    """The address to connect to, if the name of the proxy, or without a proxy of the server, could lead to another one."""


class Call(Struct, frozen=True, tag="call", tag_field="kind"):
    """Orders the helper process to call a tool. The reply is `CallReturned`, `CallRefused` or `CallNotSent`, or
    `ServerLost` if the connection is lost.
    """

    id: int
    connection: int
    tool: str
    arguments: dict[str, Any]


class Cancel(Struct, frozen=True, tag="cancel", tag_field="kind"):
    """Orders the helper process to tell the server that nobody waits for a call any more. There is no reply."""

    id: int


class Ping(Struct, frozen=True, tag="ping", tag_field="kind"):
    """Orders the helper process to ping a server. The reply is `ServerAlive`. If the server does not answer, the
    helper ends the connection, and the reply is `ServerLost`.
    """

    connection: int


class Disconnect(Struct, frozen=True, tag="disconnect", tag_field="kind"):
    """Orders the helper process to end a connection. The reply is `ServerLost`, unless the connection has already
    ended.
    """

    connection: int


# --- From the helper to ralph


class HelperReady(Struct, frozen=True, tag="ready", tag_field="kind"):
    """Says that the helper process takes orders. This is the first message of the helper process."""


class ServerConnected(Struct, frozen=True, tag="connected", tag_field="kind"):
    connection: int
    tools: list[dict[str, Any]]
    """The tools in the form in which the server lists them. Fields have the protocol's names, such as `inputSchema`."""


class ServerLost(Struct, frozen=True, tag="lost", tag_field="kind"):
    """Says that a connection has failed or ended."""

    connection: int
    error: str
    stderr: str = ""
    """The last bytes that a stdio server has written to its standard error."""
    is_unreached: bool = False
    """True if the server could not be connected to, so that a call did not reach it."""


class ServerAlive(Struct, frozen=True, tag="alive", tag_field="kind"):
    """Says that a server has answered a ping."""

    connection: int


class CallReturned(Struct, frozen=True, tag="returned", tag_field="kind"):
    id: int
    result: dict[str, Any]
    """The result of the protocol's `tools/call`. Fields have the protocol's names, such as `isError`."""


class CallRefused(Struct, frozen=True, tag="refused", tag_field="kind"):
    """Says that a call has no result, because the server answered with a protocol error or gave no answer."""

    id: int
    error: str
    is_doubtful: bool = False
    """True if the server has to be pinged before the next call, and the effects of this one are unknown."""


class CallNotSent(Struct, frozen=True, tag="not_sent", tag_field="kind"):
    """Says that a call did not reach the server, because the connection or the session had already ended."""

    id: int


Order = Connect | Call | Cancel | Ping | Disconnect
News = HelperReady | ServerConnected | ServerLost | ServerAlive | CallReturned | CallRefused | CallNotSent

order_of = msgspec.json.Decoder[Order](Order).decode
"""Decodes an order from a line. Raises msgspec.MsgspecError if the line is not an order."""
news_of = msgspec.json.Decoder[News](News).decode
"""Decodes a message of the helper process from a line. Raises msgspec.MsgspecError if the line is not such a message."""


def encoded(message: Order | News) -> bytes:
    """The message as one line of JSON."""
    return msgspec.json.encode(message) + b"\n"


class Lines:
    """Splits a stream of bytes into lines."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.open_bytes = 0
        """The size of the line that is not complete yet."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Adds a chunk of bytes. Returns the lines that are complete now, without their line breaks."""
        head, *rest = chunk.split(b"\n")
        self._parts.append(head)
        if not rest:
            self.open_bytes += len(head)
            return []
        first, self._parts = b"".join(self._parts), [rest.pop()]
        self.open_bytes = len(self._parts[0])
        return [first, *rest]
