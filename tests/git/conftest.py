from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.git.repositories import committed
from tests.processes.one_supervisor import one_supervisor, reaped  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from pathlib import Path

    from tests.git.repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return committed(tmp_path / "work", tmp_path / "home")


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    made = tmp_path / "marks"
    made.mkdir()
    return made
