from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.loop.git.repositories import committed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.loop.git.repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return committed(tmp_path / "work", tmp_path / "home")
