"""Starts `python -m ralph` by a fork of an interpreter that has loaded it: an ordinary child at a fraction of the CPU time.

The child is a child of the tests' process, and has its own pid, signals, streams, environment and command line, in /proc
too. What an interpreter does before ralph's first line it has not done: a fact about that needs a fresh interpreter.
Refuses nothing: what a fork cannot imitate is started afresh.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPOSITORY = Path(__file__).parents[1]
_STREAMS = 3
_ACTS_BEFORE_RALPH = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OPENSSL_", "TZ")
_FORKED_WITH = {"stdin", "stdout", "stderr", "bufsize", "text", "start_new_session"}
_MOST_SHOWN_BYTES = 1 << 16
"""Room that the server has for its children's arguments, and for their environment, where /proc shows them."""
_NOT_LOADED = {"demo", "mock_api", "launcher", "supervisor", "tether"}
"""What few tests run, and what runs in interpreters of its own."""
_LOADED_LATE = ("httpcore", "jsonschema", "pwd", "typer._click.decorators", "typer.rich_utils")
"""What a run of its own imports at its first use: half of its CPU time."""
_INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals that a test may ignore, so that ralph does."""
# linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def start_ralph(
    arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], *, afresh: bool = False, **popen: Any
) -> subprocess.Popen[bytes]:
    """`python -m ralph`. `afresh`: its interpreter is a new one, whatever can be forked."""
    command = [sys.executable, "-m", "ralph", *arguments]
    kind = subprocess.Popen if afresh or not _can_fork(command, environment, popen) else _Forked
    return kind(command, cwd=cwd, env=dict(environment), **popen)


def _can_fork(command: Sequence[str], environment: Mapping[str, str], popen: Mapping[str, Any]) -> bool:
    return (
        sys.platform == "linux"
        and popen.keys() <= _FORKED_WITH
        and environment.get("PYTHONPATH", str(REPOSITORY)) == str(REPOSITORY)
        and not any(name.startswith(_ACTS_BEFORE_RALPH) for name in environment if name != "PYTHONPATH")
        and sum(len(os.fsencode(word)) + 1 for word in command) < _MOST_SHOWN_BYTES
        and sum(len(os.fsencode(name + value)) + 2 for name, value in environment.items()) < _MOST_SHOWN_BYTES
    )


class _Forked(subprocess.Popen[bytes]):
    """A process that is a fork of the server instead of an executed program."""

    def _execute_child(  # the one seam; typeshed leaves private methods out
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
        start_new_session, process_group,
    ):  # fmt: skip
        order = {
            "command": args,
            "cwd": str(cwd),
            "environment": env,
            "new_session": start_new_session,
            "umask": _umask(),
            "ignored": [number for number in _INHERITED if signal.getsignal(number) is signal.SIG_IGN],
        }
        wanted = (p2cread, c2pwrite, errwrite)
        streams = [own if theirs == -1 else theirs for own, theirs in enumerate(wanted)]
        self.pid = _server().start(order, streams)
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        )


def _umask() -> int:
    """As the kernel shows it: to ask for it would be to change it, for all threads."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


class _Server:
    """One warm interpreter, which ends when this process has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        room = "-" * _MOST_SHOWN_BYTES
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), room],
                cwd=REPOSITORY,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "ROOM": room},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._prctl = ctypes.CDLL(None).prctl

    def start(self, order: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The process id of a new child of this process."""
        written = json.dumps(order).encode("utf-8", "surrogateescape")
        with self._lock:
            # The server's child leaves its own child to its nearest ancestor that takes orphans: for this moment us.
            usual = ctypes.c_int()  # a test that runs commands here has made this process an adopter for good
            self._prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(usual), 0, 0, 0)
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._control, [len(written).to_bytes(4, "big")], list(streams))
                self._control.sendall(written)
                return int.from_bytes(_received(self._control, 4), "big")
            finally:
                self._prctl(_PR_SET_CHILD_SUBREAPER, usual.value, 0, 0, 0)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


_servers: list[_Server] = []
_starting = threading.Lock()


def _server() -> _Server:
    with _starting:
        if not _servers:
            _servers.append(_Server())
            atexit.register(_servers[0].close)
    return _servers[0]


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the other end is gone")
        data += more
    return data


# --- The server's process


def _serve(control: socket.socket) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, whose end is the server's
    _load()
    gc.collect()
    gc.freeze()
    while True:
        size, descriptors, _, _ = socket.recv_fds(control, 4, _STREAMS)
        if not size:
            os._exit(0)
        order = json.loads(_received(control, int.from_bytes(size, "big")))
        control.sendall(_forked_away(control, order, descriptors).to_bytes(4, "big"))
        for descriptor in descriptors:
            os.close(descriptor)


def _load() -> None:
    """What a start and a run import; not the tracing's library, which reads the environment when it is loaded."""
    import ralph

    sys.modules["opentelemetry"] = None  # type: ignore[assignment]
    for module in pkgutil.walk_packages(ralph.__path__, "ralph."):
        if not _NOT_LOADED.intersection(module.name.split(".")) and not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    del sys.modules["opentelemetry"]
    for name in _LOADED_LATE:
        importlib.import_module(name)


def _forked_away(control: socket.socket, order: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Fork twice, so that the process is left to the tests. It is their child, and ready, when this returns."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            while os.getppid() == parent:
                time.sleep(0.0002)
            control.close()
            os.close(reading)
            _become_ralph(order, descriptors, writing)
        os.write(writing, pid.to_bytes(4, "big"))
        os._exit(0)
    os.close(writing)
    os.waitpid(between, 0)
    pid = int.from_bytes(os.read(reading, 4), "big")
    os.read(reading, 1)  # its end
    os.close(reading)
    return pid


def _become_ralph(order: Mapping[str, Any], descriptors: Sequence[int], is_ready: int) -> NoReturn:
    for fd, source in enumerate(descriptors):
        os.dup2(source, fd)
    for source in descriptors:
        os.close(source)
    if order["new_session"]:
        os.setsid()
    os.umask(order["umask"])
    os.chdir(order["cwd"])
    locale = {name: value for name, value in os.environ.items() if name == "LC_CTYPE"}  # PEP 538 sets it
    os.environ.clear()
    os.environ.update(locale, **order["environment"])
    _show(order["command"], order["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in order["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.close(is_ready)
    _open_streams()
    tempfile.tempdir = None
    sys.argv = ["-m", *order["command"][3:]]
    sys.path[0] = order["cwd"]  # as `python -m` does
    runpy.run_module("ralph", run_name="__main__", alter_sys=True)
    sys.exit(0)


def _show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write over what /proc shows of this process. It began with room enough, and nobody reads that any more."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    entries = [f"{name}={value}" for name, value in environment.items()]
    for place, words in ((45, command), (47, entries)):  # proc(5): arg_start, arg_end, env_start, env_end
        begin, end = map(int, fields[place : place + 2])
        shown = b"".join(os.fsencode(word) + b"\0" for word in words)
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, shown, len(shown))


def _open_streams() -> None:
    """As a start does: what is buffered how depends on what they are."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        raw = open(fd, "wb" if fd else "rb", closefd=False)  # noqa: SIM115 - open as long as the process
        stream = io.TextIOWrapper(
            raw,
            encoding=before.encoding,
            errors=before.errors,
            newline="\n" if fd else None,
            line_buffering=fd == 2 or os.isatty(fd),
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
