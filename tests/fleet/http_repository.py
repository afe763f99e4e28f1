"""Serves a bare repository over HTTP with `git http-backend`, and its large files by the API of Git LFS, as a git host does."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from tests.git.large_file_server import LargeFileServer

if TYPE_CHECKING:
    from pathlib import Path


class HttpRepository:
    """A server on 127.0.0.1, from `with` to the end of its block. `status` is the status of all answers, or 200. While
    `is_silent` is True, it answers nothing.
    """

    def __init__(self, repository: Path) -> None:
        self.status = 200
        self.is_silent = False
        self.asked: list[str] = []
        """The paths of all requests."""
        self.large = LargeFileServer()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                while outer.is_silent:
                    time.sleep(0.02)
                path, _, query = self.path.partition("?")
                is_large = "/info/lfs/" in path
                status = outer.large.status if is_large else outer.status
                if status != 200:
                    self.send_response(status)
                    if status == 401:
                        self.send_header("WWW-Authenticate", 'Basic realm="git"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if is_large:
                    self._answer_large(path)
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
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                ran = subprocess.run(
                    ["git", "http-backend"], env=environment, input=body, capture_output=True, check=False
                )
                head, _, answer = ran.stdout.partition(b"\r\n\r\n")
                fields = [line.split(": ", 1) for line in head.decode().splitlines()]
                self.send_response(int(dict(fields).get("Status", "200").split()[0]))
                for name, value in fields:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def _answer_large(self, path: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                answer = outer.large.answer(
                    self.command, outer.url.removesuffix(f"/{repository.name}") + path, body
                )
                self.send_response(200)
                self.send_header("Content-Type", "application/vnd.git-lfs+json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_PUT = do_GET  # noqa: N815 - the names are http.server's

            def log_message(self, *_: object) -> None:
                """Prints nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/{repository.name}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_silent = False
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
