# os.path instead of pathlib: these are strings throughout.
# ruff: noqa: PTH110, PTH112, PTH113, PTH114, PTH118, PTH120
"""Builds the sandbox of a run from a policy: the Landlock ruleset, the seccomp filter and the command line for
namespaces.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cached_property
from typing import TYPE_CHECKING

from ralph.machine import restriction
from ralph.machine.repository import is_within
from ralph.places.gather import PACKAGE, guarded_files, python_prefixes
from ralph.places.table import EMPTY, READ_ONLY, VISIBLE, git_entries_with, names_with, paths_with
from ralph.sandbox.box_places import PolicyRuleset
from ralph.sandbox.bubblewrap import TEMPORARY, Enclosure, bwrap_command
from ralph.sandbox.kernel.seccomp import make_filter
from ralph.sandbox.levels import box_level
from ralph.sandbox.policy import internet_of, own_mounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ralph.sandbox.kernel.seccomp import Internet
    from ralph.sandbox.levels import Means
    from ralph.sandbox.policy import BoxPolicy

# With namespaces, each command adds rules for its own mounts to the ruleset, and restricting copies all rules. So the
# ruleset is built again sometimes, which takes milliseconds.
_MOST_USES = 100
_KEEPER = os.path.join(os.path.dirname(restriction.__file__), "namespaces.py")


class Box:
    """The sandbox of all commands of a run. The first call of `ruleset` builds the Landlock ruleset."""

    def __init__(
        self,
        means: Means,
        policy: BoxPolicy,
        *,
        temporary: str,
        roots: Sequence[str] = (),
        git_directories: Sequence[str] = (),
    ) -> None:
        """`temporary` is the session's directory for temporary files. `git_directories` are the git directories of
        the checkouts, inside and outside of the roots.

        With namespaces, two kinds of files are read-only: hooks and configuration in `git_directories`, and the
        protected files at the top of each of `roots`.
        """
        self.level = box_level(means, policy.net, gives_sockets=bool(policy.sockets))
        self.has_own_network = policy.net != "full" and means.has_own_network
        self.program = _program(means, policy, internet_of(policy.net, has_own_network=self.has_own_network))
        """The packed seccomp filter of commands, or `restriction.NO_FILTER`."""
        self._means = means
        self._policy = policy
        self._temporary = temporary
        self._roots = tuple(roots)
        self._git_directories = tuple(git_directories)
        self._ruleset = PolicyRuleset(policy, means.landlock.abi)
        self._uses = 0

    def ruleset(self) -> int:
        """The descriptor of a ruleset that fits the present state of the disk, or `restriction.NO_RULESET`. The next
        call may close this descriptor. Raises OSError.
        """
        if not self._means.landlock.abi:
            return restriction.NO_RULESET
        self._uses += 1
        if self.places and self._uses > _MOST_USES:
            self._ruleset.close()
            self._uses = 1
        return self._ruleset.descriptor()

    @cached_property
    def search_program(self) -> bytes:
        """The packed seccomp filter of searches, which need no network at all."""
        return _program(self._means, self._policy, "none")

    @cached_property
    def has_own_temporary(self) -> bool:
        """Whether the session's directory is mounted on /tmp. It is not mounted if commands may write to the
        machine's /tmp.
        """
        return self._means.bwrap is not None and has_own_temporary(self._policy.writable)

    def outside(self, path: str, own_files: Sequence[str] = ()) -> str:
        """Converts a path inside the sandbox to the path outside. Both paths are the same, except in /tmp. In those
        places of /tmp that are mounted there again, they are the same too. `path` is absolute and contains no `..`.
        """
        if not (self.has_own_temporary and is_within(path, TEMPORARY)):
            return path
        shared = (*self._policy.writable, *self._visible(own_files))
        if any(is_within(path, place) for place in shared if place != self._temporary):
            return path
        return self._temporary + path.removeprefix(TEMPORARY)

    def inside(self, path: str) -> str:
        """Converts a path outside of the sandbox to the path inside."""
        if self.has_own_temporary and is_within(path, self._temporary):
            return TEMPORARY + path.removeprefix(self._temporary)
        return path

    def bwrap_words(self, own_files: Sequence[str] = ()) -> tuple[str, ...]:
        """The command line of bubblewrap for a command that starts now. Empty without namespaces. `own_files` are
        files of this run that the command may read.
        """
        bwrap = self._means.bwrap
        return () if bwrap is None else tuple(bwrap_command(bwrap, self._enclosure(own_files)))

    @cached_property
    def places(self) -> tuple[str, ...]:
        """The mounts inside the namespaces, in the form PATH=RIGHTS. Landlock needs a rule for each of them."""
        bwrap, abi = self._means.bwrap, self._means.landlock.abi
        return tuple(f"{place}={rights}" for place, rights in own_mounts(abi)) if bwrap and abi else ()

    def words_before(self, ruleset: int, working_directory: str, *, proxy: int | None = None) -> list[str]:
        """The words to put before a command line so that the command runs in the sandbox.

        The process that executes them must inherit the descriptors `ruleset` and `proxy`. `proxy` is the descriptor
        of a `ProxyDoor`. The model's commands do not need these words: the supervisor confines them, which saves the
        start of another interpreter.
        """
        script = [sys.executable, "-I", "-S", restriction.__file__]
        bwrap = self.bwrap_words()
        if bwrap:
            script = [*script[:-1], _KEEPER, working_directory, str(len(bwrap)), *bwrap]
        proxy_word = [] if proxy is None else [f"{restriction.PROXY}={proxy}"]
        return [*script, str(ruleset), self.program.hex(), *self.places, *proxy_word, "--"]

    def close(self) -> None:
        """Closes the ruleset's descriptor."""
        self._ruleset.close()

    def _enclosure(self, own_files: Sequence[str]) -> Enclosure:
        hidden = self._hidden
        read_only = self._protected_files()
        around = {os.path.dirname(path) for path in read_only}.difference(self._roots, self._git_directories)
        return Enclosure(
            self._temporary if self.has_own_temporary else None,
            writable=self._policy.writable,
            visible=self._visible(own_files),
            pinned=(*filter(os.path.isdir, self._git_directories), *sorted(around)),
            read_only=read_only,
            hidden_directories=tuple(filter(os.path.isdir, hidden)),
            hidden_files=tuple(place for place in hidden if not os.path.isdir(place)),
            has_network=not self.has_own_network,
        )

    def protected_places(self) -> tuple[str, ...]:
        """The paths inside writable places that mounts protect from changes."""
        return self._protected_files() if self._means.bwrap is not None else ()

    def _visible(self, own_files: Sequence[str]) -> tuple[str, ...]:
        programs = tuple(map(_home_of, os.get_exec_path()))
        own = paths_with(VISIBLE, {"prefix": python_prefixes(), "package": (PACKAGE,), "programs": programs})
        places = (*own, *self._policy.readable, *own_files)
        return tuple(dict.fromkeys(place for place in places if os.path.exists(place)))

    @cached_property
    def _hidden(self) -> tuple[str, ...]:
        given = (*self._policy.writable, *self._policy.readable, *self._policy.sockets)
        return tuple(
            place
            for place in paths_with(EMPTY, {})
            if os.path.realpath(place) == place
            and os.path.exists(place)
            and not any(is_within(one, place) or is_within(place, one) for one in given)
        )

    def _protected_files(self) -> tuple[str, ...]:
        """The protected files and the directories of git hooks that exist. A mount on a symbolic link would protect the
        link's target, and the link could still be replaced.
        """
        git_directories = dict.fromkeys((*(f"{root}/.git" for root in self._roots), *self._git_directories))
        found = guarded_files(
            names_with(READ_ONLY), git_entries_with(READ_ONLY), self._roots, [*git_directories]
        )
        return tuple(
            path
            for path, kind in found
            if (os.path.isfile(path) or (kind == "tree" and os.path.exists(path)))
            and not os.path.islink(path)
        )


def has_own_temporary(writable: Iterable[str]) -> bool:
    """Whether the session's directory can be mounted on /tmp. `writable` are the places that commands may write; none
    of them may contain /tmp.
    """
    return os.path.realpath(TEMPORARY) == TEMPORARY and not any(
        is_within(TEMPORARY, place) for place in writable
    )


def _program(means: Means, policy: BoxPolicy, internet: Internet) -> bytes:
    if means.why_no_filter:
        return restriction.NO_FILTER
    made = make_filter(
        platform.machine(),
        internet=internet,
        unix_sockets=bool(policy.sockets) or means.landlock.has_socket_paths,
        without_landlock=not means.landlock.abi,
    )
    return restriction.NO_FILTER if made is None else made


def _home_of(programs: str) -> str:
    """The directory with everything that the programs in a directory of PATH need, such as `.venv` for `.venv/bin`.
    If this directory is in /tmp, it is mounted there again, because commands would not see it otherwise.
    """
    real = os.path.realpath(programs)
    above = os.path.dirname(real)
    return above if real.endswith(("/bin", "/sbin")) and above not in ("/", TEMPORARY) else real
