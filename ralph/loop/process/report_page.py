"""Rewrites the HTML page of a running loop. The page is made by a `ralph report` process, so that the loop itself never
loads what the page needs, and no fault of the page can end the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.machine.output_capture import readable_text
from ralph.machine.own_process import core_limit_at_start
from ralph.machine.own_programs import own_python
from ralph.machine.running_command import Ended, MemoryCapture, RunningCommand

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ralph.machine.command_supervisor import CommandSupervisor
    from ralph.values.ports import Clock, Waiter

_LIMIT_S = 60.0
"""A page of 100 MB of journals takes a few seconds, and git may take 20 seconds for each question."""
_GRACE_S = 2.0
_MOST_OUTPUT_BYTES = 64 * 1024


class LoopPage:
    """Implements the `Page` port."""

    def __init__(
        self,
        file: str,
        *,
        directory: Path,
        loop: str,
        environment: Mapping[str, str],
        supervisor: CommandSupervisor,
        waiter: Waiter,
        clock: Clock,
        limit_s: float = _LIMIT_S,
    ) -> None:
        """`file` is the absolute path of the page, and `loop` is the name of the folder of the loop. `environment` is
        the user's whole environment: `ralph report` must know the credentials that it removes.
        """
        self._file = file
        self._directory = directory
        self._loop = loop
        self._environment = environment
        self._supervisor = supervisor
        self._waiter = waiter
        self._clock = clock
        self._limit_s = limit_s

    def write(self) -> str | None:
        told = _PageWords(_MOST_OUTPUT_BYTES)
        arguments = ["report", self._loop, "-o", self._file, "--cd", str(self._directory)]
        call = f"main({core_limit_at_start()})"
        try:
            process = self._supervisor.start(
                own_python(f"from ralph.__main__ import main; {call}", *arguments),
                cwd=self._directory,
                environment=self._environment,
                grace_s=_GRACE_S,
                is_confined=False,
            )
            running = RunningCommand(process, told, waiter=self._waiter, clock=self._clock)
            ending = running.run(self._limit_s, "the page")
        except OSError as error:
            return str(error)
        if ending.how is Ended.TIMED_OUT:
            return f"it took longer than {self._limit_s:g} s and was stopped"
        if ending.how is not Ended.BY_ITSELF or ending.status:
            return told.last_line() or f"ralph report ended with {ending.status}"
        return None


class _PageWords(MemoryCapture):
    """A `Capture` that keeps the beginning of the output."""

    def feed(self, chunk: bytes) -> bool:
        self.data += chunk[: _MOST_OUTPUT_BYTES - len(self.data)]
        return True

    def last_line(self) -> str:
        lines = [line for line in readable_text(bytes(self.data))[0].splitlines() if line.strip()]
        return lines[-1].removeprefix("ralph: ") if lines else ""
