"""Combines a policy with the means of this machine: the Landlock ruleset, the seccomp filter and the namespaces in
which the commands of a run are confined.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.machine import restriction
from ralph.sandbox.box_places import PolicyRuleset
from ralph.sandbox.bubblewrap import Enclosure, bwrap_command
from ralph.sandbox.kernel.seccomp import make_filter
from ralph.sandbox.levels import box_level
from ralph.sandbox.policy import internet_of, own_mounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.sandbox.levels import Means
    from ralph.sandbox.policy import BoxPolicy

# Entries of a git directory that can make git run other programs.
_RUNS_PROGRAMS = ("config", "config.worktree", "commondir", "hooks")


class Box:
    """Confines all commands of a run. The ruleset is built when `ruleset` is first called."""

    def __init__(
        self, means: Means, policy: BoxPolicy, *, temporary: str, git_directories: Sequence[str] = ()
    ) -> None:
        """`temporary` is the session's directory for temporary files. `git_directories` are the git directories of the
        checkouts, inside and outside of the roots. With namespaces, their hooks and configuration are read-only.
        """
        self.level = box_level(means, policy.net, gives_sockets=bool(policy.sockets))
        self.has_own_network = (
            policy.net != "full" and means.bwrap is not None and means.has_network_namespace
        )
        self.program = _program(means, policy, has_own_network=self.has_own_network)
        """The packed seccomp filter, or `restriction.NO_FILTER`."""
        self._means = means
        self._policy = policy
        self._temporary = temporary
        self._git_directories = tuple(git_directories)
        self._ruleset = PolicyRuleset(policy, means.landlock.abi)

    def ruleset(self) -> int:
        """The descriptor of a ruleset that fits the disk as it is now, or `restriction.NO_RULESET`. The next call may
        close it. Raises OSError.
        """
        return self._ruleset.descriptor() if self._means.landlock.abi else restriction.NO_RULESET

    def words_before(self, ruleset: int, working_directory: str, *, proxy: int | None = None) -> list[str]:
        """The words to put before a command so that it runs in the box. The process that executes them must inherit the
        ruleset's descriptor. Without namespaces a process can call `restriction.restrict` itself instead, which saves
        the start of an interpreter. `proxy` is the descriptor of a `ProxyDoor`, which must be inherited too.
        """
        bwrap, abi = self._means.bwrap, self._means.landlock.abi
        own_places = [f"{place}={rights}" for place, rights in own_mounts(abi)] if bwrap and abi else []
        script = [sys.executable, "-I", "-S", restriction.__file__, str(ruleset), self.program.hex()]
        enclosing = [] if bwrap is None else bwrap_command(bwrap, self._enclosure(working_directory))
        proxy_word = [] if proxy is None else [f"{restriction.PROXY}={proxy}"]
        return [*enclosing, *script, *own_places, *proxy_word, "--"]

    def close(self) -> None:
        """Closes the ruleset's descriptor."""
        self._ruleset.close()

    def _enclosure(self, working_directory: str) -> Enclosure:
        return Enclosure(
            working_directory,
            self._temporary,
            writable=self._policy.writable,
            visible=(sys.prefix, sys.base_prefix, str(Path(restriction.__file__).parents[1])),
            pinned=self._git_directories,
            read_only=tuple(self._run_programs()),
            has_network=not self.has_own_network,
        )

    def _run_programs(self) -> Iterator[str]:
        for directory in self._git_directories:
            for name in _RUNS_PROGRAMS:
                path = f"{directory}/{name}"
                # A mount on a symbolic link would protect the link's target, and the link could still be replaced.
                if os.path.exists(path) and not os.path.islink(path):  # noqa: PTH110, PTH114 - strings throughout
                    yield path


def _program(means: Means, policy: BoxPolicy, *, has_own_network: bool) -> bytes:
    if means.why_no_filter:
        return restriction.NO_FILTER
    made = make_filter(
        platform.machine(),
        internet=internet_of(policy.net, has_own_network=has_own_network),
        unix_sockets=bool(policy.sockets) or means.landlock.has_socket_paths,
        without_landlock=not means.landlock.abi,
    )
    return restriction.NO_FILTER if made is None else made
