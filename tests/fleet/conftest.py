"""A real Postgres for the tests that ask for it: one server for each process of tests, one database for each test."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.processes.one_supervisor import one_supervisor  # noqa: F401 - a fixture
from tests.services.outside_programs import NotInstalledError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services.postgres import PostgresServer


@pytest.fixture(scope="session")
def _server() -> Iterator[PostgresServer]:
    from tests.services.postgres import PostgresServer

    try:
        server = PostgresServer()
    except NotInstalledError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"a program of npm or PyPI cannot be installed: {error}")
    with server:
        yield server


@pytest.fixture
def postgres(_server: PostgresServer) -> Iterator[PostgresServer]:
    """The server, which a test may stop."""
    yield _server
    _server.start()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a new database."""
    with postgres.database() as url:
        yield url
