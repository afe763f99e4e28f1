"""The limits on the processes and the memory of a command and its child processes. Also makes the message if a limit
was exceeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.sandbox.sandbox_settings import SandboxSettings

if TYPE_CHECKING:
    from ralph.machine.running_command import Ended

DEFAULT_PROCESSES = SandboxSettings().max_processes
_MEBIBYTE = 1024 * 1024
# The greatest number that fits everywhere where a size is kept in 64 bits with a sign.
_MOST_BYTES = 2**62


class TreeLimits(Struct, frozen=True):
    """The limits on the commands of one run or loop, including all processes that they start."""

    most_processes: int = DEFAULT_PROCESSES
    """The maximum number of processes and threads that commands have at a time. 0 means no limit."""
    most_memory_mb: int | None = None
    """The maximum memory of commands in megabytes, or None if there is no limit."""

    @property
    def most_memory_bytes(self) -> int:
        """The maximum memory of commands in bytes. 0 means no limit."""
        return min((self.most_memory_mb or 0) * _MEBIBYTE, _MOST_BYTES)

    def why_stopped(self, how: Ended) -> str | None:
        """A text that says which limit a stopped command exceeded and which setting contains the limit. None if the
        command ended for another reason.
        """
        from ralph.machine.running_command import Ended  # noqa: PLC0415 - the start of a run needs no commands

        if how is Ended.TOO_MANY_PROCESSES:
            return f"it had more than {self.most_processes} processes and threads (sandbox.max_processes)"
        if how is Ended.TOO_MUCH_MEMORY:
            return (
                f"the command's processes used more than {self.most_memory_mb} MB, files in /dev/shm included "
                "(sandbox.max_memory_mb)"
            )
        return None


def tree_limits(wanted: SandboxSettings) -> TreeLimits:
    return TreeLimits(wanted.max_processes, wanted.max_memory_mb)
