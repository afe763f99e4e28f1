"""Rewrites the HTML page of a running loop. The page is made by a `ralph report` process, so that the loop itself never
loads what the page needs, and no fault of the page can end the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

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


class LoopPage(Struct, frozen=True):
    """Implements the `Page` port."""

    file: str
    """The absolute path of the page."""
    directory: Path
    loop: str
    """The name of the folder of the loop."""
    environment: Mapping[str, str]
    """The user's whole environment: `ralph report` must know the credentials that it removes."""
    supervisor: CommandSupervisor
    waiter: Waiter
    clock: Clock
    limit_s: float = _LIMIT_S

    def write(self) -> str | None:
        told = EndOfOutput()
        arguments = ["report", self.loop, "-o", self.file, "--cd", str(self.directory)]
        call = f"main({core_limit_at_start()})"
        try:
            process = self.supervisor.start(
                own_python(f"from ralph.__main__ import main; {call}", *arguments),
                cwd=self.directory,
                environment=self.environment,
                grace_s=_GRACE_S,
                is_confined=False,
            )
            running = RunningCommand(process, told, waiter=self.waiter, clock=self.clock)
            ending = running.run(self.limit_s, "the page")
        except OSError as error:
            return str(error)
        why = told.why_failed(ending, self.limit_s, "ralph report")
        return why and why.removeprefix("ralph: ")
