# os.path instead of pathlib: the kernel takes strings.
# ruff: noqa: PTH116
"""Keeps one Landlock ruleset, and builds it again when the disk has changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph.machine import restriction
from ralph.sandbox.kernel.landlock import build_ruleset, file_rights
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.sandbox.kernel.landlock import Rule

    Rules = Callable[[Callable[[str], Iterable[str]]], Iterable[Rule]]
    """Takes a function that returns the names in a directory, without symbolic links."""

# With namespaces, each command adds rules for its own mounts to the ruleset, and restricting copies all rules. So the
# ruleset is built again sometimes, which takes milliseconds.
_MOST_USES = 100


class Ruleset:
    """A ruleset that is built when it is first needed."""

    def __init__(self, abi: int, *, is_worn_by_uses: bool, is_filled_inside: bool = False) -> None:
        """`abi` is the version of Landlock, 0 if there is none. `is_worn_by_uses` is True if each command adds rules. With
        `is_filled_inside`, the ruleset is new and empty at each use, and its rules are in `places`: what a command sees has
        other inodes than what this process sees.
        """
        self._abi = abi
        self._is_worn_by_uses = is_worn_by_uses
        self._is_filled_inside = is_filled_inside
        self.places: tuple[str, ...] = ()
        """The rules that the command's process must add itself, in the form PATH=RIGHTS."""
        self._descriptor = restriction.NO_RULESET
        self._changed_ns: dict[str, int] = {}
        self._uses = 0

    def fresh(self, rules: Rules) -> int:
        """The descriptor of a ruleset that fits the present state of the disk, or `restriction.NO_RULESET`. The next
        call may close this descriptor. Raises OSError.

        The ruleset is built again after an entry was made or removed in a directory whose names `rules` asked for. Until
        then, commands cannot read a new entry in such a directory.
        """
        if not self._abi:
            return restriction.NO_RULESET
        is_worn = self._is_worn_by_uses and self._uses >= _MOST_USES
        is_old = any(_changed_ns(directory) != known for directory, known in self._changed_ns.items())
        is_first = self._descriptor == restriction.NO_RULESET
        if self._is_filled_inside:
            if is_first or is_old:
                self._changed_ns = {}
                handled = file_rights(self._abi)
                self.places = tuple(f"{rule.path}={rule.rights & handled}" for rule in rules(self._entries))
            self.close()
            self._descriptor = build_ruleset(self._abi, ())
        elif is_first or is_worn or is_old:
            self.close()
            self._changed_ns, self._uses = {}, 0
            self._descriptor = build_ruleset(self._abi, rules(self._entries))
        self._uses += 1
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, restriction.NO_RULESET
        if descriptor != restriction.NO_RULESET:
            os.close(descriptor)

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
