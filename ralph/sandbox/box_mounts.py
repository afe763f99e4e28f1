"""Decides what the box of a run's commands shows of the machine: makes the command line of bubblewrap from the plan with the paths
of the run and from what is there now.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from ralph.machine.files.opened_file import KERNEL_PLACES
from ralph.machine.files.paths import entries_in, is_within, is_within_any, mount_points, mounts
from ralph.sandbox import detection
from ralph.sandbox.bubblewrap import DEVICES, TEMPORARY, bwrap_command
from ralph.sandbox.kernel.landlock import WatchedDirectories
from ralph.sandbox.landlock_rules import visible_parts
from ralph.sandbox.overlays import Cover, EmptyDirectory, TooManyMountsError, cover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.places.gather import GuardedFiles
    from ralph.sandbox.box_plan import BoxPlan

_MOST_READ_ONLY = 400
"""The maximum number of read-only mounts of protected files: a repository with many submodules has hundreds. The files of
the others are compared."""
# The terminals, the shared memory and the message queues of a command are its own.
_OWN_DEVICES = tuple(f"{DEVICES}/{name}" for name in ("pts", "ptmx", "tty", "console", "shm", "mqueue"))
HAS_QUEUES = os.path.isdir("/proc/sys/fs/mqueue")
"""Whether this kernel has POSIX message queues (mq_overview(7))."""
"""Places of the kernel, which change all the time."""


class BoxMounts:
    def __init__(
        self, parts: BoxPlan, guarded: GuardedFiles, own_files: Callable[[], tuple[str, ...]], closed: str
    ) -> None:
        """`guarded` are the files that are mounted read-only. `own_files` returns the directory with the long outputs of commands,
        if there is one. `closed` is an empty directory for those that commands must not read. No path contains links.
        """
        self._parts = parts
        self._guarded = guarded
        self._own_files = own_files
        self._closed = closed
        self._empty: EmptyDirectory | None = None
        """The second layer of overlays."""
        self._overlaid = parts.means.overlaid
        """The file systems of which overlays can be made."""
        self.not_covered: Cover | None = None
        """Overlays that could not be made."""
        self._watched = WatchedDirectories()
        self._known: tuple[tuple[tuple[str, ...], str] | None, tuple[str, ...], bool] = None, (), False
        """ralph's own files and the mounts of the machine, and the result of `words` with them, while `_watched` is unchanged."""
        self._number = 0

    def words(self, bwrap: str, *, has_covers: bool) -> tuple[tuple[str, ...], bool, int]:
        """The command line of bubblewrap, whether it shows overlays, and its number, which grows when it is made anew. Raises
        OSError.
        """
        seen = self._own_files(), mounts()
        known, words, is_covered = self._known
        if known == seen and not self._watched.have_changed():
            return words, is_covered, self._number
        self._watched.clear()
        for path in self._places():
            above = os.path.dirname(path)
            self._watched.add(path if above == TEMPORARY else above)  # which changes all the time
        covers = self._covers(bwrap) if has_covers else None
        words, is_covered = self._made(bwrap, *(covers or ())), covers is not None
        self._known = seen if has_covers else None, words, is_covered
        self._number += 1
        return words, is_covered, self._number

    def forget(self) -> None:
        """Makes the next call of `words` look again."""
        self._known = None, (), False

    def close(self) -> None:
        if self._empty is not None:
            self._empty.remove()
            self._empty = None

    def _covers(self, bwrap: str) -> tuple[Cover, Cover] | None:
        """How the machine, and what is mounted again in /tmp, is shown to a command. None without overlays: they are not needed,
        or one cannot be made, because something was mounted since the start. Raises OSError.
        """
        # Where commands may write /tmp, they could write in the second layer.
        if not (self._parts.needs_overlays and self._parts.has_own_temporary):
            return None
        own = self._own_files()  # ralph writes there all the time, and nobody makes a socket
        again = [one for one in self._mounted_again() if one not in own and os.path.isdir(one)]
        try:
            self._empty = self._empty or EmptyDirectory()
            whole, *found = (cover(one, self._empty.path) for one in ("/", *again))
        except TooManyMountsError:
            return None
        words = tuple(word for one in found for word in one.words)
        devices = frozenset().union(*(one.devices for one in found))
        both = Cover((*whole.words, *words), whole.devices | devices)
        if not both.devices <= self._overlaid:
            if both == self.not_covered or detection.why_not_covered(bwrap, both):
                self.not_covered = both
                return None
            self._overlaid |= both.devices
        return whole, Cover(words, devices)

    def _places(self) -> Iterator[str]:
        """Yields the paths on which the command line depends: what exists there, and whether it is a link."""
        parts, guarded = self._parts, self._guarded
        yield from (
            *parts.masked,
            *parts.unchanged,
            # Commands and bubblewrap change the own one all the time, and nobody else can replace it.
            *(one for one in parts.writable if one != parts.temporary),
            *parts.empty,
            *parts.gpus,
            *guarded.outer,
            *guarded.around,
        )
        yield from (file for _, file in parts.copies)
        yield from (path for path, _ in guarded.found())
        yield from self._places_in_tmp()
        if parts.needs_overlays:  # what has mounts below it is shown entry by entry
            yield from (
                point for point in mount_points() if not is_within_any(point, ("/dev", *KERNEL_PLACES))
            )

    def _made(self, bwrap: str, covered: Cover = Cover(), visible: Cover = Cover()) -> tuple[str, ...]:  # noqa: B008 - it is frozen
        parts, read_only, guarded = self._parts, self.read_only(), self._guarded
        masked, unchanged = self._of_rules(parts.masked), self._of_rules(parts.unchanged)
        sockets = filter(os.path.exists, parts.sockets) if covered.words else ()
        tops, above = {*parts.writable, *guarded.outer}, set[str]()
        for path in (*read_only, *unchanged, *masked):
            while (path := os.path.dirname(path)) not in tops and path != "/":
                above.add(path)
        pinned = (*guarded.outer, *sorted({*above, *guarded.around}))
        words = bwrap_command(
            bwrap,
            temporary=parts.temporary if parts.has_own_temporary else None,
            writable=[one for one in parts.writable if os.path.exists(one) and os.path.realpath(one) == one],
            devices=filter(os.path.exists, dict.fromkeys((*parts.gpus, *filter(_has_devices, parts.write)))),
            visible=(
                one
                for one in self._mounted_again()
                # A socket would be that of a program outside.
                if not covered.words or one in self._own_files() or os.path.isfile(one)
            ),
            cover=covered.words,
            visible_covers=visible.words,
            pinned=(path for path in pinned if os.path.isdir(path) and not os.path.islink(path)),
            read_only=(*read_only, *unchanged, *sockets),
            copies=[one for one in parts.copies if os.path.isfile(one[1]) and not os.path.islink(one[1])],
            empty_directories=filter(os.path.isdir, parts.empty),
            empty_files=(place for place in (*parts.empty, *masked) if not os.path.isdir(place)),
            closed=self._closed,
            closed_directories=filter(os.path.isdir, masked),
            has_queues=HAS_QUEUES,
            has_network=not parts.has_own_network,
        )
        return tuple(words)

    def _of_rules(self, places: Iterable[str]) -> list[str]:
        """Those of the places that mounts can guard now, without git's own directories: git could not work."""
        git = self._guarded.git_directories
        return [
            place
            for place in places
            if os.path.lexists(place)
            and os.path.realpath(place) == place
            and not any(is_within(place, one) or is_within(one, place) for one in git)
        ]

    def visible(self) -> tuple[str, ...]:
        """The places in /tmp that commands and file tools see although the session's directory is mounted there."""
        return tuple(filter(os.path.exists, self._places_in_tmp()))

    def _places_in_tmp(self) -> Iterator[str]:
        parts = self._parts
        shown = () if parts.places is None else parts.places.shown
        places = dict.fromkeys((*parts.visible, *parts.readable, *shown, *self._own_files()))
        return (one for one in places if is_within(one, TEMPORARY))

    def _mounted_again(self) -> tuple[str, ...]:
        """The parts of these places that are mounted for commands. Landlock allows reading all that is in the session's
        directory, so no part contains an unreadable path. A place with a symbolic link is mounted as a whole, or not at all.
        """

        def readable(*places: str) -> tuple[str, ...]:
            return visible_parts(self._parts, places, self._names_in)

        real = {one: os.path.realpath(one) for one in self.visible()}
        parts = readable(*(one for one, to in real.items() if to == one))
        linked = (one for one, to in real.items() if to != one and readable(to) == (to,))
        return (*(one for one in parts if os.path.exists(one) and os.path.realpath(one) == one), *linked)

    def _names_in(self, directory: str) -> list[str]:
        self._watched.add(directory)
        return sorted(one.name for one in entries_in(directory, lambda entry: not entry.is_symlink()))

    def read_only(self) -> tuple[str, ...]:
        """The protected files and directories of hooks that exist. A mount on a link would protect its target, and not the link."""
        found = (
            path
            for path, kind in self._guarded.found()
            if (os.path.isfile(path) or (kind == "tree" and os.path.exists(path)))
            and not os.path.islink(path)
        )
        return tuple(islice(found, _MOST_READ_ONLY))


def _has_devices(place: str) -> bool:
    """Whether what may be written is a device node, or a directory of `/dev` that bubblewrap does not make anew."""
    if is_within(place, DEVICES):
        return place != DEVICES and not is_within_any(place, _OWN_DEVICES)
    with suppress(OSError):
        mode = os.stat(place).st_mode
        return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    return False
