"""Tries the kernel's means of confinement by applying them. It works only on Linux.

It is not enough to ask the kernel what it supports. In a container, the kernel may name a means that the container
forbids, or kill the process that uses it. If a means does not work, no error is raised, and the result contains the
reason.

Normally a thread restricts itself and ends, in 0.3 ms. In most containers, a seccomp filter is already in force and
may kill a process that makes a forbidden call. In that case, a child process restricts itself instead, which takes
some milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from functools import cache
from typing import TYPE_CHECKING

from ralph.machine import restriction
from ralph.machine.starting import start_thread
from ralph.sandbox.kernel import landlock
from ralph.sandbox.kernel.landlock import Rule, Support, build_ruleset
from ralph.sandbox.kernel.seccomp import make_filter
from ralph.sandbox.levels import Means
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Callable

# The steps take a millisecond. More is only needed where the machine is overloaded.
TRIAL_WITHIN_S = 10.0
_MOST_BYTES = 4096
_ENDED = "\n"
_NO_LIBFFI = "this Python has no libffi"

_THREAD_FAILED = "the thread that tried it has ended"

# linux/seccomp.h
_SECCOMP_CALLS = {"x86_64": 317, "aarch64": 277}
_SECCOMP_GET_ACTION_AVAIL = 2
_ACTIONS = (0x0005_0000, 0x8000_0000)


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
        with open("/proc/self/status", "rb", buffering=0) as status:  # noqa: PTH123 - for speed
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
    said, is_late = read_to_end(reading)
    os.close(reading)
    if is_late:
        os.kill(pid, signal.SIGKILL)
    code = exit_code(pid)
    if is_late:
        raise ShortageError("process")
    lines = [line.split("\t", 1) for line in said.decode("utf-8", "replace").split(_ENDED)[:-1]]
    return dict(lines), (
        f"signal {-code} ended the process that tried it"
        if code < 0
        else "the process that tried it has ended"
    )


def read_to_end(reading: int) -> tuple[bytes, bool]:
    """Reads what a process writes until it ends. Returns the last part of it, and whether reading took too long."""
    said = b""
    poller = select.poll()
    poller.register(reading, select.POLLIN | select.POLLHUP)
    while poller.poll(TRIAL_WITHIN_S * 1000):
        part = os.read(reading, _MOST_BYTES)
        if not part:
            return said, False
        said = (said + part)[-_MOST_BYTES:]
    return said, True


def exit_code(pid: int, *, unknown: int = 0) -> int:
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
