"""Measures the CPU time of ralph for one answer of 20,000 text deltas. "In bulk" means that deltas arrive as fast as
ralph reads them, many in one read. This shows the cost of parsing and printing them. "Apart" means that each delta is
its own packet, as from a real model. This adds the cost of waking up for each one.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import (
    BARE_PYTHON,
    Figure,
    MockProcess,
    Row,
    Workplace,
    ralph,
    repeat,
    show,
    workplace,
)
from ralph.mock_api import FOREVER, Scenario, Step, Turn, as_events, encode_event

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

DELTAS = 20_000
CHUNK_CHARS = 16
LINES = ("x" * (5 * CHUNK_CHARS - 1) + "\n") * (DELTAS // 5)
ONE_LINE = "x" * (CHUNK_CHARS * DELTAS)
PARTIAL = ("--output-format", "stream-json", "--include-partial-messages")
GAP_S = 0.0001
"""Seconds between two packets. With the delay of the system, this is enough time for ralph to read the first one."""

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def main() -> None:
    with workplace() as place:
        bare = repeat(partial(cpu_ms, place, BARE_PYTHON))
    rows = [
        Row("python -c pass", bare),
        Row("a whole run, one delta", _in_bulk("Done.")),
        Row(f"{DELTAS:,} in bulk, text", _in_bulk(LINES)),
        Row(f"{DELTAS:,} in bulk, text, all one line", _in_bulk(ONE_LINE)),
        Row(f"{DELTAS:,} in bulk, stream-json, partial", _in_bulk(LINES, *PARTIAL)),
        Row(f"{DELTAS:,} apart, text", _apart()),
        Row(f"{DELTAS:,} apart, stream-json, partial", _apart(*PARTIAL)),
    ]
    show("CPU time of a run with one long answer, start-up included", rows, unit="ms", bare=bare)


def cpu_ms(place: Workplace, command: Sequence[str]) -> float:
    return place.measure(command).cpu_s * 1000


def _in_bulk(text: str, *options: str) -> Figure:
    step = Step(Turn(text, chunk_chars=CHUNK_CHARS), repeat=FOREVER)
    with MockProcess(Scenario([step], parse_requests=False)) as server, workplace(server.base_url) as place:
        return repeat(partial(cpu_ms, place, ralph("run", "hi", *options)))


def _apart(*options: str) -> Figure:
    """Measures deltas in packets of their own. Uses its own server, because the mock API sends as many bytes at once
    as it can.
    """
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=send_apart, args=(theirs,), daemon=True)
    server.start()
    try:
        with workplace(f"http://127.0.0.1:{ours.recv()}") as place:
            return repeat(partial(cpu_ms, place, ralph("run", "hi", *options)))
    finally:
        server.terminate()
        server.join()


def send_apart(pipe: Connection, text: str = LINES, certificate: str | None = None) -> None:
    """Answers each request with `text`, one packet for each delta. With a certificate, the server speaks TLS."""
    events = as_events(Turn(text, chunk_chars=CHUNK_CHARS), index=0, model="claude-sonnet-5-5")
    chunks = [b"%x\r\n%s\r\n" % (len(data), data) for data in map(encode_event, events)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        tls = None
        if certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate)
        while True:
            connection, _ = listener.accept()
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True)
            threading.Thread(target=_answer, args=(connection, chunks), daemon=True).start()


def _answer(connection: socket.socket, chunks: Sequence[bytes]) -> None:
    """Answers the request of one connection and closes the connection. A request other than POST gets an empty
    answer, because some programs first check whether there is a server.
    """
    with connection, suppress(ConnectionError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not _receive_request(connection).startswith(b"POST "):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        connection.sendall(_HEAD)
        for chunk in chunks:
            connection.sendall(chunk)
            time.sleep(GAP_S)
        connection.sendall(b"0\r\n\r\n")


def _receive_request(connection: socket.socket) -> bytes:
    """Reads one request and returns its first line. The body is read too, because a connection that is closed with
    unread data is reset.
    """
    with connection.makefile("rb") as reader:
        first, size = reader.readline(), 0
        while (line := reader.readline().lower()) not in (b"\r\n", b""):
            if line.startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        reader.read(size)
        return first


if __name__ == "__main__":
    main()
