"""Decides which changes to protected files are undone after a command. No I/O happens here.

The protected files are git's configuration and hooks, `ralph.toml`, `.mcp.json` and the settings in `.claude`, which can make
git, ralph or another agent run programs outside the sandbox.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ralph.machine.files.paths import is_within, is_within_any
from ralph.places.git_config import WORKTREE, fresh_part, programs_named
from ralph.places.table import COMPARED, names_with
from ralph.values.screen_text import in_one_line

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

Kind = Literal["file", "link", "directory", "other", "unseen", "unlisted"]
"""The kind of what is at a path. `unseen` is one in a directory that may not be entered, so that nobody knows. `unlisted` is a
directory that cannot be compared, because it holds too many names or cannot be listed."""
How = Literal["made", "changed", "removed"]
_DIRECTORY: Kind = "directory"
UNSEEN: Kind = "unseen"
UNLISTED: Kind = "unlisted"
_MOST_LISTED = 10
_BY_COMMAND = (
    ". Commands may not change these, so git config, git remote add, git push -u and installers of hooks have no lasting "
    "effect"
)
_BETWEEN = ", made between two calls: by a command in the background, an MCP server, or from outside"

# The folders of a git directory that contain protected files, and the folder of the git directories of submodules.
_FOLDERS = ("branches", "hooks", "info", "modules", "objects", "worktrees")
_MODULES = "/.git/modules"


class Entry(Struct, frozen=True):
    """The state of a protected path on the disk. If the path is a symbolic link, this is the state of the link."""

    kind: Kind
    mode: int = 0
    """The permission bits of a file or a directory, and 0 for everything else."""
    content: bytes | None = None
    """The bytes of a file, or the target of a link. None for anything else, and for a file that is too large or unreadable."""
    stamp: tuple[int, ...] = ()
    """The inode, size, times and similar values. They differ after every change of the path, and may differ without one."""
    is_settled: bool = False
    """True if every later change of the path is certain to change `stamp`."""

    def is_same(self, other: Entry) -> bool:
        if (self.kind, self.mode, self.content) != (other.kind, other.mode, other.content):
            return False
        return self.kind != "file" or self.content is not None or self.stamp == other.stamp


class Change(Struct, frozen=True):
    """A change that must be undone. At most one of `before` and `after` is None."""

    path: str
    before: Entry | None
    """The state before the command. None if the command made the path."""
    after: Entry | None
    """The state after the command. None if the command removed the path."""

    @property
    def is_of_mode(self) -> bool:
        """Whether nothing has changed except the permissions of a directory."""
        return (
            self.before is not None
            and self.after is not None
            and self.before.kind == self.after.kind == _DIRECTORY
        )

    @property
    def how(self) -> How:
        if self.before is None:
            return "made"
        return "removed" if self.after is None else "changed"


class UndoResult(Struct, frozen=True):
    """The result of an attempt to undo a command's change to a protected path."""

    path: str
    how: How
    kept: str = ""
    """The path where the command's version is kept, or empty if it was not kept."""
    why_not: str = ""
    """The reason why the change could not be undone, or empty if it was undone."""
    is_pending: bool = False
    """Whether the change may be undone later: the file system refused it now."""


def changes_of(
    before: Mapping[str, Entry],
    after: Mapping[str, Entry],
    git_directories: Sequence[str],
    removable: Container[str] = (),
    folders: Container[str] = (),
) -> Iterator[Change]:
    """Yields the changes to undo. A directory comes before its content. A command may remove the directories `removable`: git
    itself removes that of a linked worktree. `folders` only have protected files in them: a new one is not a change, a link in its
    place is.

    A missing git directory is one change without its content, because a removed repository cannot be restored. A new directory in
    a forbidden place is one change with its content. So is what is now out of sight. What was out of sight before is not judged.
    """
    made: list[str] = []
    gone = missing_directories(after, git_directories)
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if is_within_any(path, made) or (is_within_any(path, gone) and path not in gone):
            continue
        if (new is None and path in removable) or (old is not None and old.kind == UNSEEN):
            continue
        if new is not None and new.kind == UNSEEN:
            made.append(path)
            yield from [] if old is None else [Change(path, old, new)]
            continue
        if old is None and new is not None:
            is_folder = path in folders and new.kind in (_DIRECTORY, "file")
            if is_folder or may_be_made(path, new, git_directories):
                continue
            made.append(path)
            yield Change(path, None, new)
        elif old is not None and (new is None or not old.is_same(new)):
            if new is not None and new.kind == _DIRECTORY != old.kind:
                made.append(path)
            yield Change(path, old, new)


def missing_directories(found: Mapping[str, Entry], git_directories: Sequence[str]) -> list[str]:
    """The git directories that do not exist or are not directories."""
    return [one for one in git_directories if one not in found or found[one].kind != _DIRECTORY]


def may_be_made(path: str, entry: Entry, git_directories: Sequence[str]) -> bool:
    """Whether a command may make a path: what git itself makes, and directories whose content is checked separately."""
    directory, _, name = path.rpartition("/")
    if entry.kind == _DIRECTORY:
        around = {one.rpartition("/")[0] for one in names_with(COMPARED)}
        is_known = path in git_directories or name in around or f"{_MODULES}/" in f"{path}/"
        is_of_objects = name == "info" and directory.removesuffix("/objects") in git_directories
        return is_known or is_of_objects or (directory in git_directories and name in _FOLDERS)
    if entry.kind != "file":
        return False
    if name.endswith(".sample"):  # git runs no hook of that name
        return directory.rpartition("/")[0] in git_directories
    if directory not in git_directories or entry.content is None:
        return False
    outer, is_linked, _ = directory.rpartition("/worktrees/")
    if is_linked and outer in git_directories:
        match name:
            case "commondir":
                return entry.content.rstrip(b"\r\n") == b"../.."
            case "gitdir":
                return b"\n" not in entry.content.rstrip(b"\r\n")
            case "config.worktree":
                return not programs_named(entry.content)
    if name == "config" and f"{_MODULES}/" in directory:
        return is_of_submodule(entry.content, directory)
    return name == "config" and is_fresh_configuration(entry.content)


def is_of_submodule(content: bytes, directory: str) -> bool:
    """Whether the new configuration of a submodule, with the git directory `directory`, names no program and no tree outside."""
    checkout = directory.partition(f"{_MODULES}/")[0]
    return all(
        name == WORKTREE and is_within(posixpath.normpath(posixpath.join(directory, value)), checkout)
        for name, value in programs_named(content)
    )


def is_fresh_configuration(content: bytes | None) -> bool:
    """Whether each line of a git configuration is one that a new repository may have."""
    return content is not None and _lines(content) == _lines(fresh_part(content))


def _lines(content: bytes) -> list[bytes]:
    return [line.strip().lower() for line in content.split(b"\n") if line.strip()]


def undone_note(undone: Sequence[UndoResult], working_directory: str, *, is_between: bool = False) -> str:
    """One line that tells the model what was undone, or an empty text. `is_between`: neither a command nor an MCP tool was running."""
    shown = [one.path.removeprefix(f"{working_directory}/") for one in undone]
    done = [path for path, one in zip(shown, undone, strict=True) if not one.why_not]
    failed = [f"{path} ({one.why_not})" for path, one in zip(shown, undone, strict=True) if one.why_not]
    sentences = []
    if done:
        why = _BETWEEN if is_between else _BY_COMMAND
        sentences.append(f"undone: changes to {_listed(done)}{why}")
    if failed:
        sentences.append(f"changed, and could not be undone: {_listed(failed)}")
    kept = next((one.kept.rpartition("/")[0] for one in undone if one.kept), "")
    if kept:
        sentences.append(
            f"what {'was written there' if is_between else 'the command wrote'} is kept for the user in {kept}"
        )
    return in_one_line(f"[{'; '.join(sentences)}]") if sentences else ""


def left_note(left: Sequence[UndoResult], working_directory: str) -> str:
    """One line for people at the end of a run about changes that stayed. Empty if there are none."""
    if not left:
        return ""
    shown = _listed([f"{one.path.removeprefix(f'{working_directory}/')} ({one.why_not})" for one in left])
    return in_one_line(
        f"[commands changed protected files, and that could not be undone: {shown}. They can make git, ralph and other agents "
        "run programs or do without a sandbox: look at them before you start one of these]"
    )


def changed_since_kill_note(paths: Sequence[str], working_directory: str) -> str:
    """One line about protected files that have changed since a command during which ralph was killed, or an empty text."""
    if not paths:
        return ""
    shown = _listed([path.removeprefix(f"{working_directory}/") for path in paths])
    return in_one_line(
        f"[a run here broke off during a command. Since that command began, these were changed, and nothing was undone: "
        f"{shown}. They can make git and agents run programs: look at them]"
    )


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - _MOST_LISTED
    return ", ".join(paths[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
