"""The supervisor for all tests of the outer loop and of git. Starting one takes more CPU time than most of these tests.
A `conftest.py` imports the fixtures.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.launcher import children_of
from ralph.machine.starting import protect_this_process
from tests.processes.children import children

if TYPE_CHECKING:
    from collections.abc import Iterator

SUPERVISOR = CommandSupervisor({"PATH": os.environ["PATH"]}, most_processes=0)


def end_commands() -> None:
    """Kills the supervisor if its launcher still has processes of a command. The next command starts another one."""
    if SUPERVISOR.pid is not None and any(map(children_of, children_of(SUPERVISOR.pid))):
        SUPERVISOR.kill()


@pytest.fixture(scope="session", autouse=True)
def one_supervisor() -> Iterator[None]:
    yield
    SUPERVISOR.close()


@pytest.fixture(autouse=True)
def reaped() -> Iterator[None]:
    """Kills and reaps the processes that a test has left behind, except the supervisor. This process adopts them if
    their parent has ended.
    """
    protect_this_process()
    before = children()
    yield
    end_commands()
    for process_id in children() - before - {SUPERVISOR.pid}:
        with suppress(ChildProcessError):
            os.kill(process_id, signal.SIGKILL)
            os.waitpid(process_id, 0)
