"""Fixtures for iterations: a directory in which they run, and a scripted server for them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ralph.machine.processes import protect_this_process
from ralph.mock_api import MockApi, Scenario
from tests.loop.iteration_processes import Iterating
from tests.loop.one_supervisor import SUPERVISOR, end_commands
from tests.processes.children import children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.mock_api import Playable


@pytest.fixture
def iterating(tmp_path: Path) -> Iterating:
    return Iterating(tmp_path)


@pytest.fixture
def serve(iterating: Iterating) -> Iterator[Callable[..., MockApi]]:
    """Starts a server with these steps, to which `ralph run` then sends its requests."""
    servers: list[MockApi] = []

    def start(*steps: Playable) -> MockApi:
        server = MockApi(Scenario(steps)).start()
        servers.append(server)
        iterating.environment["ANTHROPIC_BASE_URL"] = server.base_url
        return server

    yield start
    for server in servers:
        server.close()


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
