"""Parses the output of `git status`, and reads the state of a checkout and of the repositories inside it, and the changes between
two of them, without the paths that ralph itself writes to: these are no progress. Git runs separately in each repository, with
settings made for it: from the outer one, it would run programs that their configurations name.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.git.answer import CheckoutError
from ralph.git.runner import CheckoutGit
from ralph.machine.files.opened_file import opened
from ralph.machine.files.paths import is_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.values.ports import Clock, Waiter

# Does not look into submodules: git would start processes that follow the submodules' configuration.
STATUS_ARGUMENTS = (
    *("status", "--porcelain=v2", "-z", "--branch", "--no-ahead-behind"),
    *("--untracked-files=all", "--no-renames", "--ignore-submodules=dirty"),
)
# Fields before the path in git-status(1): "1 <XY> <sub> <mH> <mI> <mW> <hH> <hI> <path>". A "u" record of an
# unmerged file has modes and object ids of three stages.
_FIELDS = {b"1": 8, b"u": 10}
GITLINK = b"160000"
# In lines of `git ls-files --stage -v -z`. They begin with fixed bytes, by which those of 200,000 files are searched in 20 ms.
_LINKS = re.compile(rb"\x00[A-Za-z] " + GITLINK + rb" [^\t]*\t([^\0]*)")
_HIDDEN = re.compile(rb"\x00[a-zS] 1[02]0[0-9]{3} ([0-9a-f]*) 0\t([^\0]*)")
_MOST_HIDDEN = 1000


class StatusEntry(Struct, frozen=True):
    path: str
    """The path relative to the top directory. Bytes that are not UTF-8 are decoded as by `os.fsdecode`."""
    record: bytes
    """The line about the file in git's output. It contains file modes and the object ids in HEAD and in the index."""
    is_tracked: bool
    is_unstaged: bool
    """Whether the file in the working tree differs from the file in the index."""
    is_unmerged: bool = False

    @property
    def is_nested(self) -> bool:
        """Whether the entry is a repository inside this repository and is not tracked."""
        return not self.is_tracked and self.path.endswith("/")

    @property
    def is_in_head(self) -> bool:
        return self.is_tracked and self.record.split(b" ", 4)[3].strip(b"0") != b""

    @property
    def is_gitlink(self) -> bool:
        """Whether the entry is a tracked repository, such as a submodule, in HEAD, in the index or in the working tree."""
        return self.is_tracked and GITLINK in self.record.split(b" ", 6)[3:6]

    def of_head(self) -> Iterator[bytes]:
        """The line of git-update-index(1) that gives the index the entry of HEAD, if it has another one. The record of such
        a file is "1 <XY> <sub> <mH> <mI> <mW> <hH> <hI> <path>".
        """
        parts = self.record.split(b" ", _FIELDS[b"1"])
        if parts[0] == b"1" and parts[1][:1] != b".":
            yield parts[3] + b" " + parts[6] + b"\t" + parts[-1] + b"\0"


class GitStatus(Struct, frozen=True):
    head: str
    """The id of the current commit, or "" before the first commit."""
    branch: str | None
    """The current branch, or None if HEAD is detached or names no branch."""
    entries: tuple[StatusEntry, ...]


class RepositoryLook(Struct, frozen=True):
    """A look at a repository, without those inside it."""

    status: GitStatus
    links: tuple[str, ...]
    """The paths in the index that are repositories, such as submodules."""
    hidden: Mapping[str, str]
    """The files that are there although git is told to see no change of them (`--assume-unchanged`, `--skip-worktree`), each
    with its object id in the index. At most `_MOST_HIDDEN` such entries are looked at."""
    unsaved: tuple[str, ...] = ()
    """The tracked repositories that hold uncommitted work, as far as `look` has looked into them."""


def _entry(record: bytes) -> Iterator[StatusEntry]:
    kind = record[:1]
    fields = _FIELDS.get(kind, 1)
    parts = record.split(b" ", fields)
    path = parts[-1].decode("utf-8", "surrogateescape")
    if kind == b"?":
        yield StatusEntry(path, record, is_tracked=False, is_unstaged=True)
    elif kind in _FIELDS:
        is_unstaged = parts[1][1:2] != b"."
        yield StatusEntry(path, record, is_tracked=True, is_unstaged=is_unstaged, is_unmerged=kind == b"u")


def status_of(git: CheckoutGit) -> GitStatus:
    headers: dict[str, str] = {}
    entries: list[StatusEntry] = []
    for record in git.read(*STATUS_ARGUMENTS).split(b"\0"):
        if record.startswith(b"# "):
            name, _, value = record[2:].decode("utf-8", "surrogateescape").partition(" ")
            headers[name] = value
        elif record:
            entries += _entry(record)
    head, branch = headers.get("branch.oid", ""), headers.get("branch.head", "")
    # Git says "(null)" if HEAD names a tag or something else that is not a branch.
    is_on_branch = branch not in ("(detached)", "(null)")
    return GitStatus("" if head == "(initial)" else head, branch if is_on_branch else None, tuple(entries))


def looked(git: CheckoutGit) -> RepositoryLook:
    """Raises CheckoutError and Interrupted."""
    status = status_of(git)
    listed = b"\0" + git.read("ls-files", "--stage", "-v", "-z")
    found = islice(_HIDDEN.finditer(listed), _MOST_HIDDEN)
    hidden = {os.fsdecode(one[2]): one[1].decode() for one in found}
    there = {path: oid for path, oid in hidden.items() if os.path.lexists(git.top / path)}
    return RepositoryLook(status, tuple(map(os.fsdecode, _LINKS.findall(listed))), there)


def look(
    git: CheckoutGit,
    digests: FileDigests,
    lines: list[str],
    files: dict[str, str],
    *,
    own: OwnPaths,
    prefix: str = "",
) -> RepositoryLook:
    """Reads the state of one repository and of those inside it, and returns the look at the outermost one. Adds to `lines` the
    commit and branch of each, git's record of each changed file, and the errors of inner repositories, and to `files` the
    digest of each changed or untracked file, by its path below the top of the outermost one. Any progress changes one of the
    two. `prefix` is the repository's path within the outermost one. Raises CheckoutError and Interrupted.
    """
    found = looked(git)
    status = found.status
    entries = list(counted(status.entries, own, prefix))
    lines.append(f"{prefix}\0{status.head}\0{status.branch}")
    for entry in entries:
        lines.append(prefix + entry.record.decode("utf-8", "surrogateescape"))
        if not entry.is_nested:
            files[prefix + entry.path] = digests.of(os.path.join(git.top, entry.path))  # noqa: PTH118 - digests are of strings
    for path in found.hidden:
        files[prefix + path] = digests.of(os.path.join(git.top, path))  # noqa: PTH118 - digests are of strings
    unsaved = []
    for path in _inner_repositories(git, found.links, entries):
        below = f"{prefix}{path}/"
        try:
            inner = look(CheckoutGit(git.top / path, git.seams), digests, lines, files, own=own, prefix=below)
            is_unsaved = bool(inner.unsaved) or any(counted(inner.status.entries, own, below))
            unsaved += [path] if is_unsaved and path in found.links else []
        except CheckoutError as error:
            lines.append(f"{below}\0{error}")
    return replace(found, unsaved=tuple(unsaved))


def is_refused(path: str | os.PathLike[str]) -> bool:
    """Whether git would refuse a whole commit because of what is at a path: an unreadable file, a pipe, a socket or a device."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    if stat.S_ISREG(mode):
        return not os.access(path, os.R_OK)
    return not (stat.S_ISLNK(mode) or stat.S_ISDIR(mode))


def counted(entries: Iterable[StatusEntry], own: OwnPaths, prefix: str = "") -> Iterator[StatusEntry]:
    return (entry for entry in entries if not own.hold(prefix + entry.path))


def _inner_repositories(
    git: CheckoutGit, links: Iterable[str], entries: Iterable[StatusEntry]
) -> Iterator[str]:
    """Without a `.git`, nothing is checked out there."""
    nested = [entry.path.rstrip("/") for entry in entries if entry.is_nested]
    return (path for path in dict.fromkeys([*links, *nested]) if os.path.lexists(git.top / path / ".git"))


# --- Files are compared by digests: of the content, or of size and modification time if a file or all files together are too
# large to be read each time. Only regular files are opened, and nothing blocks.

MOST_READ_BYTES = 64 * 1024 * 1024
"""The size in bytes above which a file is compared by size and modification time instead of content."""
MOST_READ_OF_ALL_BYTES = 2 * 1024 * 1024 * 1024
"""The bound for one snapshot of a directory without git. To read so much takes seconds."""
ABSENT = "absent"

_CHUNK_BYTES = 1024 * 1024
_LOOKS_UP_EVERY = 100
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class TooMuchToReadError(Exception):
    """All files together have more bytes than may be read for one snapshot."""


class FileDigests:
    """Computes the digests of many files for one snapshot. Handles signals from time to time while it works."""

    def __init__(
        self, waiter: Waiter, clock: Clock, *, is_by_time: bool = False, most_bytes: float = math.inf
    ) -> None:
        """With `is_by_time`, files are compared by size and modification time. `of` raises TooMuchToReadError when more than
        `most_bytes` of all files together would have to be read.
        """
        self._is_by_time = is_by_time
        self._left_bytes = most_bytes
        self._waiter = waiter
        self._clock = clock
        self._nobody = waiter.mailbox()
        self._count = 0

    def of(self, path: str) -> str:
        """The digest of a file, or for a link of the name of its target. `ABSENT` if there is no file, or if it vanishes while it
        is read. Raises Interrupted and TooMuchToReadError.
        """
        self._count += 1
        if self._count % _LOOKS_UP_EVERY == 0:
            self.look_up()
        try:
            status = os.lstat(path)
            mode = f"{status.st_mode:o}"
            if stat.S_ISLNK(status.st_mode):
                target = os.fsencode(os.readlink(path))  # noqa: PTH115 - 20,000 of them
                return f"{mode} {hashlib.sha256(target).hexdigest()}"
            if not stat.S_ISREG(status.st_mode):
                return mode
            if self._is_by_time or status.st_size > MOST_READ_BYTES:
                return of_unread(status)
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        except OSError as error:
            return f"unreadable: {error.errno}"
        try:
            return f"{mode} {self._of_content(path)}"
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        except OSError:
            return f"unreadable: {of_unread(status)}"

    def of_target(self, path: str) -> str:
        """As `of`, with the file to which a link leads."""
        return self.of(path) + (f" {self.of(os.path.realpath(path))}" if os.path.islink(path) else "")  # noqa: PTH114 - the path is a string

    def _of_content(self, path: str) -> str:
        hashed = hashlib.sha256()
        with opened(path, _FLAGS) as descriptor:
            left = MOST_READ_BYTES  # it may grow while it is read
            while left > 0 and (chunk := os.read(descriptor, _CHUNK_BYTES)):
                hashed.update(chunk)
                left -= len(chunk)
                self._left_bytes -= len(chunk)
                if self._left_bytes < 0:
                    raise TooMuchToReadError
                if len(chunk) == _CHUNK_BYTES:
                    self.look_up()
        return hashed.hexdigest()

    def look_up(self) -> None:
        """Handles pending signals. Raises Interrupted if a signal stops the loop."""
        self._waiter.wait(
            self._nobody, until_s=self._clock.now_s(), waiting_for="a look at the changed files"
        )


def of_unread(status: os.stat_result) -> str:
    """A digest made from file type, permissions, size and modification time. The content is not read."""
    return f"{status.st_mode:o} {status.st_size} {status.st_mtime_ns}"


def differing(before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> Iterator[str]:
    """Yields the paths whose digests differ, or that only one mapping has. Yields nothing if a mapping is None."""
    if before is None or after is None:
        return
    for path in {*before, *after}:
        if before.get(path) != after.get(path):
            yield path


class Snapshot(Struct, frozen=True):
    digest: str
    """One digest of everything whose change is progress: under git HEAD, branch, index, working tree and plan file, otherwise all
    files, and never ralph's own."""
    head: str = ""
    """The id of the current commit. Empty before the first one and without git."""
    files: Mapping[str, str] | None = field(default_factory=dict)
    """Digests by path, or None if there were too many files. Under git, of the untracked files and those that differ from
    HEAD or the index, otherwise of all."""
    branch: str | None = None
    """None if HEAD is detached or the directory is not under git."""
    guarded: Mapping[str, str] | None = None
    """Digests of the repository's settings and hooks that could run a program or send data. None without git, or for too many."""


class Changes(Struct, frozen=True):
    """The changes between two snapshots."""

    commits: int = 0
    files: tuple[str, ...] = ()
    """Sorted names of files changed, added or removed, committed or not. Only committed ones if a snapshot has no file digests."""
    guarded: tuple[str, ...] = ()
    """Sorted names of git settings and hooks that were added, removed or changed."""


OWN_DIRECTORY = ".ralph"
"""The directory of a loop's stop file, relative to the loop's directory. A change in this directory is never progress."""
_DESCRIPTORS = Path("/proc/self/fd")
_OUTPUT_AND_ERRORS = (1, 2)


class OwnPaths:
    """The paths below `top` that ralph itself writes to: the loop's directory `.ralph/` and others."""

    def __init__(self, top: Path, directory: Path, places: Iterable[Path] = ()) -> None:
        """`places` are absolute paths, which need not exist. Ignored are those outside `top`, and those that contain the loop's
        directory, because otherwise no change there would be progress.
        """
        inside, work = os.path.realpath(top), os.path.realpath(directory)
        names = [name for place in (directory / OWN_DIRECTORY, *places) for name in _names_of(place)]
        counted_out = {name for name in names if is_within(name, inside) and not is_within(work, name)}
        self.paths = tuple(sorted(os.path.relpath(name, inside) for name in counted_out))
        """The paths that ralph writes to, relative to `top`."""
        self._below = tuple(f"{path}/" for path in self.paths)

    def hold(self, path: str) -> bool:
        """Whether ralph itself writes to `path`, which is relative to `top`."""
        return path in self.paths or path.startswith(self._below)


def own_output_files() -> tuple[Path, ...]:
    """The files that get this process's standard output and error, as in `> loop.log 2>&1`. Empty on systems without `/proc`."""
    return tuple(dict.fromkeys(path for number in _OUTPUT_AND_ERRORS for path in _file_behind(number)))


def _file_behind(descriptor: int) -> Iterator[Path]:
    try:
        status = os.fstat(descriptor)
        path = (_DESCRIPTORS / str(descriptor)).readlink()
        if stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.lstat()):
            yield path
    except OSError:
        return


def _names_of(place: Path) -> Iterator[str]:
    """The path and, if it is a link, its target: ralph may replace the link or write to its target."""
    yield os.path.normpath(os.path.join(os.path.realpath(place.parent), place.name))  # noqa: PTH118 - the names are strings
    yield os.path.realpath(place)
