"""Fixtures for iterations: a directory in which they run, and a scripted server for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.git.conftest import repository  # noqa: F401 - a fixture
from tests.loop.iteration_processes import Iterating
from tests.processes.one_supervisor import one_supervisor, reaped  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def iterating(tmp_path: Path) -> Iterating:
    return Iterating(tmp_path)


@pytest.fixture
def tell_base_url(iterating: Iterating) -> Callable[[str], None]:
    return lambda url: iterating.environment.update(ANTHROPIC_BASE_URL=url)
