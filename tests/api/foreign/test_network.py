"""Networks of companies: authorities of their own, wherever they are named. Played to whole
processes. Kept connections that are given up are in `tests/program/api/test_connection_faults.py`.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.api.foreign.wire import CLOSING, DONE
from tests.api.harness import RawServer, read_request
from tests.program.conftest import ralph_in
from tests.services.certificates import make_authority

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


# cpython#138193, urllib3#3665, Proxyman#2226 (an authority without key identifiers), sandcastle#568 (where it is named). Other
# clients: tests/machine/test_trust.py has each variable.
@pytest.mark.parametrize("variable", ["NODE_EXTRA_CA_CERTS", ""])
def test_the_authority_of_a_company_counts_wherever_it_is_named(tmp_path: Path, variable: str) -> None:
    ralph = ralph_in(tmp_path)
    ralph.user_file.write_text(ONCE.replace("0.3", "30"))
    authority, leaf = make_authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf)
    if variable:
        ralph.environment[variable] = str(authority)
    with served(context) as (server, requests):
        ran = ralph("hi", "--base-url", f"https://localhost:{server.port}")
    if variable:
        assert (ran.code, ran.stdout) == (0, f"{CLOSING}\n"), ran.stderr
    else:
        assert (ran.code, requests) == (69, []), ran.stderr
        assert "NODE_EXTRA_CA_CERTS" in ran.stderr
