"""The stdio transport of the Model Context Protocol for a server that another process has started.

The helper process uses this transport. The `mcp` package has its own stdio transport, but that one starts the server
itself, outside of any sandbox.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types
from mcp.shared.message import SessionMessage

from ralph.mcp.wire import Lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_CHUNK_BYTES = 65_536
_MOST_STDERR_BYTES = 4_096
# A message of the protocol holds images at most. A server that never ends its line would fill the memory.
_MOST_LINE_BYTES = 64 * 1024 * 1024


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
    three. It stores the server's standard error in `stderr`, and sets `ended` when the server closes its output.
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
        tasks.start_soon(_write, from_session, writer)
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
    lines, size = Lines(), 0
    async with to_session:
        while chunk := await output.read(_CHUNK_BYTES):
            complete = lines.feed(chunk)
            size = len(chunk) if complete else size + len(chunk)
            if size > _MOST_LINE_BYTES:
                break
            for line in complete:
                with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    await to_session.send(_message(line))
        ended.set()


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:  # a server that also prints words there; the session passes over them
        return error


async def _drain(errors: asyncio.StreamReader, stderr: StderrTail) -> None:
    while chunk := await errors.read(_CHUNK_BYTES):
        stderr.feed(chunk)


async def _write(from_session: Any, writer: asyncio.StreamWriter) -> None:
    async with from_session:
        async for message in from_session:
            writer.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            with suppress(ConnectionError):  # the server's end is noticed where its output is read
                await writer.drain()
