"""Applies the table of places to the plan of a sandbox, and makes the rules of Landlock for it. No I/O happens here.

A command may read everything except the places that the table of places (`places/table.py`) and the user deny, and of the
home only what the table shows. It may write only in the roots and in a few places that ordinary work needs. A denied path
inside a root can be read and written nevertheless: Landlock grants a right for a whole directory and cannot take it away for
a part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.files.paths import directories_above, is_within, is_within_any, outermost
from ralph.places.table import CLOSED, DEVICE, EMPTY, GUARDS, READ_ONLY, VISIBLE, WRITABLE
from ralph.sandbox.bubblewrap import DEVICES, QUEUES, TEMPORARY
from ralph.sandbox.kernel import landlock
from ralph.sandbox.kernel.landlock import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

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
