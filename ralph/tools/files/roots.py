"""The directories in which file tools may write, each held open for the whole run.

A held inode cannot be given to another directory: so a directory that was moved, or removed and made again, is
not taken for the original one.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.atomic_write import HELD_DIRECTORY
from ralph.values.error_text import ToolError
from ralph.values.ports import WorkingDirectoryGoneError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Root(Struct, frozen=True):
    named: Path
    path: Path
    """The path when the run began, links followed."""
    descriptor: int

    def is_in_place(self) -> bool:
        """Whether the path still leads to the held directory. A disk that does not answer counts as in place."""
        try:
            there = self.named.stat()
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
        return os.path.samestat(there, os.fstat(self.descriptor))


class Roots:
    """All roots, the working directory first."""

    def __init__(self, cwd: Path, added: Sequence[Path]) -> None:
        """Open them. Raises WorkingDirectoryGoneError, and OSError for one of the others."""
        self._roots: list[Root] = []
        try:
            self._roots.append(_held(cwd))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise WorkingDirectoryGoneError(cwd) from error
        try:
            self._roots += map(_held, added)
        except OSError:
            self.close()
            raise

    @property
    def paths(self) -> list[str]:
        """The paths of the roots, links followed."""
        return [str(root.path) for root in self._roots]

    def check_working_directory(self) -> None:
        """Raises WorkingDirectoryGoneError."""
        if not self._roots[0].is_in_place():
            raise WorkingDirectoryGoneError(self._roots[0].named)

    def root_of(self, target: Path, shown: str) -> Root:
        """The innermost root above `target`, whose links have been followed. Raises ToolError where there is none."""
        above = [root for root in self._roots if root.path in target.parents]
        if not above:
            allowed = ", ".join(self.paths)
            where = shown if shown == str(target) else f"{shown} (really {target})"
            raise ToolError(
                f"{where} is outside the directories that this run may write to: {allowed}. It can be read. "
                "Who starts ralph can allow more with --add-dir"
            )
        root = max(above, key=lambda root: len(root.path.parts))
        if not root.is_in_place():
            raise ToolError(f"the directory {root.named} is gone, or is another one now; nothing was written")
        return root

    def close(self) -> None:
        while self._roots:
            os.close(self._roots.pop().descriptor)


def _held(directory: Path) -> Root:
    real = Path(os.path.realpath(directory))
    return Root(directory, real, os.open(real, HELD_DIRECTORY))
