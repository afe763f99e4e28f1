"""Tests the proxy with real servers on the loopback, and from inside a real network namespace."""

from __future__ import annotations

import http.server
import json
import os
import socket
import threading

import pytest
from msgspec.structs import replace

from ralph.machine.restriction import listen_for_proxy
from ralph.sandbox.allowed_hosts import allowed_hosts
from ralph.sandbox.landlock import Support
from ralph.sandbox.proxy import NoProxyRequestError, ProxyDoor, RefusedConnection, read_request
from tests.patience import TEST_S, wait_until
from tests.processes.descriptors import open_descriptors
from tests.program.namespaces import MEANS
from tests.rows import every_row
from tests.sandbox.boxes import box_of, run_in

ESCAPE = "\x1b"


class Server(http.server.BaseHTTPRequestHandler):
    """Answers with the request's line and headers."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"line": self.requestline, "headers": dict(self.headers)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def server_port():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class Doors:
    """Makes proxies that allow only `listed.example` on one port. Each name leads to the given addresses."""

    def __init__(self) -> None:
        self.made: list[ProxyDoor] = []
        self.asked: list[str] = []

    def open(self, port: int, *entries: str, addresses: tuple[str, ...] = ("127.0.0.1",)) -> ProxyDoor:
        def resolve(host: str, _port: int) -> tuple[str, ...]:
            self.asked.append(host)
            return addresses

        listed = allowed_hosts([f"listed.example:{port}", *entries])
        self.made.append(ProxyDoor(listed, resolve=resolve))
        return self.made[-1]


@pytest.fixture
def doors():
    made = Doors()
    yield made
    for door in made.made:
        door.close()


def entered(door: ProxyDoor) -> int:
    """The port of the proxy, after this process has been prepared like a command's process."""
    descriptor, door.descriptor = door.descriptor, -1
    return listen_for_proxy(descriptor)


def said(port: int, request: str) -> str:
    """The answer to a request, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=TEST_S) as client:
        client.sendall(request.encode())
        client.shutdown(socket.SHUT_WR)
        return client.makefile("rb").read().decode()


@every_row("addresses", [["127.0.0.1"], ["127.0.0.2", "127.0.0.1"]])
def test_a_tunnel_reaches_a_listed_host_and_passes_everything_on(server_port, doors, addresses) -> None:
    door = doors.open(server_port, *addresses, addresses=tuple(addresses))
    answer = said(
        entered(door),
        f"CONNECT listed.example:{server_port} HTTP/1.1\r\nHost: x\r\n\r\nGET /a HTTP/1.1\r\nHost: y\r\n\r\n",
    )
    assert answer.startswith("HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert '"GET /a HTTP/1.1"' in answer
    assert door.close() == ()


def test_a_plain_request_is_passed_on_with_a_path(server_port, doors) -> None:
    door = doors.open(server_port, "127.0.0.1")
    url = f"http://Listed.example:{server_port}"
    answer = said(
        entered(door),
        f"GET {url}/a?b=//c HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: x\r\n"
        "Connection: keep-alive\r\nAccept: */*\r\n\r\n",
    )
    seen = json.loads(answer.partition("\r\n\r\n")[2])
    assert seen["line"] == "GET /a?b=//c HTTP/1.1"
    host = f"Listed.example:{server_port}"
    assert seen["headers"] == {"Host": host, "Accept": "*/*", "Connection": "close"}


@every_row(
    "target, reason",
    [
        ("other.example:443", "it is not on the list of hosts"),
        ("listed.example:22", "port 22 is not allowed"),
        ("127.0.0.1:443", "it is an address, and only names of hosts are allowed"),
        ("[::1]:443", "it is an address, and only names of hosts are allowed"),
        ("0x7f.1:443", "it is an address, and only names of hosts are allowed"),
        ("listed.example\x1b:443", "it is not the name of a host"),
    ],
)
def test_what_is_not_listed_is_refused_before_anything_is_asked(tmp_path_factory, target, reason) -> None:
    doors = Doors()
    door = doors.open(443)
    port = entered(door)
    for _ in range(2):
        answer = said(port, f"CONNECT {target} HTTP/1.1\r\n\r\n")
        assert answer.startswith("HTTP/1.1 403 Forbidden")
        assert f"the sandbox refuses {target.replace(ESCAPE, '')}: {reason}" in answer
    host, _, number = target.replace(ESCAPE, "").rpartition(":")
    assert (door.close(), doors.asked) == ((RefusedConnection(host, int(number), reason, 2),), [])


@every_row("addresses", [("127.0.0.2",), ("::1",), ("::ffff:127.0.0.2",)])
def test_a_listed_name_that_leads_to_a_private_address_is_refused(addresses) -> None:
    door = Doors().open(443, "127.0.0.1", addresses=addresses)
    answer = said(entered(door), "CONNECT listed.example:443 HTTP/1.1\r\n\r\n")
    (refused,) = door.close()
    assert "private address" in answer
    assert refused.reason == "its name leads to a private address"


def test_of_several_addresses_only_the_allowed_are_tried(server_port, doors) -> None:
    with socket.create_server(("127.0.0.2", server_port)) as private:
        door = doors.open(server_port, "127.0.0.1", addresses=("127.0.0.2", "127.0.0.1"))
        answer = said(entered(door), f"GET http://listed.example:{server_port}/ HTTP/1.1\r\n\r\n")
        assert answer.startswith("HTTP/1.1 200")
        private.setblocking(False)
        with pytest.raises(BlockingIOError):
            private.accept()
    assert doors.asked == ["listed.example"]


@every_row(
    "request",
    [
        "nonsense\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: listed.example\r\n\r\n",
        "GET https://listed.example/ HTTP/1.1\r\n\r\n",
        "GET http://user@listed.example/ HTTP/1.1\r\n\r\n",
        "CONNECT listed.example HTTP/1.1\r\n\r\n",
        "CONNECT listed.example:443/x HTTP/1.1\r\n\r\n",
        "CONNECT listed.example:443",
        "GET http://listed.example/" + "x" * 20_000,
    ],
)
def test_what_is_no_request_to_a_proxy_is_answered_and_ends(request) -> None:
    door = Doors().open(443)
    assert not said(entered(door), request).startswith(("HTTP/1.1 2", "HTTP/1.1 5"))
    door.close()


@every_row(
    "head",
    [
        b"GET http://listed.example HTTP/1.0\r\nTE: x",
        b"GET http://listed.example HTTP/1.1\r\nTE: x\nHost: other.example",  # a line feed alone
    ],
)
def test_a_request_cannot_hide_another_host(head) -> None:
    wanted = b"GET / HTTP/1.1\r\nHost: listed.example\r\nTE: x\r\nConnection: close\r\n\r\n"
    assert read_request(head).head == wanted
    with pytest.raises(NoProxyRequestError):
        read_request(b"GET http://listed.example/\nX: y HTTP/1.1")


def test_both_sides_may_send_much_at_once(doors) -> None:
    """Each side sends before it reads, more than the kernel holds for a connection."""
    much = b"x" * 20_000_000
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        door = doors.open(port, "127.0.0.1")
        inside = entered(door)
        got: list[int] = []

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                sending = threading.Thread(target=accepted.sendall, args=(much,))
                sending.start()
                sending.join()
                accepted.shutdown(socket.SHUT_WR)
                got.append(len(accepted.makefile("rb").read()))

        serving = threading.Thread(target=serve)
        serving.start()
        with socket.create_connection(("127.0.0.1", inside), timeout=TEST_S) as client:
            client.sendall(f"CONNECT listed.example:{port} HTTP/1.1\r\n\r\n".encode())
            reading = client.makefile("rb")
            assert reading.readline().startswith(b"HTTP/1.1 200")
            sending = threading.Thread(target=client.sendall, args=(much,))
            sending.start()
            assert len(reading.read()) == len(much) + 2
            sending.join()
            client.shutdown(socket.SHUT_WR)
            serving.join()
    assert got == [len(much)]


def test_a_server_that_is_not_there_is_told(doors) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # on which nothing listens afterwards
    door = doors.open(port, "127.0.0.1")
    answer = said(entered(door), f"CONNECT listed.example:{port} HTTP/1.1\r\n\r\n")
    assert answer.startswith("HTTP/1.1 502")
    assert "Connection refused" in answer


def test_more_connections_than_the_limit_are_ended_at_once(doors) -> None:
    door = doors.open(443)
    port = entered(door)
    waiting = [socket.create_connection(("127.0.0.1", port), timeout=TEST_S) for _ in range(140)]
    try:
        wait_until(lambda: any(is_ended(one) for one in waiting))
        assert not is_ended(waiting[0])
    finally:
        for one in waiting:
            one.close()


def is_ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_closing_ends_connections_threads_and_descriptors(server_port) -> None:
    before = open_descriptors()
    door = Doors().open(server_port, "127.0.0.1")
    port = entered(door)
    client = socket.create_connection(("127.0.0.1", port), timeout=TEST_S)
    client.sendall(f"CONNECT listed.example:{server_port} HTTP/1.1\r\n\r\n".encode())
    assert client.recv(100).startswith(b"HTTP/1.1 200")
    door.close()
    assert client.recv(1) == b""
    client.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=TEST_S)
    for _ in range(20):
        Doors().open(443).close()  # whose command never began
    wait_until(lambda: not threads_of_proxies() and not open_descriptors() - before)


def threads_of_proxies() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("proxy")]


def test_a_command_that_tries_many_hosts_is_told_of_a_bounded_number(doors) -> None:
    door = doors.open(443)
    port = entered(door)
    for number in range(60):
        said(port, f"CONNECT h{number}.example:443 HTTP/1.1\r\n\r\n")
    assert len(door.close()) == 50


# --- inside a network namespace

needs_namespaces = pytest.mark.skipif(
    MEANS.bwrap is None or not MEANS.has_network_namespace, reason="no namespaces can be made here"
)
# Prints what each attempt comes to. The first one goes through the proxy that the environment names.
INSIDE = """
import http.client, json, os, socket, sys, urllib.request
port = int(sys.argv[1])
def tried(attempt):
    try:
        return attempt()
    except OSError as error:
        return str(getattr(error, "code", "") or error)
def tunnelled(host):
    proxy = urllib.request.getproxies()["https"].removeprefix("http://")
    connection = http.client.HTTPConnection(proxy)
    connection.set_tunnel(host, port)
    connection.request("GET", "/tunnel")
    return json.load(connection.getresponse())["line"]
def descriptors():
    found = []
    for one in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{one}"))
        except OSError:
            pass
    return [one for one in found if one.startswith("socket:")]
print(json.dumps({
    "sockets": descriptors(),
    "plain": tried(lambda: json.load(urllib.request.urlopen(f"http://listed.example:{port}/plain"))["line"]),
    "tunnel": tried(lambda: tunnelled("listed.example")),
    "other": tried(lambda: tunnelled("other.example")),
    "direct": tried(lambda: socket.create_connection(("127.0.0.1", port))),
    "no proxy": os.environ["NO_PROXY"],
    "names": [name for name in os.environ if name.lower().endswith("_proxy")],
}))
"""


@needs_namespaces
@pytest.mark.parametrize("with_landlock", [True, False])
def test_a_command_in_a_network_namespace_reaches_the_listed_host_only(
    server_port, doors, tmp_path, with_landlock, monkeypatch
) -> None:
    if with_landlock and not MEANS.landlock.abi:
        pytest.skip("this kernel has no Landlock")
    means = MEANS if with_landlock else replace(MEANS, landlock=Support(0, "not used"))
    door = doors.open(server_port, "127.0.0.1")
    with box_of(means, [tmp_path], net="proxy") as box:
        usual = box.confinement
        assert usual(str(tmp_path)).proxy >= 0
        monkeypatch.setattr(
            box, "confinement", lambda *_: replace(usual(str(tmp_path)), proxy=door.descriptor)
        )
        variables = {"PATH": os.environ["PATH"], "ALL_PROXY": "http://user.example:1"}
        ran = run_in(box, tmp_path, INSIDE, str(server_port), environment=variables)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    found["names"].sort(key=str.lower)
    assert found.pop("direct") == "[Errno 111] Connection refused"
    assert "403" in found.pop("other")
    assert found == {
        "sockets": [],
        "plain": "GET /plain HTTP/1.1",
        "tunnel": "GET /tunnel HTTP/1.1",
        "no proxy": "localhost,127.0.0.1,::1",
        "names": ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"],
    }
    (refused,) = door.close()
    assert (refused.host, refused.reason) == ("other.example", "it is not on the list of hosts")


@needs_namespaces
def test_the_way_of_a_server_to_the_hosts_outlives_commands_and_ends_with_the_sandbox(tmp_path) -> None:
    wait_until(lambda: not threads_of_proxies())
    with box_of(MEANS, [tmp_path], net="proxy") as box:
        lasting = box.confinement(str(tmp_path), lasts=True).proxy
        for _ in range(2):
            box.confinement(str(tmp_path))
            os.fstat(lasting)
        assert len(threads_of_proxies()) == 2
    wait_until(lambda: not threads_of_proxies())
