"""Every clock of an answer, tested with the whole program: it fires, is named, and the right step follows
(A8-A10).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Step, Turn, as_events, encode_events

if TYPE_CHECKING:
    import socket
from tests.program.slow_servers import HEAD, WHOLE, after_half, endless, pings, set_clocks

# tests/api/test_clocks.py tests all clocks.
CLOCKS = [
    (after_half, "bytes idle", {"bytes_idle_s": 0.4}),
    (pings, "progress idle", {"bytes_idle_s": 0.3, "progress_idle_s": 0.5}),
    (endless, "response", {"response_s": 0.4}),
]


@pytest.mark.parametrize(
    ("first", "clock", "limits"), CLOCKS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a8_a9_a10_a_clock_that_fires_is_named_and_asks_again_on_a_new_connection_exits_0(
    ralph, answer_with, first, clock, limits
) -> None:
    set_clocks(ralph, **limits)
    server = answer_with(first, WHOLE)
    ran = ralph("hi", "--output-format", "stream-json", code=0)
    assert server.connections == 2
    assert server.requests[0] == server.requests[1]
    kinds = [entry.get("subtype") for entry in ran.objects]
    fired = [entry for entry in ran.objects if entry.get("subtype") == "clock_fired"]
    assert [entry["clock"] for entry in fired] == [clock]
    assert f"(clocks.{clock.replace(' ', '_')}_s)" in ran.stderr
    assert kinds.index("clock_fired") < kinds.index("api_retry") < kinds.index("retry_recovered")
    assert ran.result["result"] == "Here is the whole answer."


def test_a8_a_server_that_stays_silent_is_given_up_exits_75(ralph, serve) -> None:
    set_clocks(ralph, first_byte_s=0.2)
    server = serve(Step(Turn("never"), Fault(stall_before_headers_s=60), repeat="forever"))
    ran = ralph("hi", "--output-format", "stream-json")
    assert (ran.code, len(server.requests)) == (75, 5)
    assert len([entry for entry in ran.objects if entry.get("subtype") == "clock_fired"]) == 5
    assert "nothing within 0.2s (first byte)" in ran.last_line


def test_heartbeats_name_what_is_awaited_and_stop_when_text_comes(ralph, answer_with) -> None:
    def slow(sock: socket.socket) -> None:
        time.sleep(2.3)
        sock.sendall(HEAD)
        for event in as_events(Turn("la " * 12, chunk_chars=3)):
            sock.sendall(encode_events([event]))
            time.sleep(0.1)

    set_clocks(ralph, heartbeat_s=1)
    server = answer_with(slow)
    ran = ralph("hi", "--output-format", "stream-json", "--include-partial-messages", code=0)
    text_at = [n for n, entry in enumerate(ran.objects) if "text_delta" in str(entry.get("event"))]
    beats = [entry for entry in ran.objects if entry.get("subtype") == "heartbeat"]
    assert len(beats) >= 2
    assert beats[0]["waiting_for"] == f"an answer from {server.base_url[7:]}"
    assert not [entry for entry in ran.objects[text_at[0] : text_at[-1]] if entry in beats]
    assert "waiting for an answer from 127.0.0.1" in ran.stderr
