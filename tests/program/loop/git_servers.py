"""Git's own HTTP server, which demands a token, and a proxy that tries to read the token."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from tests.git.large_file_server import LargeFileServer
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


class GitServer:
    """Serves the repositories below a directory over HTTPS, and their large files, to clients that send the token."""

    def __init__(self, root: Path, token: str, certificate: Path) -> None:
        self.refused = 0
        """The number of requests without the token."""
        self.large = LargeFileServer()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self, root, token))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler_of(server: GitServer, root: Path, token: str) -> type[BaseHTTPRequestHandler]:
    accepted = {f"Bearer {token}", f"Basic {b64encode(f'x-access-token:{token}'.encode()).decode()}"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def log_message(self, *_arguments: object) -> None:
            """Prints nothing."""

        def _answer(self) -> None:
            if self.headers.get("Authorization") not in accepted:
                server.refused += 1
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "/info/lfs/" in path:
                self.send_response(server.large.status)
                fields = [["Content-Type", "application/vnd.git-lfs+json"]]
                is_refused = server.large.status != 200
                content = b"{}" if is_refused else server.large.answer(self.command, server.url + path, body)
                self._send(fields, content)
                return
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REMOTE_USER": "git",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            }
            ran = subprocess.run(
                ["git", "http-backend"], input=body, env=environment, capture_output=True, check=True
            )
            head, _, content = ran.stdout.partition(b"\r\n\r\n")
            fields = [line.split(": ", 1) for line in head.decode().split("\r\n")]
            self.send_response(int(dict(fields).get("Status", "200").split()[0]))
            self._send([field for field in fields if field[0] != "Status"], content)

        def _send(self, fields: list[list[str]], content: bytes) -> None:
            for name, value in fields:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler


class ThiefProxy:
    """A proxy that accepts CONNECT, pretends to be the server, and keeps what it receives. Only a client that does
    not check certificates sends it anything.
    """

    def __init__(self, certificate: Path) -> None:
        self.taken = b""
        self.connections = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.connections += 1
            with connection:
                self._take_from(connection)

    def _take_from(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(PATIENCE_S)
            self.taken += _head_from(connection)
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with self._context.wrap_socket(connection, server_side=True) as inner:
                self.taken += _head_from(inner)
                inner.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        except OSError:  # a client that checks certificates leaves here
            return


def _head_from(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and (chunk := connection.recv(65_536)):
        data += chunk
    return data


def bare_git_http_is_there() -> bool:
    ran = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True)
    return shutil.which("git-http-backend", path=ran.stdout.strip()) is not None
