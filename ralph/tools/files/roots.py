"""The roots, which are the directories where file tools may write. Each root is kept open during the run, so that the
system cannot reuse its inode number. A directory that replaces a root at the same path is therefore recognised.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.repository import HELD_DIRECTORY
from ralph.values.answer import ToolError
from ralph.values.ports import WorkingDirectoryGoneError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Root(Struct, frozen=True):
    named: Path
    path: Path
    descriptor: int

    def is_in_place(self) -> bool:
        """Whether the path still leads to the opened directory. True also if an error of the file system leaves this
        open.
        """
        try:
            there = self.named.stat()
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
        return os.path.samestat(there, os.fstat(self.descriptor))


class Roots:
    """All roots of a run. The working directory is the first."""

    def __init__(self, cwd: Path, added: Sequence[Path]) -> None:
        """Opens the roots. Raises WorkingDirectoryGoneError if the working directory is gone, and OSError if another
        root cannot be opened.
        """
        self._roots: list[Root] = []
        self._temporary: Root | None = None
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
        """The paths of the roots, with links resolved."""
        return [str(root.path) for root in self._roots]

    @property
    def working_directory(self) -> int:
        """The descriptor of the working directory, which stays open during the run."""
        return self._roots[0].descriptor

    def check_working_directory(self) -> None:
        """Raises WorkingDirectoryGoneError if the working directory was removed or replaced."""
        if not self._roots[0].is_in_place():
            raise WorkingDirectoryGoneError(self._roots[0].named)

    def root_of(self, target: Path, shown: str) -> Root:
        """The innermost root that contains the path `target`, which must have no links. Raises ToolError if no root
        contains the path, or if the root was removed or replaced.
        """
        roots = self._roots if self._temporary is None else [*self._roots, self._temporary]
        above = [root for root in roots if root.path in target.parents]
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

    def add_temporary(self, directory: str) -> None:
        """Opens the directory that commands use for temporary files, and adds it to the roots. Raises OSError."""
        if self._temporary is None:
            self._temporary = _held(Path(directory))

    def close(self) -> None:
        while self._roots:
            os.close(self._roots.pop().descriptor)
        if self._temporary is not None:
            os.close(self._temporary.descriptor)


def _held(directory: Path) -> Root:
    real = Path(os.path.realpath(directory))
    return Root(directory, real, os.open(real, HELD_DIRECTORY))
