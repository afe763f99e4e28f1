"""Finds the folder of a loop, and reads and writes the record of its state there. Ended iterations are appended to a
file of their own, one line each. `loop.json` has everything else, and the size of the lines that belong to it: lines
that a killed process appended and did not count are ignored.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.git.look import OWN_DIRECTORY
from ralph.loop.state import FORMAT, NewerStateError, iteration_line, read_iterations, read_state, state_text
from ralph.machine.files.opened_file import opened, read_regular_file, remove_leftovers, replace_at
from ralph.machine.files.paths import HELD_DIRECTORY
from ralph.machine.files.trees import remove_tree_if_possible
from ralph.machine.own_programs import search_around
from ralph.sessions.places import directory_name, written_at
from ralph.sessions.store import SessionStore, make_private
from ralph.values.outcome import CannotError, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ralph.loop.state import IterationRecord, LoopState

RECORD_FILE = "loop.json"
ITERATIONS_FILE = "iterations.jsonl"
PINS_FILE = "git.json"
"""The file with the result of `GitCheckout.pins_text` from the beginning of the loop."""
# The lines of thousands of iterations have a few megabytes.
_MOST_BYTES = 64 * 1024 * 1024
_MOST_TAIL_BYTES = 64 * 1024
_PRIVATE = 0o600


class RecordError(CannotError):
    """A record cannot be read. A command that needs the record ends with `outcome`."""


class FileRecord:
    def __init__(self, folder: Path) -> None:
        """`folder` is the loop's folder, which contains the record."""
        self.folder = folder
        self.path = folder / RECORD_FILE
        self._iterations_path = folder / ITERATIONS_FILE
        self._has_saved = False
        self._appended: tuple[IterationRecord, ...] = ()
        """The iterations whose lines are in the first `_size` bytes of their file."""
        self._size = 0

    def save(self, state: LoopState) -> None:
        """Saves the state atomically. Raises OSError."""
        if not self._has_saved:
            remove_leftovers(self.folder)
            with suppress(RecordError):
                self.load()  # the lines of an earlier process stay
        self._append(state.iterations)
        changing = replace(state, iterations=(), iterations_bytes=self._size, format=FORMAT)
        write_private(self.folder, RECORD_FILE, state_text(changing).encode())
        self._has_saved = True

    def _append(self, iterations: tuple[IterationRecord, ...]) -> None:
        """Appends the lines of new iterations. Only the last one that is there may have changed since."""
        if self._size and _size_of(self._iterations_path) < self._size:  # somebody removed it
            self._appended, self._size = (), 0
        kept = len(self._appended)
        kept -= bool(kept) and iterations[kept - 1] != self._appended[-1]
        if kept == len(iterations):
            return
        lines = b"".join(map(iteration_line, iterations[kept:]))
        append_private(self.folder, ITERATIONS_FILE, lines, self._size)
        self._appended, self._size = iterations, self._size + len(lines)

    def load(self) -> LoopState:
        """Raises RecordError, with the outcome `config` if a newer ralph wrote the record, and `io_error` if it is damaged."""
        path = self.path
        try:
            state = read_state(self._text())
            if state.iterations_bytes is None:  # an older ralph's
                return replace(state, format=FORMAT)
            path = self._iterations_path
            iterations = read_iterations(self._lines(state.iterations_bytes))
            self._appended, self._size = iterations, state.iterations_bytes
            return replace(state, iterations=iterations, iterations_bytes=None)
        except OSError as error:
            said = error.strerror or type(error).__name__
            raise RecordError(f"cannot read {path}: {said}", Outcome.IO_ERROR) from error
        except NewerStateError as error:
            raise RecordError(f"{self.path} {error}; `ralph loop` starts a new loop") from error
        except RecursionError:
            raise RecordError(f"{path} is damaged: nested too deep", Outcome.IO_ERROR) from None
        except ValueError as error:
            raise RecordError(f"{path} {error}", Outcome.IO_ERROR) from error

    def keep_check(self, iteration: int, tail: str) -> None:
        """Keeps the end of a check's output in a file of its own, because each `save` writes the whole record, or not at all."""
        with suppress(OSError):
            write_private(self.folder, _check_file(iteration), tail.encode("utf-8", "replace"))

    def check_tail(self, iteration: int) -> str:
        """The output that `keep_check` kept, or nothing."""
        with suppress(OSError):
            return read_regular_file(self.folder / _check_file(iteration), _MOST_TAIL_BYTES).decode(
                "utf-8", "replace"
            )
        return ""

    def save_pins(self, text: str) -> None:
        """Raises OSError."""
        write_private(self.folder, PINS_FILE, text.encode())

    def pins(self) -> str | None:
        """The text that `save_pins` saved, or None. Raises RecordError."""
        path = self.folder / PINS_FILE
        try:
            return read_regular_file(path, _MOST_BYTES).decode()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RecordError(f"cannot read {path}: {error}", Outcome.IO_ERROR) from error

    def _lines(self, size: int) -> bytes:
        lines = read_regular_file(self._iterations_path, _MOST_BYTES)[:size] if size else b""
        if len(lines) < size:
            raise ValueError(f"is damaged: it has {len(lines):,} bytes, and {RECORD_FILE} counts {size:,}")
        return lines

    def _text(self) -> str:
        try:
            return read_regular_file(self.path, _MOST_BYTES).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"is damaged: it is not UTF-8 ({error.reason})") from None


def _check_file(iteration: int) -> str:
    return f"check-{iteration:04d}.txt"


def write_private(folder: Path, name: str, data: bytes) -> Path:
    """Writes a file that only the user can read, atomically. Makes the folder if it is missing. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    try:
        with opened(folder, HELD_DIRECTORY) as held:
            replace_at(held, name, data, None, new_mode=_PRIVATE)
    except OSError as error:  # the error of a call with `dir_fd` does not name the directory
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def append_private(folder: Path, name: str, data: bytes, size: int) -> None:
    """As `write_private`, but writes and syncs behind the first `size` bytes of the file, and removes what was there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    if not size:
        with suppress(FileNotFoundError):
            path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, _PRIVATE), "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _size_of(path: Path) -> int:
    with suppress(OSError):
        status = os.lstat(path)
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return 0


def new_file(folder: Path, name: str) -> int:
    """Creates an empty file that only the user can read, instead of another of this name. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    with suppress(FileNotFoundError):
        path.unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)


# --- The folder of a loop
# Finds the folder of a loop, with its record, prompt and logs: one for each loop, in one for each directory in which
# loops work. All are in the user's state directory, beside the sessions, and not in the checkout. So `--continue`
# uses no file that came with a repository or that an agent wrote. A new loop removes only folders that are old and
# not among the last ones.

LOOPS = "loops"
ALWAYS_KEPT = 20
"""This many of the last loops of a directory are never removed."""
KEPT_DAYS = 30
"""Earlier loops are removed this long after they were last written. One check log may take 50 MB."""


class LoopStore:
    """The recorded loops of one directory."""

    def __init__(self, sessions: SessionStore, directory: Path, reach: Sequence[str] = ()) -> None:
        """`reach` is where commands may write besides `directory`."""
        self.roots = sessions.beside(LOOPS)
        """Folders with the loops of all directories. New loops are stored in the first one."""
        self.notice = None
        """A sentence for the user that says why the usual place is not used, if so."""
        if sessions.notice is not None:
            self.notice = sessions.notice.replace("sessions are", "the loop's record and its sessions are", 1)
        self._directory = directory.resolve()
        self._writable: tuple[Path | str, ...] = (self._directory, *reach)
        self._places = [root / directory_name(self._directory) for root in self.roots]

    @classmethod
    def for_user(
        cls,
        environment: Mapping[str, str],
        directory: Path,
        reach: Sequence[str] = (),
        *,
        is_old: bool = False,
    ) -> LoopStore:
        """Finds the user's store and makes its folder if it is missing. Raises as `SessionStore.for_user` does, also of a loop that
        `is_old`.
        """
        writable: tuple[Path | str, ...] = (directory, *reach)
        roots = search_around(environment, writable).roots
        sessions = SessionStore.for_user(environment, writable=writable, roots=roots, is_old=is_old)
        store = cls(sessions, directory, reach)
        make_private(store.place, store._writable)
        return store

    @classmethod
    def to_read(cls, environment: Mapping[str, str], directory: Path) -> LoopStore:
        """As `for_user`, but makes no folder."""
        return cls(SessionStore.to_read(environment), directory)

    @property
    def place(self) -> Path:
        """The folder for the loops that work in this store's directory."""
        return self._places[0]

    def begin(self) -> FileRecord:
        """Makes the folder of a new loop, and removes old ones. The record is not on disk until its first `save`. The caller
        must hold the checkout's lock. Raises OSError and JournalError.
        """
        make_private(self.place, self._writable)
        numbers = list(_numbers(self.place))
        folder = self.place / f"{max(numbers, default=0) + 1:04d}"
        folder.mkdir(mode=0o700)
        old_s = folder.stat().st_mtime - KEPT_DAYS * 86_400
        for number in sorted(numbers)[: -(ALWAYS_KEPT - 1)]:
            earlier = self.place / f"{number:04d}"
            with suppress(OSError):
                if earlier.stat().st_mtime < old_s:
                    remove_tree_if_possible(earlier)
        return FileRecord(folder)

    def take_over(self) -> None:
        """Makes the loops of another directory those of this one, as the user says that it has moved here, unless this one has
        loops already. Raises RecordError if several other directories have loops, and OSError.
        """
        if self.all_records():
            return
        places = (place for root in self.roots if root.is_dir() for place in sorted(root.iterdir()))
        others = [place for place in places if _records_in(place)]
        if not others:
            return
        if len(others) > 1:
            several = (
                f"{self.roots[0]} has the loops of {len(others)} directories: --moved needs a state directory "
                "(RALPH_STATE_DIR) that has those of one"
            )
            raise RecordError(several, Outcome.USAGE)
        old = others[0]
        # The newest loop first: the others are only history.
        for name in sorted((entry.name for entry in old.iterdir()), reverse=True):
            (old / name).rename(self.place / name)
        old.rmdir()

    def newest(self) -> FileRecord:
        """The most recently written record. Raises RecordError if there is no record."""
        # The highest number is the newest in a folder, whatever the clock says.
        found = [records[-1] for place in self._places if (records := _records_in(place))]
        if found:
            return max(found, key=lambda record: written_at(record.path))
        none = f"there is no loop in {self._directory} (none is recorded in {self.place})"
        if os.path.lexists(self._directory / OWN_DIRECTORY / RECORD_FILE):
            none = (
                f"{none}; {OWN_DIRECTORY}/{RECORD_FILE} is an older ralph's, or came with the repository, and is "
                "not followed: ralph loop begins a new loop"
            )
        raise RecordError(none, Outcome.USAGE)

    def numbered(self, number: str) -> FileRecord:
        """The record of the loop with this number. Raises RecordError if this directory has no such loop."""
        records = {str(int(record.folder.name)): record for record in self.all_records()}
        if number.isdecimal() and (found := records.get(number.lstrip("0"))):
            return found
        some = f"it has {', '.join(sorted(records, key=int))}" if records else "none is recorded"
        raise RecordError(f"{self._directory} has no loop {number}: {some}", Outcome.USAGE)

    def all_records(self) -> list[FileRecord]:
        """The records of this directory's loops."""
        return [record for place in self._places for record in _records_in(place)]

    def place_of(self, directory: Path) -> Path:
        """The folder for the loops that work in `directory`, in the same root as `place`."""
        return self.roots[0] / directory_name(directory.resolve())


def _records_in(place: Path) -> list[FileRecord]:
    """The records in a folder, the newest last, without loops that were killed before they saved one."""
    records = (FileRecord(place / f"{number:04d}") for number in sorted(_numbers(place)))
    return [record for record in records if os.path.lexists(record.path)]


def _numbers(place: Path) -> Iterator[int]:
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from (int(name) for name in os.listdir(place) if name.isdecimal())  # noqa: PTH208 - names are what is looked at
