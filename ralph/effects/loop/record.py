"""`.ralph/loop.json`: the state of a loop, for `--continue`, and for `--status` from another terminal.

It refuses to guess: a record that cannot be read whole is an error that says what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.core.loop_state import BrokenSealError, NewerStateError, read_state, state_text
from ralph.core.loop_values import OWN_DIRECTORY
from ralph.core.outcome import Outcome
from ralph.effects.atomic_write import remove_leftovers
from ralph.effects.loop.regular_file import read_regular_file
from ralph.effects.loop.state_directory import write_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.core.loop_state import LoopState

RECORD_FILE = "loop.json"
# A record of thousands of iterations has a few megabytes.
_MOST_BYTES = 64 * 1024 * 1024


class RecordError(Exception):
    """One line, and how a command ends that needs the record."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class FileRecord:
    def __init__(self, directory: Path, seal: Callable[[bytes], str] | None = None) -> None:
        """`seal`: needed to save, and to load what will be followed; None: it is only looked at."""
        self.path = directory / OWN_DIRECTORY / RECORD_FILE
        self._directory = directory
        self._seal = seal
        self._has_saved = False

    def save(self, state: LoopState) -> None:
        """Whole or not at all. Raises OSError."""
        assert self._seal is not None  # noqa: S101 - who saves has one
        if not self._has_saved:
            remove_leftovers(self.path.parent)
        write_private(self._directory, RECORD_FILE, state_text(state, self._seal).encode())
        self._has_saved = True

    def load(self) -> LoopState:
        """Raises RecordError: there is none (usage), it is not to be followed (config), or damaged (io_error)."""
        try:
            return read_state(self._text(), self._seal)
        except FileNotFoundError:
            none = f"there is no loop in {self._directory} ({OWN_DIRECTORY}/{RECORD_FILE} is missing)"
            raise RecordError(Outcome.USAGE, none) from None
        except OSError as error:
            said = error.strerror or type(error).__name__
            raise RecordError(Outcome.IO_ERROR, f"cannot read {self.path}: {said}") from error
        except (NewerStateError, BrokenSealError) as error:
            raise RecordError(Outcome.CONFIG, f"{self.path} {error}; ralph loop begins a new loop") from error
        except RecursionError:
            raise RecordError(Outcome.IO_ERROR, f"{self.path} is damaged: nested too deep") from None
        except ValueError as error:
            raise RecordError(Outcome.IO_ERROR, f"{self.path} {error}") from error

    def _text(self) -> str:
        """Raises OSError, and ValueError like `read_state`."""
        try:
            return read_regular_file(self.path, _MOST_BYTES).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"is damaged: it is no UTF-8 ({error.reason})") from None
