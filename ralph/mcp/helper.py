"""The MCP helper process. It speaks the Model Context Protocol with servers on behalf of ralph, and uses the `mcp`
package for that.

It is a separate process because importing that package takes a second and 60 MB. It starts no process: ralph starts
the servers and sends their descriptors. Its only credentials are the headers that the user configured for a server.
It ends when its socket is closed or when ralph dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import mcp_types
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from ralph import __version__
from ralph.machine.own_process import end_with_parent, keep_memory_private
from ralph.mcp.descriptor_transport import StderrTail, descriptor_transport
from ralph.mcp.wire import (
    Call,
    CallNotSent,
    CallRefused,
    CallReturned,
    Cancel,
    Connect,
    Disconnect,
    HelperReady,
    Lines,
    ServerConnected,
    ServerLost,
    encoded,
    order_of,
)

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ralph.mcp.wire import News, Order

_CHUNK_BYTES = 65_536
_MOST_DESCRIPTORS = 64
_STDIO_DESCRIPTORS = 3
# A call may take as long as ralph waits for it; a connection should not take that long.
_HTTP_TIMEOUT = httpx2.Timeout(30.0, read=None)
# A server with more pages would fill the request.
_MOST_PAGES = 100
# The error message of the package if a server has lost its session, for example by a restart.
_SESSION_ENDED = "Session terminated"
# A server that has ended may have written why just before.
_STDERR_AFTER_END_S = 0.2


def main() -> None:
    """The main function of the helper process. The arguments of the process are the descriptor of the socket and
    ralph's pid.
    """
    control, parent_pid = map(int, sys.argv[1:])
    end_with_parent(parent_pid)
    keep_memory_private()
    with socket.socket(fileno=control) as ralph:
        ralph.setblocking(False)
        asyncio.run(_Helper(ralph).serve())
    os._exit(0)


class _Connection:
    """One connection to a server. The coroutine in `task` keeps it open."""

    def __init__(self) -> None:
        self.session: ClientSession | None = None
        self.task: asyncio.Task[None] | None = None
        self.ended = anyio.Event()
        """Set when the server has closed the connection, or when the connection cannot be used any more."""
        self.stderr = StderrTail()


class _Helper:
    def __init__(self, ralph: socket.socket) -> None:
        self._ralph = ralph
        self._descriptors: list[int] = []
        self._connections: dict[int, _Connection] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()

    async def serve(self) -> None:
        """Carries out ralph's orders until the socket is closed."""
        lines = Lines()
        await self._send(HelperReady())
        while chunk := await self._received():
            for line in lines.feed(chunk):
                self._obey(order_of(line))

    async def _received(self) -> bytes:
        """Waits for bytes from ralph and returns them. Returns empty bytes if the socket is closed. If descriptors
        come with the bytes, stores the descriptors.
        """
        while True:
            try:
                chunk, descriptors, _, _ = socket.recv_fds(self._ralph, _CHUNK_BYTES, _MOST_DESCRIPTORS)
            except BlockingIOError:
                await _readable(self._ralph)
                continue
            except ConnectionError:
                return b""
            self._descriptors += descriptors
            return chunk

    def _obey(self, order: Order) -> None:
        match order:
            case Connect():
                connection = self._connections[order.connection] = _Connection()
                given = []
                if order.transport == "stdio":
                    given, self._descriptors = (
                        self._descriptors[:_STDIO_DESCRIPTORS],
                        self._descriptors[_STDIO_DESCRIPTORS:],
                    )
                connection.task = asyncio.create_task(self._hold(order, connection, given))
            case Call():
                self._calls[order.id] = asyncio.create_task(self._call(order))
            case Cancel():
                call = self._calls.get(order.id)
                if call is not None:
                    call.cancel()
            case Disconnect():
                gone = self._connections.get(order.connection)
                if gone is not None and gone.task is not None:
                    gone.task.cancel()

    async def _hold(self, order: Connect, connection: _Connection, descriptors: list[int]) -> None:
        """Connects to the server, lists its tools, and keeps the connection open until the connection ends or the
        task is cancelled.
        """
        error = "the connection ended"
        try:
            async with contextlib.AsyncExitStack() as stack:
                reading, writing = await _opened(order, descriptors, connection, stack)
                client = mcp_types.Implementation(name="ralph", version=__version__)
                session = ClientSession(reading, writing, client_info=client)
                connection.session = await stack.enter_async_context(session)
                await session.initialize()
                await self._send(ServerConnected(order.connection, await _tools(session)))
                await connection.ended.wait()
        except asyncio.CancelledError:
            error = "ralph ended the connection"
        except BaseException as failure:  # noqa: BLE001 - whatever a server does, the others go on
            error = _reason(failure)
        connection.session = None
        await asyncio.sleep(_STDERR_AFTER_END_S if descriptors else 0)
        await self._send(ServerLost(order.connection, error, connection.stderr.text()))

    async def _call(self, order: Call) -> None:
        try:
            news = await self._answer(order)
        finally:
            del self._calls[order.id]
        if news is not None:
            await self._send(news)

    async def _answer(self, order: Call) -> News | None:
        """Sends a call to the server. Returns the message that answers the call. Returns None if the connection ends
        during the call. The message `ServerLost` then answers the call.
        """
        connection = self._connections.get(order.connection)
        if connection is None or connection.session is None or connection.ended.is_set():
            return CallNotSent(order.id)
        request = mcp_types.CallToolRequest(
            params=mcp_types.CallToolRequestParams(name=order.tool, arguments=order.arguments)
        )
        try:
            # Not `call_tool`, which would check the result against the server's own schema: a pattern in it could
            # take for ever, and a result that does not fit is still what the tool did.
            result = await connection.session.send_request(request, mcp_types.CallToolResult)
        except MCPError as failure:
            if failure.error.code == mcp_types.CONNECTION_CLOSED or failure.error.message == _SESSION_ENDED:
                connection.ended.set()
                return None
            return CallRefused(order.id, failure.error.message)
        except Exception as failure:  # noqa: BLE001 - the model reads it as the result of its call
            return CallRefused(order.id, _reason(failure))
        return CallReturned(order.id, result.model_dump(by_alias=True, mode="json", exclude_none=True))

    async def _send(self, news: News) -> None:
        async with self._sending:
            with contextlib.suppress(ConnectionError):  # ralph is gone, and `serve` ends
                await asyncio.get_running_loop().sock_sendall(self._ralph, encoded(news))


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


async def _opened(
    order: Connect, descriptors: list[int], connection: _Connection, stack: AsyncExitStack
) -> Any:
    """Opens the transport to the server, and returns the streams of the transport."""
    if order.transport == "stdio":
        transport = descriptor_transport(*descriptors, stderr=connection.stderr, ended=connection.ended)
        return await stack.enter_async_context(transport)
    if order.transport == "sse":
        return await stack.enter_async_context(sse_client(order.url, headers=order.headers))
    client = httpx2.AsyncClient(headers=order.headers, timeout=_HTTP_TIMEOUT)
    await stack.enter_async_context(client)
    return await stack.enter_async_context(streamable_http_client(order.url, http_client=client))


async def _tools(session: ClientSession) -> list[dict[str, Any]]:
    """Asks the server for the list of its tools. Raises MCPError."""
    tools: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await session.list_tools(params=mcp_types.PaginatedRequestParams(cursor=cursor))
        tools += [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in page.tools]
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _reason(failure: BaseException) -> str:
    """A text of one line that says why something failed."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if isinstance(failure, MCPError):
        return failure.error.message
    text = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__
