"""Endpoints that cannot be reached in ways that no server can play: name lookups that fail or hang, and all
endpoints at once.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ralph.cli.checks.endpoints import look_at_endpoints
from ralph.cli.checks.finding import Level
from ralph.machine.waiter import InboxWaiter, SystemClock

if TYPE_CHECKING:
    from ralph.cli.checks.finding import Finding


def look(*base_urls: str, connect_s: float = 0.3) -> list[Finding]:
    clock = SystemClock()
    return list(look_at_endpoints(base_urls, None, connect_s, InboxWaiter(clock), clock))


@pytest.fixture
def stuck_lookup(monkeypatch):
    """A name lookup that does not answer until the test is over."""
    is_over = threading.Event()

    def wait(*_: Any, **__: Any) -> Any:
        is_over.wait()
        raise socket.gaierror(socket.EAI_FAIL, "over")

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    yield
    is_over.set()


def test_a_name_lookup_that_hangs_is_not_waited_for(stuck_lookup) -> None:
    (finding,) = look("http://gateway.example")
    assert finding.level is Level.FAIL
    assert "gateway.example:80: timeout at name lookup (nothing came within 0.3 s)" in finding.text


def test_many_endpoints_take_no_longer_than_one(stuck_lookup, monkeypatch) -> None:
    deadlines_s: set[float | None] = set()
    really_wait = InboxWaiter.wait

    def wait(waiter: InboxWaiter, mailbox: Any, *, until_s: float | None, waiting_for: str) -> Any:
        deadlines_s.add(until_s)
        return really_wait(waiter, mailbox, until_s=until_s, waiting_for=waiting_for)

    monkeypatch.setattr(InboxWaiter, "wait", wait)
    findings = look(*(f"http://gateway-{number}.example" for number in range(60)), connect_s=0.5)
    assert len(deadlines_s) == 1
    assert [finding.subject for finding in findings] == [
        f"endpoint http://gateway-{number}.example" for number in range(60)
    ]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "unknown host at name lookup"),
        (socket.gaierror(socket.EAI_AGAIN, "later"), "name lookup failed for now at name lookup"),
        (OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH)), "network unreachable at name lookup"),
        (UnicodeError("label too long"), "bad URL at name lookup"),
        (OSError(errno.EINVAL, "odd"), "connection failed at name lookup"),
    ],
)
def test_every_failure_has_its_cause_and_something_to_do(monkeypatch, error: Exception, says: str) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    (finding,) = look("https://gateway.example")
    assert f"gateway.example:443: {says}" in finding.text
    assert finding.advice


def test_the_next_address_is_tried_when_the_first_refuses(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as gone:
        port, closed_port = server.getsockname()[1], gone.getsockname()[1]
        gone.close()
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", number))
            for number in (closed_port, port)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        (finding,) = look("http://gateway.example", connect_s=5)
    assert finding.level is Level.OK


def test_a_proxy_is_named_with_its_variable_where_it_is_reached_and_where_it_is_not(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("https_proxy", proxy.replace("//", "//me:secret@"))
        monkeypatch.setenv("no_proxy", "")
        (reached,) = look("https://gateway.example", connect_s=5)
    (refused,) = look("https://gateway.example", connect_s=5)
    name = f"the proxy {proxy} (https_proxy)"
    assert (reached.level, f"goes through {name}" in reached.text) == (Level.OK, True)
    assert refused.text.startswith(f"{name}: connection refused")
    assert name in (refused.advice or "")
