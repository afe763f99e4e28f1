"""The directory for long outputs as a whole, which the model reads in parts. Gone when the run ends."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

# A long-lived run keeps this many long outputs; older files go.
_KEPT_FILES = 10


class SpillDirectory:
    """The directory for long outputs of this run: 0700, made when first needed, removed with `remove()`."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._files: deque[Path] = deque()

    @property
    def path(self) -> Path | None:
        """The directory; None: nothing was kept yet."""
        return self._path

    def new_file(self) -> tuple[int, Path]:
        """A new file: an open descriptor and its path. Raises OSError."""
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
