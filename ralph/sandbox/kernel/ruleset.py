"""Keeps one Landlock ruleset, and builds it again when the disk has changed."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

from ralph.machine import restriction
from ralph.sandbox.kernel.landlock import build_ruleset
from ralph.sandbox.watched import WatchedDirectories
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.sandbox.kernel.landlock import Rule

    Rules = Callable[[Callable[[str], Iterable[str]]], Iterable[Rule]]
    """Takes a function that returns the names in a directory, without symbolic links."""

# With namespaces, each command adds a rule for its own /proc to the ruleset, and restricting copies all rules. So the
# ruleset is built again sometimes, which takes milliseconds.
_MOST_USES = 100
_numbers = count(1)


class Ruleset:
    """A ruleset that is built when it is first needed."""

    def __init__(self, abi: int, *, is_worn_by_uses: bool = False, allows_signals: bool = False) -> None:
        """`abi` is the version of Landlock, 0 if there is none. `is_worn_by_uses` is True if each command adds rules.
        `allows_signals` is as in `build_ruleset`.
        """
        self._abi = abi
        self._allows_signals = allows_signals
        self._is_worn_by_uses = is_worn_by_uses
        self._descriptor = restriction.NO_RULESET
        self._watched = WatchedDirectories()
        self._uses = 0
        self.number = 0
        """The number of the present ruleset, which no other one of this process has."""

    def fresh(self, rules: Rules) -> int:
        """The descriptor of a ruleset that fits the present state of the disk, or `restriction.NO_RULESET`. The next call may
        close this descriptor. Raises OSError.

        It is built again after an entry was made or removed in a directory whose names `rules` asked for. Until then, commands
        cannot read a new entry there.
        """
        if not self._abi:
            return restriction.NO_RULESET
        is_worn = self._is_worn_by_uses and self._uses >= _MOST_USES
        if self._descriptor == restriction.NO_RULESET or is_worn or self._watched.have_changed():
            self.close()
            self._watched.clear()
            self._uses, self.number = 0, next(_numbers)
            self._descriptor = build_ruleset(
                self._abi, rules(self._entries), allows_signals=self._allows_signals
            )
        self._uses += 1
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, restriction.NO_RULESET
        if descriptor != restriction.NO_RULESET:
            os.close(descriptor)

    def _entries(self, directory: str) -> Iterator[str]:
        self._watched.add(directory)
        try:
            with os.scandir(directory) as listing:
                yield from [entry.name for entry in listing if not entry.is_symlink()]
        except OSError as error:
            if shortage_of(error) is not None:
                raise
            return  # it cannot be listed: no rule is made, and everything in it stays closed to commands
