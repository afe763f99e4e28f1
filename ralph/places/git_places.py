"""Finds the git directories of the checkouts around the roots. It decides which of them the sandbox lets commands write, and
whether ralph's own git commits and pushes there. It runs no program and writes nothing.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.opened_file import read_regular_file
from ralph.machine.files.paths import (
    GIT_VARIABLES,
    beginning_of,
    common_directory,
    directory_named_in,
    git_directory,
    git_entry,
    is_folder,
    is_within,
    is_within_any,
    repositories_above,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

# gitrepository-layout(5): the entries by which git itself recognises a repository.
_REPOSITORY = ("HEAD", "objects", "refs")
# The directories of a repository that `git commit` and `git fetch` write in a linked worktree, besides the worktree's own.
_SHARED = ("objects", "refs", "logs")
_GIT = ".git"
# Git writes into most entries of a git directory, and follows a link in the place of many, as with `index`, `MERGE_RR` and
# `rr-cache/*/preimage`. It only reads these.
_ONLY_READ = ("hooks", "info", "description", "config", "fsmonitor--daemon.ipc")
# The entries that have other git directories.
_NOT_WALKED = ("modules", "worktrees")
# The folders that git itself and programs for it make, in which a `.git` means nothing: a bare repository may have any others.
_IN_DOT_GIT = re.compile(r"lost-found|svn|annex|branchless|filter-repo|gk|reftable|bisect|sl|jj")
_FOLDERS = re.compile(r"info|logs|refs|objects|rr-cache|lfs|sequencer|rebase-\w+|NOTES_MERGE_WORKTREE")
# Entries in which git reads nothing that its errors could repeat. Users link some of them to files of their own, and some have
# a hundred thousand files.
_NOT_QUOTED = ("objects", "logs", "hooks", "lfs", "modules", "info/exclude")
_MOST_ALTERNATES_BYTES = 1_000_000
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
"""The variables by which the user's environment names a git directory (git(1))."""


class GitPlaces(Struct, frozen=True):
    """The git directories of the checkouts that contain the roots. They may be inside or outside the roots."""

    claimed: tuple[str, ...] = ()
    """All directories that a checkout or the environment names as its git directory, whoever may write them."""
    granted: tuple[str, ...] = ()
    """Those that commands may write."""
    parts: tuple[str, ...] = ()
    """Directories inside git directories that commands may write although they may not write the rest of the git
    directory. The rest could contain other files than git's. The directories need not exist."""
    refused: tuple[tuple[str, str], ...] = ()
    """Existing directories that a checkout names as its git directory, but that commands may not write, each with the reason."""


def git_places(roots: Sequence[str], environment: Mapping[str, str], user: int) -> GitPlaces:
    """Finds the git directories of the roots' checkouts, and those that GIT_DIR and GIT_COMMON_DIR name, relative to the first
    root. `roots` have no symbolic links.

    Each must be a repository that belongs to `user`, a user id. A file `.git` could come from an archive and name any directory:
    what it names is granted only if it names the checkout as its working tree, and as a whole only if `_is_only_gits`.
    """
    claims: list[tuple[str, str | None, bool]] = [
        (os.path.realpath(os.path.join(*roots[:1], environment[name])), "", True)
        for name in GIT_VARIABLES
        if environment.get(name)
    ]
    claims += [(os.path.realpath(path), why, False) for root in roots for path, why in _claimed(root, roots)]
    granted: list[str] = []
    parts: list[str] = []
    refused: list[tuple[str, str]] = []
    for path, why_not, is_users in claims:
        if why_not is None:
            continue
        reason = why_not or _why_not_a_repository(path, user)
        if reason:
            if os.path.lexists(path):
                refused.append((path, reason))
        elif is_users or _is_only_gits(path, roots, user):
            granted.append(path)
        else:
            parts += (one for name in _SHARED if _may_be_part(one := f"{path}/{name}", user))
    return GitPlaces(
        tuple(dict.fromkeys(path for path, _, _ in claims)),
        tuple(dict.fromkeys(granted)),
        tuple(dict.fromkeys(parts)),
        tuple(dict.fromkeys(refused)),
    )


def foreign_directories(
    place: str, roots: Sequence[str], *, is_bare: bool = False
) -> tuple[tuple[str, str], ...]:
    """The paths that git would write for a repository although they are not its own, with reasons. `place` is the top of a
    checkout, or a git directory if `is_bare`, and `roots` are given by the user. All are without links. What is in a root is
    not foreign.

    Foreign is what `git_places` refuses because of its name: a file `.git`, a link, and a forged linked worktree or submodule may
    come from an archive or an agent, and name any repository. So are a symbolic link inside the git directory, unless it leads to
    a root outside the repository, what could hide one, and what would block git.
    """
    claims = _claimed_itself(place, roots) if is_bare else _claimed_by_checkout(place, roots)
    judged = [(os.path.realpath(path), why) for path, why in claims if why is not None]
    foreign = [(path, why) for path, why in judged if why and not is_within_any(path, roots)]
    own = [path for path, why in judged if not why or is_within_any(path, roots)]
    pending = dict.fromkeys(own, True)
    walked: set[str] = set()
    while pending:
        directory, is_gits = pending.popitem()
        walked.add(directory)
        for target, why in _leading_on(directory, is_gits=is_gits):
            if is_within_any(target, (place, *own)) or not is_within_any(target, roots):
                foreign.append((target, why))
            elif target not in walked:  # more may lead on from there
                pending[target] = False
    return tuple(dict.fromkeys(foreign))


def _leading_on(directory: str, *, is_gits: bool) -> Iterator[tuple[str, str]]:
    """Yields each path to which something leads that git may write or publish in a git directory, and what leads there: a link,
    or a symbolic ref that is not a name of a ref. Yields too what could hide one: an unreadable directory, and what is not a file.
    Without `is_gits`, the path is one to which a link in a git directory leads, and any file counts as a ref.
    """
    refs = f"{directory}/refs" if is_gits else directory
    if not is_gits and (name := _named_as_ref(directory)):
        yield os.path.normpath(f"{directory}/{name}"), f"{directory} names it as a ref"
    try:
        for entry in own_entries(directory, _ONLY_READ) if is_gits else entries_below(directory):
            above = os.path.dirname(entry.path)
            is_head = is_gits and above == directory and entry.name == "HEAD"
            if entry.is_symlink():
                if not (is_head and is_ref(os.readlink(entry.path))):
                    yield os.path.realpath(entry.path), f"{entry.path} is a link"
            elif not is_folder(entry):
                if not entry.is_file(follow_symlinks=False):
                    yield entry.path, "it is neither a file nor a directory"
                elif (is_head or is_within(above, refs)) and (name := _named_as_ref(entry.path)):
                    yield os.path.normpath(f"{directory}/{name}"), f"{entry.path} names it as a ref"
    except OSError as error:
        yield error.filename or directory, f"it cannot be looked through: {error.strerror}"


def own_entries(
    directory: str, left_out: Collection[str], *, with_objects: bool = True
) -> Iterator[os.DirEntry[str]]:
    """Yields each entry in a git directory, and below it where git may write: neither in other git directories nor in working
    trees, which a bare repository often has, nor what is `left_out` at its top, nor, without `with_objects`, in the many folders
    where git makes only files with names that nobody can know before. Raises OSError if not all of it can be listed.
    """

    def is_passed(entry: os.DirEntry[str]) -> bool:
        top, slash, _ = entry.path[len(directory) + 1 :].partition("/")
        if not slash and top in (*left_out, *_NOT_WALKED):
            return True
        if top == "objects" and slash and not with_objects:
            return entry.name not in {"info", "pack"}
        is_gits = _FOLDERS.fullmatch(top) or (is_dot_git and _IN_DOT_GIT.fullmatch(top))
        return not is_gits and os.path.lexists(f"{entry.path}/{_GIT}")

    is_dot_git = os.path.basename(directory) == _GIT
    for entry in entries_below(directory, is_passed):
        if entry.name not in left_out or os.path.dirname(entry.path) != directory:
            yield entry


def entries_below(
    directory: str, is_passed: Callable[[os.DirEntry[str]], bool] = lambda _: False
) -> Iterator[os.DirEntry[str]]:
    """Yields each entry below a directory but those below the folders that are passed. None if it is no directory."""
    pending = [directory]
    for one in pending:  # an agent can make them deeper than Python's stack
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(one) as listing:
            for entry in listing:
                yield entry
                if is_folder(entry) and not is_passed(entry):
                    pending.append(entry.path)


def read_elsewhere(top: str) -> Iterator[tuple[str, str]]:
    """Yields each path, without links, from which git reads refs, lists or settings of the checkout at `top` although it is not in
    its git directories, and what leads there. Raises OSError if a directory in them cannot be listed.
    """
    claimed = dict.fromkeys(os.path.realpath(path) for path, _ in _claimed_by_checkout(top, ()))
    place = git_entry(top)
    for directory in claimed:
        if directory != git_entry(os.path.realpath(top)):
            yield directory, place
        lists = f"{directory}/objects/info"
        for leading in (*links_in(directory, _NOT_QUOTED), lists, *links_in(lists)):
            if not is_within_any(target := os.path.realpath(leading), claimed):
                yield target, leading


def borrowed_objects(top: str) -> Iterator[tuple[str, str]]:
    """Yields each path, without links, where git finds objects of the checkout at `top` outside the checkout's own directories
    of objects, and what leads there: a link, or `alternates` (gitrepository-layout(5)). Raises OSError for what cannot be judged:
    a directory of objects that cannot be listed or has a link in it, and `alternates` that are too large or not as git writes
    them.
    """
    pending = [f"{os.path.realpath(path)}/objects" for path, _ in _claimed_by_checkout(top, ())]
    known = {*pending}
    for objects in pending:
        found = []
        if os.path.islink(objects):
            found.append((os.path.realpath(objects), objects))
        else:
            for link in links_in(objects):
                raise OSError(errno.ELOOP, "a symbolic link among git's objects", link)
        file = f"{objects}/info/alternates"
        with suppress(FileNotFoundError, NotADirectoryError):
            text = os.fsdecode(read_regular_file(file, _MOST_ALTERNATES_BYTES, 0))
            lines = [line for line in text.split("\n") if line and not line.startswith("#")]
            found += (
                (os.path.realpath(os.path.join(objects, _unquoted(line, file))), file) for line in lines
            )
        for real, leading in found:
            if real not in known:
                known.add(real)
                pending.append(real)
                yield real, leading


def links_in(directory: str, passed: Sequence[str] = ()) -> Iterator[str]:
    """Yields each symbolic link below a directory, without what is at or below the relative paths `passed`. Raises OSError if
    not all of it can be listed.
    """
    entries = entries_below(directory, lambda entry: entry.path[len(directory) + 1 :] in passed)
    return (
        entry.path
        for entry in entries
        if entry.is_symlink() and entry.path[len(directory) + 1 :] not in passed
    )


def _unquoted(line: str, file: str) -> str:
    """A line of alternates as git reads it: with the escapes of C if it is in quotes. Raises OSError if that is more than one path."""
    if not line.startswith('"'):
        return line
    with suppress(ValueError, SyntaxError):
        if _QUOTED.fullmatch(line):
            return os.fsdecode(
                ast.literal_eval(f"b{line.encode('utf-8', 'surrogateescape').decode('latin-1')}")
            )
    raise OSError(errno.EINVAL, "a line that git does not write", file)


def _named_as_ref(file: str) -> str:
    """The text of a symbolic ref, if it is not a name of a ref. Empty otherwise."""
    head, colon, name = directory_named_in(file).partition(":")
    return "" if head != "ref" or not colon or is_ref(name.strip()) else name.strip() or "."


def is_ref(name: str) -> bool:
    """Whether a name is below `refs/`, and no part of it leads elsewhere (git-check-ref-format(1))."""
    first, *parts = name.split("/")
    return first == "refs" and bool(parts) and not any(part.startswith(".") or not part for part in parts)


def _is_only_gits(path: str, roots: Sequence[str], user: int) -> bool:
    """Whether a git directory contains only git's own files, and may be granted as a whole: it is in a root, in a `.git`, or in
    the `worktrees` of the user's repository. Outside of the roots, it must not contain one.
    """
    if is_within_any(path, roots):
        return True
    if any(is_within(root, path) for root in roots):
        return False
    if _GIT in path.split("/"):
        return True
    common = _common_of(path)
    return common is not None and _is_worktree_of(path, common) and not _why_not_a_repository(common, user)


def _may_be_part(path: str, user: int) -> bool:
    """Whether a path is a directory of the user, or a missing directory that git will make in a repository."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return all(os.path.isdir(f"{os.path.dirname(path)}/{name}") for name in _REPOSITORY[1:])
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == user


def _why_not_a_repository(path: str, user: int) -> str:
    """Why a directory is not a repository of the user, or an empty text. For a linked worktree, `HEAD` and `commondir` are enough."""
    try:
        status = os.stat(path)
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    if status.st_uid != user:
        return "it belongs to another user"
    is_repository = all(os.path.exists(f"{path}/{name}") for name in _REPOSITORY)
    is_linked = os.path.exists(f"{path}/HEAD") and os.path.exists(f"{path}/commondir")
    return "" if is_repository or is_linked else "it is not a repository"


def _claimed(root: str, roots: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yields each git directory that a root's checkout names, with why it is refused: "" if accepted, None if told elsewhere."""
    for above, is_checkout in repositories_above(root):
        if is_checkout:
            yield from _claimed_by_checkout(above, roots)
        elif all(os.path.exists(f"{above}/{name}") for name in _REPOSITORY):
            # Any tree can contain what looks like a bare repository. Inside a real one, no work needs its files.
            if above != root:
                yield above, "it only looks like a bare repository around the working directory"
                continue
            yield from _claimed_itself(above, roots)
            return


def _claimed_by_checkout(top: str, roots: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yields each git directory that `.git` in the directory `top` names, as `_claimed` does."""
    place = git_entry(top)
    if os.path.islink(place):
        yield place, f"{place} is a link"
        yield from ((one, None) for one in (git_directory(top), common_directory(place)) if one)
    elif os.path.isdir(place):
        yield from _claimed_itself(place, roots)
    elif os.path.isfile(place):
        yield from _claimed_by_file(top, roots)


def _claimed_itself(place: str, roots: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    yield place, ""
    common = _common_of(place)  # git makes none there, but uses one that somebody made
    if common is not None and common != place:
        yield common, "" if is_within_any(common, roots) else f"{place}/commondir names it"


def _claimed_by_file(checkout: str, roots: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    named = git_directory(checkout)
    if named is None:
        return
    directory = os.path.realpath(named)
    back = directory_named_in(f"{directory}/gitdir")
    if back:
        is_known = os.path.realpath(os.path.join(directory, back)) == git_entry(checkout)
    else:
        is_known = _submodule_at(directory) == checkout
    why = "" if is_known else f"it does not name {checkout} as its working tree"
    yield directory, why
    common = _common_of(directory)
    if common is None:
        return
    if why:
        yield common, None
    elif not _is_worktree_of(directory, common):
        yield common, f"{directory} is not one of its worktrees"
    elif is_within_any(directory, roots) and not is_within_any(common, roots):
        yield common, f"{directory}, which names it, is where commands may write"
    else:
        yield common, ""


def _common_of(directory: str) -> str | None:
    common = common_directory(directory)
    return None if common is None else os.path.realpath(common)


def _is_worktree_of(directory: str, common: str) -> bool:
    return os.path.dirname(directory) == f"{common}/worktrees"


def _submodule_at(directory: str) -> str | None:
    """The working tree that a submodule's configuration names, or None: in a file of its own with `extensions.worktreeConfig`."""
    for file in ("config", "config.worktree"):
        configuration = beginning_of(f"{directory}/{file}").replace(b"\0", b"")  # no path has a NUL
        for line in os.fsdecode(configuration).splitlines():
            key, equals, value = line.partition("=")
            if equals and key.strip().lower() == "worktree":
                return os.path.realpath(os.path.join(directory, value.strip()))
    return None
