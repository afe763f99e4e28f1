"""Checks whether ralph can connect to the endpoints of the API: name lookup, TCP, then TLS.

The connections take the same route as requests, including a proxy. No request and no key is sent. If a proxy is
configured, only the connection to the proxy is checked.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.api.network_causes import network_cause
from ralph.api.transport import route_to
from ralph.cli.checks.finding import Finding, fail, ok, short
from ralph.machine.network.connecting import connect_to_first
from ralph.machine.network.proxies import USUAL_PORTS
from ralph.machine.starting import PATIENCE_S, patiently, start_thread
from ralph.values.errors import NetworkCause
from ralph.values.ports import TIMED_OUT, Clock, Mailbox, Waiter
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence


_ADVICE = {
    NetworkCause.TIMEOUT: "check network, firewall and HTTPS_PROXY; clocks.connect_s gives it more time",
    NetworkCause.REFUSED: "nothing listens there: start the server, or correct host and port",
    NetworkCause.RESET: "the other side hung up: check host, port, and whether it speaks TLS",
    NetworkCause.UNREACHABLE: "check the network; a proxy is named by HTTPS_PROXY",
    NetworkCause.DNS_TEMPORARY: "check the network and the name server; a proxy is named by HTTPS_PROXY",
    NetworkCause.DNS_UNKNOWN_HOST: "check the host's name, and whether this machine is online",
    NetworkCause.NOT_PERMITTED: "look at firewalls, the rules of a container, a sandbox",
    NetworkCause.CERTIFICATE: "add the authority to this machine's store, or name its PEM file by NODE_EXTRA_CA_CERTS (only that "
    "file: model.ca_file or SSL_CERT_FILE); check host and date",
}
# The socket's timeout is this much longer than the time limit of the check, so that the check ends first.
_LATER_S = 1.0
_OTHER_ADVICE = (
    "check host and port, and that https:// is said to a server that speaks TLS and http:// to others"
)


def advice_for(cause: NetworkCause, proxy: str) -> str:
    """The advice about a failed connection. `proxy` is the proxy in words, or empty."""
    if proxy:
        return f"start {proxy}, or correct the variable; NO_PROXY names the hosts that need none"
    return _ADVICE.get(cause, _OTHER_ADVICE)


class Hop(Struct, frozen=True):
    """The host to connect to: the endpoint itself, or the proxy that is configured for it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    proxy: str

    @property
    def where(self) -> str:
        return self.proxy or f"{self.host}:{self.port}"


def look_at_endpoints(
    base_urls: Sequence[str],
    ca_file: str | None,
    connect_s: float,
    waiter: Waiter,
    clock: Clock,
    *,
    patience_s: float = PATIENCE_S,
) -> Iterator[Finding]:
    """Checks all endpoints at the same time. Each check takes at most `connect_s` seconds (> 0).

    Yields one finding per endpoint, in the order of `base_urls`. If the machine has no thread left, the function
    tries again for `patience_s` seconds in total.
    """
    patient_until_s = clock.now_s() + patience_s
    looks = [
        _started_attempt(base_url, ca_file, connect_s, waiter, clock, until_s=patient_until_s)
        for base_url in base_urls
    ]
    until_s = clock.now_s() + connect_s
    for look in looks:
        yield look if isinstance(look, Finding) else look.finding(until_s)


def _started_attempt(
    base_url: str, ca_file: str | None, connect_s: float, waiter: Waiter, clock: Clock, *, until_s: float
) -> Finding | _ConnectionAttempt:
    subject = f"endpoint {base_url}"
    try:
        route = route_to(base_url, ca_file)
        url = route.url if route.proxy is None else route.proxy.url
        port = url.port or USUAL_PORTS[url.scheme]
        tls = route.tls if url.scheme == "https" else None
        hop = Hop(url.raw_host.decode("ascii"), port, tls, route.proxy_in_words)
        attempt = _ConnectionAttempt(subject, hop, connect_s, waiter)
        patiently(attempt.start, waiter, clock, until_s - clock.now_s())
    except OSError as error:
        shortage = shortage_of(error)
        if shortage is not None:
            return short(subject, shortage)
        reason = error.strerror or str(error)
        return fail(
            subject,
            f"the CA file {ca_file} cannot be used: {reason}",
            "correct model.ca_file or SSL_CERT_FILE",
        )
    except ValueError as error:
        return fail(subject, str(error), "correct the base URL, or HTTPS_PROXY and NO_PROXY")
    return attempt


class _ConnectionAttempt:
    def __init__(self, subject: str, hop: Hop, connect_s: float, waiter: Waiter) -> None:
        self._hop = hop
        self._connect_s = connect_s
        self._waiter = waiter
        self._mailbox: Mailbox = waiter.mailbox()
        self._stage = "name lookup"
        self._subject = subject

    def start(self) -> None:
        """Starts the thread. If this raises ShortageError, the caller may call `start` again."""
        start_thread(self._connect, name="endpoint-check")

    def finding(self, until_s: float) -> Finding:
        outcome = self._waiter.wait(self._mailbox, until_s=until_s, waiting_for=self._hop.where)
        hop, subject = self._hop, self._subject
        if outcome is TIMED_OUT:
            outcome = TimeoutError(f"nothing came within {self._connect_s:g} s")
        if isinstance(outcome, Exception):
            cause = network_cause(outcome)
            shortage = shortage_of(outcome)
            if cause is NetworkCause.SHORTAGE and shortage is not None:
                return short(subject, shortage)
            text = f"{hop.where}: {cause.value} at {self._stage} ({outcome})"
            return fail(subject, text, advice_for(cause, hop.proxy))
        if hop.proxy:
            return ok(
                subject, f"goes through {hop.where}, which can be reached; what is behind it was not tried"
            )
        return ok(
            subject, f"can be reached ({'TCP and TLS' if hop.tls else 'TCP, no TLS'}); nothing was sent"
        )

    def _connect(self) -> None:
        """Connects to the host. The thread runs this method."""
        hop = self._hop
        try:
            addresses = socket.getaddrinfo(hop.host, hop.port, type=socket.SOCK_STREAM)
            self._stage = "TCP"
            with contextlib.closing(connect_to_first(addresses, self._connect_s + _LATER_S)) as plain:
                plain.settimeout(self._connect_s + _LATER_S)
                if hop.tls is not None:
                    self._stage = "TLS"
                    hop.tls.wrap_socket(plain, server_hostname=hop.host).close()
            self._mailbox.put(True)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            self._mailbox.put(error)
