"""Connects for the HTTP library. This module loads it, and comes with its first transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from httpcore._backends.sync import SyncStream  # there is no public name for it

from ralph.machine.network.connecting import connect

if TYPE_CHECKING:
    import ssl

    from httpcore import NetworkStream


class Connector:
    """Replaces the library's own code, which gives a silent first address of a host all the time."""

    def connect_tcp(self, host: str, port: int, timeout: float | None, **_: object) -> NetworkStream:
        return ObservedStream(connect(host, port, timeout))


class ObservedStream(SyncStream):
    """A connection that knows whether anything has arrived on it."""

    has_received = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        arrived = super().read(max_bytes, timeout)
        self.has_received = self.has_received or bool(arrived)
        return arrived

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> NetworkStream:
        secure = super().start_tls(ssl_context, server_hostname, timeout)
        # For TLS inside of TLS, through a proxy, the library has a class of its own.
        return ObservedStream(secure._sock) if isinstance(secure, SyncStream) else secure  # noqa: SLF001 - it tells in no other way
