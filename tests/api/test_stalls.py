"""Silence, pings and slow drips must end at one of ralph's own clocks, because no timeout of the HTTP library ends
them (A8, A9, A10).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ralph.api.clocks import ClockLimits
from ralph.mock_api import Fault, Step, Turn
from ralph.values.errors import StreamTransient
from ralph.values.events import ClockFired
from tests.api.harness import START, WHOLE_TURN, end, http_answer, limits, read_request, sse, text_block

if TYPE_CHECKING:
    import socket

SHORT_S = 0.15


def fired(client) -> list[str]:
    return [event.clock for event in client.events.of(ClockFired)]


def test_a8_headers_without_a_body_fire_the_first_byte_clock(serve, rig) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(stall_after_events=0))), limits=limits(first_byte_s=SHORT_S))
    with pytest.raises(StreamTransient, match="first byte"):
        client.send()
    assert fired(client) == ["first byte"]


def test_a9_pings_bridge_a_long_thought(serve, rig) -> None:
    fault = Fault(stall_after_events=3, stall_s=0.4, ping_interval_s=0.05)
    client = rig(serve(Step(WHOLE_TURN, fault)), limits=limits(bytes_idle_s=0.25, progress_idle_s=3))
    assert len(client.send().calls) == 2


def test_a10_a_drip_without_a_line_end_fires_the_progress_clock(serve, rig) -> None:
    client = rig(serve(Step(Turn("x" * 999), Fault(drip_s=0.02))), limits=limits(progress_idle_s=SHORT_S))
    with pytest.raises(StreamTransient, match="progress idle"):
        client.send()
    assert fired(client) == ["progress idle"]


def test_a10_an_answer_without_end_fires_the_response_clock(raw_server, rig) -> None:
    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(sse(START)))
        while True:
            sock.sendall(b": still here\n\n")
            time.sleep(0.02)

    client = rig(raw_server(serve), limits=limits(response_s=0.3))
    with pytest.raises(StreamTransient, match="response"):
        client.send()
    assert fired(client) == ["response"]


def test_a10_a_slow_drip_of_a_whole_answer_is_accepted(serve, rig) -> None:
    client = rig(serve(Step(Turn("", chunk_chars=0), Fault(drip_s=0.0001))), limits=limits())
    assert client.send().stop_reason == "end_turn"


def test_a10_a_large_event_within_the_bound_is_accepted(answering) -> None:
    long = "x" * (7 << 20)
    client = answering(sse(START, *text_block(0, long), *end()))
    assert client.send().text == long


def test_clocks_that_are_off_wait(serve, rig) -> None:
    off = ClockLimits(connect_s=0, first_byte_s=0, bytes_idle_s=0, progress_idle_s=0, response_s=0)
    fault = Fault(stall_before_headers_s=0.1, stall_after_events=2, stall_s=0.2)
    assert len(rig(serve(Step(WHOLE_TURN, fault)), limits=off).send().calls) == 2
