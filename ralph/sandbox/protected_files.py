"""Keeps a run's protected files as they are: compares them before and after each command, if no mount prevents changes.
`protected_changes.py` decides which changes are undone, and `undoing.py` undoes them.

While a command runs, a file in ralph's state directory describes the protected files as they were before. So the next run with the
same directories can report what a command changed before ralph was killed. It does not undo that: somebody else may have made some
since. If this file cannot be written, nothing is reported.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import stat
import time
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.files.opened_file import opened, read_regular_file
from ralph.machine.files.paths import directories_above, entries_in, is_within, is_within_any, status_of
from ralph.machine.loading import python_sha256
from ralph.machine.own_process import link_target, way_to
from ralph.places.gather import GuardedFiles
from ralph.places.state import name_for, running_below
from ralph.places.table import COMPARED
from ralph.sandbox.protected_changes import (
    UNLISTED,
    UNSEEN,
    Change,
    Entry,
    changes_of,
    may_be_made,
    missing_directories,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ralph.sandbox.protected_changes import UndoResult
    from ralph.sandbox.undoing import Undoing

_MOST_NAMES = 10_000
"""A directory of hooks with so many names below it is not compared. No command starts beside one, and one that a command has filled is
put away as a whole."""
_MOST_REMEMBERED_BYTES = 64 * 1024 * 1024
"""The maximum number of bytes that are kept in memory for all files together, so that each can be restored. Hooks are scripts of some
kilobytes, and the largest programs among them have some megabytes. No command starts beside more."""
# A file that changed this shortly before it was read may have changed again within one tick of the kernel's clock.
_SETTLED_NS = 100_000_000


class UnguardedError(OSError):
    """Not all protected files can be compared, so no command may start."""

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(errno.EPERM, f"{why}, so no command starts; {advice}")


class ProtectedFiles:
    """The protected files of one run. Not thread-safe. All methods but `close` read the disk."""

    def __init__(
        self,
        roots: Sequence[str],
        git_directories: Sequence[str],
        state: str,
        paths: Iterable[str] = (),
        *,
        writable: Iterable[str] = (),
        all_roots: Sequence[str] = (),
    ) -> None:
        """`roots` are the working directory and each `--add-dir`, and `git_directories` those that commands may write: absolute,
        without links. `state` is ralph's state directory, which need not exist: it holds what commands wrote to protected files,
        and their description while a command runs. `paths` are further files and directories to compare, and `writable` the other
        directories that commands may write. `all_roots` are the roots with those that commands may not write.
        """
        paths = tuple(paths)
        self._files = GuardedFiles(COMPARED, roots, git_directories, paths, writable=writable)
        self._kept_in = f"{state}/undone"
        self._mark = CommandMark(running_below(state), all_roots, (*roots, *self._files.outer), paths)
        self._known: dict[str, Entry] = {}
        self._statuses: dict[str, os.stat_result] = {}
        self._left_bytes = 0
        self._modes: dict[str, int] = {}
        """The permission bits of the directories above the files."""
        self._unseen: list[str] = []
        """The paths of the last look that lie in a directory which may not be entered."""
        self._pending: tuple[str, ...] = ()
        """The paths whose changes could not be undone until now. Their known state is kept."""
        self.left: tuple[UndoResult, ...] = ()
        """The changes of this run that could not be undone until now, but for removed files."""
        self._is_watching = False
        self._may_have_changed = False
        """True between `look` and `undo_changes`: a command may have changed the files."""
        self.after_kill: tuple[str, ...] | None = None
        """The result of `changed_since_kill`, until the caller empties it. None before the first look."""
        self.between: tuple[UndoResult, ...] = ()
        """The changes that no command of this run made, and that were undone since the caller last emptied this."""

    @property
    def git_directories(self) -> tuple[str, ...]:
        """The outer git directories, and those of submodules and linked worktrees that were found until now."""
        return self._files.git_directories

    def watch(self) -> None:
        """Called if other processes may change protected files: then changes between commands are undone too. Raises
        UnguardedError.
        """
        if not self._is_watching:
            self._begin()
            self._is_watching = True

    def look(self) -> None:
        """Stores the state before a command. After `watch`, first undoes the changes since the last. Raises UnguardedError."""
        if self._is_watching:
            self.between += self._undo()
        self._begin()
        self._may_have_changed = True

    def changed_since_kill(self) -> tuple[str, ...]:
        """The files that have changed since a command during which an earlier run was killed. May be called before the first `look`."""
        if self.after_kill is None:
            self._store()
        return self.after_kill or ()

    def undo_changes(self) -> tuple[UndoResult, ...]:
        """Undoes the changes since `look`, and returns them, with a reason if one cannot be undone. Empty at a second call."""
        if not self._may_have_changed:
            return ()
        undone = self._undo()
        self._may_have_changed = False
        if not self._pending:  # otherwise the next run must know of them
            self._mark.end()
        if self._is_watching:
            self._mark.begin(self._known)
        return undone

    def not_started(self) -> None:
        """Must be called if no command has started since `look`. No later change is a command's."""
        self._may_have_changed = False
        self._mark.end()

    def end_watch(self) -> None:
        """Undoes the changes since the last command. Must be called after the MCP servers have ended."""
        if self._is_watching:
            self.between += self._undo()
            if not self._pending:
                self._mark.end()

    def close(self) -> None:
        """Removes the description of the files from ralph's state, unless changes may not be undone yet."""
        self._mark.close()

    def _begin(self) -> None:
        # A server may write at any time: only the first look says what the files must be.
        if not self._is_watching:
            others = self._mark.of_others()  # also before: a command may end while the files are looked at
            self._store()
            others += self._mark.of_others()
            if changed := self._mark.changed_by_others(others, self._known, self.git_directories, entries_of):
                raise UnguardedError(
                    f"{changed} has changed since a command of another ralph began, which still runs and will undo that",
                    "wait until that command has ended",
                )
        if self._files.overfull:
            raise UnguardedError(
                f"{self._files.overfull} holds more folders than ralph guards",
                "look at them, and remove those that no submodule and no worktree needs",
            )
        if large := next((path for path, entry in self._known.items() if entry.kind == UNLISTED), ""):
            raise UnguardedError(
                f"{large} holds {_MOST_NAMES:,} names or more, or a folder that cannot be listed, and is not compared",
                f"look at it: find {shlex.quote(large)}",
            )
        for path, entry in self._known.items():
            if entry.kind == "file" and entry.content is None and os.access(path, os.R_OK):
                raise UnguardedError(
                    f"{path} could not be restored: the protected files have more than {_MOST_REMEMBERED_BYTES:,} bytes",
                    f"look at it: ls -l {shlex.quote(path)}",
                )
        if closed := next(filter(None, map(_own_closed_directory, self._unseen)), ""):
            raise UnguardedError(
                f"{closed} may not be entered, and protected files in it may have been changed",
                f"look at it: chmod u+rwx {shlex.quote(closed)}",
            )
        self._mark.begin(self._known)

    def _store(self) -> None:
        """Stores the state of the files. Of what cannot be seen, because a command removed a repository or closed a directory,
        the old state is kept, so that it can be compared later.
        """
        found = self.found()
        hidden = (*missing_directories(found, self.git_directories), *self._unseen)
        gone = tuple(f"{one}/" for one in hidden)
        kept = {path: entry for path, entry in self._known.items() if path.startswith(gone)} if gone else {}
        known = {path: self._known[path] for path in (*self._unseen, *self._pending) if path in self._known}
        self._known = kept | found | known
        for path in self._files.above:
            if path in self._pending:
                continue
            with suppress(OSError):
                self._modes[path] = stat.S_IMODE(os.lstat(path).st_mode)
        if self.after_kill is None:  # a later look would take the changes as the files' own state
            self.after_kill = self._mark.changed_since_kill(self._known, self.git_directories, entries_of)

    def _undo(self) -> tuple[UndoResult, ...]:
        """Afterwards, the known state is the one from which the changes were found, but for what was undone: the disk is not read
        again, because a server may have written meanwhile.
        """
        statuses, git_directories = dict(self._statuses), self.git_directories
        undoing: Undoing | None = None

        def undo(change: Change) -> UndoResult:
            nonlocal undoing
            from ralph.sandbox.undoing import Undoing  # noqa: PLC0415 - only for a change, and takes milliseconds

            undoing = undoing or Undoing(self._kept_in, git_directories, statuses)
            return undoing.undone(change)

        opened = [undo(change) for change in self._closings()]
        found = self.found()
        if not (opened or self._pending) and found == self._known:
            return ()
        changes = self._changes(found)
        by_mode = [undo(change) for change in changes if change.is_of_mode]
        if by_mode:  # what could not be seen in a closed directory can be seen now
            found = self.found()
            changes = self._changes(found)
        undone = [undo(change) for change in changes if not change.is_of_mode]
        self._pending = tuple(one.path for one in (*opened, *by_mode, *undone) if one.is_pending)
        kept = [*(one.path for one in undone), *(one.path for one in by_mode if one.is_pending)]
        # A removed repository, or what was too large to be kept in memory, is gone for good.
        gone = {one.path for one in undone if one.why_not and not one.is_pending}
        seen = {path: entry for path, entry in found.items() if not is_within_any(path, kept)}
        self._known = {path: entry for path, entry in self._known.items() if path not in gone} | seen
        self._statuses |= {path: status for path, status in statuses.items() if is_within_any(path, kept)}
        told = (*opened, *by_mode, *undone)
        left = (one for one in (*self.left, *told) if one.why_not and one.how != "removed")
        self.left = tuple(one for one in left if one in told or not one.is_pending)
        return told

    def _closings(self) -> Iterator[Change]:
        """Yields the directories above the files that a command has closed to their owner, outer ones first."""
        for path, mode in self._modes.items():
            with suppress(OSError):  # one above it could not be opened
                now = os.lstat(path).st_mode
                if stat.S_ISDIR(now) and mode & ~now & stat.S_IRWXU:
                    yield Change(path, Entry("directory", mode), Entry("directory", stat.S_IMODE(now)))

    def _changes(self, found: Mapping[str, Entry]) -> list[Change]:
        files = self._files
        known = [path for path, entry in self._known.items() if entry.kind != "directory"]
        missing = (one for one in files.folders if one not in found)
        empty = (one for one in missing if not any(is_within(path, one) for path in known))
        removable = files.removable.union(empty)
        return [*changes_of(self._known, found, self.git_directories, removable, files.folders)]

    def found(self) -> dict[str, Entry]:
        """The files as they are now."""
        found: dict[str, Entry] = {}
        self._unseen, self._left_bytes = [], _MOST_REMEMBERED_BYTES
        self._files.look_for_nested()
        # Links and files in the place of directories: a path through a link is another file.
        elsewhere: list[str] = []
        for path, kind in self._files.found():
            if elsewhere and any(path.startswith(one) for one in elsewhere):
                continue
            if kind == "around":
                if not self._add(found, path) and path in found:
                    elsewhere.append(f"{path}/")
            elif kind == "tree":
                self._add_tree(found, path)
            else:
                self._add(found, path)
        return found

    def _add_tree(self, found: dict[str, Entry], top: str) -> None:
        inside: dict[str, Entry] = {}
        pending = [top]
        for path in pending:
            if not self._add(inside, path):
                continue
            try:
                pending += [f"{path}/{name}" for name in os.listdir(path)]
            except (FileNotFoundError, NotADirectoryError):  # it was removed meanwhile
                continue
            except OSError:  # this user, and so a command, may make files there, or nobody knows
                status = status_of(path)
                is_unlisted = status is None or status.st_uid == os.geteuid() or os.access(path, os.W_OK)
            else:
                is_unlisted = len(pending) > _MOST_NAMES
            if is_unlisted:
                inside = {top: Entry(UNLISTED)}
                break
        found |= inside

    def _add(self, found: dict[str, Entry], path: str) -> bool:
        """Adds the entry of a path, if it exists. Returns whether it is a directory."""
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            found[path] = Entry(UNSEEN)
            self._unseen.append(path)
            return False
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            found[path] = Entry("directory", stat.S_IMODE(mode))
            return True
        stamp = _stamp(status)
        known = self._known.get(path)
        # What a server writes through a mapped file changes no time until the kernel writes it back.
        is_known = known is not None and known.is_settled and known.stamp == stamp
        if known and is_known and not (self._is_watching and _content(path, status.st_size) != known.content):
            self._left_bytes -= len(known.content or b"")
            found[path] = known
            return False
        is_settled = status.st_ctime_ns < time.time_ns() - _SETTLED_NS
        self._statuses[path] = status
        if stat.S_ISREG(mode):
            content = _content(path, self._left_bytes) if status.st_size <= self._left_bytes else None
            self._left_bytes -= len(content or b"")
            found[path] = Entry("file", stat.S_IMODE(mode), content, stamp, is_settled)
        elif stat.S_ISLNK(mode):
            target = link_target(path)
            found[path] = Entry("link", content=None if target is None else os.fsencode(target))
        else:
            found[path] = Entry("other")
        return False


def entries_of(paths: Iterable[str]) -> dict[str, Entry]:
    """The files at `paths`, and below them, as they are now."""
    return ProtectedFiles((), (), "", paths).found()


def is_changed_since(mark: str, path: str) -> bool:
    """Whether a file is not as it was before the command of `mark`, or a link or a missing directory on the way to it."""
    before = described(mark) or {}
    with suppress(OSError):  # more links than the system follows: nothing can be read there
        way = {path, *(part for part, is_link, _ in way_to(path) if is_link or not os.path.isdir(part))}
        places = way & before.keys()
        now = entries_of(places)
        return any(differs(before[place], now.get(place)) for place in places)
    return False


def _own_closed_directory(path: str) -> str:
    """The directory above a path that this user may not enter, but may open, as commands may. Empty if there is none."""
    for above in [*directories_above(path)][::-1]:
        status = status_of(above)
        if status is None:
            return ""
        if status.st_uid == os.geteuid() and not status.st_mode & stat.S_IXUSR:
            return above
    return ""


_stamp = attrgetter("st_ino", "st_dev", "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns")


def _content(path: str, most_bytes: int) -> bytes | None:
    with suppress(OSError), opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
        size = min(os.fstat(descriptor).st_size, most_bytes)
        found = os.read(descriptor, size + 1)
        return found if len(found) <= size else None  # it may grow meanwhile
    return None


# A description of 10,000 hooks has 2 MB.
_MOST_BYTES = 64 * 1024 * 1024


class CommandMark:
    """The file in which one run describes the protected files. Locked until the run ends, and empty while no command runs."""

    def __init__(
        self, place: str, roots: Sequence[str], directories: Sequence[str], paths: Iterable[str] = ()
    ) -> None:
        """`place` is the directory for the file; it need not exist. `directories` contain the protected files. By the name of
        `roots`, all those of the run, the next run sees that there may be a file for it. `paths` are described also where nothing
        exists.
        """
        self._missing = dict.fromkeys(paths, "")
        self._place = place
        self._prefix = f"{name_for(roots)}-{name_for(directories)}-"
        self._path = f"{place}/{self._prefix}{os.getpid()}-{os.urandom(3).hex()}"
        self._descriptor: int | None = None
        self._entries: Mapping[str, Entry] | None = None
        self._described = b""
        self._is_running = False

    def begin(self, entries: Mapping[str, Entry]) -> None:
        """Writes the state of the protected files to the file. Must be called before a command starts."""
        if entries != self._entries:
            self._entries = dict(entries)
            digests = {path: _digest(entry) for path, entry in entries.items()}
            self._described = json.dumps(self._missing | digests).encode()
        self._is_running = True
        with suppress(OSError):
            if self._descriptor is None:
                os.makedirs(self._place, mode=0o700, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(self._path, flags, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    # Another run took it for one that was left behind, or there are no locks here.
                    os.close(descriptor)
                    raise
                self._descriptor = descriptor
            os.pwrite(self._descriptor, self._described, 0)
            os.ftruncate(self._descriptor, len(self._described))

    def end(self) -> None:
        """Empties the file. Must be called after the command's changes were undone."""
        self._is_running = False
        with suppress(OSError):
            if self._descriptor is not None:
                os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Removes the file, unless `begin` was called and `end` was not: the next run tells what may not be undone yet."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            if not self._is_running:
                with suppress(OSError):
                    os.unlink(self._path)
            os.close(descriptor)

    def changed_since_kill(
        self,
        entries: Mapping[str, Entry],
        git_directories: Sequence[str],
        look: Callable[[Iterable[str]], Mapping[str, Entry]],
    ) -> tuple[str, ...]:
        """The protected files that have changed since a command during which an earlier run was killed. `entries` are the files
        as they are now, and `look` finds those that only the earlier run protected. Removes the files of killed runs.
        """
        changed: set[str] = set()
        for before in self._descriptions(is_taken=True):
            now = {**look(path for path in before if path not in entries), **entries}
            changed.update(_changed_since(before, now, {*before, *entries}, git_directories))
        return tuple(sorted(changed))

    def of_others(self) -> list[dict[str, str]]:
        """The descriptions of the other runs of which a command runs now."""
        return [one for one in self._descriptions(is_alive=True) if one]

    def _descriptions(self, *, is_taken: bool = False, is_alive: bool = False) -> Iterator[dict[str, str]]:
        """Yields those of other runs: with `is_taken` those with the same directories. They may be empty: no protected files."""
        prefix = self._prefix if is_taken else ""
        for entry in entries_in(self._place, lambda entry: entry.name.startswith(prefix)):
            if entry.path != self._path:
                before = described(entry.path, is_taken=is_taken, is_alive=is_alive)
                yield from () if before is None else (before,)

    def changed_by_others(
        self,
        others: Iterable[Mapping[str, str]],
        entries: Mapping[str, Entry],
        git_directories: Sequence[str],
        look: Callable[[Iterable[str]], Mapping[str, Entry]],
    ) -> str:
        """A protected file that the command of another run (`of_others`) has changed, or an empty text. Its run will undo that.
        Only files in the same directories as those of this run count. The other parameters are those of `changed_since_kill`.
        """
        own = {_above(path) for path in {*entries, *self._missing, *git_directories}}
        for before in others:
            around = {*before, *map(_above, before)}
            described_here = {path for path in before if _above(path) in own}
            new = {path for path in entries if not around.isdisjoint(directories_above(path))}
            now = {**look(path for path in described_here if path not in entries), **entries}
            paths = described_here | new.difference(self._missing)
            if changed := min(_changed_since(before, now, paths, git_directories), default=""):
                return changed
        return ""


def _changed_since(
    before: Mapping[str, str], now: Mapping[str, Entry], paths: Iterable[str], git_directories: Sequence[str]
) -> Iterator[str]:
    """Yields those of the paths that are not as they were described, but for what a command may make."""
    for path in paths:
        entry, described_as = now.get(path), before.get(path, "")
        is_fresh = entry is not None and not described_as and may_be_made(path, entry, git_directories)
        if not is_fresh and differs(described_as, entry):
            yield path


def described(path: str, *, is_taken: bool = False, is_alive: bool = False) -> dict[str, str] | None:
    """The description in the file of a run. None if no command was running when the run ended, or runs now. With `is_taken`, the
    file is removed, and None also stands for a run that is still alive; with `is_alive`, for one that is not.
    """
    # ValueError: it was killed while it wrote, so that the command had not begun.
    with suppress(OSError, ValueError):
        with opened(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK) as lock:
            if is_taken:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_alive:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return None
            text = read_regular_file(path, _MOST_BYTES)
            if is_taken:
                os.unlink(path)
            found = json.loads(text) if text else None
        if isinstance(found, dict):
            return {str(name): str(digest) for name, digest in found.items()}
    return None


def _above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def differs(before: str, entry: Entry | None) -> bool:
    """Whether a file is not as it was described, which is empty if it did not exist."""
    if entry is None:
        return bool(before)
    return before not in (_digest(entry), _digest(replace(entry, content=None)))


def _digest(entry: Entry) -> str:
    content = "" if entry.content is None else python_sha256(entry.content)
    stamp = entry.stamp if entry.kind == "file" and entry.content is None else ()
    return f"{entry.kind} {entry.mode:o} {content} {stamp}"
