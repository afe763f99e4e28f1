"""`loop.json` in a loop's folder: its state, for `--continue`, and for `--status` from another terminal.

It refuses to guess: a record that cannot be read whole is an error that names the fault.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.loop.state import NewerStateError, read_state, state_text
from ralph.machine.atomic_write import HELD_DIRECTORY, remove_leftovers, replace_at
from ralph.machine.opened_file import read_regular_file
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.loop.state import LoopState

RECORD_FILE = "loop.json"
PINS_FILE = "git.json"
"""The text of `GitCheckout.pins_text` when the loop began."""
# A record of thousands of iterations has a few megabytes.
_MOST_BYTES = 64 * 1024 * 1024
_PRIVATE = 0o600


class RecordError(Exception):
    """A record that cannot be read, in one line. `outcome`: the outcome of a command that needs the record."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class FileRecord:
    def __init__(self, folder: Path) -> None:
        """`folder`: the folder of this loop, which takes the record."""
        self.folder = folder
        self.path = folder / RECORD_FILE
        self._has_saved = False

    def save(self, state: LoopState) -> None:
        """Saves the state, whole or not at all. Raises OSError."""
        if not self._has_saved:
            remove_leftovers(self.folder)
        write_private(self.folder, RECORD_FILE, state_text(state).encode())
        self._has_saved = True

    def load(self) -> LoopState:
        """The saved state. Raises RecordError if a newer ralph wrote it (config), or if it is damaged (io_error)."""
        try:
            return read_state(self._text())
        except OSError as error:
            said = error.strerror or type(error).__name__
            raise RecordError(Outcome.IO_ERROR, f"cannot read {self.path}: {said}") from error
        except NewerStateError as error:
            raise RecordError(Outcome.CONFIG, f"{self.path} {error}; ralph loop begins a new loop") from error
        except RecursionError:
            raise RecordError(Outcome.IO_ERROR, f"{self.path} is damaged: nested too deep") from None
        except ValueError as error:
            raise RecordError(Outcome.IO_ERROR, f"{self.path} {error}") from error

    def save_pins(self, text: str) -> None:
        """Saves the pins of git. Raises OSError."""
        write_private(self.folder, PINS_FILE, text.encode())

    def pins(self) -> str | None:
        """The pinned settings; None: the loop has none. Raises RecordError."""
        path = self.folder / PINS_FILE
        try:
            return read_regular_file(path, _MOST_BYTES).decode()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RecordError(Outcome.IO_ERROR, f"cannot read {path}: {error}") from error

    def _text(self) -> str:
        """The record's text. Raises OSError, and ValueError like `read_state`."""
        try:
            return read_regular_file(self.path, _MOST_BYTES).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"is damaged: it is no UTF-8 ({error.reason})") from None


def write_private(folder: Path, name: str, data: bytes) -> Path:
    """Writes a file whole or not at all, for the user alone.

    Makes the folder again if somebody removed it. Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    try:
        held = os.open(folder, HELD_DIRECTORY)
        try:
            replace_at(held, name, data, None, new_mode=_PRIVATE)
        finally:
            os.close(held)
    except OSError as error:  # a call relative to a held directory fails without saying where
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def new_file(folder: Path, name: str) -> int:
    """An open descriptor of a new, empty file for the user alone.

    It replaces whatever had that name. Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    with suppress(FileNotFoundError):
        path.unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
