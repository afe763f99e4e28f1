"""Connecting to a host with several addresses, on real sockets."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from ralph.machine.network import connecting
from ralph.machine.network.connecting import by_turns, connect_to_first
from tests.patience import within_s
from tests.processes.descriptors import open_descriptors
from tests.rows import every_row
from tests.services.silent_address import found, full_backlog


def silent(stack: ExitStack) -> tuple[str, int]:
    return stack.enter_context(full_backlog())


def refusing(stack: ExitStack) -> tuple[str, int]:
    bound = stack.enter_context(socket.socket())
    bound.bind(("127.0.0.1", 0))  # and does not listen
    address: tuple[str, int] = bound.getsockname()
    return address


def without_a_way(_stack: ExitStack) -> tuple[str, int]:
    return "255.255.255.255", 9


def answering(stack: ExitStack) -> tuple[str, int]:
    address: tuple[str, int] = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()
    return address


@every_row(
    "kinds",
    [
        [answering],
        [answering, silent],
        [silent, answering],
        [silent, silent, answering, silent],
        [refusing, answering],
        [refusing, silent, refusing, answering],
    ],
)
def test_the_first_address_that_answers_is_used(kinds) -> None:
    with ExitStack() as stack:
        addresses = [kind(stack) for kind in kinds]
        before = open_descriptors()
        with connect_to_first(found(*addresses), within_s(10)) as opened:
            assert opened.getpeername() == addresses[kinds.index(answering)]
            assert opened.gettimeout() is None
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert open_descriptors() == before


@every_row(
    ("kinds", "failure"),
    [
        ([refusing, refusing], ConnectionRefusedError),
        ([refusing, without_a_way], ConnectionRefusedError),
        ([without_a_way, refusing], ConnectionRefusedError),
        ([silent], TimeoutError),
        ([refusing, silent], TimeoutError),
        ([silent, silent, refusing], TimeoutError),
    ],
)
def test_without_an_answer_the_last_failure_is_raised(kinds, failure) -> None:
    with ExitStack() as stack:
        addresses = [kind(stack) for kind in kinds]
        before = open_descriptors()
        with pytest.raises(failure):
            connect_to_first(found(*addresses), 0.6)
        assert open_descriptors() == before


def test_a_name_without_an_address_is_an_error() -> None:
    with pytest.raises(OSError, match="no address"):
        connect_to_first([], 1)


def test_the_families_take_turns() -> None:
    six, four = socket.AF_INET6, socket.AF_INET
    assert by_turns([(six, 1), (six, 2), (six, 3), (four, 1)]) == [(six, 1), (four, 1), (six, 2), (six, 3)]


def test_a_refusal_is_followed_by_the_next_address_at_once(monkeypatch) -> None:
    monkeypatch.setattr(connecting, "ATTEMPT_DELAY_S", within_s(100))
    with ExitStack() as stack:
        addresses = [kind(stack) for kind in (refusing, refusing, answering)]
        connect_to_first(found(*addresses), within_s(10)).close()
