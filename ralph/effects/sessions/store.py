"""Where sessions are kept: one file each, in a directory per working directory, below the user's state directory.

The repository is never the place: what an agent works on must not hold its own history. Directories are 0700.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.core.outcome import UsageError
from ralph.effects.sessions.journal import FileJournal
from ralph.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SUFFIX = ".jsonl"
# The first message stands within: before it come the session, the run with the requests' head, and notices.
_OPENING_BYTES = 512 * 1024


class SessionStore:
    def __init__(self, root: Path, notice: str | None = None) -> None:
        self.root = root
        self.notice = notice
        """For people: why this is not the usual place."""

    @classmethod
    def for_user(cls, environment: Mapping[str, str], named: Path | None = None) -> SessionStore:
        """The place that was named (`--session-dir`, RALPH_STATE_DIR), else the first usable one.

        Raises JournalError when there is none.
        """
        chosen = named or _absolute(environment.get("RALPH_STATE_DIR"), "sessions")
        if chosen is not None:
            _make_private(chosen)
            return cls(chosen)
        usual = _usual_place(environment)
        if usual is not None:
            try:
                _make_private(usual)
            except JournalError as error:
                fallback = _temporary_place()
                return cls(
                    fallback, f"sessions are kept in {fallback}, which may be cleared at any time: {error}"
                )
            return cls(usual)
        fallback = _temporary_place()
        return cls(
            fallback, f"sessions are kept in {fallback}, which may be cleared at any time: there is no HOME"
        )

    @classmethod
    def to_read(cls, environment: Mapping[str, str], named: Path | None = None) -> SessionStore:
        """Where a run of this user would keep its sessions. Nothing is made: what is not there is empty."""
        chosen = named or _absolute(environment.get("RALPH_STATE_DIR"), "sessions")
        if chosen is not None:
            return cls(chosen)
        usual, fallback = _usual_place(environment), _temporary_path()
        if usual is None or (not os.access(usual, os.W_OK | os.X_OK) and _is_ours_alone(fallback)):
            return cls(fallback)
        return cls(usual)

    def create(self, session_id: str, cwd: Path) -> FileJournal:
        """Raises JournalError; its cause is a FileExistsError when there is such a session already."""
        path = self._directory_of(cwd) / f"{session_id}{SUFFIX}"
        _make_private(path.parent)
        try:
            return FileJournal.create(path)
        except JournalError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        _make_private(path.parent)  # another run's end has just removed it, empty as it was
        return FileJournal.create(path)

    def last_of(self, cwd: Path) -> Path | None:
        """The journal of this directory that was written last."""
        return max(self.of(cwd), key=written_at, default=None)

    def last_to_go_on(self, cwd: Path) -> Path | None:
        """The same, of those that have a message; where none has, the last one says what is wrong."""
        newest_first = sorted(self.of(cwd), key=written_at, reverse=True)
        return next((path for path in newest_first if _has_message(path)), self.last_of(cwd))

    def only_one(self, prefix: str) -> Path:
        """Raises UsageError unless one id, and one alone, begins so."""
        found = self.starting_with(prefix)
        if not found:
            raise UsageError(f"there is no session that begins with {prefix!r} (in {self.root})")
        if len(found) > 1:
            names = ", ".join(path.stem for path in found[:5])
            raise UsageError(f"{len(found)} sessions begin with {prefix!r}: {names}")
        return found[0]

    def starting_with(self, prefix: str) -> list[Path]:
        return sorted(path for path in self.all() if path.stem.startswith(prefix))

    def of(self, cwd: Path) -> Iterator[Path]:
        """The journals of this directory."""
        return self._directory_of(cwd).glob(f"*{SUFFIX}")

    def all(self) -> Iterator[Path]:
        return self.root.glob(f"*/*{SUFFIX}")

    def _directory_of(self, cwd: Path) -> Path:
        """Its name for people to recognise, a hash because names repeat."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", cwd.name)[:40] or "root"
        return self.root / f"{name}-{hashlib.sha256(os.fsencode(cwd)).hexdigest()[:12]}"


def _has_message(path: Path) -> bool:
    """A run that was stopped before its first message left nothing to go on with."""
    try:
        with path.open("rb") as file:
            return b'"kind":"user"' in file.read(_OPENING_BYTES)
    except OSError:
        return False


def _usual_place(environment: Mapping[str, str]) -> Path | None:
    return _absolute(environment.get("XDG_STATE_HOME"), "ralph", "sessions") or _absolute(
        environment.get("HOME"), ".local", "state", "ralph", "sessions"
    )


def _absolute(base: str | None, *rest: str) -> Path | None:
    """A relative one would lead into the working directory."""
    return Path(base, *rest) if base and Path(base).is_absolute() else None


def _temporary_place() -> Path:
    """Anybody may write to the temporary directory: what is there under our name must be ours alone."""
    place = _temporary_path()
    _make_private(place)
    if not _is_ours_alone(place):
        raise JournalError(place, PermissionError("it belongs to somebody else, or is open to others"))
    return place


def _temporary_path() -> Path:
    return Path(tempfile.gettempdir()) / f"ralph-sessions-{os.getuid()}"


def _is_ours_alone(place: Path) -> bool:
    try:
        status = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _make_private(directory: Path) -> None:
    """Make it and what is missing above it; and see that it can be written to."""
    try:
        for missing in reversed([directory, *directory.parents]):
            if not missing.is_dir():
                missing.mkdir(mode=0o700, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(13, os.strerror(13))
    except OSError as error:
        raise JournalError(directory, error) from error


def written_at(path: Path) -> float:
    """Seconds of the wall clock."""
    try:
        return path.stat().st_mtime
    except OSError:  # it was deleted just now
        return 0.0
