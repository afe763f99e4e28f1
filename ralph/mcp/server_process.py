"""Runs an MCP server with the stdio transport as a supervised command. So the server and its child processes end when
ralph ends. The code runs on the main thread.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.machine.starting import start_thread
from ralph.values.ports import Interrupted
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ralph.machine.command_supervisor import CommandSupervisor, SupervisedCommand
    from ralph.values.ports import Clock, Waiter

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
            command,
            cwd=cwd,
            environment=environment,
            grace_s=_GRACE_S,
            input_from=stdin,
            errors_to=stderr,
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
    """Asks servers to end, waits briefly for all of them together, and then kills the processes that remain. The caller
    must call `hand_over` of each server first.
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
