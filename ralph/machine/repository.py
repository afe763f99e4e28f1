"""Finds the top of a repository by its `.git` alone: git itself is not asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def repository_top(directory: Path) -> Path | None:
    """The nearest directory at or above this one with `.git` in it, links resolved. None: there is no repository."""
    directory = directory.resolve()
    for above in (directory, *directory.parents):
        # A link that leads nowhere counts too: git will report what is wrong with it.
        if os.path.lexists(above / ".git"):
            return above
    return None


def up_to_repository_root(cwd: Path) -> Sequence[Path]:
    """The directories from the working directory up to the repository's top; outside of one the working directory
    alone, as what lies above is not this project's.
    """
    directories = [cwd, *cwd.parents]
    for index, directory in enumerate(directories):
        if os.path.exists(directory / ".git"):  # noqa: PTH110 - Path.exists raises where it may not look
            return directories[: index + 1]
    return [cwd]
