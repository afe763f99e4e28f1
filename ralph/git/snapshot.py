"""The state of a checkout at one moment, and the changes between two moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping


class Snapshot(Struct, frozen=True):
    """The state of a checkout at one moment. If two snapshots have equal digests, there was no progress between them."""

    digest: str
    """One digest of everything whose change is progress. In a git checkout, that is HEAD, the branch, the index, the
    working tree and the plan file. Without git, that is all files of the directory. ralph's own files are not
    included."""
    head: str = ""
    """The id of the current commit. Empty before the first commit, and if the directory is not under git."""
    files: Mapping[str, str] | None = field(default_factory=dict)
    """Digests of files by path, or None if there were too many files. Under git, these are the untracked files and
    the files that differ from HEAD or the index. Without git, these are all files."""
    branch: str | None = None
    """The current git branch. None if HEAD is detached or the directory is not under git."""
    guarded: Mapping[str, str] | None = None
    """The repository's settings and hooks that could make git run a program or send data. Maps each name to a digest.
    None if the directory is not under git, or if there were too many."""


class Changes(Struct, frozen=True):
    """The changes between two snapshots."""

    commits: int = 0
    files: tuple[str, ...] = ()
    """Sorted names of files that were changed, added or removed. Both committed and uncommitted changes are included.
    If a snapshot has no digests of files, only committed changes are included."""
    guarded: tuple[str, ...] = ()
    """Sorted names of git settings and hooks that were added, removed or changed."""
