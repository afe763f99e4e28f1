"""The file by which the model says that nothing is left to do. Refuses to care what is in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph.core.loop_values import STOP_FILE

if TYPE_CHECKING:
    from pathlib import Path


class StopFileBelow:
    """The stop file of the loop's directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / STOP_FILE

    def is_there(self) -> bool:
        """Of whatever kind: a link that leads nowhere was put there as well."""
        return os.path.lexists(self.path)

    def remove(self) -> None:
        """One that an earlier loop ended by must not end this one. Raises OSError."""
        self.path.unlink(missing_ok=True)
