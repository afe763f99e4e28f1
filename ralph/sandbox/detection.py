"""Finds out which means of confinement work on this machine, by applying them: in a container, the kernel may name a means
that the container forbids. If a means does not work, no error is raised, and the result contains the reason.

Normally a thread restricts itself and ends, in 0.3 ms. Where a seccomp filter is in force already, as in most containers, it
may kill a process that makes a forbidden call: a child process restricts itself then, in milliseconds.

Also finds the device nodes of the GPUs that commands get. The nodes that control screens (`card*`) are never among them.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import stat
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine import restriction
from ralph.machine.files.paths import entries_in, status_of
from ralph.machine.starting import start_thread
from ralph.machine.trusted_programs import BUBBLEWRAP, UnusableError, candidates, choose, dotted
from ralph.sandbox import landlock
from ralph.sandbox.box_plan import Means
from ralph.sandbox.bubblewrap import (
    OVERLAYS_SINCE,
    TEMPORARY,
    Cover,
    EmptyDirectory,
    TooManyMountsError,
    bwrap_command,
    cover,
)
from ralph.sandbox.landlock import Rule, Support, build_ruleset
from ralph.sandbox.seccomp import make_filter
from ralph.values.outcome import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.machine.own_programs import ProgramSearch
    from ralph.machine.trusted_programs import Candidate, Version

# The steps take a millisecond. More is only needed where the machine is overloaded.
_TRIAL_WITHIN_S = 10.0
_MOST_BYTES = 4096
_ENDED = "\n"
_NO_LIBFFI = "this Python has no libffi"

_THREAD_FAILED = "the thread that tried it has ended"

# linux/seccomp.h
_SECCOMP_CALLS = {"x86_64": 317, "aarch64": 277}
_SECCOMP_GET_ACTION_AVAIL = 2
_ACTIONS = (0x0005_0000, 0x8000_0000)

_MOST_COMPLAINT = 200
# A shortage that lasts longer than about a second is not awaited: the run then has a lower level, or ends.
_PAUSES_S = (0.05, 0.2, 0.8)
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_VERSION = re.compile(rb"bubblewrap (\d+(?:\.\d+)*)")
INSTALL = "install bubblewrap, or pip install '.[sandbox]' in ralph's clone, with ralph's Python"


def find_means(search: ProgramSearch, *, shares_network: bool = False, has_overlays: bool = False) -> Means:
    """Finds the means of confinement on this machine. What a trial of bubblewrap has shown is remembered, unless the machine was
    short of a resource; then the trial is repeated for about a second.

    `search` says where bubblewrap may lie (`trusted_programs.py`). The first one that works is taken. Each is tried at most four
    times: with and without overlays and a network.

    With `shares_network`, commands use the machine's network, and no network namespace is tried. With `has_overlays`, each is
    tried with overlays first, and one that can make them is preferred. Landlock and seccomp are tried by applying them.
    """
    if sys.platform != "linux":
        return no_means("only Linux has the means")
    for pause_s in (*_PAUSES_S, None):
        try:
            means = try_means()
            break
        except ShortageError:
            if pause_s is None:
                raise
            select.select([], [], [], pause_s)
    if means.why_no_privileges:
        return no_means(means.why_no_privileges)
    # What Landlock itself confines needs no overlays, and without its scopes they do not help.
    has_overlays = has_overlays and means.landlock.has_scopes and not means.landlock.has_socket_paths
    return _with_namespaces(means, search, shares_network=shares_network, has_overlays=has_overlays)


def no_means(why: str) -> Means:
    return Means(Support(0, why), why, why, why_no_namespaces=why)


def begin_trial(search: ProgramSearch, *, shares_network: bool, has_overlays: bool = False) -> None:
    """Starts to try bubblewrap in the background, for milliseconds. `find_means` with the same arguments waits for the result."""
    if sys.platform == "linux":
        first = next((one for one in candidates(BUBBLEWRAP, search) if not one.why_not), None)
        if first is not None and (first.path, shares_network, has_overlays) not in _TRIED:
            _started_trial(first.path, has_network=shares_network, has_overlays=has_overlays)


def why_not_covered(bwrap: str, covered: Cover) -> str:
    """The reason why bubblewrap cannot show the machine so. Empty if it can. Waits for a trial."""
    return _Trial(bwrap, covered, has_network=True).result().why_not


class _TrialResult(Struct, frozen=True):
    why_not: str = ""
    """The reason why the program does not work, or an empty string."""
    is_short: bool = False
    """Whether the machine lacked a resource."""
    version: Version = ()
    """The version that the program named, or the empty one."""
    overlaid: frozenset[int] = frozenset()
    """The file systems of which it has made overlays."""


class _ShortError(Exception):
    """The machine lacks a resource for the trial of a program. The message names both."""


_TRIED: dict[tuple[str, bool, bool], _TrialResult] = {}
_BEGUN: dict[tuple[str, bool, bool], _Trial] = {}
"""The trials that run in the background. The keys of both are a program, `has_network` and `has_overlays`."""


def _with_namespaces(
    means: Means, search: ProgramSearch, *, shares_network: bool, has_overlays: bool
) -> Means:
    without_network: dict[str, str] = {}
    """The programs that make no network namespace, with the reason."""

    def version_of(candidate: Candidate) -> Version:
        why_not = ""
        for has_network in (True,) if shares_network else (False, True):
            tried = _tried(candidate.path, has_network=has_network, has_overlays=has_overlays)
            if has_overlays and tried.why_not and not tried.is_short:
                tried = _tried(candidate.path, has_network=has_network, has_overlays=False)
            if tried.is_short:
                raise _ShortError(f"{candidate.path}: {tried.why_not}")
            why = tried.why_not or _why_not_entered()
            if not why:
                if has_network:
                    without_network[candidate.path] = why_not
                return tried.version or candidate.version
            why_not = why
        raise UnusableError(why_not)

    try:
        choice = choose(candidates(BUBBLEWRAP, search), version_of, OVERLAYS_SINCE if has_overlays else ())
    except _ShortError as error:
        return replace(means, why_no_namespaces=str(error), is_short_of_namespaces=True)
    if choice.candidate is None:
        why = "; ".join(choice.passed_over) or f"bubblewrap is not installed ({INSTALL})"
        return replace(means, why_no_namespaces=why)
    bwrap = choice.candidate.path
    why_no_network = without_network.get(bwrap, "")
    if has_overlays:
        tried = _tried(bwrap, has_network=bwrap in without_network, has_overlays=True)
        why_none = tried.why_not
        if why_none and choice.version < OVERLAYS_SINCE:
            why_none = f"bubblewrap makes them from version {dotted(OVERLAYS_SINCE)} on"
        means = replace(means, why_no_overlays=why_none, overlaid=tried.overlaid)
    return replace(
        means,
        bwrap=bwrap,
        about_bwrap=choice.in_words("bubblewrap"),
        why_no_namespaces=f"{bwrap}: {why_no_network}" if why_no_network else "",
        has_network_namespace=bwrap not in without_network,
    )


def _tried(bwrap: str, *, has_network: bool, has_overlays: bool) -> _TrialResult:
    """Tries a program until it fails for another reason than a shortage, or not at all."""
    key = (bwrap, has_network, has_overlays)
    if key in _TRIED:
        return _TRIED[key]
    for pause_s in (*_PAUSES_S, None):
        trial = _started_trial(bwrap, has_network=has_network, has_overlays=has_overlays)
        del _BEGUN[key]
        tried = trial.result()
        if not tried.is_short:
            _TRIED[key] = tried
        if not tried.is_short or pause_s is None:
            break
        select.select([], [], [], pause_s)
    return tried


def _started_trial(bwrap: str, *, has_network: bool, has_overlays: bool) -> _Trial:
    key = (bwrap, has_network, has_overlays)
    if key not in _BEGUN:
        _BEGUN[key] = _Trial(bwrap, None if has_overlays else Cover(), has_network=has_network)
    return _BEGUN[key]


def _why_not_entered() -> str:
    """Why this process cannot enter a namespace, or empty. Only a container's filter refuses with another error than EBADF."""
    try:
        restriction.prepare().setns(-1)
    except OSError as error:
        return "" if error.errno == errno.EBADF else f"namespaces cannot be entered: {error.strerror}"
    return ""


class _Trial:
    """A trial run of bubblewrap: a process that runs in the background until `result` waits for its end."""

    def __init__(self, bwrap: str, covered: Cover | None, *, has_network: bool) -> None:
        """`covered` is how the machine is shown; None makes overlays of all that there is now."""
        self._pid, self._why, self._reading = 0, "", -1
        self._empty: EmptyDirectory | None = None
        try:
            if covered is None:
                self._empty = EmptyDirectory()
                covered = cover("/", self._empty.path)
        except (OSError, TooManyMountsError) as error:
            self._why = str(error)
            return
        self._overlaid = covered.devices
        words = bwrap_command(bwrap, cover=covered.words, temporary=TEMPORARY, has_network=has_network)
        # The program has process id 1: otherwise bubblewrap's own one might end last, as an orphan of this process.
        command = [*words, "--as-pid-1", "--cap-drop", "ALL", "--", bwrap, "--version"]
        self._reading, writing = os.pipe()
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        streams = [(os.POSIX_SPAWN_DUP2, fd, to) for fd, to in ((nowhere, 0), (writing, 1), (writing, 2))]
        try:
            self._pid = os.posix_spawn(command[0], command, {}, file_actions=streams)
        except OSError as error:
            self._why = str(error.strerror)
        finally:
            os.close(nowhere)
            os.close(writing)

    def result(self) -> _TrialResult:
        """Waits for the program to end. Must be called once."""
        said, is_late = b"", False
        if self._reading >= 0:
            said, is_late = _read_to_end(self._reading)
            os.close(self._reading)
        why = self._complaint(said, is_late=is_late)
        if self._empty is not None:
            self._empty.remove()
        if why:
            return _TrialResult(why, is_short=why.endswith(tuple(map(os.strerror, _SHORTAGES))))
        found = _VERSION.search(said)
        version = tuple(map(int, found[1].split(b"."))) if found else ()
        return _TrialResult(version=version, overlaid=self._overlaid)

    def _complaint(self, said: bytes, *, is_late: bool) -> str:
        if not self._pid:
            return self._why
        if is_late:
            os.kill(self._pid, signal.SIGKILL)
        code = _exit_code(self._pid, unknown=1 if _VERSION.sub(b"", said).strip() else 0)
        if is_late:
            return f"it took longer than {_TRIAL_WITHIN_S:g} s"
        if code == 0:
            return ""
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2][:_MOST_COMPLAINT]
        return last or f"it ended with {code}"


@cache
def try_means() -> Means:
    """Restricts a thread or a child process as a command is. Raises ShortageError if the machine lacks resources for that."""
    try:
        restriction.prepare()
    except ImportError:
        return Means(Support(0, _NO_LIBFFI), _NO_LIBFFI, _NO_LIBFFI)
    steps: dict[str, Callable[[], str]] = {
        "privileges": _privileges,
        "landlock": _landlock,
        "filter": _filter,
    }
    answers: dict[str, str] = {}
    while left := {name: step for name, step in steps.items() if name not in answers}:
        said, why = _in_child(left) if _has_filter() else (_in_thread(left), _THREAD_FAILED)
        answers |= said
        # The first step without an answer has ended the child; the others get another one.
        if failed := next((name for name in left if name not in said), None):
            answers[failed] = f"0 {why}" if failed == "landlock" else why
    if why := answers["privileges"]:
        return Means(Support(0, why), why, why)
    abi, _, why = answers["landlock"].partition(" ")
    return Means(Support(int(abi), why), "", answers["filter"])


def _has_filter() -> bool:
    """Whether a seccomp filter is in force for this process. True if that cannot be found out."""
    try:
        with open("/proc/self/status", "rb", buffering=0) as status:
            return b"\nSeccomp:\t0" not in status.read()
    except OSError:
        return True


def _in_thread(steps: dict[str, Callable[[], str]]) -> dict[str, str]:
    answers = {}

    def run() -> None:
        for name, step in steps.items():
            answers[name] = step()

    start_thread(run, name="trial of the sandbox").join()
    return answers


def _in_child(steps: dict[str, Callable[[], str]]) -> tuple[dict[str, str], str]:
    """The results of the steps in a child process, and why it ended early, or an empty text."""
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        raise ShortageError("process") from error
    if pid == 0:
        try:
            for name, step in steps.items():
                os.write(writing, f"{name}\t{step()}{_ENDED}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    said, is_late = _read_to_end(reading)
    os.close(reading)
    if is_late:
        os.kill(pid, signal.SIGKILL)
    code = _exit_code(pid)
    if is_late:
        raise ShortageError("process")
    lines = [line.split("\t", 1) for line in said.decode("utf-8", "replace").split(_ENDED)[:-1]]
    return dict(lines), (
        f"signal {-code} ended the process that tried it"
        if code < 0
        else "the process that tried it has ended"
    )


def _read_to_end(reading: int) -> tuple[bytes, bool]:
    """Reads what a process writes until it ends. Returns the last part of it, and whether reading took too long."""
    said = b""
    poller = select.poll()
    poller.register(reading, select.POLLIN | select.POLLHUP)
    while poller.poll(_TRIAL_WITHIN_S * 1000):
        part = os.read(reading, _MOST_BYTES)
        if not part:
            return said, False
        said = (said + part)[-_MOST_BYTES:]
    return said, True


def _exit_code(pid: int, *, unknown: int = 0) -> int:
    """Waits for a child process. Returns its exit code (negative after a signal), or `unknown` if somebody else has waited for it."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return unknown


def _privileges() -> str:
    try:
        restriction.restrict_thread(restriction.NO_RULESET, restriction.NO_FILTER)
    except OSError as error:
        return f"privileges cannot be given up: {error.filename}: {error.strerror}"
    return ""


def _landlock() -> str:
    """The version of Landlock, or 0 and the reason."""
    support = landlock.support()
    if not support.abi:
        return f"0 {support.why_not}"
    ruleset = restriction.NO_RULESET
    try:
        ruleset = build_ruleset(support.abi, [Rule("/", -1)])
        restriction.restrict_thread(ruleset, restriction.NO_FILTER)
    except OSError as error:
        return f"0 Landlock cannot be applied: {error.strerror}"
    finally:
        if ruleset != restriction.NO_RULESET:
            os.close(ruleset)
    return str(support.abi)


def _filter() -> str:
    machine = os.uname().machine
    if machine not in _SECCOMP_CALLS or sys.maxsize < 2**32:
        return f"ralph has no seccomp filter for {machine}"
    try:
        for action in _ACTIONS:
            restriction.prepare().syscall(
                _SECCOMP_CALLS[machine], _SECCOMP_GET_ACTION_AVAIL, 0, action.to_bytes(4, "little")
            )
    except OSError as error:
        return f"the kernel takes no seccomp filter: {error.strerror}"
    program = make_filter(machine, internet="all", unix_sockets=False)
    try:
        restriction.restrict_thread(restriction.NO_RULESET, program or restriction.NO_FILTER)
    except OSError as error:
        return f"a seccomp filter cannot be applied: {error.strerror}"
    return ""


# CUDA needs these three (driver 580). nvidia-modeset is for screens, and nvidia-uvm-tools for profilers.
_NVIDIA = r"nvidia\d+|nvidiactl|nvidia-uvm"
# Of each instance of a divided GPU, the driver says which node opens it (MIG user guide, "Device Nodes and Capabilities").
_INSTANCES = tuple(
    f"proc/driver/nvidia/capabilities/gpu*/mig/gi*/{name}" for name in ("access", "ci*/access")
)
_INSTANCE = r"(?m)^DeviceFileMinor: (\d+)$"
# ROCm's compute device names the render node of each of its GPUs (amdkfd, topology in sysfs). 0 is a CPU.
_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes/*/properties"
_AMD = r"(?m)^drm_render_minor ([1-9]\d*)$"
_RENDER = r"renderD\d+"


def gpu_devices(wanted: str, top: str = "") -> tuple[str, ...]:
    """The nodes that this user may open, in a fixed order. `wanted` is `auto`, `all` (with the render nodes of other makers) or
    `off`. `top` precedes `/dev`, `/proc` and `/sys`. Never raises OSError.
    """
    found = dict.fromkeys(f"{top}/dev/{name}" for name in _named(wanted, top))
    statuses = {path: status_of(path) for path in found}
    devices = (path for path, status in statuses.items() if status and stat.S_ISCHR(status.st_mode))
    return tuple(path for path in devices if os.access(path, os.R_OK))


def _named(wanted: str, top: str) -> Iterator[str]:
    if wanted == "off":
        return
    if os.path.lexists(f"{top}/dev/nvidiactl"):
        yield from _names_in(f"{top}/dev", _NVIDIA)
        for pattern in _INSTANCES:
            for minor in _numbers(top, pattern, _INSTANCE):
                yield f"nvidia-caps/nvidia-cap{minor}"
    if os.path.lexists(f"{top}/dev/kfd"):
        yield "kfd"
        for minor in _numbers(top, _TOPOLOGY, _AMD):
            yield f"dri/renderD{minor}"
    if wanted == "all":
        yield from (f"dri/{name}" for name in _names_in(f"{top}/dev/dri", _RENDER))


def _names_in(directory: str, pattern: str) -> list[str]:
    return sorted(entry.name for entry in entries_in(directory) if re.fullmatch(pattern, entry.name))


def _numbers(top: str, files: str, line: str) -> Iterator[str]:
    for path in sorted(Path(top or "/").glob(files)):
        with suppress(OSError):
            yield from re.findall(line, path.read_text(encoding="ascii", errors="replace"))
