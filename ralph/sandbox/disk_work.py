"""Does work on the disk on a thread, one piece after another. A file system that does not answer then costs the command
that needs the work, and not the run. Where all file systems are the machine's own, no thread is needed, which takes
longer than the work.
"""

from __future__ import annotations

import errno
import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from ralph.machine.files.paths import is_within_any, mount_points
from ralph.machine.starting import start_job
from ralph.values.outcome import ShortageError
from ralph.values.ports import TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.machine.starting import ThreadJob
    from ralph.values.ports import Clock, Waiter

T = TypeVar("T")

# A network file system that is away for longer than this is not there.
_ANSWERS_WITHIN_S = 30.0
# A stopped run ends soon, and a change that is half undone would stay.
_STOPS_WITHIN_S = 2.0
_SILENT = "a file system that the sandbox must look at (protected files, places with secrets) does not answer"

# Types of file systems that always answer: those on a disk of the machine, and those of its kernel.
_OWN = frozenset(
    (
        "ext2 ext3 ext4 xfs btrfs f2fs bcachefs zfs jfs nilfs2 vfat exfat ntfs3 iso9660 udf squashfs erofs overlay tmpfs ramfs "
        "devtmpfs hugetlbfs rootfs nsfs"
    ).split()
)
# The kernel's own places, and those of programs that run: nothing deep in them is looked at.
_NOT_LOOKED_AT = ("/dev", "/proc", "/run", "/sys")
_MOUNTS = "/proc/self/mountinfo"


class OwnDisks:
    """Tells whether all file systems of the machine are its own."""

    def __init__(self) -> None:
        self._mounts = -1
        """The list of mounts, whose descriptor reports changes."""
        self._changes = select.poll()
        self._are_all = False

    def are_all(self) -> bool:
        """One system call, as long as nothing is mounted or unmounted."""
        if self._mounts < 0:
            try:
                self._mounts = os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
            self._changes.register(self._mounts, select.POLLPRI)
        elif not self._changes.poll(0):
            return self._are_all
        others = (point for point, kind in mount_points().items() if kind not in _OWN)
        self._are_all = all(is_within_any(point, _NOT_LOOKED_AT) for point in others)
        return self._are_all

    def close(self) -> None:
        if self._mounts >= 0:
            os.close(self._mounts)
            self._mounts = -1


class SilentDiskError(TimeoutError):
    """A file system did not answer in time, so the command must not start."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, _SILENT)

    def __str__(self) -> str:
        return _SILENT


class DiskWork:
    """A queue of work on the disk. Each piece is done at once if it can be, otherwise on a thread when all earlier pieces have
    ended: none for an earlier command runs during a later one. All methods must be called on the main thread.
    """

    def __init__(self, waiter: Waiter, clock: Clock, own_disks: OwnDisks | None = None) -> None:
        """Without `own_disks`, all work is done on threads."""
        self._own_disks = own_disks
        self._waiter = waiter
        self._clock = clock
        self._last: ThreadJob | None = None
        self._waiting: list[Callable[[], object]] = []
        """Pieces of work for which there was no thread."""

    def result_of(self, work: Callable[[], T], waiting_for: str) -> T:
        """The result of a piece of work. `waiting_for` is for heartbeats. Raises what `work` raises, SilentDiskError and
        Interrupted.
        """
        is_busy = self._waiting or (self._last is not None and self._last.is_alive())
        if not is_busy and self._own_disks is not None and self._own_disks.are_all():
            return work()
        mailbox = self._waiter.mailbox()

        def do() -> None:
            try:
                mailbox.put((work(), None))
            except BaseException as failed:  # noqa: BLE001 - raised where somebody waits for it
                mailbox.put((None, failed))

        self.begin(do)
        until_s = self._clock.now_s() + _ANSWERS_WITHIN_S
        try:
            found = self._waiter.wait(mailbox, until_s=until_s, waiting_for=waiting_for)
        finally:
            mailbox.close()
        if found is TIMED_OUT:
            raise SilentDiskError
        result, failed = found
        if failed is not None:
            raise failed
        done: T = result
        return done

    def close(self) -> None:
        if self._own_disks is not None:
            self._own_disks.close()

    def finish(self, work: Callable[[], object]) -> None:
        """Begins a piece of work, and waits for its end for at most 2 seconds. Is not interrupted."""
        self.begin(work)
        if self._last is not None:
            self._last.join(_STOPS_WITHIN_S)

    def begin(self, work: Callable[[], object]) -> None:
        """Starts a thread for a piece of work. Without a free thread, does it on this one, or if an earlier piece has not ended
        after 2 seconds, before the next piece.
        """
        earlier, pieces = self._last, [*self._waiting, work]

        def do() -> None:
            if earlier is not None:
                earlier.join()
            for piece in pieces:
                # nobody waits for it, or `result_of` raises it
                with suppress(OSError, ImportError, MemoryError):
                    piece()

        self._waiting = []
        try:
            self._last = start_job(do, name="sandbox")
        except ShortageError:
            if earlier is not None:
                earlier.join(_STOPS_WITHIN_S)
            if earlier is not None and earlier.is_alive():
                self._waiting = pieces
            else:
                do()
