"""A host with several addresses, of which the first is silent: the endpoint's, and a proxy's."""

from __future__ import annotations

import socket

import pytest

from ralph.values.errors import Api, NetworkCause
from tests.api.harness import START, end, http_answer, sse, text_block
from tests.services.silent_address import found, full_backlog


@pytest.mark.parametrize("through_proxy", [False, True], ids=["direct", "proxy"])
def test_a1_a_silent_address_does_not_hide_the_next_one(raw_server, rig, monkeypatch, through_proxy) -> None:
    server = raw_server(http_answer(sse(START, *text_block(0, "here"), *end())))
    if through_proxy:
        monkeypatch.setenv("http_proxy", "http://two.test:80")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
    client = rig(f"http://{'other' if through_proxy else 'two'}.test")
    with full_backlog() as silent:
        addresses = found(silent, ("127.0.0.1", server.port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: {"two.test": addresses}[host])
        assert client.send().text == "here"


def test_a1_addresses_that_all_refuse_are_one_refused_connection(rig, monkeypatch) -> None:
    client = rig("http://two.test")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        addresses = found(nobody.getsockname(), nobody.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
        with pytest.raises(Api) as caught:
            client.send()
    assert caught.value.cause is NetworkCause.REFUSED
