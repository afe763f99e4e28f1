"""Runs the probe program (`probe.py`) inside a sandbox, and compares each row's verdict with what the sandbox's level
promises. The probe's targets are made in a new directory under /var/tmp.
"""

from __future__ import annotations

import json
import os
import platform
import select
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.machine import restriction
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.trees import remove_tree_if_possible
from ralph.machine.running_command import EndCause, KeptErrors, MemoryCapture, RunningCommand
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.places.gather import PACKAGE, python_prefixes
from ralph.places.places import places_of
from ralph.sandbox import probe
from ralph.sandbox.box_plan import BoxPlan, box_level
from ralph.sandbox.command_box import CommandBox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from ralph.machine.command_supervisor import Confinement
    from ralph.machine.running_command import CommandEnding
    from ralph.sandbox.box_plan import BoxLevel, Means, Net

_WITHIN_S = 120
_MOST_OUTPUT_BYTES = 1_000_000
# A process of the probe that was killed may need a moment to end.
_ENDS_WITHIN_S = 10.0
_LEASH = 100
"""The descriptor of a pipe in the probe. When the processes that keep it have ended, its other end shows it."""
_PARENT = "/var/tmp"  # noqa: S108 - not in /tmp, which is another directory in a namespace
# linux/ipc.h, linux/shm.h: the numbers of shmget and shmctl, and their flags.
_SHARED_MEMORY_CALLS = {"x86_64": (29, 31), "aarch64": (194, 195)}
_IPC_CREAT, _IPC_RMID = 0o1000, 0
_IDLE = "import time; time.sleep(600)"
# Binds sockets by relative names, in another network if that may be made, and when a file asks for it.
_BINDING = """
import ctypes, os, socket, sys, time
wish, answer = sys.argv[1:]
def bind(name):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen()
    return listener
held = [bind("relative")]
print(flush=True)
while not os.path.exists(wish):
    time.sleep(0.01)
held.append(bind("late"))
open(answer, "w").close()
time.sleep(600)
"""
_BINDING_ELSEWHERE = """
import ctypes, os, socket, time
libc = ctypes.CDLL(None)
NEW_NETWORK, NEW_USER = 0x40000000, 0x10000000
if libc.unshare(NEW_NETWORK) and libc.unshare(NEW_NETWORK | NEW_USER):
    raise SystemExit
listener = socket.socket(socket.AF_UNIX)
listener.bind("elsewhere")
listener.listen()
print(flush=True)
time.sleep(600)
"""


class ProbeResult(Struct, frozen=True):
    row: str
    protection: str
    """The name of the protection that denies the row, or empty if none does."""
    verdict: str
    """`allowed`, `denied` or `untried`."""
    detail: str
    is_promised: bool

    @property
    def is_broken(self) -> bool:
        return self.is_promised and self.verdict == probe.ALLOWED


class ProbeError(Exception):
    """The probe ended before it had tried all its actions. The message gives the reason."""


def is_promised(row: probe.Row, means: Means, net: Net) -> bool:
    """Whether a sandbox with these means promises to deny the action of `row`."""
    if row.protection == "network":
        if net == "full" or (row.name == probe.OWN_LOOPBACK and means.has_own_network):
            return False
        return means.has_own_network or not means.why_no_filter
    return box_level(means, net).reaches.get(row.protection) == ""


def run_as_command(
    command: Sequence[str],
    directory: str,
    environment: Mapping[str, str],
    confine: Callable[[str], Confinement] | None,
    passed: tuple[int, int] | None = None,
) -> tuple[CommandEnding, str, str]:
    """Runs a command as those of the model are run, on the main thread, and returns its end, its output and its errors. `confine` and
    `passed` are as in `CommandSupervisor`. Raises OSError and ShortageError.
    """
    clock = SystemClock()
    supervisor = CommandSupervisor({"PATH": os.defpath}, most_processes=0, confinement=confine)
    try:
        with KeptErrors() as errors:
            started = supervisor.start(
                command,
                cwd=Path(directory),
                environment=environment,
                grace_s=0,
                errors_to=errors.fileno,
                passed=passed,
            )
            output = MemoryCapture(_MOST_OUTPUT_BYTES)
            running = RunningCommand(started, output, waiter=InboxWaiter(clock), clock=clock)
            ending = running.run(_WITHIN_S, "a command in the sandbox")
            return ending, output.data.decode(), errors.read().decode("utf-8", "replace")
    finally:
        supervisor.close()


class SelfTest:
    """Runs the probe. The targets of the probe exist during the `with` statement."""

    def __init__(self, means: Means, net: Net = "full", *, secrets: Sequence[str] = ()) -> None:
        """`secrets` are unreadable files of the user, which the probe tries to read in addition to its own secret."""
        self._means = means
        self._net: Net = net
        self._secrets = tuple(secrets)
        self._stack = ExitStack()
        self._targets: dict[str, Any] = {}
        self.level: BoxLevel = box_level(means, net)
        self.directory = Path()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.directory = Path(os.path.realpath(tempfile.mkdtemp(prefix="ralph-probe-", dir=_PARENT)))
            stack.callback(remove_tree_if_possible, self.directory)
            self._make_files()
            self._make_sockets(stack)
            self._start_binding(stack)
            self._targets["pid"] = self._started(stack, _IDLE, env={"SECRET": "x"}).pid
            with suppress(OSError, KeyError, ImportError):  # no shared memory here: the row stays untried
                calls = restriction.prepare()
                get, control = _SHARED_MEMORY_CALLS[platform.machine()]
                segment = calls.syscall(get, 0, 1, _IPC_CREAT | 0o600)
                stack.callback(calls.syscall, control, segment, _IPC_RMID, 0)
                self._targets["shared_memory"] = segment
            with suppress(OSError):  # no terminals here: the row stays untried
                master, terminal = os.openpty()
                stack.callback(os.close, master)
                stack.callback(os.close, terminal)
                self._targets["terminal"] = os.ttyname(terminal)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def run(self, rows: Sequence[str] | None = None) -> list[ProbeResult]:
        """Runs the probe in the sandbox, for all actions or only for those named in `rows`. Raises ProbeError."""
        with closing(self._box()) as box:

            def confine(directory: str) -> Confinement:
                confinement = box.confinement(directory)
                # Made after the ruleset: such a secret must be unreadable too.
                self._make_late_secret()
                return confinement

            return [*self._results(rows, confine)]

    def run_unconfined(self) -> list[ProbeResult]:
        """Runs the probe without a sandbox, to show what this machine denies by itself. Raises ProbeError."""
        self._make_late_secret()
        return [*self._results(None, None)]

    def _make_late_secret(self) -> None:
        (self.directory / "secrets" / "late").write_text("secret")

    def _box(self) -> CommandBox:
        roots, denied = (str(self.directory / "root"),), (str(self.directory / "secrets"), *self._secrets)
        own = {"prefix": python_prefixes(), "package": (PACKAGE,)}
        places = places_of({"root": roots, "denied": denied, **own}, {}, os.path.realpath, os.path.realpath)
        return CommandBox(BoxPlan(self._means, self._net), roots, {}, lambda: places)

    def _results(
        self, rows: Sequence[str] | None, confine: Callable[[str], Confinement] | None
    ) -> Iterator[ProbeResult]:
        watched, leash = os.pipe()
        try:
            targets = json.dumps(self._targets | {"rows": rows, "leash": _LEASH})
            command = [sys.executable, "-I", "-S", probe.__file__, targets]
            try:
                ending, said, errors = run_as_command(
                    command, self._targets["root"], {"PATH": os.defpath}, confine, (_LEASH, leash)
                )
            except OSError as error:
                raise ProbeError(str(error)) from None
            finally:
                os.close(leash)
            if ending.status or ending.how is not EndCause.BY_ITSELF:
                raise ProbeError(errors.strip() or f"it ended with {ending.status} ({ending.how.name})")
            is_left = not select.select([watched], [], [], _ENDS_WITHIN_S)[0]
        finally:
            os.close(watched)
        known = {row.name: row for row in probe.ROWS}
        for line in said.splitlines():
            told = json.loads(line)
            row = known[told["row"]]
            verdict, detail = told["verdict"], told["detail"]
            if detail == probe.SEEN_FROM_OUTSIDE:
                verdict, detail = (probe.ALLOWED if is_left else probe.DENIED), ""
            yield ProbeResult(
                row.name, row.protection, verdict, detail, is_promised(row, self._means, self._net)
            )

    def _make_files(self) -> None:
        for name in ("root/.git/hooks", "outside", "secrets", "sockets"):
            (self.directory / name).mkdir(parents=True)
        for name in ("root/.git/config", "outside/file", "outside/taken", "outside/removed"):
            (self.directory / name).write_text("some text\n")
        secret = self.directory / "secrets" / "key"
        secret.write_text("secret")
        hard_link = self.directory / "root" / "known"
        hard_link.hardlink_to(secret)
        self._targets |= {
            "root": str(self.directory / "root"),
            "outside": str(self.directory / "outside"),
            "secrets": [str(secret), *self._secrets],
            "late_secret": str(self.directory / "secrets" / "late"),
            "hard_link": str(hard_link),
            "parent": os.getpid(),
        }

    def _make_sockets(self, stack: ExitStack) -> None:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        places = {name: f"{self.directory}/sockets/{name}" for name in ("agent", "log")}
        for address, kind in (
            (places["agent"], socket.SOCK_STREAM),
            (places["log"], socket.SOCK_DGRAM),
            (f"\0{self.directory}", socket.SOCK_STREAM),
            (f"\0{self.directory}/log", socket.SOCK_DGRAM),
        ):
            bound = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            bound.bind(address)
            if kind is socket.SOCK_STREAM:
                bound.listen()
        self._targets |= {
            "socket": places["agent"],
            "datagram_socket": places["log"],
            "abstract": str(self.directory),
            "abstract_datagram": f"{self.directory}/log",
            "port": server.getsockname()[1],
            "udp_port": datagrams.getsockname()[1],
        }

    def _start_binding(self, stack: ExitStack) -> None:
        sockets = self.directory / "sockets"
        wish, answer = f"{self.directory}/root/wish", f"{self.directory}/root/answer"
        for script, arguments, targets in (
            (_BINDING, (wish, answer), {"relative_socket": "relative", "late_socket": "late"}),
            (_BINDING_ELSEWHERE, (), {"socket_elsewhere": "elsewhere"}),
        ):
            binding = self._started(stack, script, *arguments, cwd=sockets, stdout=subprocess.PIPE)
            assert binding.stdout is not None  # noqa: S101 - it is a pipe
            with binding.stdout:
                # Empty where no other network may be made: the row stays untried.
                if binding.stdout.readline():
                    self._targets |= {name: str(sockets / socket_) for name, socket_ in targets.items()}
        self._targets |= {"wish_for_socket": wish, "late_socket_is_bound": answer}

    def _started(
        self, stack: ExitStack, script: str, *arguments: str, **options: Any
    ) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-I", "-S", "-c", script, *arguments]
        started = subprocess.Popen(words, stdin=subprocess.DEVNULL, **options)
        stack.callback(started.wait)
        stack.callback(started.kill)
        return started
