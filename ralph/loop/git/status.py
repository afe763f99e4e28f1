"""Reads what `git status` says of a checkout: HEAD, what is staged, changed, in conflict, untracked. Runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

# Without looking into submodules: git would do that with processes that follow their configuration.
STATUS_ARGUMENTS = (
    *("status", "--porcelain=v2", "-z", "--branch", "--no-ahead-behind"),
    *("--untracked-files=all", "--no-renames", "--ignore-submodules=dirty"),
)
# Fields before the path: gitformat "1 <XY> <sub> <mH> <mI> <mW> <hH> <hI> <path>", and three stages for "u".
_FIELDS = {b"1": 8, b"u": 10}


class StatusEntry(Struct, frozen=True):
    path: str
    """The path from the top; bytes that are no UTF-8 as `os.fsdecode` spells them."""
    record: bytes
    """All that git said of it: modes, and ids in HEAD and index."""
    is_tracked: bool
    is_unstaged: bool
    """The working tree differs from the index."""
    is_unmerged: bool = False

    @property
    def is_nested(self) -> bool:
        """A repository of its own that this one does not know."""
        return not self.is_tracked and self.path.endswith("/")


class GitStatus(Struct, frozen=True):
    head: str
    """The commit's id; empty: there is none yet."""
    branch: str | None
    """The current branch; None: HEAD is detached."""
    entries: tuple[StatusEntry, ...]


def status_from(output: bytes) -> GitStatus:
    """The status in the output of `STATUS_ARGUMENTS`."""
    headers: dict[str, str] = {}
    entries: list[StatusEntry] = []
    for record in output.split(b"\0"):
        if record.startswith(b"# "):
            name, _, value = record[2:].decode("utf-8", "surrogateescape").partition(" ")
            headers[name] = value
        elif record:
            entries += _entry(record)
    head, branch = headers.get("branch.oid", ""), headers.get("branch.head", "")
    return GitStatus(
        "" if head == "(initial)" else head, None if branch == "(detached)" else branch, tuple(entries)
    )


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
