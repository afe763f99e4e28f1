"""Fixtures for iterations: a directory in which they run, and a scripted server for them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ralph.machine.processes import protect_this_process
from tests.loop.iteration_processes import Iterating
from tests.loop.one_supervisor import SUPERVISOR, end_commands
from tests.processes.children import children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def iterating(tmp_path: Path) -> Iterating:
    return Iterating(tmp_path)


@pytest.fixture
def tell_base_url(iterating: Iterating) -> Callable[[str], None]:
    return lambda url: iterating.environment.update(ANTHROPIC_BASE_URL=url)


@pytest.fixture(scope="session", autouse=True)
def _one_supervisor() -> Iterator[None]:
    yield
    SUPERVISOR.close()


@pytest.fixture(autouse=True)
def _reaped() -> Iterator[None]:
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
