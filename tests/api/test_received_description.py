"""The description of a model must arrive in time. Each target's server is asked with its own key, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ralph.api.client import receive_description
from ralph.api.clocks import ClockLimits
from ralph.api.target_clients import Connecting, TargetClients
from ralph.conversation.target import ModelDescription, Target
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.values.credentials import Credential, Secret
from tests.api.harness import RawServer, http_answer, read_request
from tests.fakes import FakeClock

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

SAID = ModelDescription(context_window=32_768, max_output=4_096)
DOCUMENT = b'{"type": "model", "max_input_tokens": 32768, "max_tokens": 4096}'


@pytest.fixture
def clients() -> Iterator[Callable[..., TargetClients]]:
    made: list[TargetClients] = []

    def make(ca_file: str | None = None) -> TargetClients:
        clock = SystemClock()
        connecting = Connecting(ca_file, ClockLimits(), InboxWaiter(clock), clock, str)
        made.append(TargetClients(connecting))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def server() -> Iterator[RawServer]:
    """A server that describes every model in the same way, and keeps the requests."""

    def serve(sock: socket.socket) -> None:
        raw.requests.append(read_request(sock))
        sock.sendall(http_answer(DOCUMENT, "application/json"))

    raw = RawServer(serve)
    yield raw
    raw.close()


def test_each_target_is_asked_about_its_own_model(clients, server) -> None:
    own = clients()
    for model in ("local", "another"):
        assert own.describe_model(Target("a", model, server.base_url), 0) == SAID
    lines = [request.partition(b"\r\n")[0] for request in server.requests]
    assert lines == [b"GET /v1/models/local HTTP/1.1", b"GET /v1/models/another HTTP/1.1"]


@pytest.mark.parametrize(("key", "sent"), [(0, b"x-api-key: first"), (1, b"x-api-key: second")])
def test_the_key_of_the_index_is_sent_with_the_targets_headers(clients, server, key, sent) -> None:
    target = Target(
        "a",
        "local",
        server.base_url,
        credentials=(
            Credential("x-api-key", Secret("first"), "A"),
            Credential("x-api-key", Secret("second"), "B"),
        ),
        headers=Secret((("x-team", "blue"),)),
    )
    assert clients().describe_model(target, key) == SAID
    lines = server.requests[0].lower().split(b"\r\n")
    assert [line for line in lines if line.startswith(b"x-api-key")] == [sent]
    assert b"x-team: blue" in lines


def test_a_ca_file_that_cannot_be_used_is_none(clients, tmp_path) -> None:
    target = Target("a", "local", "https://api.example.test")
    assert clients(str(tmp_path / "missing.pem")).describe_model(target, 0) is None


def test_a_base_url_that_cannot_be_used_is_none(clients) -> None:
    assert clients().describe_model(Target("a", "local", "http://[::1"), 0) is None


class Endless:
    """An exchange whose next piece is always there at once."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.was_aborted = False

    def next_item(self, until_s: float, waiting_for: str) -> bytes:
        assert self._clock.seconds < until_s, f"{waiting_for}: asked again after the deadline"
        self._clock.seconds += 0.25
        return b""  # as from a compressed body that is nearly nothing

    def abort(self) -> None:
        self.was_aborted = True


def test_pieces_that_are_always_there_do_not_put_the_deadline_off() -> None:
    clock = FakeClock()
    endless: Any = Endless(clock)
    assert receive_description(endless, clock, until_s=5.0, waiting_for="a description") is None
    assert clock.seconds == 5.0
    assert endless.was_aborted
