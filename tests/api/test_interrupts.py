"""A signal must end every wait of a request at once, and leave no thread and no part of an answer."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ralph.api.clocks import ClockLimits
from ralph.mock_api import Fault, Step, Turn
from ralph.values.events import ResponseDiscarded, StreamReceived
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
