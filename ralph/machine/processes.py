"""Starts processes, kills the child processes that they leave behind, and makes the environment of commands. Only
`wait_for_end` blocks, so call it in a thread of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine import launcher
from ralph.machine.starting import start_process

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from pathlib import Path

# A command that would ask a question, show pages or open an editor must not wait, because nobody is there to answer.
_NOBODY_IS_THERE = {
    "GIT_TERMINAL_PROMPT": "0",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "TERM": "dumb",
}
# A credential program in the environment is kept, because CI systems have one. No desktop dialogue is opened.
_DEFAULTS = {"GIT_ASKPASS": "false"}

# States of proc_pid_stat(5).
_IS_STOPPED, _HAS_ENDED = (b"T", b"t"), (b"Z", b"X", b"x")

_protected = False


def environment_for_commands(base: Mapping[str, str]) -> dict[str, str]:
    """`base` with variables that keep commands from waiting for a person. It must contain no credentials. Left out are an empty
    name, which Python's posix_spawn rejects, and CDPATH, so that `cd` leads where rules take it to lead.
    """
    environment = _DEFAULTS | dict(base) | _NOBODY_IS_THERE
    return {name: value for name, value in environment.items() if name not in ("", "CDPATH")}


def protect_this_process() -> None:
    """Prepares this process for having children, before the first one; later calls do nothing. On Linux, it adopts its orphaned
    descendants, so that it can end them, and becomes non-dumpable, so that no child can read its memory or environment.
    """
    global _protected  # noqa: PLW0603 - it is the process's state, not an object's
    if not _protected:
        _protected = True
        launcher.prctl(launcher.PR_SET_CHILD_SUBREAPER, 1)
        launcher.prctl(launcher.PR_SET_DUMPABLE, 0)


class ProcessFacts(Struct, frozen=True):
    """Facts about a process, from /proc/PID/stat (proc_pid_stat(5))."""

    is_stopped: bool
    parent: int
    group: int
    has_terminal: bool
    foreground_group: int
    """The id of the process group in the foreground of the terminal. -1 without a terminal."""


def facts_of(pid: int) -> ProcessFacts | None:
    """The facts about a process. None if the process does not exist or has ended, and on systems without /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            # The command's name, in parentheses, may hold anything: count from the last one.
            fields = stat.read().rpartition(b")")[2].split()
        state, (parent, group, _, terminal, foreground) = fields[0], map(int, fields[1:6])
    except (OSError, ValueError, IndexError):
        return None
    if state in _HAS_ENDED:
        return None
    return ProcessFacts(state in _IS_STOPPED, parent, group, terminal != 0, foreground)


class OwnedProcess:
    """A process in a session of its own (setsid(2)), with all that it starts. Must be started on the main thread: the kernel may
    end it with the thread that started it. Only one may run at a time: every orphan that ralph adopts counts as its descendant.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        kept_descriptors: Sequence[int] = (),
    ) -> None:
        """Starts the process, with ralph's own standard output and error and no input. Raises ShortageError and OSError."""
        protect_this_process()
        self._others = set(launcher.children_of(os.getpid()))
        self._process = start_process(
            arguments,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
            pass_fds=kept_descriptors,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_end(self) -> int:
        """Blocks until the process has ended. Returns its exit code, or -n if signal n killed it."""
        return self._process.wait()

    def send(self, signal_number: int) -> None:
        """Signals this process, and not what it has started. Does nothing if it has ended."""
        self._process.send_signal(signal_number)

    def kill_what_is_left(self) -> bool:
        """Kills the process, its descendants, and adopted orphans. True if there was nothing to kill. What is just starting can
        escape, so call this again until it returns True.
        """
        # Check this first: the orphans of a process become our children only once it is dead.
        is_running = self._process.returncode is None
        children = reaped_children(self._others, self._process.pid)
        if children:
            launcher.kill_below(os.getpid(), self._others)
        if is_running:  # without /proc it is not among the children that were found
            self._process.kill()
        return not children and not is_running


def reaped_children(others: Container[int], kept: int | None = None) -> list[int]:
    """Reaps the ended children of this process, but for `others`, and returns the rest. Other code reaps `kept`, which remains."""
    mine = [pid for pid in launcher.children_of(os.getpid()) if pid not in others]
    return [pid for pid in mine if pid == kept or not _is_reaped(pid)]


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
