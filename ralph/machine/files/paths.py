"""Reads paths as they are on the disk: the repository above a directory and what git's files name, the symbolic links on a path, and
further paths of a place that is mounted twice. Runs no program, not even git, because a repository can name programs that git
would run. Also compares absolute paths as texts.

A link inside a repository may have come with it, and one where commands may write may be a command's, so ralph follows neither to
a place outside. Links elsewhere were made by the user and are allowed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections import deque
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.opened_file import KERNEL_PLACES, LINKS_OF_THE_SYSTEM, opened, opened_path
from ralph.machine.own_process import link_target, way_to, written_by_all
from ralph.values.outcome import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

HELD_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""Flags with which a directory is opened for use as `dir_fd`. On Linux this needs no permission to read the
directory."""

MOST_BYTES = 1 << 20
"""The most that is read of a file of git."""
# Made by git's own daemon. Git does not wait for it: ralph turns it off.
_OF_DAEMON = "fsmonitor--daemon.ipc"


GIT_VARIABLES = ("GIT_DIR", "GIT_COMMON_DIR")


def git_entry(top: str) -> str:
    """The path of `.git` in a directory, which may be the root directory."""
    return f"{top.rstrip('/')}/.git"


def repositories_above(directory: str) -> Iterator[tuple[str, bool]]:
    """Yields each directory in which git may look for a repository: `directory` and those above, the nearest first. The last one,
    with True, is the nearest checkout: it has `.git`. The others have only a `HEAD`, as a bare repository does.
    """
    for above in (directory, *map(str, Path(directory).parents)):
        # A link that leads nowhere counts too: git will report what is wrong with it.
        if os.path.lexists(git_entry(above)):
            yield above, True
            return
        if os.path.lexists(f"{above}/HEAD"):
            yield above, False


def repository_top(directory: Path) -> Path | None:
    """The nearest directory with `.git`: `directory`, without links, or one above. None outside a repository."""
    above = repositories_above(str(directory.resolve()))
    return next((Path(top) for top, is_checkout in above if is_checkout), None)


def project_top(directory: Path, environment: Mapping[str, str]) -> Path | None:
    """The topmost directory with `.git` around `directory`, without links. A command can make another repository below it, and the
    rules of the project still count. The root directory and those with the home directory in them are no projects.
    """
    place, home = directory.resolve(), os.path.realpath(environment.get("HOME") or os.sep)
    above = [one for one in (place, *place.parents) if one.name and not is_within(home, str(one))]
    return next((one for one in reversed(above) if os.path.lexists(git_entry(str(one)))), None)


def up_to_repository_root(cwd: Path) -> Sequence[Path]:
    """The directories from the working directory up to the top of its repository. Outside of one, only the working directory."""
    directories = [cwd, *cwd.parents]
    tops = (directories.index(Path(top)) for top, is_checkout in repositories_above(str(cwd)) if is_checkout)
    return directories[: next(tops, 0) + 1]


def git_directory(top: str) -> str | None:
    """The git directory of the checkout at `top`: `.git`, or what the file `.git` names. None if this names none."""
    place = git_entry(top)
    if not os.path.isfile(place):
        return place
    words = directory_named_in(place)
    named = words.removeprefix("gitdir: ")
    return None if named == words else os.path.join(top, named)


def git_directories_elsewhere(top: str) -> list[str]:
    """The git directories that the file `.git` at `top` names, if git would take them: that of a linked worktree with its main
    checkout's, or a submodule's.
    """
    place = git_directory(top)
    named = () if place in (None, git_entry(top)) else (place, common_directory(place))
    return [one for one in named if one is not None and os.path.exists(f"{one}/HEAD")]


def may_have_moved(directory: Path, since_s: float) -> bool:
    """Whether the commit of the checkout around `directory` may have changed since a time (epoch), by the reflog of HEAD."""
    top = repository_top(directory)
    place = None if top is None else git_directory(str(top))
    if place is None:
        return False
    try:
        return os.stat(f"{place}/logs/HEAD").st_mtime >= int(since_s)
    except OSError:  # git says what is wrong, if anything is
        return not _is_without_objects(f"{place}/objects")


def _is_without_objects(directory: str) -> bool:
    """Whether a directory of git's objects is as `git init` makes it, so that there is no commit. False if nobody knows."""
    try:
        inside = {name: os.listdir(f"{directory}/{name}") for name in os.listdir(directory)}
    except OSError:
        return False
    return inside == {"info": [], "pack": []}


def common_directory(git_directory: str) -> str | None:
    """The directory that `commondir` in a git directory names (gitrepository-layout(5)), or None."""
    named = directory_named_in(f"{git_directory}/commondir")
    return os.path.join(git_directory, named) if named else None


def directory_named_in(file: str) -> str:
    """The directory that a file of git names, read as git reads it: without the line breaks at the end, and then up to a NUL.
    Other white space is part of the name. Empty if the file names none. See `beginning_of`.
    """
    return os.fsdecode(beginning_of(file).rstrip(b"\r\n").partition(b"\0")[0])


def git_installation() -> str:
    """The directory in which git is installed. That is the one above its program's, unless the program is a shim."""
    return os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("git") or "/usr/bin/git")))


def beginning_of(file: str, most_bytes: int = MOST_BYTES) -> bytes:
    """The first bytes of a file, or empty. Never blocks. Raises OSError if the machine lacks file descriptors or memory."""
    data = b""
    try:
        with opened(file, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
            while len(data) < most_bytes and (chunk := os.read(descriptor, most_bytes - len(data))):
                data += chunk
    except OSError as error:
        if shortage_of(error) is not None:
            raise
        return b""
    return data


def status_of(path: str) -> os.stat_result | None:
    """The status of what is at a path, also of a link itself. None if it cannot be looked at."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory, and no link to one."""
    return entry.is_dir(follow_symlinks=False)


def entries_in(
    directory: str, is_wanted: Callable[[os.DirEntry[str]], bool] = lambda _: True
) -> list[os.DirEntry[str]]:
    """The entries of a directory, without those that cannot be looked at. Empty if the directory itself cannot."""
    found = []
    with suppress(OSError), os.scandir(directory) as listing:
        for entry in listing:
            with suppress(OSError):
                found += [entry] if is_wanted(entry) else []
    return found


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or is inside it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_within_any(path: str, directories: Iterable[str]) -> bool:
    return any(is_within(path, directory) for directory in directories)


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Removes each path that lies inside another one of the paths, and keeps the order of the rest."""
    known = dict.fromkeys(paths)
    return tuple(path for path in known if not any(above in known for above in directories_above(path)))


def directories_above(path: str) -> Iterator[str]:
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


def blocking_entry(
    directories: Iterable[str],
    is_read: Callable[[os.DirEntry[str]], bool],
    is_over: Callable[[], bool],
    is_followed: Callable[[str], bool] | None = None,
) -> str | None:
    """The path of a pipe, device or socket in or below the directories, among what `is_read` selects. None if there is none, or
    once `is_over` returns True. Opens no file. `is_followed` says whether links in a directory are followed; without it, none is,
    and no `.git` is searched.
    """
    pending = deque(dict.fromkeys(directories))
    linked: set[str] = set()
    while pending and not is_over():
        directory = pending.popleft()
        follows = is_followed is not None and is_followed(directory)
        with suppress(OSError), os.scandir(directory) as listing:
            for entry in listing:
                if is_folder(entry):
                    if entry.name != ".git" or is_followed is not None:
                        pending.append(entry.path)
                elif follows and os.path.isdir(entry.path):
                    if (place := os.path.realpath(entry.path)) not in linked:
                        linked.add(place)
                        pending.append(entry.path)
                elif is_read(entry) and blocks(entry.path):
                    return entry.path
    return None


def blocks(path: str) -> bool:
    """Whether a program that opens the path for reading may wait for ever, or read for ever."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    is_read = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return not (is_read or os.path.basename(path) == _OF_DAEMON or os.path.samefile(path, os.devnull))


_ESCAPE = re.compile(r"\\([0-7]{3})")


def untrusted_places(directories: Sequence[str | Path]) -> tuple[str, ...]:
    """The tops of the projects around the directories, or outside of one the directory itself, and what the commands of all
    runs may write. Without links.
    """
    places = (*directories, *written_by_all(os.environ))
    tops = (project_top(Path(place), os.environ) or os.path.realpath(place) for place in places)
    return tuple(dict.fromkeys(map(str, tops)))


def planted_link(path: str, tops: Sequence[str]) -> str | None:
    """The first link on the way of an absolute path that is inside one of `tops`. None if there is none, or there are too many
    links.
    """
    with suppress(OSError):
        for place, is_link, _ in way_to(path):
            above = os.path.dirname(place)
            is_of_system = above in LINKS_OF_THE_SYSTEM or is_within_any(above, KERNEL_PLACES)
            if is_link and is_within_any(above, tops) and not is_of_system:
                return place
    return None


def followed_link(path: str, real: str | None, directories: Sequence[str | Path]) -> tuple[str | None, str]:
    """As `planted_link`, in the `untrusted_places` of `directories`, of a path by which `real` was opened, without links or unknown.
    It is `path` itself if the way leads elsewhere by now: a command has exchanged something there. The second value is the
    innermost of these places in which `real` is, or empty if it is in none.
    """
    tops = untrusted_places(directories)
    around = max((top for top in tops if real is not None and is_within(real, top)), key=len, default="")
    link = planted_link(path, tops)
    has_changed = (
        link is None and real is not None and leads_into(path, tops) and LinkResolver()(path) != real
    )
    return (path if has_changed else link), around


def link_inside(descriptor: int, path: str, directories: Sequence[str | Path]) -> tuple[str, str, str] | None:
    """The link by which a file was opened for reading, with the real path and the place around it, as `followed_link` finds them, or
    None. Raises OSError if it leads out.
    """
    real = opened_path(descriptor, path)
    link, around = followed_link(path, real, directories)
    if link is None:
        return None
    if real is None or not around:
        out = f"{link} is a link that leads out of its repository, and may have come with it"
        raise OSError(
            errno.EPERM, f"{out}; name what it leads to ({real or 'no file'}) if that is meant", path
        )
    return link, real, around


def links_and_file(path: str) -> list[str]:
    """The links on the way to a file, and then the file, if it is one. No path contains links but as its last part."""
    found, last = [], "/"
    try:
        for place, is_link, _ in way_to(path):
            last = place
            found += [place] if is_link else []
    except OSError:
        return found
    is_known = last in found or os.path.isdir(last)
    return found if is_known else [*found, last]


def leads_into(path: str, directories: Iterable[str]) -> bool:
    """Whether an absolute path leads through one of the directories, whose writers then decide where to. True with too many
    links.
    """
    inside = tuple(os.path.realpath(directory).rstrip("/") + "/" for directory in directories)
    try:
        return any(place.startswith(inside) for place, *_ in way_to(path))
    except OSError:
        return True


class LinkResolver:
    """Resolves links in absolute paths, which need not exist, but none where commands could have made it. Looks at each place
    once.
    """

    def __init__(self, unfollowed: tuple[str, ...] = ()) -> None:
        """No link is followed in `unfollowed`, directories without links: what lies there says nothing about other places."""
        self.unfollowed = unfollowed
        self._target_of = cache(link_target)

    def __call__(self, path: str) -> str:
        """The path without links. If the way leads into one of `unfollowed`, the result lies there, and may contain links."""
        last = "/"
        with suppress(OSError):  # a ring of links, which leads nowhere
            for place, _, ahead in way_to(path, self._target_of):
                if is_within_any(place, self.unfollowed):
                    rest = (part for part in reversed(ahead) if part not in ("", os.curdir, os.pardir))
                    return "/".join((place, *rest))
                last = place
        return last

    def outside(self, path: str) -> str | None:
        """The path without symbolic links. None if the way leads into one of `unfollowed`."""
        real = self(path)
        return None if is_within_any(real, self.unfollowed) else real


class _Mount(Struct, frozen=True):
    number: str
    parent: str
    device: str
    root: str
    """The directory of the file system that is mounted."""
    point: str

    def path_of(self, inside: str) -> str:
        """The path to a file of the mounted directory. `inside` is its path in the file system."""
        return f"{self.point.rstrip('/')}/{inside[len(self.root) :].lstrip('/')}".rstrip("/") or "/"


def other_paths(
    places: Sequence[str], mountinfo: str, is_closed: Callable[[str], bool] = lambda _: True
) -> tuple[str, ...]:
    """The other paths that lead to these places (without links), or to what is in them, on file systems that are mounted more
    than once. `mountinfo` is as /proc/self/mountinfo. Of the mounts inside the places only those whose points `is_closed`
    count.
    """
    mounts = _listed(mountinfo)
    if len({mount.device for mount in mounts}) == len(mounts):
        return ()
    found = (
        path
        for place in places
        for mount, inside in _parts_of(place, mounts, is_closed)
        for one in mounts
        if one.device == mount.device and (is_within(inside, one.root) or is_within(one.root, inside))
        # Or only a part of the place is mounted there.
        for path in (one.path_of(inside) if is_within(inside, one.root) else one.point,)
        if path not in (place, mount.point)
    )
    return tuple(dict.fromkeys(path for path in found if path not in places))


def mounts_made(inside: str, outside: str) -> Iterator[tuple[str, str, bool]]:
    """Yields the mounts of a box that show a part of the machine, but those that the machine itself has there: the point of each,
    that of the mount around it, and whether it shows the place with its own path. Both arguments are as /proc/self/mountinfo.
    """
    machine = _listed(outside)
    devices, same = {one.device for one in machine}, {(one.device, one.root, one.point) for one in machine}
    made = {one.number: one for one in _listed(inside)}
    for mount in made.values():
        if mount.device in devices and (mount.device, mount.root, mount.point) not in same:
            around = made.get(mount.parent, mount)
            below = mount.point[len(around.point) :].lstrip("/")
            own = f"{around.root.rstrip('/')}/{below}".rstrip("/") or "/"
            is_itself = is_within(mount.point, around.point) and around.device == mount.device
            yield mount.point, around.point, is_itself and mount.root == own


def _listed(mountinfo: str) -> list[_Mount]:
    lines = (line.split(" ") for line in mountinfo.splitlines())
    return [
        _Mount(fields[0], fields[1], fields[2], _plain(fields[3]), _plain(fields[4]))
        for fields in lines
        if len(fields) > 4
    ]


def _parts_of(
    place: str, mounts: Sequence[_Mount], is_closed: Callable[[str], bool]
) -> Iterator[tuple[_Mount, str]]:
    """Yields the mounts with a part of a place, each with the path of this part in its file system."""
    around = _seen([mount for mount in mounts if is_within(place, mount.point)])
    if around is not None:  # in a changed root directory, the mount around it may not be listed
        yield around, f"{around.root.rstrip('/')}/{place[len(around.point) :].lstrip('/')}".rstrip("/") or "/"
    for mount in mounts:
        if is_within(mount.point, place) and mount.point != place and is_closed(mount.point):
            yield mount, mount.root


def _seen(around: Sequence[_Mount]) -> _Mount | None:
    """The mount that is seen at a path. Of those around it, others may be hidden behind it, at the same point or a deeper one."""
    numbers = {mount.number for mount in around if mount.number != mount.parent}
    seen: _Mount | None = None
    while True:
        on_it = (
            mount
            for mount in around
            if (mount.parent not in numbers if seen is None else mount.parent == seen.number != mount.number)
        )
        below = min(on_it, key=lambda mount: len(mount.point), default=None)
        if below is None:
            return seen
        seen = below


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), field)


def mount_points() -> dict[str, str]:
    """The points of the mounts that this process sees, each with the type of the (upper) file system."""
    lines = [line.split(" ") for line in mounts().splitlines()]
    return {_plain(fields[4]): fields[fields.index("-", 6) + 1] for fields in lines if "-" in fields[6:]}


def mounts(process: int | str = "self") -> str:
    """The content of `/proc/PROCESS/mountinfo`: the mounts that the process sees. Empty on a system without /proc."""
    try:
        with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
