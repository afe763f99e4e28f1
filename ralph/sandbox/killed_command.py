"""Finds out what a command changed in protected files if ralph was killed before it could undo the changes, and what the
commands of other runs have changed that are still running.

While a command runs, a file in ralph's state directory describes the protected files as they were before. The next run with
the same directories reports the changes, but does not undo them: somebody else may have made some since. If this file cannot
be written, nothing is reported.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.files.opened_file import opened, read_regular_file
from ralph.machine.files.paths import directories_above, entries_in
from ralph.machine.loading import python_sha256
from ralph.places.state import name_for
from ralph.sandbox.protected_changes import may_be_made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ralph.sandbox.protected_changes import Entry

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
