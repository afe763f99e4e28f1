"""The state of a checkout at one moment, and the changes between two moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    """Digests of the repository's settings and hooks that could make git run a program or send data. None without git, or if
    there were too many."""


class Changes(Struct, frozen=True):
    """The changes between two snapshots."""

    commits: int = 0
    files: tuple[str, ...] = ()
    """Sorted names of files that were changed, added or removed, committed or not. Only committed ones if a snapshot has no
    digests of files."""
    guarded: tuple[str, ...] = ()
    """Sorted names of git settings and hooks that were added, removed or changed."""
