"""The file by which the model says that nothing is left to do. Refuses to care what is in it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.core.loop_values import STOP_FILE
from ralph.effects.loop.state_directory import state_directory

if TYPE_CHECKING:
    from pathlib import Path


class StopFileBelow:
    """The stop file of the loop's directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path = directory / STOP_FILE

    def is_there(self) -> bool:
        """Of whatever kind: a link that leads nowhere was put there as well."""
        return os.path.lexists(self.path)

    def remove(self) -> None:
        """One that an earlier loop ended by must not end this one. Follows no link. Raises OSError."""
        with state_directory(self._directory) as held, suppress(FileNotFoundError):
            os.unlink(self.path.name, dir_fd=held)
