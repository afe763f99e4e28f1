"""A git host for tests: a bare repository over HTTP with `git http-backend`, and its large files by the API of Git LFS (Git
LFS specification: docs/api/batch.md, basic-transfers.md).
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import ssl
import subprocess
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@functools.cache
def _git_has_http_server() -> bool:
    ran = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True)
    return shutil.which("git-http-backend", path=ran.stdout.strip()) is not None


class LargeFiles:
    def __init__(self) -> None:
        self.status = 200
        """The status of all answers."""
        self.kept: dict[str, bytes] = {}
        """The large files by their ids."""

    def answer(self, command: str, url: str, body: bytes) -> bytes:
        """The answer to a request. The address `url` has `/info/lfs/` in it."""
        above, _, name = url.rpartition("/")
        if command == "GET":
            return self.kept[name]
        if command == "PUT":
            self.kept[name] = body
            return b"{}"
        asked = json.loads(body)
        for one in asked["objects"]:
            if asked["operation"] == "download" or one["oid"] not in self.kept:
                one["actions"] = {asked["operation"]: {"href": f"{above}/{one['oid']}"}}
        return json.dumps({"transfer": "basic", "objects": asked["objects"]}).encode()


class HttpRepository:
    """A server on 127.0.0.1, from `with` to the end of its block. `status` is the status of all answers, or 200. While
    `is_silent` is True, it answers nothing. It demands the token, if there is one, and has a certificate if there is one.
    """

    def __init__(self, repository: Path, *, token: str = "", certificate: Path | None = None) -> None:
        if not _git_has_http_server():
            pytest.skip("this git has no HTTP server")
        self.status = 200
        self.is_silent = False
        self.asked: list[str] = []
        """The paths of all requests."""
        self.large = LargeFiles()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self, repository, token))
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.root = f"http{'s' if certificate else ''}://{self.host}"
        self.url = f"{self.root}/{repository.name}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_silent = False
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler_of(host: HttpRepository, repository: Path, token: str) -> type[BaseHTTPRequestHandler]:
    accepted = {f"Bearer {token}", f"Basic {b64encode(f'x-access-token:{token}'.encode()).decode()}"}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host.asked.append(self.path)
            while host.is_silent:
                time.sleep(0.02)
            path, _, query = self.path.partition("?")
            is_large = "/info/lfs/" in path
            status = host.large.status if is_large else host.status
            if token and self.headers.get("Authorization") not in accepted:
                status = 401
            if status != 200:
                self._send(status, [["WWW-Authenticate", 'Basic realm="git"']] if status == 401 else [], b"")
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            if is_large:
                fields = [["Content-Type", "application/vnd.git-lfs+json"]]
                self._send(200, fields, host.large.answer(self.command, host.root + path, body))
                return
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_PROJECT_ROOT": str(repository.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REMOTE_USER": "user",
                "REMOTE_ADDR": "127.0.0.1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            ran = subprocess.run(
                ["git", "http-backend"], env=environment, input=body, capture_output=True, check=False
            )
            head, _, answer = ran.stdout.partition(b"\r\n\r\n")
            fields = [line.split(": ", 1) for line in head.decode().splitlines()]
            self._send(int(dict(fields).get("Status", "200").split()[0]), fields, answer)

        do_POST = do_PUT = do_GET  # noqa: N815 - the names are http.server's

        def _send(self, status: int, fields: list[list[str]], content: bytes) -> None:
            self.send_response(status)
            for name, value in [*fields, ["Content-Length", str(len(content))]]:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    return Handler
