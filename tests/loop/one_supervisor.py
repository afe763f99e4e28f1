"""The supervisor for all tests of the outer loop. Starting one takes more CPU time than most of these tests."""

from __future__ import annotations

import os

from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.launcher import children_of

SUPERVISOR = CommandSupervisor({"PATH": os.environ["PATH"]}, most_processes=0)


def end_commands() -> None:
    """Kills the supervisor if its launcher still has processes of a command. The next command starts another one."""
    if SUPERVISOR.pid is not None and any(map(children_of, children_of(SUPERVISOR.pid))):
        SUPERVISOR.kill()
