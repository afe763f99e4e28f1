"""The store of sessions. Each session is one file. All sessions of a working directory are in the same directory of
the store.

By default, the store is in the user's state directory. It is outside any repository, because an agent must not
change its own history. Only the user can access the directories that ralph makes for the store. Also writes the shell command
that resumes a session.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.opened_file import closed_after, open_regular_file
from ralph.machine.files.paths import leads_into
from ralph.output.result_file import problem_of_directory
from ralph.sessions.journal import FileJournal, SessionLockedError, lock_file, lock_patiently
from ralph.sessions.places import (
    SHORT_ID_CHARS,
    SUFFIX,
    chosen_place,
    directory_name,
    is_ours_alone,
    journals_in,
    listed,
    places_to_read,
    state_directory,
    temporary_if_ours,
    temporary_path,
    usual_place,
    written_at,
)
from ralph.values.outcome import CannotError, Outcome
from ralph.values.ports import Clock, JournalError
from ralph.values.setting import MEGABYTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.values.redaction import SpansOf


class SessionStore:
    def __init__(
        self,
        root: Path,
        notice: str | None = None,
        others: tuple[Path, ...] = (),
        writable: Sequence[Path | str] = (),
    ) -> None:
        self.root = root
        """The root directory for new sessions. It contains one directory for each working directory."""
        self._roots = (root, *others)
        self._writable = writable
        self.notice = notice
        """A sentence for the user that says why sessions are not in the usual place. None if they are."""

    @classmethod
    def for_user(
        cls,
        environment: Mapping[str, str],
        named: Path | None = None,
        writable: Sequence[Path | str] = (),
        *,
        roots: Sequence[str] = (),
        is_old: bool = False,
    ) -> SessionStore:
        """Finds the store and makes its directory. If the user named a place (`--session-dir`, RALPH_STATE_DIR), the
        store is there. Otherwise it is at the first usable place. `writable` are as in `make_private`, `roots` and `is_old` as in
        `refuse_open`. Raises JournalError if no place is usable, and CannotError for one in `roots`.
        """
        chosen = chosen_place(environment, named)
        if chosen is not None:
            refuse_open(chosen, roots, is_old=is_old)
            make_private(chosen, writable)
            return cls(chosen, writable=writable)
        usual, others = usual_place(environment), temporary_if_ours()
        try:
            if usual is not None:
                refuse_open(usual, roots, is_old=is_old)
                make_private(usual, writable)
                others = tuple(one for one in others if not leads_into(str(one), roots))
                return cls(usual, others=others, writable=writable)
            why = "there is no HOME"
        except (CannotError, JournalError) as error:
            why = str(error)
        refuse_open(temporary_path(), roots, is_old=is_old)
        fallback = _temporary_place(writable)
        notice = f"sessions are kept in {fallback}, which may be cleared at any time: {why}"
        others = () if usual is None or leads_into(str(usual), roots) else (usual,)
        return cls(fallback, notice, others=others, writable=writable)

    @classmethod
    def to_read(cls, environment: Mapping[str, str], named: Path | None = None) -> SessionStore:
        """The store that a run of this user would use. Makes no directory. If the directory is missing, the store
        is empty. Raises CannotError if a file is in the place of a directory.
        """
        root, *others = places_to_read(environment, named)
        there = next((place for place in (root, *root.parents) if place.exists()), root)
        if there.exists() and not there.is_dir():
            raise CannotError(f"sessions belong in {root}, but {there} is not a directory", Outcome.IO_ERROR)
        return cls(root, others=tuple(others))

    def create(self, session_id: str, cwd: Path, spans_of: SpansOf | None = None) -> FileJournal:
        """Creates the journal of a new session. `spans_of` is that of `FileJournal`. Raises JournalError, caused by FileExistsError if the session exists."""
        path = self.root / directory_name(cwd) / f"{session_id}{SUFFIX}"
        make_private(path.parent, self._writable)
        try:
            return FileJournal.create(path, spans_of)
        except JournalError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        make_private(path.parent, self._writable)  # another run has just removed the empty directory
        return FileJournal.create(path, spans_of)

    def place_of(self, cwd: Path) -> Path:
        """The directory for new sessions of the working directory `cwd`."""
        return self.root / directory_name(cwd)

    def beside(self, name: str) -> tuple[Path, ...]:
        """The paths that a file called `name` can have beside the sessions: one for each place that the store
        searches. A new file must be made at the first path.
        """
        return tuple(state_directory(root) / name for root in self._roots)

    def last_of(self, cwd: Path) -> Path | None:
        """The most recently written journal of the working directory `cwd`, or None if there is none."""
        return max(self.of(cwd), key=written_at, default=None)

    def starting_with(self, prefix: str) -> list[Path]:
        """The journals whose id, which is hexadecimal, begins with `prefix`, in upper or lower case."""
        return sorted(path for path in self.all() if path.stem.startswith(prefix.lower()))

    def short_name(self, session_id: str) -> str:
        """A short form of the id: its first characters, or the whole id if another id in the store begins with them."""
        short = session_id[:SHORT_ID_CHARS]
        return short if len(self.starting_with(short)) <= 1 else session_id

    def of(self, cwd: Path) -> Iterator[Path]:
        """The journals of the working directory `cwd`. Raises OSError as `all` does."""
        name = directory_name(cwd)
        return chain.from_iterable(journals_in(root / name) for root in self._roots)

    def skipped(self, cwd: Path | None) -> Iterator[str]:
        """A line for each entry that is named like a journal but is not a regular file, so that it is left out.
        `cwd` is as in `of`; None means all directories.
        """
        places = [root / directory_name(cwd) for root in self._roots] if cwd is not None else None
        for place in places or chain.from_iterable(map(listed, self._roots)):
            found = set(journals_in(place))
            for path in listed(place):
                if path.name.endswith(SUFFIX) and path not in found:
                    yield f"skipped {path}: it is not a regular file"

    def all(self) -> Iterator[Path]:
        """All journals. Skips a directory that this user may not read. Raises OSError if a directory cannot be
        listed for another reason, such as a lack of file descriptors.
        """
        for root in self._roots:
            for directory in listed(root):
                yield from journals_in(directory)


def _temporary_place(writable: Sequence[Path | str]) -> Path:
    """Makes the store in the temporary directory and returns its path. Another user may already have made a
    directory with this name, so raises JournalError unless only this user can access it.
    """
    place = temporary_path()
    make_private(place, writable)
    if not is_ours_alone(place):
        raise JournalError(place, PermissionError("it belongs to somebody else, or is open to others"))
    return place


def refuse_open(place: Path, roots: Sequence[str], *, is_old: bool) -> None:
    """Raises CannotError if a store is in one of `roots`, directories that commands may write. If they may write the root directory,
    no place is better, so that only a session or loop that `is_old` is refused: it would believe what they have written.
    """
    if leads_into(str(place.absolute()), roots) and (is_old or os.sep not in roots):
        raise CannotError(
            f"commands may write where {place} is, and so change what a resumed session or loop may do: keep sessions and loops "
            "elsewhere (--session-dir, RALPH_STATE_DIR)"
        )


def make_private(directory: Path, writable: Sequence[Path | str] = ()) -> None:
    """Makes a directory and its missing parents. Only the user can access the directories made. Raises JournalError
    if this fails, if the directory is not writable, or if a link in one of the repositories around `writable` leads there and
    out of them: a command may have made it.
    """
    try:
        real = os.path.realpath(directory)
        if writable and real != str(directory):
            problem = problem_of_directory(str(directory), real, writable)
            if problem is not None:
                raise PermissionError(errno.EPERM, problem)
        for missing in reversed([directory, *directory.parents]):
            if not missing.is_dir():
                try:
                    missing.mkdir(mode=0o700, exist_ok=True)
                except FileExistsError as error:  # which would mean that a session exists
                    raise NotADirectoryError(
                        errno.ENOTDIR, f"{missing} is not a directory", str(missing)
                    ) from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(13, os.strerror(13))
    except OSError as error:
        raise JournalError(directory, error) from error


# --- Removing journals
# Removes journals: old ones at the end of a run, and any one that the user names. The former takes about `LONGEST_S`
# seconds at most, and its errors are not reported. A journal that a process has open is never removed. Files and
# directories are left alone unless their names look like those that ralph gives, because `--session-dir` may be any
# directory.

LONGEST_S = 0.05
_LONGEST_LOOK_S = 0.03

_OUR_DIRECTORY = r".{1,40}-[0-9a-f]{12}"
_OUR_JOURNAL = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}" + re.escape(SUFFIX)


_DAY_S = 86_400


class KeptJournal(Struct, frozen=True):
    path: str
    size_bytes: int
    age_s: float
    """The seconds since the last write."""


def too_many(
    journals: Iterable[KeptJournal], *, keep_days: int, keep_mb: int, are_all: bool = True
) -> list[KeptJournal]:
    """The journals to remove, the oldest first. 0 for `keep_days` or `keep_mb` means no limit. `are_all` is False
    if the list of journals is incomplete. Then `keep_mb` has no effect, because the list may lack older journals.
    """
    oldest_first = sorted(journals, key=lambda journal: -journal.age_s)
    excess_bytes = sum(journal.size_bytes for journal in oldest_first) - keep_mb * MEGABYTE
    removed = []
    for journal in oldest_first:
        is_too_old = bool(keep_days) and journal.age_s > keep_days * _DAY_S
        is_too_much = bool(keep_mb) and are_all and excess_bytes > 0
        if not (is_too_old or is_too_much):
            break
        removed.append(journal)
        excess_bytes -= journal.size_bytes
    return removed


def remove_old_journals(own: Path, *, keep_days: int, keep_mb: int, clock: Clock) -> None:
    """Removes old journals from the store that contains `own`, the journal of this run, which is never removed. 0
    for `keep_days` or `keep_mb` means no limit. Raises no error. Stops after `LONGEST_S` seconds: the next run
    removes the rest.
    """
    if not keep_days and not keep_mb:
        return
    started_s = clock.now_s()
    journals: list[KeptJournal] = []
    are_all = True
    with suppress(OSError):
        for journal in _journals(own.parent.parent):
            journals.append(journal)
            if clock.now_s() - started_s > _LONGEST_LOOK_S:
                are_all = False
                break
    going = too_many(journals, keep_days=keep_days, keep_mb=keep_mb, are_all=are_all)
    for journal in going:
        if journal.path != str(own):
            with suppress(OSError, SessionLockedError):
                remove_journal(Path(journal.path), journal.age_s)
        if clock.now_s() - started_s > LONGEST_S:
            break


def _journals(root: Path) -> Iterator[KeptJournal]:
    """Yields all journals below `root`. Skips a directory that cannot be read, for example because it was just
    removed.
    """
    now_s = time.time()
    with os.scandir(root) as directories:
        for directory in directories:
            if re.fullmatch(_OUR_DIRECTORY, directory.name) and directory.is_dir(follow_symlinks=False):
                with suppress(OSError), os.scandir(directory) as files:
                    for file in files:
                        if re.fullmatch(_OUR_JOURNAL, file.name):
                            status = file.stat(follow_symlinks=False)
                            yield KeptJournal(file.path, status.st_size, now_s - status.st_mtime)


def remove_journal(path: Path, age_s: float | None = None) -> None:
    """Removes a journal and its `.torn` files. With `age_s`, does nothing if a run has written to the journal less than
    that many seconds ago, and does not wait for a reader that has it locked for a moment. Locks the journal while removing it. So a run that opens the journal at the same moment finds it locked or
    missing, and cannot write to a deleted file. Raises OSError and SessionLockedError.
    """
    with closed_after(open_regular_file(path, os.O_RDWR | os.O_NOFOLLOW)) as descriptor:
        (lock_patiently if age_s is None else lock_file)(descriptor)
        if age_s is not None and time.time() - os.fstat(descriptor).st_mtime < age_s:
            return
        path.unlink()
    for torn in path.parent.glob(f"{path.stem}.*torn"):
        torn.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()  # fails unless the directory is empty now


# --- The command that resumes a session

NEXT_PROMPT = "what to do next"
"""A placeholder in a suggested command that resumes a completed session. It stands for the new prompt, which only
such a session needs."""


def resume_command(
    name: str,
    *,
    cwd: str | None = None,
    session_dir: str | None = None,
    again: Mapping[str, str] | None = None,
    prompt: str | None = None,
) -> str:
    """The shell command that resumes a session. `name` is the session's id, or the beginning of the id. `again` maps
    options that the next run needs again to their values. If an argument is None, the command does not contain it.
    """
    options = {"--cd": cwd, "--session-dir": session_dir, **(again or {})}
    words = ["ralph", "--resume", name]
    for option, value in options.items():
        words += [option, value] if value is not None else []
    command = " ".join(map(shell_word, words))
    return f'{command} "{prompt}"' if prompt is not None else command


def shell_word(text: str) -> str:
    """The text quoted as one word of a shell command. If it is not printable, for example because a path is not
    UTF-8, its bytes are written in octal.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_in_octal, text.encode("utf-8", "surrogateescape"))) + "'"


def _in_octal(byte: int) -> str:
    is_plain = 32 <= byte < 127 and chr(byte) not in "'\\"
    return chr(byte) if is_plain else f"\\{byte:03o}"
