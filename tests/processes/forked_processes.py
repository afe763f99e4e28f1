"""The process of the fork server, an interpreter that has loaded ralph. For each order it makes a fork, which
becomes the ordered command.

A fork is a child of the server's own parent (`CLONE_PARENT` of clone(2)). A fork that becomes `ralph loop` or
`ralph demo` has a fork server of its own, which makes its iterations. So has a run whose reports have a schema, for the
checks, and each slot of a fork that becomes `ralph fleet work`, for its jobs. ralph knows nothing of this: only
`subprocess` is changed.

A fork can also become a fork server for the commands of the fleet, which has loaded their libraries.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import platform
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tests.processes.warm_up import warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_STREAMS = 3
_MOST_DESCRIPTORS = 16
MOST_SHOWN_BYTES = 1 << 16
"""The bytes reserved in the server's command line and in its environment. A fork writes its own over them, so that
/proc shows these.
"""
_ACTS_BEFORE_RALPH = ("LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "OPENSSL_", "TZ")
FREE_DESCRIPTORS = 200
"""Descriptors with numbers from here on belong to the server. No fork uses them."""
_NOT_LOADED = {"launcher", "supervisor", "probe", "helper", "fleet"}
"""Modules that run in interpreters of their own, and the fleet: its libraries are 45 MB, whose pages each fork would copy."""
MODULE = "tests.processes.forked_processes"
"""The name of this module. `python -m MODULE SOCKET` starts a server. As an order, it makes a fork that of the fleet."""
_LOADED_LATE = ("httpcore", "jsonschema", "pwd", "ralph.cli.typer_command", "typer._click.decorators")
"""Modules that a run imports at their first use. Loading them takes half of the CPU time of such a run."""
_NEVER_LOADED = ("anyio", "opentelemetry", "requests")
"""Modules that a run does without, and OpenTelemetry, which reads the environment when it is loaded."""
_OF_THE_FLEET = ("ralph.fleet.worker", "ralph.fleet.engine", "ralph.fleet.command", "ralph.cli.fleet")
_HAVE_ITERATIONS = {"loop", "demo"}
_OF_A_SCHEMA = "--json-schema"
"""The option of a run that starts a process for each check of a report."""
_ASKED_ABOUT = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals that ralph must ignore if the program that starts it ignores them."""
_LIMITS = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
# linux/prctl.h
_PR_GET_TID_ADDRESS = 40
# linux/sched.h
_CLONE_PARENT = 0x00008000
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
_CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}
"""The numbers of the system call clone(2). The function of the same name in the C library cannot be used, because
it needs a new stack.
"""


_READY, _UNABLE, _FAILED = b"\1", b"\0", b"\2"
"""The first byte that a server sends: it is ready, it cannot fork on this machine, or it has failed, as the rest tells."""


class Order(NamedTuple):
    """The description of the process that a fork is to become."""

    command: Sequence[str]
    cwd: str
    """The directory as `python -m` puts it on the import path. The last descriptor is what it is."""
    environment: Mapping[str, str]
    new_session: bool
    umask: int
    ignored: Sequence[int]
    kept: Sequence[int] = ()
    """The numbers that the descriptors besides the three standard streams get."""


class Orders:
    """The end of the connection to a fork server through which orders are sent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def wait_until_ready(self) -> bool:
        """Waits until the server is ready. Returns whether it can fork on this machine. Raises RuntimeError with the
        server's words if it failed, and EOFError if it died.
        """
        said = _received(self._connection, 1)
        if said == _FAILED:
            words = b"".join(iter(lambda: self._connection.recv(1 << 16), b""))
            raise RuntimeError(f"the fork server could not get ready:\n{words.decode()}")
        return said == _READY

    def start(self, order: Order, descriptors: Sequence[int]) -> int:
        """Orders a fork and returns its process id. The fork is a child of this process. `descriptors` are
        descriptors of this process for the three standard streams, for `kept` and for the directory. Raises the OSError
        that the server met.
        """
        written = json.dumps(order._asdict()).encode("utf-8", "surrogateescape")
        socket.send_fds(self._connection, [len(written).to_bytes(4, "big")], list(descriptors))
        self._connection.sendall(written)
        answer = int.from_bytes(_received(self._connection, 4), "big", signed=True)
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def close(self) -> None:
        self._connection.close()


def is_as_loaded(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a new interpreter would load the same modules in the same way, and whether the command and its
    environment fit where /proc shows them.
    """
    own = os.environ.get("LC_CTYPE")  # PEP 538 sets it, and an iteration inherits it
    return (
        not any(
            name.startswith(_ACTS_BEFORE_RALPH) and (name, value) != ("LC_CTYPE", own)
            for name, value in environment.items()
        )
        and sum(len(os.fsencode(word)) + 1 for word in command) < MOST_SHOWN_BYTES
        and sum(len(os.fsencode(name + value)) + 2 for name, value in environment.items()) < MOST_SHOWN_BYTES
    )


class Start(NamedTuple):
    """The arguments that `subprocess.Popen` passes to its method that starts the process."""

    args: Any
    executable: Any
    preexec_fn: Any
    close_fds: Any
    pass_fds: Any
    cwd: Any
    env: Any
    startupinfo: Any
    creationflags: Any
    shell: Any
    p2cread: int
    p2cwrite: int
    c2pread: int
    c2pwrite: int
    errread: int
    errwrite: int
    restore_signals: Any
    gid: Any
    gids: Any
    uid: Any
    umask: Any
    start_new_session: bool
    process_group: Any


def start_fork(popen: subprocess.Popen[bytes], start: Start, orders: Orders, command: Sequence[str]) -> None:
    """Replaces the method of `popen` that starts its process: orders a fork that becomes `command`, and gives it the
    streams, directory and environment in `start`.
    """
    order = Order(
        command,
        str(start.cwd or ""),
        start.env,
        start.start_new_session,
        _umask(),
        [number for number in _ASKED_ABOUT if signal.getsignal(number) is signal.SIG_IGN],
        start.pass_fds,
    )
    wanted = (start.p2cread, start.c2pwrite, start.errwrite)
    streams = [own if theirs == -1 else theirs for own, theirs in enumerate(wanted)]
    place = os.open(start.cwd or ".", os.O_PATH | os.O_DIRECTORY)  # also if it was removed
    try:
        popen.pid = orders.start(order, [*streams, *start.pass_fds, place])
    finally:
        os.close(place)
    popen._child_created = True  # type: ignore[attr-defined]  # typeshed leaves private names out
    pipes = (start.p2cread, start.p2cwrite, start.c2pread, start.c2pwrite, start.errread, start.errwrite)
    popen._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # typeshed leaves private names out


def _umask() -> int:
    """The umask of this process, read from /proc. Asking the system for it would change it for all threads."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the other end is gone")
        data += more
    return data


# --- The server


def _get_ready(given: socket.socket, prepare: Callable[[], bool]) -> None:
    """Prepares this server, and tells whoever waits for it how that ended."""
    try:
        is_able = prepare()
        gc.collect()
        gc.freeze()
    except BaseException:
        given.sendall(_FAILED + traceback.format_exc().encode("utf-8", "replace"))
        given.shutdown(socket.SHUT_RDWR)  # a process that is left may have a copy
        raise
    given.sendall(_READY if is_able else _UNABLE)


def _serve(given: socket.socket) -> NoReturn:
    """Makes a fork for each order that arrives. Ends when the other end of the connection is closed."""
    with given:
        number = fcntl.fcntl(given.fileno(), fcntl.F_DUPFD_CLOEXEC, FREE_DESCRIPTORS)
    control = socket.socket(fileno=number)
    while True:
        size, descriptors, _, _ = socket.recv_fds(control, 4, _MOST_DESCRIPTORS)
        if not size:
            os._exit(0)
        order = Order(**json.loads(_received(control, int.from_bytes(size, "big"))))
        try:
            pid = _fork_beside()
        except OSError as error:
            control.sendall((-(error.errno or errno.EIO)).to_bytes(4, "big", signed=True))
        else:
            if pid == 0:
                _become(order, descriptors, control)
        for descriptor in descriptors:
            os.close(descriptor)


@functools.cache
def _code_of_ralph() -> types.CodeType:
    """The module that `python -m ralph` runs. `runpy` would look for it anew in each fork."""
    file = Path(__file__).parents[2] / "ralph" / "__main__.py"
    return compile(file.read_bytes(), str(file), "exec", dont_inherit=True)


def _load() -> None:
    """Imports everything that a start and a run import."""
    import ralph
    from ralph.machine.loading import load_without

    with load_without(*_NEVER_LOADED):
        for module in pkgutil.walk_packages(ralph.__path__, "ralph."):
            if not _NOT_LOADED.intersection(module.name.split(".")) and not module.name.endswith("__main__"):
                with suppress(ImportError):
                    importlib.import_module(module.name)
        for name in _LOADED_LATE:
            importlib.import_module(name)
    _code_of_ralph()


def _prepare() -> bool:
    """Makes this interpreter one whose forks are quick. Returns whether it can fork on this machine."""
    _load()
    warm_up()
    _clear_what_is_shown()
    return _can_fork_beside()


_program = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, as `os.fork` does


def _can_fork_beside() -> bool:
    return platform.machine() in _CLONE_NUMBERS and _thread_id_address() is not None


def _thread_id_address() -> int | None:
    """The address at which the C library keeps the id of this thread. A fork must have its own id there."""
    address = ctypes.c_void_p()
    failed = _program.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0)
    return None if failed else address.value


def _fork_beside() -> int:
    """Works like `os.fork`, but the new process is a child of this process's parent. This process must have only
    one thread.
    """
    noted = ctypes.c_void_p(_thread_id_address())
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    ctypes.pythonapi.PyOS_BeforeFork()
    # The last two parameters change places from one machine to the other, and only one of them is looked at.
    pid: int = _program.syscall(
        _CLONE_NUMBERS[platform.machine()], ctypes.c_ulong(flags), None, None, noted, noted
    )
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    return pid


# --- The fork


def _become(order: Order, descriptors: Sequence[int], control: socket.socket) -> NoReturn:
    orders, words = None, order.command[_words_begin(order.command) :]
    try:
        if _HAVE_ITERATIONS.intersection(words[:1]) or any(word.startswith(_OF_A_SCHEMA) for word in words):
            orders = _server_of_its_own()
        os.fchdir(descriptors[-1])
        os.close(descriptors[-1])
        _place(descriptors[:-1], (*range(_STREAMS), *order.kept))
        _take_over(order)
    except OSError as error:
        control.sendall((-(error.errno or errno.EIO)).to_bytes(4, "big", signed=True))
        os._exit(1)
    except BaseException:  # whoever ordered waits for an answer
        control.sendall((-errno.EPROTO).to_bytes(4, "big", signed=True))
        raise
    control.sendall(os.getpid().to_bytes(4, "big"))
    control.close()
    if orders is not None:
        _start_ralph_by(orders)
    if words[:2] == ["fleet", "work"]:
        _serve_slots()
    _run(order)


def _words_begin(command: Sequence[str]) -> int:
    """The index of the first word behind `python -m MODULE` or `python ... -c STATEMENT`."""
    return 3 if command[1] == "-m" else command.index("-c") + 2


def _serve_fleet(number: int) -> NoReturn:
    """Loads the libraries of the fleet, and serves the socket with this number. Only one process pays for the loading."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def load() -> bool:
        for name in _OF_THE_FLEET:
            importlib.import_module(name)
        return True

    given = socket.socket(fileno=number)
    _get_ready(given, load)
    _serve(given)


def _server_of_its_own() -> Orders:
    """Forks a child that serves this process as a fork server, for as long as this process lives."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        os.setsid()  # what is sent to its parent's group is not for it
        os.closerange(_STREAMS, theirs.fileno())
        os.closerange(theirs.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        _serve(theirs)
    theirs.close()
    return Orders(ours)


def _serve_slots() -> None:
    """Gives each slot that this worker forks a fork server of its own: a job must be the child of its slot."""
    worker = os.getpid()

    def serve_slot() -> None:
        if os.getppid() == worker:
            _start_ralph_by(_server_of_its_own())

    os.register_at_fork(after_in_child=serve_slot)


def _place(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Gives these numbers to received descriptors."""
    apart = [fcntl.fcntl(source, fcntl.F_DUPFD, FREE_DESCRIPTORS) for source in descriptors]
    for source in descriptors:
        os.close(source)
    for source, number in zip(apart, numbers, strict=True):
        os.dup2(source, number)
        os.close(source)


def _take_over(order: Order) -> None:
    """Gives this process everything that an ordinary child inherits from its parent or gets at its start: limits,
    session, umask, directory, environment and signals.
    """
    parent = os.getppid()
    for limit in _LIMITS:
        resource.setrlimit(limit, resource.prlimit(parent, limit))
    if order.new_session:
        os.setsid()
    os.umask(order.umask)
    set_by_the_interpreter = os.environ.get("LC_CTYPE")  # PEP 538
    os.environ.clear()
    if set_by_the_interpreter is not None:
        os.environ["LC_CTYPE"] = set_by_the_interpreter
    for name, value in order.environment.items():
        os.environ[name] = value
    _show(order.command, order.environment)
    for number in _ASKED_ABOUT:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in order.ignored else usual)


def _show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Changes the command line and the environment that /proc shows for this process. The server began with enough
    room for that, and nobody else reads these bytes any more.
    """
    entries = [f"{name}={value}" for name, value in environment.items()]
    for number, words in enumerate((command, entries)):
        begin, before = _shown[number]
        shown = b"".join([os.fsencode(word) + b"\0" for word in words])
        ctypes.memmove(begin, shown.ljust(before, b"\0"), max(len(shown), before))
        _shown[number] = begin, len(shown)


_shown: list[tuple[int, int]] = []
"""Where this process's command line and its environment begin, and how many bytes `_show` last wrote there."""


def _clear_what_is_shown() -> None:
    """Overwrites the command line and the environment of the server, so that no fork has to write to that many pages.
    Each variable gets a place of its own before, as the C library looks for it where the environment was.
    """
    for name, value in [*os.environ.items()]:
        os.environ[name] = value
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    for place in (45, 47):  # proc(5): arg_start, arg_end, env_start, env_end
        begin, end = map(int, fields[place : place + 2])
        ctypes.memset(begin, 0, end - begin)
        _shown.append((begin, 0))


def _run(order: Order) -> NoReturn:
    """Runs the ordered command, which is `python -m ralph ...` or `python -I -c STATEMENT ...`."""
    _open_streams()
    tempfile.tempdir = None
    if order.command[1:3] == ["-m", MODULE]:
        _serve_fleet(int(order.command[3]))
    if order.command[1] == "-m":
        sys.path[0] = order.cwd  # as `python -m` does
        code = _code_of_ralph()
        sys.argv = [code.co_filename, *order.command[3:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__file__, main.__package__ = code.co_filename, "ralph"
        exec(code, vars(main))
        sys.exit(0)
    at = order.command.index("-c")
    sys.argv = [*order.command[at:]]
    sys.argv.remove(statement := sys.argv[1])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(statement, "<string>", "exec"), vars(main))
    sys.exit(0)


def _open_streams() -> None:
    """Opens the standard streams as an interpreter does when it starts, because their buffering depends on what
    they are.
    """
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


# --- The seam in a fork that starts ralph


def _start_ralph_by(orders: Orders) -> None:
    """Makes this process start its iterations, jobs and checks of reports as forks from now on, and all other processes
    as usual.
    """
    lock = threading.Lock()  # a worker starts several jobs at once
    usual = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # typeshed leaves private names out

    def execute_child(popen: subprocess.Popen[bytes], *how: Any) -> None:
        start = Start(*how)
        if _is_ralph(start):
            with lock:
                start_fork(popen, start, orders, start.args)
        else:
            usual(popen, *how)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]  # typeshed leaves private names out


def _is_ralph(start: Start) -> bool:
    """Whether a call starts `ralph run`, `ralph loop` or the check of a report, with an interpreter like this one."""
    from ralph.machine.own_programs import own_python

    *interpreter, statement = own_python("from ralph.__main__ import main; main(")
    check = own_python("from ralph.run.report_problems import answer; answer()")
    words = [*start.args, "", ""]
    at = len(interpreter)
    is_run = (
        words[:at] == interpreter and words[at].startswith(statement) and words[at + 1] in {"run", "loop"}
    )
    return (is_run or start.args == check) and is_as_loaded(start.args, start.env)


if __name__ == "__main__":
    own_end = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, whose end is the server's
    _get_ready(own_end, _prepare)
    _serve(own_end)
