"""A client on real sockets whose parts a test can reach, and servers that send exactly the given bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from ralph.api.client import ApiClient, Endpoint, HttpSettings
from ralph.api.transport import build_transport
from ralph.conversation.messages import RequestBody, RequestHead
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.mock_api import Text, Thinking, ToolUse, Turn, as_events
from ralph.values.credentials import Secret
from ralph.values.errors import AgentError
from ralph.values.limits import ClockLimits
from ralph.values.servers import ANTHROPIC
from tests.fakes import RecordingEvents
from tests.patience import within_s

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from ralph.conversation.target import ModelDescription
    from ralph.values.answer import Answer

HEAD = RequestHead.of_fields({"model": "claude-test", "max_tokens": 100, "stream": True})
MESSAGE = b'{"role":"user","content":[{"type":"text","text":"hi"}]}'
KEY = ("x-api-key", "sk-test-0123456789")
# Long enough for a busy machine, short enough for a test that fails.
PATIENT = ClockLimits(connect_s=5, first_byte_s=5, bytes_idle_s=5, progress_idle_s=5, response_s=10)


def limits(**seconds: float) -> ClockLimits:
    """Clock limits of 3 seconds each, except the given ones."""
    return ClockLimits(
        **{"bytes_idle_s": 3, "progress_idle_s": 3, "first_byte_s": 3, "response_s": 3, **seconds}
    )


WHOLE_TURN = Turn(
    content=[
        Thinking("Grüße?"),
        Text("Ja: 世界 🙂"),
        ToolUse("Read", {"file_path": "ä.py"}, id="t1"),
        ToolUse("Bash", {"command": "printf '🙂'"}, id="t2"),
    ],
    id="m1",
    chunk_chars=0,
)


def compact_stream(turn: Turn, line_end: str) -> bytes:
    """The turn's stream in few bytes, without everything that servers may leave out."""
    lines = []
    for event in as_events(turn):
        kept = {"type": "message_start", "message": {"id": turn.id}} if "message" in event else event
        lines.append(f"data:{json.dumps(kept, ensure_ascii=False, separators=(',', ':'))}{line_end * 2}")
    return "".join(lines).encode()


@dataclass
class Rig:
    """A `ApiClient`, with everything that a test checks afterwards."""

    base_url: str
    limits: ClockLimits = PATIENT
    headers: tuple[tuple[str, str], ...] = (KEY,)
    speaks: str = ANTHROPIC
    """The API of the server."""
    transport: httpx.BaseTransport | None = None
    ca_file: str | None = None
    waiter_class: Callable[[SystemClock], InboxWaiter] = InboxWaiter
    events: RecordingEvents = field(default_factory=RecordingEvents)

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.waiter = self.waiter_class(self.clock)
        self.transport = self.transport or build_transport(self.base_url, self.ca_file)
        http = HttpSettings(
            self.ca_file,
            self.limits,
            self.waiter,
            self.clock,
            lambda text: text.replace(KEY[1], "[redacted]"),
        )
        self.api = ApiClient(Endpoint(self.base_url, Secret(self.headers), self.speaks), self.transport, http)

    def send(self, message: bytes = MESSAGE) -> Answer:
        return self.api.send_message(RequestBody(HEAD, (message + b",",), (message,)), self.events)

    def describe(self, model: str = "claude-test", **bound: float) -> ModelDescription | None:
        return self.api.describe_model(model, **bound)

    def close(self) -> None:
        self.api.close()
        await_no_exchange()
        assert self.transport is not None
        self.transport.close()


def failure(client: Rig) -> Any:
    """The error with which a request fails."""
    with pytest.raises(AgentError) as caught:
        client.send()
    return caught.value


def exchange_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ralph-exchange"]


def await_no_exchange() -> bool:
    """Waits until no thread serves an exchange. Returns False if one of them does not end."""
    end_s = time.monotonic() + within_s()
    while exchange_threads() and time.monotonic() < end_s:
        time.sleep(0.004)
    return not exchange_threads()


class RawServer:
    """A server on the loopback interface that calls `serve` for each connection, one after the other. `connections`
    is their number.
    """

    def __init__(self, serve: Callable[[socket.socket], None], port: int = 0) -> None:
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.connections = 0
        self.requests: list[bytes] = []
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, name="raw-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(2.0)
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(sock)
            with contextlib.suppress(OSError), contextlib.closing(sock):
                self._serve(sock)


def read_request(sock: socket.socket) -> bytes:
    """Reads one whole request. Returns b"" if the client has closed the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := sock.recv(65536)):
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += sock.recv(65536)
    return head + b"\r\n\r\n" + body


def http_answer(
    body: bytes, content_type: str = "text/event-stream", status: str = "200 OK", headers: str = ""
) -> bytes:
    """A complete answer. The end of the connection ends its body."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\nconnection: close\r\n{headers}\r\n"
    return head.encode() + body


def reset(sock: socket.socket) -> None:
    """Closes the connection with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def sse(*events: dict[str, Any], line_end: str = "\n") -> bytes:
    """The events as a stream, without `event:` lines."""
    return "".join(
        f"data: {json.dumps(event, ensure_ascii=False)}{line_end}{line_end}" for event in events
    ).encode()


START = {"type": "message_start", "message": {"id": "m1", "model": "m", "usage": {"input_tokens": 3}}}
STOP = {"type": "message_stop"}


def text_block(index: int, *parts: str) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": part}}
            for part in parts
        ),
        {"type": "content_block_stop", "index": index},
    ]


def tool_block(index: int, *parts: str, call_id: str = "t1") -> list[dict[str, Any]]:
    block = {"type": "tool_use", "id": call_id, "name": "Bash", "input": {}}
    deltas: list[dict[str, Any]] = [
        {
            "type": "content_block_delta",
            "index": index,
            "delta": {"type": "input_json_delta", "partial_json": part},
        }
        for part in parts
    ]
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *deltas,
        {"type": "content_block_stop", "index": index},
    ]


def end(reason: str = "end_turn") -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}}, STOP]
