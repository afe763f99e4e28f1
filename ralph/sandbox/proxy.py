"""The proxy through which commands reach the listed hosts if their network namespace has only a loopback.

It runs in ralph's process. `machine/restriction.py` makes the listening socket inside the namespace and sends it to ralph,
where a `ProxyDoor` accepts connections while the command runs. The proxy resolves names itself, and connects only to the
address that `allowed_hosts.py` has judged. In a tunnel (CONNECT), it passes on all bytes without reading them. In a plain
request (`GET http://...`), it replaces the URL by a path.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.connecting import connect_to_first
from ralph.machine.starting import start_thread
from ralph.values.outcome import ShortageError
from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.sandbox.allowed_hosts import AllowedHosts

    Resolve = Callable[[str, int], Sequence[str]]

# Package managers open a few dozen at most.
_MOST_CONNECTIONS = 64
_MOST_HEAD_BYTES = 16_384
_HEAD_WITHIN_S = 15.0
_CONNECT_WITHIN_S = 15.0
# A server that prepares a large answer is silent for minutes.
_IDLE_S = 600.0
_CHUNK_BYTES = 65_536
_MOMENT_MS = 50
# A command that tries a thousand hosts must not make a thousand events.
_MOST_REFUSALS = 50
# RFC 1035: no name is longer.
_MOST_HOST_CHARACTERS = 253

_REQUEST = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.[01]")
_AUTHORITY = re.compile(r"(?P<host>\[[^\]]*\]|[^:/]*)(?::(?P<port>[0-9]{1,5}))?")
# RFC 9110, section 7.6.1: these concern only the connection to the proxy. `Host` is made from the URL (RFC 9112, 3.2.2).
_OWN_HEADERS = (b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"host")


class RefusedConnection(Struct, frozen=True):
    """A connection that a command attempted and the proxy refused."""

    host: str
    """The host as the command wrote it, but without control characters and with at most 253 characters."""
    port: int
    reason: str
    count: int = 1


class ProxyRequest(Struct, frozen=True):
    """The first request that a command sends on a connection."""

    host: str
    port: int
    head: bytes | None
    """The first bytes to send to the server, or None for a tunnel."""


class NoProxyRequestError(Exception):
    """The bytes from a command are not a request that the proxy understands."""


def read_request(head: bytes) -> ProxyRequest:
    """Parses the head of a request, without the empty line at its end. Raises NoProxyRequestError."""
    # A server may take a line feed alone for the end of a line (RFC 9112, 2.2).
    first, *lines = re.split(rb"\r?\n", head)
    matched = _REQUEST.fullmatch(first)
    if matched is None:
        raise NoProxyRequestError("this is not a request to a proxy")
    method, target = matched[1], matched[2].decode("latin-1")
    if method == b"CONNECT":
        return ProxyRequest(*_host_and_port(target, None), None)
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() != "http":
        raise NoProxyRequestError("only CONNECT and http:// URLs are understood")
    authority, slash, path = rest.partition("/")
    host, port = _host_and_port(authority, 80)
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _OWN_HEADERS]
    plain = b"%s %s HTTP/1.1" % (method, (slash + path or "/").encode("latin-1"))
    named = b"Host: " + authority.encode("latin-1")
    return ProxyRequest(host, port, b"\r\n".join((plain, named, *kept, b"Connection: close", b"", b"")))


def _host_and_port(authority: str, usual: int | None) -> tuple[str, int]:
    matched = _AUTHORITY.fullmatch(authority)
    if matched is None or (usual is None and matched["port"] is None):
        raise NoProxyRequestError("the request names no host and port")
    return matched["host"], int(matched["port"] or usual or 0)


def resolved(host: str, port: int) -> list[str]:
    """The addresses of a host. This machine's resolver finds them. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class ProxyDoor:
    """The proxy for one command. Its methods may be called on any thread."""

    def __init__(self, allowed: AllowedHosts, *, resolve: Resolve = resolved) -> None:
        """Starts the proxy's thread. Raises OSError and ShortageError."""
        self._allowed = allowed
        self._resolve = resolve
        self._lock = threading.Lock()
        self._refused: dict[tuple[str, int, str], int] = {}
        self._open: set[socket.socket] = set()
        self._is_closed = False
        self._received, given = socket.socketpair()
        self.descriptor = given.detach()
        """One end of a socket pair, for the command's process. Who has sent it there may close it here, and set it to -1."""
        self._wakes, self._waker = socket.socketpair()
        try:
            self._thread = start_thread(self._accept, name="proxy")
        except ShortageError:
            os.close(self.descriptor)
            for one in (self._received, self._wakes, self._waker):
                one.close()
            raise

    def close(self) -> tuple[RefusedConnection, ...]:
        """Ends all connections, and returns the connections that the proxy refused, at most 50 different ones."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        with self._lock:
            self._is_closed = True
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._waker.close()
        self._thread.join()
        self._wakes.close()
        with self._lock:
            return tuple(RefusedConnection(*key, count) for key, count in self._refused.items())

    def _accept(self) -> None:
        with self._received:
            listener = self._listener()
        if listener is None:
            return
        with listener:
            listener.setblocking(False)
            while self._is_readable(listener):
                try:
                    client, _ = listener.accept()
                except OSError:  # the client has gone, or ralph has no descriptor left for now
                    watched = select.poll()
                    watched.register(self._wakes, select.POLLIN)
                    watched.poll(_MOMENT_MS)
                    continue
                self._begin(client)

    def _listener(self) -> socket.socket | None:
        """Waits for the listening socket from inside. None if the command ended without sending one, or the proxy was closed."""
        if not self._is_readable(self._received):
            return None
        try:
            _, descriptors, _, _ = socket.recv_fds(self._received, 1, 1)
        except OSError:
            return None
        if not descriptors:
            return None
        os.set_inheritable(descriptors[0], False)
        return socket.socket(fileno=descriptors[0])

    def _is_readable(self, one: socket.socket) -> bool:
        watched = select.poll()
        watched.register(one, select.POLLIN)
        watched.register(self._wakes, select.POLLIN)
        return self._wakes.fileno() not in dict(watched.poll())

    def _begin(self, client: socket.socket) -> None:
        client.setblocking(True)
        with self._lock:
            is_full = len(self._open) >= 2 * _MOST_CONNECTIONS  # each has two sockets
        if is_full or not self._keep(client):
            client.close()
            return
        try:
            start_thread(self._serve, client, name="proxy connection")
        except ShortageError:
            self._drop(client)

    def _keep(self, one: socket.socket) -> bool:
        """Registers a socket that `close` must end. False if the proxy is already closed."""
        with self._lock:
            if not self._is_closed:
                self._open.add(one)
            return not self._is_closed

    def _drop(self, one: socket.socket) -> None:
        with self._lock:
            self._open.discard(one)
            one.close()

    def _serve(self, client: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):  # the other side has gone: so has this connection
                self._serve_first_request(client)
        finally:
            self._drop(client)

    def _serve_first_request(self, client: socket.socket) -> None:
        client.settimeout(_HEAD_WITHIN_S)
        try:
            head, rest = _read_head(client)
            request = read_request(head)
        except NoProxyRequestError as error:
            _answer(client, "400 Bad Request", str(error))
            return
        why_not = self._allowed.why_not(request.host, request.port)
        if why_not:
            self._refuse(client, request, why_not)
            return
        try:
            addresses = self._resolve(request.host, request.port)
        except (OSError, UnicodeError) as error:
            _answer(client, "502 Bad Gateway", f"{request.host} cannot be resolved: {error}")
            return
        reachable = [address for address in addresses if self._allowed.may_be_at(address)]
        if not reachable:
            self._refuse(client, request, "its name leads to a private address")
            return
        try:
            numeric = [
                info
                for address in reachable
                for info in socket.getaddrinfo(
                    address, request.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
                )
            ]
            server = connect_to_first(numeric, _CONNECT_WITHIN_S)
            server.settimeout(_CONNECT_WITHIN_S)
        except OSError as error:
            _answer(client, "502 Bad Gateway", f"{request.host} cannot be reached: {error}")
            return
        if not self._keep(server):
            server.close()
            return
        try:
            if request.head is None:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            server.sendall((request.head or b"") + rest)
            _relay(client, server)
        finally:
            self._drop(server)

    def _refuse(self, client: socket.socket, request: ProxyRequest, reason: str) -> None:
        host = in_one_line(request.host)[:_MOST_HOST_CHARACTERS]
        key = (host, request.port, reason)
        with self._lock:
            if key in self._refused or len(self._refused) < _MOST_REFUSALS:
                self._refused[key] = self._refused.get(key, 0) + 1
        _answer(client, "403 Forbidden", f"the sandbox refuses {host}:{request.port}: {reason}")


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    held = b""
    while b"\r\n\r\n" not in held:
        chunk = client.recv(4096)
        if not chunk or len(held) > _MOST_HEAD_BYTES:
            raise NoProxyRequestError("the request's head is incomplete or too long")
        held += chunk
    head, _, rest = held.partition(b"\r\n\r\n")
    return head, rest


def _answer(client: socket.socket, status: str, said: str) -> None:
    body = f"ralph: {said}\n".encode("ascii", "replace")
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    client.sendall(head.encode() + body)


class _Direction:
    """Passes bytes on in one direction of a connection. Both sockets are non-blocking."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source = source
        self._target = target
        self._pending = b""
        self.is_open = True

    def waits_for(self) -> tuple[int, int]:
        """The descriptor to poll and the event to wait for with poll(2). After this event, `pass_on` can continue."""
        if self._pending:
            return self._target.fileno(), select.POLLOUT
        return self._source.fileno(), select.POLLIN

    def pass_on(self) -> None:
        """Reads what has arrived, and sends as much as the target accepts without blocking. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            if not self._pending:
                self._pending = self._source.recv(_CHUNK_BYTES)
                if not self._pending:
                    self.is_open = False
                    self._target.shutdown(socket.SHUT_WR)
                    return
            self._pending = self._pending[self._target.send(self._pending) :]


def _relay(client: socket.socket, server: socket.socket) -> None:
    """Ends when both sides have ended, or when neither has sent anything for ten minutes. Raises OSError."""
    client.setblocking(False)
    server.setblocking(False)
    ways = [_Direction(client, server), _Direction(server, client)]
    while ways:
        events: dict[int, int] = {}
        for way in ways:
            descriptor, event = way.waits_for()
            events[descriptor] = events.get(descriptor, 0) | event
        watched = select.poll()
        for descriptor, event in events.items():
            watched.register(descriptor, event)
        if not watched.poll(_IDLE_S * 1000):
            return
        for way in ways:
            way.pass_on()
        ways = [way for way in ways if way.is_open]
