"""Starts `python -m ralph` by a fork of an interpreter that has imported it: own pid, signals, streams, exit code.

Started with a start-up's imports done, a run costs a fifth of the CPU time of a fresh interpreter. It knows no module of
ralph by name: what a first run had loaded at its end is what the server loads.
"""

from __future__ import annotations

import array
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence

REPOSITORY = Path(__file__).parents[2]
_MOST_BYTES = 1 << 20
_STREAMS = 3


class ForkServer:
    """One warm interpreter, which has loaded these modules."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="ralph-fork-")
        self._address = str(Path(self._directory.name, "socket"))
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.recorded.fork_server", self._address, *modules],
            cwd=self._directory.name,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def start(
        self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], streams: Sequence[int]
    ) -> Forked:
        """`python -m ralph` with these arguments; `streams` are its descriptors 0, 1 and 2."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        order = json.dumps([list(arguments), str(cwd), dict(environment)]).encode()
        socket.send_fds(connection, [len(order).to_bytes(4, "big") + order], list(streams))
        return Forked(connection)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._directory.cleanup()


class Forked:
    """One process of ralph's."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("r")
        self._connection = connection
        self.pid = int(self._file.readline())

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code; negative: the signal that it died of."""
        with self._connection, self._file:
            return int(self._file.readline())


def _serve(address: str, modules: Sequence[str]) -> NoReturn:
    for name in modules:
        with suppress(ImportError):
            __import__(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _wait_for_run(connection)
        connection.close()
        with suppress(ChildProcessError):  # whoever waited for a run counts in the CPU time of the tests
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _wait_for_run(connection: socket.socket) -> NoReturn:
    descriptors = array.array("i")
    data, fds, _, _ = socket.recv_fds(connection, _MOST_BYTES, _STREAMS)
    descriptors.extend(fds)
    size = int.from_bytes(data[:4], "big")
    while len(data) < size + 4:
        data += connection.recv(_MOST_BYTES)
    arguments, cwd, environment = json.loads(data[4:])
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become_ralph(arguments, cwd, environment, list(descriptors))
    for fd in descriptors:
        os.close(fd)
    for fd in range(_STREAMS):
        os.close(fd)
    connection.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become_ralph(
    arguments: list[str], cwd: str, environment: dict[str, str], descriptors: list[int]
) -> NoReturn:
    for fd, source in enumerate(descriptors):
        os.dup2(source, fd)
        os.close(source)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    probe = os.environ.pop("RECORDED_PROBE", "")
    sys.argv = ["ralph", *arguments]
    sys.path.insert(0, cwd)  # as `python -m` does
    if probe:
        exit_now = os._exit

        def tell_modules(status: int) -> NoReturn:
            Path(probe).write_text("\n".join(sys.modules))
            exit_now(status)

        os._exit = tell_modules
    runpy.run_module("ralph", run_name="__main__", alter_sys=True)
    os._exit(70)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2:])
