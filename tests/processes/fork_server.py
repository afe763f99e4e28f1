"""Starts `python -m ralph` as a fork of an interpreter that has loaded ralph, which takes a fraction of the CPU time.

The fork is a child of the tests' process. It has its own pid, signals, streams, environment and command line, also in
/proc. Its interpreter was not started for it, so a test of the interpreter's start must ask for a new interpreter. A
command that a fork cannot imitate gets a new interpreter in any case.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.processes.forked_processes import MODULE, MOST_SHOWN_BYTES, Orders, Start, is_as_loaded, start_fork
from tests.processes.owned import marked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

REPOSITORY = Path(__file__).parents[2]
_FORKED_WITH = {"stdin", "stdout", "stderr", "bufsize", "text", "start_new_session"}


def start_ralph(
    arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], *, afresh: bool = False, **popen: Any
) -> subprocess.Popen[bytes]:
    """Starts `python -m ralph` with these arguments, as a fork if that is possible. With `afresh`, it always gets a new
    interpreter. `popen` are further arguments of `subprocess.Popen`.
    """
    command = [sys.executable, "-m", "ralph", *arguments]
    kind = subprocess.Popen if afresh or not _can_fork(command, environment, popen) else _Forked
    with marked(environment):
        return kind(command, cwd=cwd, env=dict(environment), **popen)


def _can_fork(command: Sequence[str], environment: Mapping[str, str], popen: Mapping[str, Any]) -> bool:
    return (
        sys.platform == "linux"
        and popen.keys() <= _FORKED_WITH
        and environment.get("PYTHONPATH", str(REPOSITORY)) == str(REPOSITORY)
        and not any(name.startswith("PYTHON") for name in environment if name != "PYTHONPATH")
        and is_as_loaded(command, environment)
        and _server().can_fork
    )


class _Forked(subprocess.Popen[bytes]):
    """A process that is a fork of the server instead of an executed program."""

    def _execute_child(self, *how: Any) -> None:  # the one seam; typeshed leaves private methods out
        start = Start(*how)
        server = _fleet_server() if start.args[3:4] == ["fleet"] else _server()
        with server.lock:
            start_fork(self, start, server.orders, start.args)


class _Server:
    """One warm interpreter, which ends when this process has ended."""

    def __init__(
        self, start: Callable[..., subprocess.Popen[bytes]], *further: str, environment: Mapping[str, str]
    ) -> None:
        self.lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = start(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), *further],
                cwd=REPOSITORY,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), **environment},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self.orders = Orders(ours)
        try:
            self.can_fork = self.orders.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.orders.close()
        self.process.wait()


_servers: list[_Server] = []
"""The server, and then that of the fleet."""
_starting = threading.RLock()


def _server() -> _Server:
    with _starting:
        if not _servers:
            room = "-" * MOST_SHOWN_BYTES
            _servers.append(_Server(subprocess.Popen, room, environment={"ROOM": room}))
            atexit.register(_close)
    return _servers[0]


def _fleet_server() -> _Server:
    """A fork of the server that has loaded the libraries of the fleet, which are too large for all other forks."""
    with _starting:
        if len(_servers) == 1:
            _servers.append(_Server(_Forked, environment={}))
    return _servers[1]


def _close() -> None:
    for server in reversed(_servers):
        server.close()
