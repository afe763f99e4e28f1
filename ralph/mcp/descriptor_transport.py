"""The stdio transport of the Model Context Protocol for a server that another process has started.

The helper process uses this transport. The `mcp` package has its own stdio transport, but that one starts the server
itself, outside any sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from ralph.mcp.wire import Lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_CHUNK_BYTES = 65_536
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
    three. It stores the server's standard error in `stderr`, and sets `ended` when the server closes its output or its
    input. An answer that cannot be used becomes an `UnusableMessageError`.
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
    """The message of a line. None if it is not an answer to ralph and cannot be decoded, such as words that a server prints
    there.
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
