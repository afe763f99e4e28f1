"""A signal must end every wait of a request at once, and leave no thread and no part of an answer. Nor does the thread read
without bounds.
"""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ralph.api.transport import CHUNK_COST_BYTES, PIECE_BYTES, READ_AHEAD_BYTES, Wire
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.mock_api import Fault, Step, Turn
from ralph.values.events import ResponseDiscarded, StreamReceived
from ralph.values.limits import ClockLimits
from ralph.values.ports import Interrupted
from tests.api.harness import WHOLE_TURN, Rig, await_no_exchange
from tests.patience import wait_until, within_s
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


AFTER_S = 0.1
PATIENT = ClockLimits(connect_s=within_s(2), response_s=within_s(60))
"""Long limits, because a clock that fires would end the request with another exception."""


def assert_a_signal_ends(client: Rig, *, once: Callable[[], object] = lambda: time.sleep(AFTER_S)) -> None:
    """The signal comes when `once` returns."""

    def signal() -> None:
        once()
        client.waiter.inbox.note_signal(15)

    thread = threading.Thread(target=signal)
    thread.start()
    with pytest.raises(Interrupted) as caught:
        client.send()
    thread.join()
    assert caught.value.signal_number == 15


@every_row(
    "fault",
    [
        Fault(stall_after_events=5),
        Fault(stall_after_events=0),
        Fault(stall_after_events=5, ping_interval_s=0.01),
        Fault(drip_s=0.01),
    ],
)
def test_a_signal_ends_a_request_that_waits_for_bytes(serve, rig, fault) -> None:
    client = rig(serve(Step(WHOLE_TURN, fault), Turn("next")))
    assert_a_signal_ends(client)
    assert await_no_exchange()
    assert client.send().text == "next"


def test_a_signal_ends_a_connect(rig, silent_url) -> None:
    assert_a_signal_ends(rig(silent_url, limits=PATIENT))
    assert await_no_exchange()


@pytest.fixture
def slow_lookup(monkeypatch) -> Iterator[threading.Event]:
    """A name lookup that answers only when the event is set."""
    answer = threading.Event()
    resolve = socket.getaddrinfo

    def lookup(_host: str, port: int, *rest: int, **named: int) -> Any:
        answer.wait(within_s(60))
        return resolve("127.0.0.1", port, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    yield answer
    answer.set()
    assert await_no_exchange()


def test_a_signal_ends_the_wait_for_a_name_lookup_and_its_thread_sends_nothing(
    serve, rig, slow_lookup
) -> None:
    server = serve(Turn("never asked for"))
    client = rig(f"http://api.example.test:{server.port}")
    assert_a_signal_ends(client)
    slow_lookup.set()
    assert await_no_exchange()
    assert server.request_count == 0


def test_a_lookup_left_behind_does_not_break_the_next_request(serve, rig, slow_lookup) -> None:
    server = serve(Turn("first"), Turn("second"))
    client = rig(f"http://api.example.test:{server.port}")
    assert_a_signal_ends(client)
    threading.Timer(0.05, slow_lookup.set).start()
    assert client.send().text == "first"
    assert await_no_exchange()


def test_what_had_streamed_before_a_signal_is_marked_discarded(serve, rig) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(stall_after_events=5))))
    assert_a_signal_ends(client, once=lambda: wait_until(lambda: client.events.of(StreamReceived)))
    assert [event.message_id for event in client.events.of(ResponseDiscarded)] == ["m1"]


# --- The reader thread: how far it reads ahead, and that it ends even if nobody takes what it has read


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
