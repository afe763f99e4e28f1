"""The reader thread: how far it reads ahead, and that it ends even if nobody takes what it has read."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from ralph.api.exchange import CHUNK_COST_BYTES, PIECE_BYTES, READ_AHEAD_BYTES, Wire
from ralph.machine.waiter import InboxWaiter, SystemClock
from tests.patience import within_s


class EndlessServer:
    """A replacement for the transport, which counts the chunks that were taken from it."""

    def __init__(self) -> None:
        self.taken = 0
        self.was_closed = threading.Event()

    def handle_request(self, _request: Any) -> Any:
        return SimpleNamespace(
            status_code=200,
            is_success=True,
            headers={},
            iter_raw=self._chunks,
            stream=None,
            close=self.was_closed.set,
        )

    def _chunks(self) -> Any:
        while self.taken < 100_000:
            self.taken += 1
            yield b"x" * 1000


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + within_s()
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_server_that_is_faster_than_we_is_read_only_a_little_ahead() -> None:
    server: Any = EndlessServer()
    exchange = Wire(server, InboxWaiter(SystemClock())).start(SimpleNamespace(extensions={}))  # type: ignore[arg-type]
    most = READ_AHEAD_BYTES // (1000 + CHUNK_COST_BYTES) + 2  # one too many, and one in the thread's hand
    wait_until(lambda: server.taken == most)
    time.sleep(0.05)
    assert server.taken == most
    exchange.next_item(None, "the head")
    # All that is there, at most one piece.
    assert len(exchange.next_item(None, "chunks")) == PIECE_BYTES // 1000 * 1000
    wait_until(lambda: server.taken == most + PIECE_BYTES // 1000)
    exchange.abort()
    wait_until(server.was_closed.is_set)


def test_an_answer_that_is_left_keeps_none_of_what_was_read_ahead() -> None:
    server: Any = EndlessServer()
    exchange = Wire(server, InboxWaiter(SystemClock())).start(SimpleNamespace(extensions={}))  # type: ignore[arg-type]
    wait_until(lambda: server.taken > READ_AHEAD_BYTES // 2000)
    exchange.leave()
    wait_until(server.was_closed.is_set)
    kept: Any = exchange._arrived
    assert len(kept) <= 2
