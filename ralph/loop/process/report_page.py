"""Rewrites the HTML page of a running loop. The page is made by a `ralph report` process, so that the loop itself never
loads what the page needs, and no fault of the page can end the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.machine.own_process import core_limit_at_start
from ralph.machine.own_programs import own_python
from ralph.machine.running_command import RunningCommand
from ralph.output.notifier import EndOfOutput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ralph.machine.command_supervisor import CommandSupervisor
    from ralph.values.ports import Clock, Waiter

_LIMIT_S = 60.0
"""A page of 100 MB of journals takes a few seconds, and git may take 20 seconds for each question."""
_GRACE_S = 2.0


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
        told = EndOfOutput()
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
        why = told.why_failed(ending, self._limit_s, "ralph report")
        return why and why.removeprefix("ralph: ")
