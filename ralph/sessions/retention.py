"""Removes journals: old ones at the end of a run, and any one that the user names. The former takes about `LONGEST_S`
seconds at most, and its errors are not reported. A journal that a process has open is never removed. Files and directories are left alone unless their names
look like those that ralph gives, because `--session-dir` may be any directory.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.opened_file import open_regular_file
from ralph.sessions.journal import SessionLockedError, lock_file, lock_patiently
from ralph.sessions.places import SUFFIX
from ralph.values.setting import MEGABYTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ralph.values.ports import Clock

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
    """Chooses the journals to remove, the oldest first. 0 for `keep_days` or `keep_mb` means no limit. `are_all` is
    False if the list of journals is incomplete. Then `keep_mb` has no effect, because the list may lack journals that
    are older.
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
    """Removes old journals from the store that contains `own`, the journal of this run. `own` itself is never
    removed. 0 for `keep_days` or `keep_mb` means no limit. Raises no error. Stops after `LONGEST_S` seconds. The next
    run removes the rest.
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
    descriptor = open_regular_file(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        (lock_patiently if age_s is None else lock_file)(descriptor)
        if age_s is not None and time.time() - os.fstat(descriptor).st_mtime < age_s:
            return
        path.unlink()
    finally:
        os.close(descriptor)
    for torn in path.parent.glob(f"{path.stem}.*torn"):
        torn.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()  # fails unless the directory is empty now
