"""The server. It listens, and runs each connection in a thread. Closing the server ends all connections at once."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Self

from ralph.mock_api.connection import Connection
from ralph.mock_api.recording import RecordedRequest, Recorder
from ralph.mock_api.responder import Responder
from ralph.mock_api.scenario import Scenario, Script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

_JOIN_LIMIT_S = (
    2.0  # threads end within milliseconds; a stuck one is a daemon and must not keep the user waiting
)
_BACKLOG = 128


class MockApi:
    """A scripted server on 127.0.0.1, which as a context manager starts on entry and closes on exit.

    A `script` computes the steps in place of the scenario, which then has none. `port` 0 is any free port. Each request
    is appended to the file `record` as a JSON object. `keep_requests` and `keep_bodies` limit how many stay in memory;
    None is no limit.
    """

    def __init__(
        self,
        scenario: Scenario | None = None,
        *,
        script: Script | None = None,
        port: int = 0,
        record: Path | None = None,
        keep_requests: int | None = None,
        keep_bodies: int | None = None,
    ) -> None:
        if script is not None and scenario is not None and scenario.steps:
            raise ValueError("a script computes the steps; the scenario beside it must have none")
        self._scenario = scenario or Scenario()
        self._script = script
        self._wanted_port = port
        self._recorder = Recorder(path=record, keep_requests=keep_requests, keep_bodies=keep_bodies)
        # Both recorders write to the same file. Their lines do not mix, because each line is one append.
        self._lookups = Recorder(path=record, keep_requests=keep_requests)
        self._responder = Responder(self._scenario, script, self._recorder, self._lookups)
        self._listener: socket.socket | None = None
        self._port = 0
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, Connection] = {}
        self._acceptor = threading.Thread(target=self._accept_all, name="mock-api", daemon=True)

    def start(self) -> Self:
        """Raises OSError if the port is in use, and RuntimeError if the machine has no free thread."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Lets a port be used again while connections of the last server linger in TIME_WAIT.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self._wanted_port))
            listener.listen(_BACKLOG)
            self._listener = listener
            self._port = listener.getsockname()[1]
            self._acceptor.start()
        except (OSError, RuntimeError):
            self._listener = None
            listener.close()
            self._close_recorders()
            raise
        return self

    def close(self) -> None:
        """Ends all connections at once, even if an answer is paused. A closed server cannot be started again."""
        self._closing.set()
        if self._listener is not None:
            # A connection to this server itself is the portable way to end a blocked accept().
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            self._acceptor.join(_JOIN_LIMIT_S)
            self._listener.close()
            self._listener = None
        with self._lock:
            remaining = dict(self._open)
        for connection in remaining.values():
            connection.interrupt()
        end = time.monotonic() + _JOIN_LIMIT_S
        for thread in remaining:
            thread.join(max(0.0, end - time.monotonic()))
        self._close_recorders()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port on which the server listens. If any free port may be used, it is 0 before `start()`."""
        return self._port

    @property
    def base_url(self) -> str:
        """The URL of the server without a path. Clients add `/v1/messages` to it."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> tuple[RecordedRequest, ...]:
        """A copy of the stored requests. The oldest comes first. Model lookups are not included."""
        return self._recorder.requests()

    @property
    def lookups(self) -> tuple[RecordedRequest, ...]:
        """A copy of the stored model lookups (`GET /v1/models/{id}`). They are numbered and counted separately."""
        return self._lookups.requests()

    @property
    def request_count(self) -> int:
        """The requests so far, including those that are not stored any more, without lookups of models."""
        return self._recorder.count

    def wait_for_requests(self, count: int, timeout_s: float = 5.0) -> bool:
        """Waits for `count` requests since the server started. False if that takes more than `timeout_s` seconds."""
        return self._recorder.wait_for(count, timeout_s)

    def _close_recorders(self) -> None:
        self._recorder.close()
        self._lookups.close()

    def _accept_all(self) -> None:
        listener = self._listener
        while listener is not None and not self._closing.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                # The client left before it was accepted, or no file descriptor is free at the moment.
                self._closing.wait(0.01)
                continue
            if self._closing.is_set():
                sock.close()
                return
            self._open_connection(sock)

    def _open_connection(self, sock: socket.socket) -> None:
        try:
            connection = Connection(sock, self._responder, self._closing)
        except OSError:
            sock.close()
            return
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="mock-api-connection", daemon=True
        )
        with self._lock:
            self._open[thread] = connection
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left: the client is disconnected, and may try again
            with self._lock:
                del self._open[thread]
            sock.close()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                self._open.pop(threading.current_thread(), None)


def run_forever(
    scenario: Scenario,
    *,
    port: int = 0,
    record: Path | None = None,
    ready: Callable[[MockApi], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Runs a server until `stop`, if given, is set, or an exception such as KeyboardInterrupt comes, which is raised
    again. `ready` is called when it listens. Only the newest requests stay in memory, and all go to the file `record`.
    """
    with MockApi(scenario, port=port, record=record, keep_requests=100, keep_bodies=0) as server:
        if ready is not None:
            ready(server)
        (stop or threading.Event()).wait()
