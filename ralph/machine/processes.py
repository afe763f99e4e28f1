"""Starts processes that leave nothing behind. `launcher.py` follows and ends a command's tree.

Nothing here waits, except `wait_for_end`, which is for a thread of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from ralph.machine import launcher
from ralph.machine.own_process import core_limit_at_start
from ralph.machine.starting import start_process

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from pathlib import Path

# A command that would ask, page or open an editor must fail at once: nobody is there to answer.
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
# A credential program that the environment names (CI has them) is kept; a desktop's dialogue is not asked.
_DEFAULTS = {"GIT_ASKPASS": "false"}

_protected = False


def environment_for_commands(base: Mapping[str, str]) -> dict[str, str]:
    """The scrubbed environment `base`, with additional variables that keep commands from asking for input."""
    return _DEFAULTS | dict(base) | _NOBODY_IS_THERE


def protect_this_process() -> None:
    """Prepares this process for children. Call it before the first one; later calls do nothing. Linux only.

    It adopts its orphaned descendants, so that they can be found and ended, and becomes non-dumpable, so that an
    ordinary user's child can read neither its memory nor its environment.
    """
    global _protected  # noqa: PLW0603 - it is the process's state, not an object's
    if not _protected:
        _protected = True
        launcher.prctl(launcher.PR_SET_CHILD_SUBREAPER, 1)
        launcher.prctl(launcher.PR_SET_DUMPABLE, 0)


class OwnedProcess:
    """A process in a session of its own, with all processes that it starts or leaves behind.

    Start it on the main thread, because the kernel may tie it to the thread that starts it. Start only one at a time:
    all processes that ralph adopts after the start are attributed to it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        is_output_taken: bool = False,
        input_from: int | None = None,
        errors_to: int | None = None,
        kept_descriptors: Sequence[int] = (),
    ) -> None:
        """`is_output_taken`: ralph reads the standard output and standard error, merged into one pipe. Otherwise the
        process writes to ralph's own. `input_from`: the descriptor that becomes its standard input; None: the input is
        empty. `errors_to`: the descriptor that becomes its standard error instead. Raises OSError; a ShortageError if
        the machine lacks a resource.
        """
        import subprocess  # noqa: PLC0415 - 8 ms that only a run with commands pays

        protect_this_process()
        stop_ignoring_ends()
        self._others = set(launcher.children_of(os.getpid()))
        self._process = start_process(
            arguments,
            stdin=subprocess.DEVNULL if input_from is None else input_from,
            stdout=subprocess.PIPE if is_output_taken else None,
            stderr=subprocess.STDOUT if is_output_taken and errors_to is None else errors_to,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
            bufsize=0,
            pass_fds=kept_descriptors,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_end(self) -> int:
        """Block until the process has ended. Returns its exit code, negative for a signal."""
        return self._process.wait()

    def send(self, signal_number: int) -> None:
        """Signal this process alone, not the processes that it started. Does nothing if it has ended."""
        self._process.send_signal(signal_number)

    def kill_what_is_left(self) -> bool:
        """Kill the process, its tree, and all descendants that this process adopted. Returns True if nothing was left.

        A process that is just being started can escape one call, so repeat the call until it returns True.
        """
        # Check this first: the orphans of a process become our children only once it is dead.
        is_running = self._process.returncode is None
        children = reaped_children(self._others, self._process.pid)
        if children:
            launcher.kill_below(os.getpid(), self._others)
        if is_running:  # without /proc it is not among the children that were found
            self._process.kill()
        return not children and not is_running


class SupervisedCommand(OwnedProcess):
    """A running command under the launcher."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        grace_s: float,
        input_from: int | None = None,
        errors_to: int | None = None,
    ) -> None:
        """`grace_s`: the time from SIGTERM to SIGKILL. Raises OSError if the command cannot start.

        `input_from` and `errors_to` mean the same as for an `OwnedProcess`.
        """
        super().__init__(
            [
                *(sys.executable, "-I", "-S", launcher.__file__),
                *(
                    str(os.getpid()),
                    str(grace_s),
                    environment.get("LC_CTYPE", ""),
                    str(core_limit_at_start()),
                ),
                *command,
            ],
            cwd=cwd,
            environment=environment,
            is_output_taken=True,
            input_from=input_from,
            errors_to=errors_to,
        )

    @property
    def output_descriptor(self) -> int:
        """The descriptor from which standard output is read. Standard error arrives there too, unless `errors_to` was
        given.
        """
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        return self._process.stdout.fileno()

    def ask_to_stop(self) -> None:
        """Send the whole tree SIGTERM, and SIGKILL after the grace."""
        self.send(signal.SIGTERM)

    def close(self) -> None:
        """Closes the output. Call it only after its reader has stopped."""
        if self._process.stdout is not None:
            self._process.stdout.close()


def reaped_children(others: Container[int], kept: int | None = None) -> list[int]:
    """Reaps ended children of this process, except `others`. Returns the children that remain. `kept`: a child that
    always counts as remaining, because it is reaped elsewhere.
    """
    mine = [pid for pid in launcher.children_of(os.getpid()) if pid not in others]
    return [pid for pid in mine if pid == kept or not _is_reaped(pid)]


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def stop_ignoring_ends() -> None:
    """Stop ignoring SIGCHLD, which some parents leave ignored: the system would then drop every exit code, and each
    would read as 0.
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
