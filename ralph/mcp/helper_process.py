"""Starts the processes that MCP needs: the helper (`helper.py`), with which messages are exchanged here, and servers with
the stdio transport. The code runs on the main thread, except for one thread that puts the helper's messages into a
mailbox.
"""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ralph.machine.own_programs import own_python
from ralph.machine.starting import protect_this_process, start_process, start_thread
from ralph.mcp.wire import Lines, Order, encoded, news_of
from ralph.values.outcome import ShortageError
from ralph.values.ports import Clock, Interrupted, Mailbox, Waiter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from subprocess import Popen

    from ralph.machine.command_supervisor import CommandSupervisor, SupervisedCommand

_PROGRAM = "from ralph.mcp.helper import main; main()"
_CHUNK_BYTES = 65_536
# The helper reads at once, unless somebody has stopped it.
_SEND_WITHIN_S = 10.0
_ENDS_WITHIN_S = 1.0


class HelperGone:
    """The type of `HELPER_GONE`. This item is put into the mailbox when the helper process has ended."""


HELPER_GONE = HelperGone()


def is_package_installed() -> bool:
    """Whether the `mcp` package, which the helper process needs, is installed."""
    return find_spec("mcp") is not None


class HelperProcess:
    def __init__(self, environment: Mapping[str, str], waiter: Waiter) -> None:
        """Starts the helper process. Raises ShortageError or OSError."""
        self.mailbox = waiter.mailbox()
        """Receives each message of the helper process, and `HELPER_GONE` when the helper process has ended."""
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_SEND_WITHIN_S)
        with theirs:
            self._process = _started(theirs.fileno(), environment)
        try:
            start_thread(_read, self._control.dup(), self.mailbox, name="MCP news")
        except BaseException:
            self.close()
            raise

    def send(self, order: Order, descriptors: Sequence[int] = ()) -> None:
        """Sends an order to the helper process, together with descriptors. Raises OSError if it has ended or does
        not read.
        """
        line = encoded(order)
        if descriptors:
            sent = socket.send_fds(self._control, [line], list(descriptors))
            line = line[sent:]
        self._control.sendall(line)

    def close(self) -> None:
        """Ends the helper process, and discards its unread messages."""
        self.mailbox.close()
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_WITHIN_S)


def _started(control: int, environment: Mapping[str, str]) -> Popen[bytes]:
    protect_this_process()
    return start_process(
        own_python(_PROGRAM, str(control), str(os.getpid())),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        pass_fds=[control],
        start_new_session=True,
    )


def _read(control: socket.socket, mailbox: Mailbox) -> None:
    lines = Lines()
    with control, suppress(OSError):
        control.settimeout(None)
        while chunk := control.recv(_CHUNK_BYTES):
            for line in lines.feed(chunk):
                mailbox.put(news_of(line))
    mailbox.put(HELPER_GONE)


# --- An MCP server as a command
# Runs an MCP server with the stdio transport as a supervised command. So the server and its child processes end when
# ralph ends. The code runs on the main thread.

# A server is told to end by the end of its input and by SIGTERM at once.
_GRACE_S = 1.0
# Time beyond the grace, for the launcher to kill what ignored SIGTERM.
_MARGIN_S = 1.0
_KILL_S = 1.0
_KILL_AGAIN_EVERY_S = 0.01


class ServerProcess:
    """A running MCP server. Each server has its own supervisor, because a supervisor runs only one command at a time."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        supervisor: CommandSupervisor,
        cwd: Path,
        environment: Mapping[str, str],
        waiter: Waiter,
    ) -> None:
        """Starts the server. `supervisor` must not be running a command. The method `close` will close `supervisor`. If the
        start fails, this happens at once. Raises ShortageError, ValueError or OSError.
        """
        self._supervisor = supervisor
        self.ended = waiter.mailbox()
        """Receives an item when the server has ended."""
        theirs_in, self._stdin = os.pipe()
        self._stderr, theirs_error = os.pipe()
        try:
            self.command = self._started(command, cwd, environment, theirs_in, theirs_error)
        except BaseException:
            os.close(self._stdin)
            os.close(self._stderr)
            self._supervisor.close()
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_error)

    def _started(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], stdin: int, stderr: int
    ) -> SupervisedCommand:
        started = self._supervisor.start(
            command, cwd=cwd, environment=environment, grace_s=_GRACE_S, input_from=stdin, errors_to=stderr
        )
        try:
            start_thread(lambda: self.ended.put(started.wait_for_end()), name="MCP server end")
        except ShortageError:
            started.kill_what_is_left()
            started.wait_for_end()
            started.close()
            raise
        return started

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """Ralph's ends of the server's standard input, output and error. They are valid until `hand_over` is called."""
        return self._stdin, self.command.output_descriptor, self._stderr

    def hand_over(self) -> None:
        """Closes ralph's descriptors. Must be called when another process has received copies of them. When that
        process closes its copies, the server sees the end of its input.
        """
        os.close(self._stdin)
        os.close(self._stderr)

    def close(self) -> None:
        """Releases what the server needed. The server must have ended."""
        self.ended.close()
        self.command.close()
        self._supervisor.close()


def end_servers(processes: Sequence[ServerProcess], waiter: Waiter, clock: Clock) -> None:
    """Asks servers to end, waits briefly for all of them together, and then kills the processes that remain. The
    caller must call `hand_over` of each server first.
    """
    for process in processes:
        process.command.ask_to_stop()
    until_s = clock.now_s() + min(_GRACE_S + _MARGIN_S, waiter.stop_left_s())
    with suppress(Interrupted):  # a second signal: what is left is killed at once
        for process in processes:
            waiter.wait(process.ended, until_s=until_s, waiting_for="an MCP server to stop")
    left, deadline_s = list(processes), clock.now_s() + _KILL_S
    while left := [process for process in left if not process.command.kill_what_is_left()]:
        if clock.now_s() >= deadline_s:
            break
        with suppress(Interrupted):
            again_s = clock.now_s() + _KILL_AGAIN_EVERY_S
            waiter.wait(left[0].ended, until_s=again_s, waiting_for="an MCP server to stop")
    for process in processes:
        process.close()
