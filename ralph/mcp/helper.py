"""The MCP helper process. It speaks the Model Context Protocol with servers on behalf of ralph, and uses the `mcp`
package for that.

It is a separate process because importing that package takes a second and 60 MB. It starts no process: ralph starts
the servers and sends their descriptors. Its only credentials are the headers that the user configured for a server, and the proxy's password.
It ends when its socket is closed or when ralph dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import httpcore2
import httpx2
import mcp_types
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from ralph import __version__
from ralph.machine.process_start import end_with_parent, keep_memory_private
from ralph.machine.trust import trusting
from ralph.mcp.wire import (
    MOST_PAGES,
    NO_METHOD,
    Call,
    CallNotSent,
    CallRefused,
    CallReturned,
    Cancel,
    Connect,
    Disconnect,
    HelperReady,
    Lines,
    Ping,
    ServerAlive,
    ServerConnected,
    ServerLost,
    encoded,
    order_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AsyncExitStack

    from ralph.mcp.wire import News, Order

_CHUNK_BYTES = 65_536
_MOST_DESCRIPTORS = 64
_STDIO_DESCRIPTORS = 3
# A call may take as long as ralph waits for it; a connection should not take that long.
_HTTP_TIMEOUT = httpx2.Timeout(30.0, read=None)
# The message of the package's error if the connection has ended. A server may send an error with the same code.
_CLOSED = "Connection closed"
_PING_S = 10.0
_LEAST_FAILURE = 400
_UNKNOWN_SESSION = (400, 404)
"""The HTTP statuses of servers that do not know a session. The protocol wants 404. 400 is what its examples send."""
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
        self.ping: asyncio.Task[None] | None = None
        self.ended = anyio.Event()
        """Set when the server has closed the connection, or when the connection cannot be used any more."""
        self.stderr = StderrTail()
        self.why_lost = ""
        """The reason why `ended` was set, if something is known beyond the end itself."""
        self.http_status = 0
        """The status of the last HTTP request, if it was 400 or more, since the last call or ping began."""
        self.call = anyio.CancelScope()
        """The scope of the last call."""
        self.unusable = ""
        """The reason why the answer to the last call cannot be used. Empty if it can be used."""

    def lose(self, why: str) -> None:
        self.why_lost = why
        self.ended.set()

    async def hear(self, message: object) -> None:
        """Ends the call if its answer cannot be used. The session passes all messages that answer nothing."""
        if isinstance(message, Exception):
            self.unusable = _reason(message)
            self.call.cancel()

    async def look_at(self, response: httpx2.Response) -> None:
        """Notes the status of a failed request, and limits the size of an answer."""
        if response.status_code >= _LEAST_FAILURE and response.request.method == "POST":
            self.http_status = response.status_code
        kind = response.headers.get("content-type", "").lower()
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding != "identity" or kind.startswith("application/json"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is asynchronous
            size = int(response.headers.get("content-length", "0"))
            refusal = "" if encoding == "identity" else f"it is compressed ({encoding}), which is not taken"
            response.stream = _BoundedStream(response.stream, size, refusal, kind)


class _BoundedStream(httpx2.AsyncByteStream):
    """The content of an HTTP answer. Raises httpx2.StreamError if it is too long or `refusal` says why it cannot be used.
    Of an event stream, that is an httpx2.SSEError.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, size_bytes: int, refusal: str, kind: str) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._refusal = refusal
        self._error = httpx2.SSEError if kind.startswith("text/event-stream") else httpx2.StreamError

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._refusal:
            raise self._error(self._refusal)
        size = self._size_bytes
        async for chunk in self._stream:
            if size > MOST_MESSAGE_BYTES:
                raise httpx2.StreamError(too_long(size))
            yield chunk
            size += 0 if self._size_bytes else len(chunk)

    async def aclose(self) -> None:
        await self._stream.aclose()


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
        """Waits for bytes from ralph and returns them. Returns empty bytes if the socket is closed. Stores the
        descriptors that come with the bytes.
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
            case Ping():
                pinged = self._connections[order.connection]
                pinged.ping = asyncio.create_task(self._ping(order, pinged))
            case Disconnect():
                gone = self._connections.get(order.connection)
                if gone is not None and gone.task is not None:
                    gone.task.cancel()

    async def _hold(self, order: Connect, connection: _Connection, descriptors: list[int]) -> None:
        """Connects to the server, lists its tools, and keeps the connection open until it ends or the task is
        cancelled.
        """
        is_unreached = False
        try:
            async with contextlib.AsyncExitStack() as stack:
                reading, writing = await _opened(order, descriptors, connection, stack)
                client = mcp_types.Implementation(name="ralph", version=__version__)
                # Over streamable HTTP, the package itself ends a call whose answer it cannot decode.
                hear = None if order.transport == "http" else connection.hear
                session = ClientSession(reading, writing, client_info=client, message_handler=hear)
                connection.session = await stack.enter_async_context(session)
                await session.initialize()
                await self._send(ServerConnected(order.connection, await _tools(session)))
                await connection.ended.wait()
            error = connection.why_lost or "the connection ended"
        except asyncio.CancelledError:
            error = connection.why_lost or "ralph ended the connection"
        except BaseException as failure:  # noqa: BLE001 - whatever a server does, the others continue
            error = _reason(failure)
            is_unreached = isinstance(_cause(failure), httpx2.ConnectError | httpx2.ConnectTimeout)
        connection.session = None
        await asyncio.sleep(_STDERR_AFTER_END_S if descriptors else 0)
        await self._send(ServerLost(order.connection, error, connection.stderr.text(), is_unreached))

    async def _call(self, order: Call) -> None:
        try:
            news = await self._answer(order)
        finally:
            del self._calls[order.id]
        if news is not None:
            await self._send(news)

    async def _answer(self, order: Call) -> News | None:
        """Sends a call to the server, and returns the message that answers it. None if the connection ends during
        the call. The message `ServerLost` then answers the call.
        """
        connection = self._connections[order.connection]
        if connection.session is None or connection.ended.is_set():
            return CallNotSent(order.id)
        connection.http_status, connection.unusable, result = 0, "", None
        request = mcp_types.CallToolRequest(
            params=mcp_types.CallToolRequestParams(name=order.tool, arguments=order.arguments)
        )
        try:
            # Not `call_tool`, which would check the result against the server's own schema: a pattern in it could
            # take for ever, and a result that does not fit is still what the tool did.
            with anyio.CancelScope() as connection.call:
                result = await connection.session.send_request(request, mcp_types.CallToolResult)
        except MCPError as failure:
            return await self._refusal(order, connection, failure)
        except Exception as failure:  # noqa: BLE001 - the model reads it as the result of its call
            connection.unusable = _reason(failure)
        if result is None or connection.unusable:
            return CallRefused(order.id, f"{UNUSABLE}{connection.unusable}")
        return CallReturned(order.id, result.model_dump(by_alias=True, mode="json", exclude_none=True))

    async def _refusal(self, order: Call, connection: _Connection, failure: MCPError) -> News | None:
        code, message, status = failure.error.code, failure.error.message, connection.http_status
        if message == _CLOSED:
            connection.ended.set()
            return None
        if status in _UNKNOWN_SESSION and (why := await _why_dead(connection)):
            connection.lose(f"{message} (HTTP {status}), and {why}")
            return CallNotSent(order.id)
        is_doubtful = status not in (0, *_UNKNOWN_SESSION) or code == mcp_types.CONNECTION_CLOSED
        return CallRefused(order.id, f"{message} (HTTP {status})" if status else message, is_doubtful)

    async def _ping(self, order: Ping, connection: _Connection) -> None:
        if why := await _why_dead(connection):
            connection.lose(why)
        else:
            await self._send(ServerAlive(order.connection))

    async def _send(self, news: News) -> None:
        async with self._sending:
            with contextlib.suppress(ConnectionError):  # ralph is gone, and `serve` ends
                await asyncio.get_running_loop().sock_sendall(self._ralph, encoded(news))


async def _why_dead(connection: _Connection) -> str:
    """Pings a server. Returns the reason why it is taken for dead, or "" if it answers."""
    session, connection.http_status = connection.session, 0
    if session is None:
        return "it has ended"
    with anyio.move_on_after(_PING_S):
        try:
            await session.send_ping()
        except MCPError as failure:
            if connection.http_status:
                return f"it answered a ping with HTTP {connection.http_status}"
            if failure.error.code == mcp_types.CONNECTION_CLOSED:
                return "it closed the connection instead of answering a ping"
        except ValueError:
            return ""  # an answer of a wrong form is a sign of life, too
        return ""
    return f"it did not answer a ping within {_PING_S:g} s"


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
    if order.transport == "stdio":
        transport = descriptor_transport(*descriptors, stderr=connection.stderr, ended=connection.ended)
        return await stack.enter_async_context(transport)
    client = partial(_client, connection, order)
    if order.transport == "sse":
        sse = sse_client(order.url, headers=order.headers, httpx_client_factory=client)
        return await stack.enter_async_context(sse)
    http_client = await stack.enter_async_context(client(order.headers))
    # A connection is closed because its server is lost, and a request that ends the session could last for ever.
    transport = streamable_http_client(
        order.url, http_client=http_client, terminate_on_close=False, max_sse_event_size=MOST_MESSAGE_BYTES
    )
    return await stack.enter_async_context(transport)


def _client(
    connection: _Connection,
    order: Connect,
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = _HTTP_TIMEOUT,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    transport = httpx2.AsyncHTTPTransport(
        proxy=order.proxy,
        verify=trusting(os.environ.get("SSL_CERT_FILE") or None),
        trust_env=False,  # ralph has found the proxy
    )
    if order.address is not None:
        transport._pool._network_backend = _Connector(order.address)  # noqa: SLF001 - httpx2 has no parameter for it
    return httpx2.AsyncClient(
        # Compressed, an answer could be of any size.
        headers={"Accept-Encoding": "identity", **(headers or {})},
        timeout=timeout,
        auth=auth,
        transport=transport,
        trust_env=False,
        event_hooks={"response": [connection.look_at]},
    )


class _Connector(httpcore2.AnyIOBackend):
    """Connects to an address that ralph has chosen instead of to a name."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def connect_tcp(self, host: str, *args: Any, **named: Any) -> httpcore2.AsyncNetworkStream:  # noqa: ARG002 - the name
        return await super().connect_tcp(self._address, *args, **named)


async def _tools(session: ClientSession) -> list[dict[str, Any]]:
    """Asks the server for the list of its tools. Raises MCPError."""
    tools: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        try:
            page = await session.list_tools(params=mcp_types.PaginatedRequestParams(cursor=cursor))
        except MCPError as failure:
            if failure.error.code != NO_METHOD:
                raise
            break
        tools += [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in page.tools]
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _reason(failure: BaseException) -> str:
    failure = _cause(failure)
    if isinstance(failure, MCPError):
        return failure.error.message
    text = " ".join(str(failure).split())
    if isinstance(failure, UnusableMessageError):
        return text
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__


def _cause(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


# --- The stdio transport for a server that another process has started
# The `mcp` package has its own stdio transport, but that one starts the server itself, outside any sandbox.

_MOST_STDERR_BYTES = 4_096
MOST_MESSAGE_BYTES = 64 * 1024 * 1024
"""The maximum size of a message. Messages hold images at most, and a server that never ends one would fill the memory."""


UNUSABLE = "its answer to the call cannot be used, and what the call did is done: "


class UnusableMessageError(Exception):
    """A message of a server cannot be decoded, or is too long. The message says why."""


def too_long(size_bytes: int) -> str:
    return f"it has {size_bytes:,} bytes, and at most {MOST_MESSAGE_BYTES:,} are taken"


class StderrTail:
    """The last bytes that a server has written to its standard error."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, chunk: bytes) -> None:
        self._data = (self._data + chunk)[-_MOST_STDERR_BYTES:]

    def text(self) -> str:
        return self._data.decode("utf-8", "replace").strip()


@asynccontextmanager
async def descriptor_transport(
    stdin: int, stdout: int, stderr_descriptor: int, *, stderr: StderrTail, ended: anyio.Event
) -> AsyncIterator[tuple[Any, Any]]:
    """A context manager for a transport over a server's standard input, output and error. At the end, it closes all
    three. It stores the server's standard error in `stderr`, and sets `ended` when the server closes its output or
    its input. An answer that cannot be used becomes an `UnusableMessageError`.
    """
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    loop = asyncio.get_running_loop()
    output, output_pipe = await _reader(stdout)
    errors, errors_pipe = await _reader(stderr_descriptor)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(stdin, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, output, to_session, ended)
        tasks.start_soon(_drain, errors, stderr)
        tasks.start_soon(_write, from_session, writer, ended)
        try:
            yield from_server, to_server
        finally:
            tasks.cancel_scope.cancel()
            for pipe in (output_pipe, errors_pipe, transport):
                pipe.close()


async def _reader(descriptor: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, pipe


async def _read(output: asyncio.StreamReader, to_session: Any, ended: anyio.Event) -> None:
    lines, left_out = Lines(), 0
    async with to_session:
        while chunk := await output.read(_CHUNK_BYTES):
            complete = lines.feed(chunk)
            messages = [_message(line) for line in complete]
            if complete and left_out:
                messages[0] = UnusableMessageError(too_long(left_out + len(complete[0])))
                left_out = 0
            if left_out + lines.open_bytes > MOST_MESSAGE_BYTES:
                left_out += lines.open_bytes
                lines = Lines()
            for message in filter(None, messages):
                with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    await to_session.send(message)
        ended.set()


def _message(line: bytes) -> SessionMessage | UnusableMessageError | None:
    """The message of a line. None if it cannot be decoded and is no answer to ralph, such as words that a server
    prints there.
    """
    try:
        message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        wrong_form = "it does not have the form of an answer"
        return _unusable(line, first["msg"] if first["type"] == "json_invalid" else wrong_form)
    if isinstance(message, mcp_types.JSONRPCError) and message.id is None:  # it could not read the request
        return UnusableMessageError(message.error.message)
    return SessionMessage(message)


def _unusable(line: bytes, why: str) -> SessionMessage | UnusableMessageError | None:
    try:
        fields = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        is_answer = line.lstrip().startswith(b"{") and b'"jsonrpc"' in line and b'"method"' not in line
        return UnusableMessageError(why) if is_answer else None
    batch = fields if isinstance(fields, list) else [fields]
    answers = [one for one in batch if isinstance(one, dict) and "jsonrpc" in one and "method" not in one]
    if not answers:
        return None
    answered = answers[0].get("id")
    if not isinstance(answered, int | str) or isinstance(answered, bool):
        return UnusableMessageError(why)
    error = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message=f"{UNUSABLE}{why}")
    return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=answered, error=error))


async def _drain(errors: asyncio.StreamReader, stderr: StderrTail) -> None:
    while chunk := await errors.read(_CHUNK_BYTES):
        stderr.feed(chunk)


async def _write(from_session: Any, writer: asyncio.StreamWriter, ended: anyio.Event) -> None:
    async with from_session:
        async for message in from_session:
            writer.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            try:
                await writer.drain()
            except ConnectionError:
                ended.set()
