"""Parses the output of `git status`, and reads the state of a checkout and of the repositories inside it. Git runs separately
in each of these, with settings made for it: from the outer one, it would run programs that their configurations name.
"""

from __future__ import annotations

import os
import re
import stat
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.git.answer import CheckoutError
from ralph.git.runner import CheckoutGit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ralph.git.progress import FileDigests, OwnPaths

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
