"""Applies the table of places to the plan of a sandbox, and makes of it the rules of Landlock and the command line of bubblewrap, from
what is on the machine now.

A command may read everything except the places that the table of places (`places/table.py`) and the user deny, and of the home only
what the table shows. It may write only in the roots and in a few places that ordinary work needs. Without namespaces, a denied path
inside a root can be read and written nevertheless: Landlock grants a right for a whole directory and cannot take it away for a part.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.files.opened_file import KERNEL_PLACES
from ralph.machine.files.paths import (
    directories_above,
    entries_in,
    is_within,
    is_within_any,
    mount_points,
    mounts,
    outermost,
)
from ralph.places.table import CLOSED, DEVICE, EMPTY, GUARDS, READ_ONLY, VISIBLE, WRITABLE
from ralph.sandbox import detection, landlock
from ralph.sandbox.bubblewrap import (
    DEVICES,
    QUEUES,
    TEMPORARY,
    Cover,
    EmptyDirectory,
    TooManyMountsError,
    bwrap_command,
    cover,
)
from ralph.sandbox.landlock import Rule, WatchedDirectories

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from ralph.places.gather import GuardedFiles
    from ralph.places.places import GuardedPlaces
    from ralph.sandbox.box_plan import BoxPlan

_DEVICE = landlock.READ_FILE | landlock.WRITE_FILE | landlock.IOCTL_DEV
_ROOT = landlock.READ | landlock.READ_DIR | landlock.WRITE


def plan_with_places(
    plan: BoxPlan,
    places: GuardedPlaces,
    *,
    roots: Sequence[str],
    temporary: str,
    cache: str,
    git: Sequence[str],
    programs: Sequence[str],
    own_files: Sequence[str] = (),
) -> BoxPlan:
    """The plan with the paths of a run, as the table says. `cache` is for package caches, commands may write the git directories
    `git`, `programs` are the directories of PATH, and `own_files` are readable. No path but those of `places` contains links.
    """
    bases = {
        "root": roots,
        "temporary": (temporary,),
        "packages": (cache,),
        "writable git": git,
        "programs": programs,
    }

    def of(guard: str) -> tuple[str, ...]:
        is_kept = plan.has_namespaces or "landlock" in GUARDS[guard].levels
        return places.guarded(guard, bases) if is_kept else ()

    writable = outermost((*of(WRITABLE), *plan.write))
    readable = tuple(dict.fromkeys((*own_files, *plan.read)))
    given = (*writable, *readable, *plan.sockets)
    return replace(
        plan,
        places=places,
        writable=writable,
        readable=readable,
        devices=(*of(DEVICE), *plan.gpus),
        closed=of(CLOSED),
        visible=of(VISIBLE),
        empty=tuple(
            place
            for place in of(EMPTY)
            if not any(is_within(one, place) or is_within(place, one) for one in given)
        ),
        read_only=tuple(path for path in of(READ_ONLY) if is_within_any(path, writable)),
        temporary=temporary,
        has_own_temporary=plan.has_namespaces and not is_within_any(TEMPORARY, writable),
    )


def landlock_rules(plan: BoxPlan, entries: Callable[[str], Iterable[str]]) -> Iterator[Rule]:
    """Yields the rules that allow what a plan with places allows. `entries` returns the names in a directory, without symbolic
    links. It is called for each directory above an unreadable path, parents first, and for each path that becomes unreadable when
    made.

    Paths inside a writable place get no rule, and directories there are not listed: a command could replace a part of such a path
    by a link, and the rule would open the link's target.
    """
    yield Rule("/", landlock.READ_DIR)
    for path in plan.absent:
        tuple(entries(path))
    closed = {path for path in plan.unreadable if not plan.is_writable(path)}
    places = plan.places
    # A root in a protected folder cannot be written, and in one of secrets not read either.
    roots = () if places is None else (root for root in places.roots if places.why_not_read(root) is None)
    shown = () if places is None else (*places.shown, *roots)
    denied = (*plan.read_deny, *plan.rules_deny)
    given = (*(path for path in shown if not is_within_any(path, denied)), *plan.readable)
    opened = dict.fromkeys(("/", *(path for path in given if not plan.is_writable(path))))
    for path in _covering(opened, {*closed, *plan.closed}, entries):
        yield Rule(path, landlock.READ)
    yield from (Rule(path, _DEVICE) for path in plan.devices)
    # Without ioctl, a device file that the settings make writable is of little use. Elsewhere the right opens nothing,
    # because commands cannot create device files.
    yield from (Rule(path, _ROOT | landlock.IOCTL_DEV) for path in plan.writable)
    yield from (Rule(copy, landlock.READ) for copy, _ in plan.copies)
    sockets = (path for path in plan.sockets if not plan.is_writable(path))
    yield from (Rule(path, landlock.RESOLVE_UNIX) for path in (*sockets, *plan.writable))


def inside_rules(plan: BoxPlan, rules: Iterable[Rule], root: int) -> Iterator[Rule]:
    """The rules of a command in a box, for the paths that it sees. Made there, because an overlay has other inodes. `root` is the
    descriptor of the box's root directory. In /tmp, the rule for the session's directory holds for all: a command could have put a
    link in the way of another one.
    """
    covered = dict(plan.copies)
    for rule in rules:
        path = plan.inside(covered.get(rule.path, rule.path))
        if path == TEMPORARY or not (plan.has_own_temporary and is_within(path, TEMPORARY)):
            yield Rule(path, rule.rights, root)
    # It contains only harmless devices, those that were given, the commands' own terminals and, mounted below it, their
    # shared memory.
    yield Rule(DEVICES, landlock.READ | landlock.READ_DIR | _DEVICE | landlock.WRITE, root)


def visible_parts(
    plan: BoxPlan, places: Collection[str], entries: Callable[[str], Iterable[str]]
) -> tuple[str, ...]:
    """The parts of some places that commands may read, as few paths. None contains an unreadable path, so each may be mounted where
    Landlock allows reading everything, such as in the session's directory. `entries` is as in `landlock_rules`.
    """
    shown = () if plan.places is None else plan.places.shown
    opened = dict.fromkeys(
        (*places, *(path for path in (*shown, *plan.readable) if is_within_any(path, places)))
    )
    closed = {path for path in plan.unreadable if not plan.is_writable(path)}
    found = _covering(opened, closed, lambda above: entries(above) if is_within_any(above, places) else ())
    return outermost(path for path in found if plan.may_read(path))


def own_mounts(abi: int, *, has_queues: bool) -> tuple[str, ...]:
    """The file systems that each command with namespaces mounts for itself, in the form PATH=RIGHTS: a rule for a directory does
    not hold for what is mounted on it. Empty without Landlock.
    """
    rights = landlock.READ | landlock.READ_DIR
    # A queue is opened past every directory, so that its own file system needs the right.
    places = {"/proc": rights, **({QUEUES: rights | landlock.WRITE} if has_queues else {})}
    return (
        tuple(f"{path}={right & landlock.file_rights(abi)}" for path, right in places.items()) if abi else ()
    )


def _covering(
    opened: Iterable[str], closed: Collection[str], entries: Callable[[str], Iterable[str]]
) -> Iterator[str]:
    """Yields paths that cover the `opened` places but the closed ones in them. What is made there later is not covered."""
    above = {directory for place in closed for directory in directories_above(place)}
    pending = [place for place in opened if place in above and place != "/"]
    yield from (place for place in opened if place not in above)
    pending += [] if "/" in closed else ["/"]
    for directory in pending:
        for name in entries(directory):
            path = f"{directory.rstrip('/')}/{name}"
            if path in closed:
                continue
            if path in above:
                pending.append(path)
            else:
                yield path


_MOST_READ_ONLY = 400
"""The maximum number of read-only mounts of protected files: a repository with many submodules has hundreds. The files of
the others are compared."""
# The terminals, the shared memory and the message queues of a command are its own.
_OWN_DEVICES = tuple(f"{DEVICES}/{name}" for name in ("pts", "ptmx", "tty", "console", "shm", "mqueue"))
HAS_QUEUES = os.path.isdir("/proc/sys/fs/mqueue")
"""Whether this kernel has POSIX message queues (mq_overview(7))."""


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
            *parts.write_denied,
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
        masked, denied = self._of_rules(parts.masked), self._of_rules(parts.write_denied)
        sockets = filter(os.path.exists, parts.sockets) if covered.words else ()
        tops, above = {*parts.writable, *guarded.outer}, set[str]()
        for path in (*read_only, *denied, *masked):
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
            read_only=(*read_only, *denied, *sockets),
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
