"""The directory for files with the complete output of commands whose output is too long for an answer."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

# A run keeps this many files with long outputs. Older files are removed.
_KEPT_FILES = 10


class SpillDirectory:
    """The directory for files with the complete output of commands, so that the model can read parts of a long
    output. Only the user can access it. It is made when it is first needed, and `remove()` removes it.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._files: deque[Path] = deque()

    @property
    def path(self) -> Path | None:
        """The directory, or None if it has not been made yet."""
        return self._path

    def new_file(self) -> tuple[int, Path]:
        """Makes a new file and returns its open descriptor and its path. Removes the oldest file if there are too
        many. Raises OSError.
        """
        if self._path is None or not self._path.is_dir():  # a command may have cleared the place
            import tempfile  # noqa: PLC0415 - most runs never need it

            self._path = Path(tempfile.mkdtemp(prefix="ralph-"))
            self._files.clear()
        if len(self._files) >= _KEPT_FILES:
            self._files.popleft().unlink(missing_ok=True)
        path = self._path / f"output-{os.urandom(4).hex()}.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._files.append(path)
        return descriptor, path

    def remove(self) -> None:
        if self._path is not None:
            import shutil  # noqa: PLC0415

            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None
            self._files.clear()
