"""Networks of companies: exemptions from a proxy, authorities of their own, and names with a dead address. Played to whole
processes. Kept connections that are given up are in `tests/program/api/test_connection_faults.py`.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.api.foreign.wire import CLOSING, DONE
from tests.api.harness import RawServer, read_request
from tests.program.conftest import KEY, Ralph, ralph_in
from tests.services.certificates import hashed_directory, make_authority
from tests.services.silent_address import full_backlog

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from pathlib import Path

ONCE = "[retry]\npolicy = 'off'\n[clocks]\nconnect_s = 0.3\n"


@contextmanager
def served(context: ssl.SSLContext | None = None) -> Iterator[tuple[RawServer, list[bytes]]]:
    """A server that gives one answer on each connection. Yields it with the heads of its requests."""
    requests: list[bytes] = []

    def serve(plain: socket.socket) -> None:
        with suppress(ssl.SSLError):
            sock = plain if context is None else context.wrap_socket(plain, server_side=True)
            requests.append(read_request(sock))
            sock.sendall(DONE)
            sock.close()

    server = RawServer(serve)
    try:
        yield server, requests
    finally:
        server.close()


# hermes-agent#59667, claude-code-router#1448: the request and the key go to the proxy. Other clients: httpx 0.28 and Python's
# urllib know no networks, and urllib no `*.`; curl and Go know networks, and Go `*.`.
@pytest.mark.parametrize(
    ("host", "exempt", "is_exempt"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.2.0.0/16", False),
        ("[fd00::1]", "fd00::/8", True),
        ("gw.corp.invalid", "*.corp.invalid", True),
        ("gw.corp.invalid", "other.invalid  .corp.invalid", True),
        ("gw.corp.invalid:8080", "gw.corp.invalid:8080", True),
        ("gw.corp.invalid:8081", "gw.corp.invalid:8080", False),
        ("gw.notcorp.invalid", "corp.invalid", False),
    ],
)
def test_an_exemption_keeps_the_key_from_the_proxy(
    tmp_path: Path, host: str, exempt: str, *, is_exempt: bool
) -> None:
    ralph = ralph_in(tmp_path)
    ralph.user_file.write_text(ONCE)
    with served() as (proxy, requests):
        ralph.environment |= {"HTTP_PROXY": proxy.base_url, "NO_PROXY": exempt}
        ran = ralph("hi", "--base-url", f"http://{host}")
    warning = f"the key travels unencrypted: {host} is not this machine"
    told = f"; the proxy {proxy.base_url} (HTTP_PROXY) gets it too"
    assert warning in ran.stderr
    assert (told in ran.stderr) is not is_exempt
    if is_exempt:
        assert (ran.code in {69, 75}, requests) == (True, []), ran.stderr
    else:
        assert (ran.code, ran.stdout) == (0, f"{CLOSING}\n"), ran.stderr
        assert KEY.encode() in requests[0]


# cpython#138193, urllib3#3665, Proxyman#2226 (an authority without key identifiers), sandcastle#568 (where it is named). Other
# clients: each of these variables is that of one of them (Node, requests, curl, OpenSSL).
@pytest.mark.parametrize(
    "variable",
    ["NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", ""],
)
def test_the_authority_of_a_company_counts_wherever_it_is_named(tmp_path: Path, variable: str) -> None:
    ralph = ralph_in(tmp_path)
    ralph.user_file.write_text(ONCE.replace("0.3", "30"))
    authority, leaf = make_authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf)
    if variable:
        place = hashed_directory(tmp_path, authority) if variable == "SSL_CERT_DIR" else authority
        ralph.environment[variable] = str(place)
    with served(context) as (server, requests):
        ran = ralph("hi", "--base-url", f"https://localhost:{server.port}")
    if variable:
        assert (ran.code, ran.stdout) == (0, f"{CLOSING}\n"), ran.stderr
    else:
        assert (ran.code, requests) == (69, []), ran.stderr
        assert "NODE_EXTRA_CA_CERTS" in ran.stderr


def with_addresses(ralph: Ralph, *addresses: tuple[str, int]) -> None:
    """Makes the name `two.invalid` lead to these addresses."""
    ralph.run_first(
        "import socket\nusual = socket.getaddrinfo\n"
        f"found = [(socket.AF_INET, socket.SOCK_STREAM, 6, '', one) for one in {addresses!r}]\n"
        "socket.getaddrinfo = lambda host, *rest, **named: found if host == 'two.invalid' else usual(host, *rest, **named)\n"
    )


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_silent_first_address_does_not_hide_the_next_one(tmp_path: Path, command: str) -> None:
    """A host with a dead IPv6 path, as RFC 8305 describes it. httpx and requests give the first address all the time."""
    ralph = ralph_in(tmp_path)
    ralph.user_file.write_text("[retry]\npolicy = 'off'\n")
    with served() as (server, _), full_backlog() as silent:
        with_addresses(ralph, silent, ("127.0.0.1", server.port))
        ralph.environment["ANTHROPIC_BASE_URL"] = "http://two.invalid"
        ran = ralph("run", "hi") if command == "run" else ralph("doctor")
    assert ran.code == 0, f"{ran.stdout}{ran.stderr}"
    assert (CLOSING if command == "run" else "can be reached (TCP, no TLS)") in ran.stdout
