# os.path instead of pathlib: the table of protected paths holds strings, and the kernel takes strings.
# ruff: noqa: PTH102, PTH110, PTH112, PTH113, PTH114, PTH116, PTH118, PTH120
"""Collects the facts from which a policy is made, such as the git directories that a command may write. Also keeps
the policy's Landlock ruleset up to date with the disk. It runs no program. It writes nothing, except that it makes
missing directories in a repository.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.repository import (
    beginning_of,
    common_directory,
    directory_named_in,
    is_within,
    led_to,
)
from ralph.sandbox.kernel.landlock import build_ruleset
from ralph.sandbox.policy import BoxFacts, landlock_rules
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.places.places import GuardedPlaces
    from ralph.sandbox.policy import BoxPolicy

# gitrepository-layout(5): the entries by which git itself recognises a repository.
_REPOSITORY = ("HEAD", "objects", "refs")
# The directories of a repository that `git commit` and `git fetch` write in a linked worktree, besides the worktree's own.
_SHARED = ("objects", "refs", "logs")
_GIT = ".git"


class GitPlaces(Struct, frozen=True):
    """The git directories of the checkouts that contain the roots. These git directories may be inside or outside of
    the roots.
    """

    granted: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    """Directories inside git directories that commands may write although they may not write the rest of the git
    directory. The rest could contain other files than git's. The directories need not exist."""
    refused: tuple[tuple[str, str], ...] = ()
    """Directories that a checkout names as its git directory, but that commands may not write. Each comes with the
    reason."""


def box_facts(
    roots: Sequence[str],
    protected: GuardedPlaces,
    *,
    environment: Mapping[str, str],
    scratch: Iterable[str] = (),
    own_files: Iterable[str] = (),
) -> tuple[BoxFacts, GitPlaces]:
    """Collects the facts for `policy.box_policy`, and the git directories. `roots` must not contain symbolic links.
    `protected` is the table of paths that the file tools protect.
    """
    git = git_places(roots, environment, os.getuid())
    for part in git.parts:
        with suppress(OSError):
            os.mkdir(part)  # git makes `logs` at the first commit, and a place must exist to be opened
    facts = BoxFacts(
        roots=tuple(roots),
        unreadable=tuple(_unreadable(protected)),
        scratch=tuple(map(os.path.realpath, scratch)),
        git_directories=git.granted,
        git_parts=tuple(filter(os.path.isdir, git.parts)),
        own_files=tuple(map(os.path.realpath, own_files)),
    )
    return facts, git


def _unreadable(protected: GuardedPlaces) -> Iterator[str]:
    shared = os.path.realpath("/tmp")  # noqa: S108 - not to write there
    for path in protected.unread:
        # /tmp changes all the time. For a path there that does not exist, each entry of /tmp would need a rule, and all
        # rules would have to be made again after each change.
        if os.path.dirname(path) != shared or os.path.lexists(path):
            yield path


def git_places(roots: Sequence[str], environment: Mapping[str, str], user: int) -> GitPlaces:
    """Finds the git directories of the roots' checkouts, and the git directories that GIT_DIR and GIT_COMMON_DIR
    name.

    A relative path in these variables is relative to the first root. Each git directory must be a repository that
    belongs to `user`, a user id. A file `.git` could come from an unpacked archive and name any directory. So the
    directory that it names is granted only if that directory names the checkout as its working tree. `_is_only_gits`
    decides whether a git directory is granted as a whole.
    """
    granted: list[str] = []
    parts: list[str] = []
    refused: list[tuple[str, str]] = []
    for name in ("GIT_DIR", "GIT_COMMON_DIR"):
        if environment.get(name):
            path = os.path.realpath(os.path.join(roots[0], environment[name]))
            reason = _why_not_a_repository(path, user)
            if not reason:
                granted.append(path)
            elif os.path.lexists(path):
                refused.append((path, reason))
    for path, why_not in (claim for root in roots for claim in _claimed(root, roots)):
        reason = why_not or _why_not_a_repository(path, user)
        if reason:
            if os.path.lexists(path):
                refused.append((path, reason))
        elif _is_only_gits(path, roots, user):
            granted.append(path)
        else:
            parts += (one for name in _SHARED if _may_be_part(one := f"{path}/{name}", user))
    return GitPlaces(
        tuple(dict.fromkeys(granted)), tuple(dict.fromkeys(parts)), tuple(dict.fromkeys(refused))
    )


def _is_only_gits(path: str, roots: Sequence[str], user: int) -> bool:
    """Whether a git directory may be granted as a whole, because it contains only git's own files. It must lie in a
    root, in a `.git`, or in the `worktrees` of the user's repository. A git directory outside of the roots must not
    contain a root.
    """
    if _is_in_any(path, roots):
        return True
    if any(is_within(root, path) for root in roots):
        return False
    if _GIT in path.split("/"):
        return True
    common = _common_of(path)
    return common is not None and _is_worktree_of(path, common) and not _why_not_a_repository(common, user)


def _is_in_any(path: str, roots: Sequence[str]) -> bool:
    return any(is_within(path, root) for root in roots)


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
    """The reason why a directory is not a repository of the user, or an empty string if it is such a repository. For
    the git directory of a linked worktree, `HEAD` and `commondir` are enough.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    if status.st_uid != user:
        return "it belongs to another user"
    is_repository = all(os.path.exists(f"{path}/{name}") for name in _REPOSITORY)
    is_linked = os.path.exists(f"{path}/HEAD") and os.path.exists(f"{path}/commondir")
    return "" if is_repository or is_linked else "it is no repository"


def _claimed(root: str, roots: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each git directory that the checkout of a root names, together with the reason to refuse this directory.
    The reason is empty if the directory is accepted.
    """
    for above in (root, *map(str, Path(root).parents)):
        place = f"{above}/{_GIT}"
        if os.path.islink(place):
            yield os.path.realpath(place), f"{place} is a link"
            return
        if os.path.isdir(place):
            yield place, ""
            common = _common_of(place)  # git makes none there, but uses one that somebody made
            if common is not None and common != os.path.realpath(place):
                yield common, "" if _is_in_any(common, roots) else f"{place}/commondir names it"
            return
        if os.path.isfile(place):
            yield from _claimed_by_file(place, above, roots)
            return
        if all(os.path.exists(f"{above}/{name}") for name in _REPOSITORY):
            # Any tree can contain what looks like a bare repository. Inside a real one, no work needs its files.
            if above != root:
                yield above, "it only looks like a bare repository around the working directory"
                continue
            yield above, ""
            return


def _claimed_by_file(place: str, checkout: str, roots: Sequence[str]) -> Iterator[tuple[str, str]]:
    named = led_to(place)
    if named is None:
        return
    directory = os.path.realpath(named)
    back = directory_named_in(f"{directory}/gitdir")
    if back:
        is_known = os.path.realpath(os.path.join(directory, back)) == place
    else:
        is_known = _submodule_at(directory) == checkout
    yield directory, "" if is_known else f"it does not name {checkout} as its working tree"
    common = _common_of(directory)
    if not is_known or common is None:
        return
    if not _is_worktree_of(directory, common):
        yield common, f"{directory} is not one of its worktrees"
    elif _is_in_any(directory, roots) and not _is_in_any(common, roots):
        yield common, f"{directory}, which names it, lies where commands may write"
    else:
        yield common, ""


def _common_of(directory: str) -> str | None:
    """The shared git directory that the git directory of a linked worktree names, or None."""
    common = common_directory(directory)
    return None if common is None else os.path.realpath(common)


def _is_worktree_of(directory: str, common: str) -> bool:
    return os.path.dirname(directory) == f"{common}/worktrees"


def _submodule_at(directory: str) -> str | None:
    """The working tree that a submodule's configuration names, or None."""
    configuration = beginning_of(f"{directory}/config").replace(b"\0", b"")  # no path has a NUL
    for line in os.fsdecode(configuration).splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip().lower() == "worktree":
            return os.path.realpath(os.path.join(directory, value.strip()))
    return None


class PolicyRuleset:
    """Keeps the Landlock ruleset of a policy. The ruleset is built when it is first needed. It is built again after
    an entry was made or removed in a directory above an unreadable path. Until then, commands cannot read a new entry
    in such a directory.
    """

    def __init__(self, policy: BoxPolicy, abi: int) -> None:
        self._policy = policy
        self._abi = abi
        self._descriptor: int | None = None
        self._changed_ns: dict[str, int] = {}

    def descriptor(self) -> int:
        """The descriptor of a ruleset that fits the present state of the disk. The next call may close this
        descriptor. Raises OSError.
        """
        if self._descriptor is None or self._is_outdated():
            self.close()
            self._changed_ns = {}
            rules = landlock_rules(self._policy, self._entries)
            self._descriptor = build_ruleset(self._abi, rules)
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _is_outdated(self) -> bool:
        return any(_changed_ns(directory) != known for directory, known in self._changed_ns.items())

    def _entries(self, directory: str) -> Iterator[str]:
        # The time is read before the listing, so that an entry made meanwhile counts as a change.
        self._changed_ns[directory] = _changed_ns(directory)
        try:
            with os.scandir(directory) as listing:
                yield from [entry.name for entry in listing if not entry.is_symlink()]
        except OSError as error:
            if shortage_of(error) is not None:
                raise
            return  # it cannot be listed: no rule is made, and everything in it stays closed to commands


def _changed_ns(directory: str) -> int:
    """The time when an entry was last made, removed or renamed in a directory. 0 if the directory cannot be read."""
    try:
        return os.stat(directory).st_mtime_ns
    except OSError:
        return 0
