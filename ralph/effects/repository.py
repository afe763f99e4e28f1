"""Where a repository begins, told by its `.git` alone: git itself is not asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def repository_top(directory: Path) -> Path | None:
    """The nearest directory at or above this one with `.git` in it, links resolved. None: there is no repository."""
    directory = directory.resolve()
    for above in (directory, *directory.parents):
        if os.path.exists(above / ".git"):  # noqa: PTH110 - Path.exists raises where it may not look
            return above
    return None
