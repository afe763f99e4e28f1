"""Where sessions are kept: one file each, in a directory per working directory, below the user's state directory.

The repository is never the place: what an agent works on must not hold its own history. Directories are 0700.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.conversation.journal_lines import begins_kind
from ralph.sessions.journal import FileJournal
from ralph.sessions.naming import SHORT_ID_CHARS, named_session
from ralph.values.outcome import UsageError
from ralph.values.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import BinaryIO

SUFFIX = ".jsonl"
_PIECE_BYTES = 64 * 1024
_MOST_NAMED = 3


class SessionStore:
    def __init__(self, root: Path, notice: str | None = None, others: tuple[Path, ...] = ()) -> None:
        self.root = root
        """The directory in which new sessions are made."""
        self._roots = (root, *others)
        self.notice = notice
        """For people: why this is not the usual place."""

    @classmethod
    def for_user(cls, environment: Mapping[str, str], named: Path | None = None) -> SessionStore:
        """The place that was named (`--session-dir`, RALPH_STATE_DIR), else the first usable one.

        Raises JournalError when there is none.
        """
        chosen = named or _absolute(environment.get("RALPH_STATE_DIR"), "sessions")
        if chosen is not None:
            make_private(chosen)
            return cls(chosen)
        usual = _usual_place(environment)
        try:
            if usual is not None:
                make_private(usual)
                return cls(usual, others=_temporary_if_ours())
            why = "there is no HOME"
        except JournalError as error:
            why = str(error)
        fallback = _temporary_place()
        notice = f"sessions are kept in {fallback}, which may be cleared at any time: {why}"
        return cls(fallback, notice, others=() if usual is None else (usual,))

    @classmethod
    def to_read(cls, environment: Mapping[str, str], named: Path | None = None) -> SessionStore:
        """The places where a run of this user would look for sessions. Creates nothing: a missing place is
        empty.
        """
        chosen = named or _absolute(environment.get("RALPH_STATE_DIR"), "sessions")
        if chosen is not None:
            return cls(chosen)
        usual, others = _usual_place(environment), _temporary_if_ours()
        if usual is None:
            return cls(_temporary_path())
        if others and not os.access(usual, os.W_OK | os.X_OK):
            return cls(others[0], others=(usual,))
        return cls(usual, others=others)

    def create(self, session_id: str, cwd: Path) -> FileJournal:
        """Raises JournalError; its cause is a FileExistsError when there is such a session already."""
        path = self.root / directory_name(cwd) / f"{session_id}{SUFFIX}"
        make_private(path.parent)
        try:
            return FileJournal.create(path)
        except JournalError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        make_private(path.parent)  # another run's end has just removed it, empty as it was
        return FileJournal.create(path)

    def place_of(self, cwd: Path) -> Path:
        """The directory of new sessions of `cwd`."""
        return self.root / directory_name(cwd)

    def beside(self, name: str) -> tuple[Path, ...]:
        """Places of that name in the state directories that sessions lie in, the first one to be written to."""
        return tuple(_state_directory(root) / name for root in self._roots)

    def last_of(self, cwd: Path) -> Path | None:
        """The journal of this directory that was written last."""
        return max(self.of(cwd), key=written_at, default=None)

    def last_to_go_on(self, cwd: Path) -> Path | None:
        """The newest journal of the directory that has a message; if none has, the newest says what is wrong."""
        newest_first = sorted(self.of(cwd), key=written_at, reverse=True)
        return next((path for path in newest_first if _has_message(path)), self.last_of(cwd))

    def only_one(self, prefix: str, cwd: Path | None) -> Path:
        """Raises UsageError unless one id, and one alone, begins so. `cwd`: whose others may have been meant."""
        found = self.starting_with(prefix)
        if not found:
            none = f"there is no session that begins with {prefix!r} (in {self.root})"
            raise UsageError(f"{none}{self._instead(prefix, cwd)}")
        if len(found) > 1:
            names = ", ".join(path.stem for path in found[:5])
            raise UsageError(f"{len(found)} sessions begin with {prefix!r}: {names}")
        return found[0]

    def starting_with(self, prefix: str) -> list[Path]:
        """Capitals do not count: an id is a number."""
        return sorted(path for path in self.all() if path.stem.startswith(prefix.lower()))

    def short_name(self, session_id: str) -> str:
        """The shortest beginning of the id that is unique in the store."""
        short = session_id[:SHORT_ID_CHARS]
        return short if len(self.starting_with(short)) <= 1 else session_id

    def of(self, cwd: Path) -> Iterator[Path]:
        """The journals of this directory."""
        name = directory_name(cwd)
        return chain.from_iterable((root / name).glob(f"*{SUFFIX}") for root in self._roots)

    def all(self) -> Iterator[Path]:
        return chain.from_iterable(root.glob(f"*/*{SUFFIX}") for root in self._roots)

    def _instead(self, prefix: str, cwd: Path | None) -> str:
        """A suggestion of what was meant: ids that look like the prefix, or the newest of this directory."""
        from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

        beginnings = {path.stem[: len(prefix)]: path for path in self.all()}
        alike = get_close_matches(prefix.lower(), beginnings, _MOST_NAMED)
        if alike:
            return f"; the closest: {_names([beginnings[each] for each in alike])}"
        newest = sorted(self.of(cwd) if cwd is not None else (), key=written_at, reverse=True)[:_MOST_NAMED]
        return f"; the newest of this directory: {_names(newest)}" if newest else ""


def directory_name(cwd: Path) -> str:
    """For people to recognise, with a hash because names repeat."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", cwd.name)[:40] or "root"
    return f"{name}-{hashlib.sha256(os.fsencode(cwd)).hexdigest()[:12]}"


def _names(paths: Iterable[Path]) -> str:
    from ralph.sessions.looking import look_at  # noqa: PLC0415 - only a mistake needs it

    now_s = time.time()
    named = []
    for path in paths:
        with suppress(FileNotFoundError):
            look = look_at(path)
            named.append(named_session(look.id, now_s - look.written_at_s, look.task))
    return ", ".join(named)


def _has_message(path: Path) -> bool:
    """A run that was stopped before its first message left nothing to resume.

    Memory is bounded: the record before the message, with the head of all requests, may be of any size.
    """
    try:
        with path.open("rb") as file:
            begins_line = True
            while piece := file.readline(_PIECE_BYTES):
                if b"\0" in piece:  # damage; opening it will say so
                    return True
                if begins_line and begins_kind(piece, "user"):
                    return _is_whole(piece, file)
                begins_line = piece.endswith(b"\n")
    except FileNotFoundError:  # it was deleted just now
        return False
    except OSError:  # it is not passed over in silence: opening it will say what is wrong
        return True
    return False


def _is_whole(beginning: bytes, file: BinaryIO) -> bool:
    """A line that a kill cut off is no record. One that holds NUL bytes is passed over by nobody either."""
    end = beginning
    while not end.endswith(b"\n") and (piece := file.readline(_PIECE_BYTES)):
        end = end[-2:] + piece
        if b"\0" in end:
            return True
    return end.endswith((b'"}\n', b'"}'))


def _usual_place(environment: Mapping[str, str]) -> Path | None:
    return _absolute(environment.get("XDG_STATE_HOME"), "ralph", "sessions") or _absolute(
        environment.get("HOME"), ".local", "state", "ralph", "sessions"
    )


def _absolute(base: str | None, *rest: str) -> Path | None:
    """A relative one would lead into the working directory."""
    return Path(base, *rest) if base and Path(base).is_absolute() else None


def _state_directory(root: Path) -> Path:
    """The temporary place is one itself: beside it lie other people's files."""
    return root if root.name == _temporary_name() else root.parent


def _temporary_place() -> Path:
    """Anybody may write to the temporary directory: what is there under our name must be ours alone."""
    place = _temporary_path()
    make_private(place)
    if not _is_ours_alone(place):
        raise JournalError(place, PermissionError("it belongs to somebody else, or is open to others"))
    return place


def _temporary_path() -> Path:
    return Path(tempfile.gettempdir()) / _temporary_name()


def _temporary_name() -> str:
    return f"ralph-sessions-{os.getuid()}"


def _temporary_if_ours() -> tuple[Path, ...]:
    """Runs that had no better place may have left some there."""
    try:
        place = _temporary_path()
    except OSError:  # there is no temporary directory at all
        return ()
    return (place,) if _is_ours_alone(place) else ()


def _is_ours_alone(place: Path) -> bool:
    try:
        status = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def make_private(directory: Path) -> None:
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
