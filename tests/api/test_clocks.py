"""Which clock fires next, depending on what has happened so far, and that it ends a request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import fields

from ralph.api.reception import CATCH_UP_S, CatchUp, Deadline, ResponseClocks
from ralph.mock_api import Fault, Step, Turn
from ralph.values.errors import StreamTransient
from ralph.values.events import ClockFired
from ralph.values.limits import ClockLimits
from tests.api.harness import START, WHOLE_TURN, end, http_answer, limits, read_request, sse, text_block
from tests.rows import every_row

if TYPE_CHECKING:
    import socket


LIMITS = ClockLimits(connect_s=10, first_byte_s=180, bytes_idle_s=90, progress_idle_s=300, response_s=1800)


def clocks_after(limits: ClockLimits, *happened: tuple[str, float]) -> ResponseClocks:
    """The clocks of a response that began at 1000 s, after these events."""
    clocks = ResponseClocks(limits, 1000.0)
    for what, now_s in happened:
        getattr(clocks, what)(now_s)
    return clocks


CONNECTED = ("connected", 1002.0)


@every_row(
    ("happened", "deadline"),
    [
        ([], Deadline("connect", 1010, 10)),
        ([CONNECTED], Deadline("first byte", 1182, 180)),
        ([CONNECTED, ("got_bytes", 1100.0)], Deadline("bytes idle", 1190, 90)),
        # Pings: bytes go on, progress does not, until its clock is the nearer one.
        ([CONNECTED, ("got_bytes", 1100.0), ("got_bytes", 1309.0)], Deadline("bytes idle", 1399, 90)),
        ([CONNECTED, ("got_bytes", 1100.0), ("got_bytes", 1311.0)], Deadline("progress idle", 1400, 300)),
        (
            [CONNECTED, ("got_bytes", 1100.0), ("got_progress", 1311.0), ("got_bytes", 1320.0)],
            Deadline("bytes idle", 1410, 90),
        ),
        # Near the end of the whole response nothing else matters.
        ([CONNECTED, ("got_bytes", 2709.0), ("got_progress", 2709.0)], Deadline("bytes idle", 2799, 90)),
        ([CONNECTED, ("got_bytes", 2711.0), ("got_progress", 2711.0)], Deadline("response", 2800, 1800)),
        # A head that comes with its first bytes before anything else was told.
        ([("got_bytes", 1001.0)], Deadline("bytes idle", 1091, 90)),
    ],
)
def test_the_nearest_clock_fires(happened, deadline) -> None:
    assert clocks_after(LIMITS, *happened).next_deadline() == deadline


@every_row(
    ("off", "happened", "next_clock"),
    [
        ("connect_s", [], "response"),
        ("first_byte_s", [CONNECTED], "response"),
        ("bytes_idle_s", [CONNECTED, ("got_bytes", 1003.0)], "progress idle"),
        ("progress_idle_s", [CONNECTED, ("got_bytes", 1003.0)], "bytes idle"),
        ("response_s", [CONNECTED, ("got_bytes", 5000.0)], "bytes idle"),
    ],
)
def test_zero_switches_one_clock_off(off, happened, next_clock) -> None:
    others = {field.name: getattr(LIMITS, field.name) for field in fields(ClockLimits)}
    deadline = clocks_after(ClockLimits(**{**others, off: 0}), *happened).next_deadline()
    assert deadline is not None
    assert deadline.clock == next_clock


def test_with_all_off_nothing_ever_fires() -> None:
    off = ClockLimits(**{field.name: 0 for field in fields(ClockLimits)})
    for happened in ([], [CONNECTED], [CONNECTED, ("got_bytes", 1003.0)]):
        assert clocks_after(off, *happened).next_deadline() is None


def test_the_response_clock_runs_from_the_beginning_not_from_the_connection() -> None:
    limits = ClockLimits(connect_s=0, first_byte_s=0, response_s=5)
    assert clocks_after(limits, CONNECTED).next_deadline() == Deadline("response", 1005, 5)


def test_the_defaults_are_the_documented_ones() -> None:
    assert ClockLimits() == LIMITS


AT_100 = Deadline("bytes idle", 100, 90)


def test_before_its_deadline_a_wait_lasts_until_the_deadline() -> None:
    assert CatchUp().wait_until_s(AT_100, 99.9) == 100


def test_after_its_deadline_there_is_one_moment_to_catch_up_however_often_something_comes() -> None:
    catch_up = CatchUp()
    ends_s = 3700 + CATCH_UP_S
    assert [catch_up.wait_until_s(AT_100, now_s) for now_s in (3700, 3700.1, ends_s - 0.01)] == [ends_s] * 3
    assert catch_up.wait_until_s(AT_100, ends_s) is None


def test_a_deadline_that_has_just_passed_leaves_no_time_to_wait() -> None:
    catch_up = CatchUp()
    assert [catch_up.wait_until_s(AT_100, now_s) for now_s in (100, 100.1)] == [100, 100.1]
    assert catch_up.wait_until_s(AT_100, 100.2) == 100.2 + CATCH_UP_S


def test_a_deadline_that_moves_on_ends_the_catching_up() -> None:
    catch_up = CatchUp()
    catch_up.wait_until_s(AT_100, 101)
    assert catch_up.wait_until_s(Deadline("bytes idle", 200, 90), 110) == 200
    assert catch_up.wait_until_s(Deadline("bytes idle", 200, 90), 210) == 210 + CATCH_UP_S


@every_row(("now_s", "late"), [(100.0, False), (100.1, False), (100.2, True), (3700, True)])
def test_only_who_wakes_late_may_have_missed_something(now_s, late) -> None:
    assert CatchUp.woke_late(AT_100, now_s) is late


# --- On a socket, where no timeout of the HTTP library ends silence, pings and slow drips (A8, A9, A10)


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


def test_a10_a_large_event_within_the_bound_is_accepted(answering) -> None:
    long = "x" * (7 << 20)
    client = answering(sse(START, *text_block(0, long), *end()))
    assert client.send().text == long


def test_clocks_that_are_off_wait(serve, rig) -> None:
    off = ClockLimits(connect_s=0, first_byte_s=0, bytes_idle_s=0, progress_idle_s=0, response_s=0)
    fault = Fault(stall_before_headers_s=0.1, stall_after_events=2, stall_s=0.2)
    assert len(rig(serve(Step(WHOLE_TURN, fault)), limits=off).send().calls) == 2
