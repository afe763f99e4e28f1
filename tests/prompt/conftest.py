"""A repository and a user's own folder, in which tests write the files that prompts are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "outside" / "root"
    (root / ".git").mkdir(parents=True)
    (root / "sub").mkdir()
    (root.parent / "CLAUDE.md").write_text("not ours")
    return root


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder `.claude` in a home directory outside the repository."""
    folder = tmp_path / "home" / ".claude"
    folder.mkdir(parents=True)
    return folder
