"""Connecting to a host with several addresses, on real sockets."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from ralph.machine import connecting
from ralph.machine.connecting import (
    by_turns,
    choose_address,
    connect,
    connect_to_first,
    is_exempt,
    proxy_for,
    proxy_in_words,
)
from tests.patience import within_s
from tests.processes.descriptors import open_descriptors
from tests.rows import every_row
from tests.services.silent_address import found, full_backlog
from tests.services.two_addresses import FOUR, SIX, Listening, two_addresses

if TYPE_CHECKING:
    from collections.abc import Iterator


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


# --- A name of this machine with two addresses


@pytest.fixture
def at(monkeypatch) -> Iterator[Listening]:
    with two_addresses(monkeypatch) as listening:
        yield listening


@every_row(
    ("first", "chosen"),
    [([FOUR], FOUR), ([SIX], SIX), ([SIX, FOUR], FOUR)],
)
@pytest.mark.parametrize("is_before", [False, True], ids=["first connection", "chosen before"])
def test_the_address_of_this_machine_that_answered_is_the_only_one(
    monkeypatch, first, chosen, is_before
) -> None:
    with two_addresses(monkeypatch) as at:
        at.listen(*first)
        if is_before:
            assert choose_address(at.url, {}) == chosen
        else:
            assert at.connected("two.localhost") == chosen
        at.listen(FOUR, SIX)
        assert at.connected("two.localhost") == at.connected("TWO.localhost.") == chosen
        at.stop(chosen)  # the other address listens on
        with pytest.raises(ConnectionRefusedError):
            connect("two.localhost", at.port, within_s(10))
        at.listen(chosen)
        assert choose_address(at.url, {}) == at.connected("two.localhost") == chosen


def test_nothing_is_chosen_while_nobody_answers(at) -> None:
    assert choose_address(at.url, {}) is None
    at.listen(SIX)
    assert choose_address(at.url, {}) == SIX


@every_row(
    "url",
    [
        "https://two.localhost:{}",
        "http://127.0.0.1:{}",
        "http://one.localhost:{}",
        "http://two.test:{}",
        "{}",
    ],
)
def test_other_urls_have_no_choice_and_nobody_connects_for_them(at, url) -> None:
    at.listen(FOUR)
    assert choose_address(url.format(at.port), {}) is None
    assert at.accepted == 0


def test_the_address_of_a_proxy_is_chosen(at) -> None:
    at.listen(SIX)
    proxies = {"https_proxy": at.url.replace("://", "://me:word@")}
    assert choose_address("https://api.example.test", proxies) == SIX
    assert choose_address("https://api.example.test", proxies | {"no_proxy": "*"}) is None


P, Q = "http://p.test:3128", "http://q.test:3128"


@every_row(
    ("exemptions", "named", "others"),
    [
        ("", "", "a.test 10.1.2.3 ::1"),
        ("*", "a.test 10.1.2.3 fd00::1", ""),
        ("a.test", "a.test A.TEST a.test. b.a.test", "ba.test test a.test.com 10.1.2.3"),
        (".a.test", "a.test b.a.test", "ba.test"),
        ("*.a.test", "a.test b.a.test c.b.a.test", "ba.test"),
        ("A.Test", "a.test", ""),
        ("x.test,a.test", "a.test x.test", "y.test"),
        (" x.test ,\ta.test  b.test\n", "a.test b.test x.test", "c.test"),
        ("a.test:8443", "a.test:8443 b.a.test:8443", "a.test a.test:443"),
        ("a.test:443", "a.test", "a.test:8443"),
        ("*.a.test:8443", "b.a.test:8443", "b.a.test"),
        ("10.1.2.3", "10.1.2.3 10.1.2.3:99 ::ffff:10.1.2.3", "10.1.2.33 110.1.2.3"),
        ("10.1.2.3:99", "10.1.2.3:99", "10.1.2.3"),
        ("10.0.0.0/8", "10.1.2.3 10.255.0.1:99 ::ffff:10.1.2.3", "11.1.2.3 a.test 10.test ::10.1.2.3"),
        ("10.9.9.9/8", "10.1.2.3", "11.0.0.1"),
        ("10.0.0.0/8:99", "10.1.2.3:99", "10.1.2.3"),
        ("192.168.*", "192.168.7.7", "192.169.7.7"),
        ("fd00::/8", "fd12::1", "fe80::1 10.1.2.3"),
        ("[fd00::]/8", "fd12::1", "fe80::1"),
        ("::2", "::2 0:0:0:0:0:0:0:2", "::3"),
        ("[::2]", "::2", "::3"),
        ("[::2]:99", "[::2]:99", "::2"),
        (".", "", "a.test"),
        ("..,:,[],/,10.0.0.0/99,a:b:c,*.", "", "a.test 10.1.2.3 ::1"),
    ],
)
def test_an_exemption_names_these_hosts_and_no_others(exemptions, named, others) -> None:
    for text, expected in ((named, True), (others, False)):
        for one in text.split():
            has_port = one.count(":") == 1 or "]:" in one
            host, port = one.rsplit(":", 1) if has_port else (one, "443")
            assert is_exempt(host.strip("[]"), int(port), exemptions) is expected, one


@every_row(
    ("url", "environment", "name"),
    [
        ("https://a.test", {}, None),
        ("https://a.test", {"HTTPS_PROXY": P}, "HTTPS_PROXY"),
        ("https://a.test", {"HTTP_PROXY": P}, None),
        ("http://a.test", {"HTTP_PROXY": P, "ALL_PROXY": Q}, "HTTP_PROXY"),
        ("https://a.test", {"HTTP_PROXY": P, "ALL_PROXY": P}, "ALL_PROXY"),
        ("https://a.test", {"HTTPS_PROXY": Q, "https_proxy": P}, "https_proxy"),
        ("https://a.test", {"HTTPS_PROXY": Q, "https_proxy": ""}, None),
        ("https://a.test", {"HTTPS_PROXY": P, "NO_PROXY": "a.test"}, None),
        ("https://a.test", {"HTTPS_PROXY": P, "NO_PROXY": "a.test", "no_proxy": ""}, "HTTPS_PROXY"),
        ("https://a.test", {"HTTPS_PROXY": P, "NO_PROXY": "a.test:80"}, "HTTPS_PROXY"),
        ("http://a.test", {"HTTP_PROXY": P, "NO_PROXY": "a.test:80"}, None),
        ("http://10.1.2.3", {"HTTP_PROXY": P, "no_proxy": "10.0.0.0/8"}, None),
        ("http://[fd00::1]:99/x", {"HTTP_PROXY": P, "no_proxy": "[fd00::1]:99"}, None),
        ("http://localhost:1", {"HTTP_PROXY": P}, None),
        ("http://127.3.2.1", {"ALL_PROXY": P}, None),
        ("http://a.test", {"HTTP_PROXY": P, "REQUEST_METHOD": "POST"}, None),
        ("http://a.test", {"http_proxy": P, "REQUEST_METHOD": "POST"}, "http_proxy"),
    ],
)
def test_the_variables_decide(url, environment, name) -> None:
    found = proxy_for(url, environment)
    assert (None if found is None else (found.name, found.url.plain)) == (name and (name, P))


def test_a_proxy_is_shown_without_its_password() -> None:
    environment = {"HTTPS_PROXY": "me:secret@p.test:3128"}
    assert proxy_in_words("https://a.test", environment) == "the proxy http://p.test:3128 (HTTPS_PROXY)"
    assert "secret" not in repr(proxy_for("https://a.test", environment))


@pytest.mark.parametrize(
    "proxy", ["socks5://p.test:1", "ftp://me:secret@p.test", "http://[::g]", "http://:1", "http://p:x"]
)
def test_a_proxy_that_cannot_be_used_is_a_value_error_without_its_url(proxy) -> None:
    with pytest.raises(ValueError, match=r"prox.*HTTPS_PROXY") as caught:
        proxy_for("https://a.test", {"HTTPS_PROXY": proxy})
    assert "secret" not in str(caught.value)
    assert proxy_in_words("https://a.test", {"HTTPS_PROXY": proxy}) == ""
