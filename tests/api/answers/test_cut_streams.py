"""Only an answer with `message_stop` is complete (A6, A7). test_whole_runs.py cuts streams at every byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Step, as_message
from ralph.values.errors import StreamTransient
from ralph.values.events import ResponseDiscarded
from tests.api.harness import WHOLE_TURN, compact_stream, http_answer, read_request
from tests.rows import every_row

if TYPE_CHECKING:
    import socket

MESSAGE = as_message(WHOLE_TURN)


def test_a7_a_cut_inside_carriage_returns_is_no_answer(raw_server, rig) -> None:
    stream = compact_stream(WHOLE_TURN, "\r")
    streams = iter([stream[:-2], stream[:-1], stream])

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(http_answer(next(streams)))

    client = rig(raw_server(serve))
    for _ in range(2):
        with pytest.raises(StreamTransient):
            client.send()
    assert client.send().content == MESSAGE["content"]


def test_a7_a_last_line_that_ends_in_cr_alone_is_whole_whatever_comes_after(serve, rig) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(line_ending="\r", framing="reset"))))
    assert client.send().content == MESSAGE["content"]


@every_row("framing", ["length", "close", "chunked", "reset"])
def test_every_framing_of_a_whole_answer_is_accepted(serve, rig, framing) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(framing=framing))))
    answer = client.send()
    assert answer.message == {**answer.message, **MESSAGE, "model": "claude-test"}


def test_a6_an_answer_without_message_stop_is_discarded_once(serve, rig) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(omit_message_stop=True))))
    with pytest.raises(StreamTransient, match="before message_stop"):
        client.send()
    assert [event.message_id for event in client.events.of(ResponseDiscarded)] == ["m1"]


def test_a6_an_answer_cut_before_message_start_discards_nothing(serve, rig) -> None:
    client = rig(serve(Step(WHOLE_TURN, Fault(cut_after_events=0, framing="close"))))
    with pytest.raises(StreamTransient, match="before message_start"):
        client.send()
    assert not client.events.of(ResponseDiscarded)
