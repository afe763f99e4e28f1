"""Reads the instructions for a part of a repository when a tool first touches that part. These are the files of memory
in directories that are not above the working directory, and the rules of `.claude/rules` that name the touched file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.repository import is_within, up_to_repository_root
from ralph.prompt.memory import Memory, MemoryReader
from ralph.values.events import ContextCompacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.prompt.judged_file import Place
    from ralph.prompt.memory import MemoryFile
    from ralph.values.events import Event

# What is installed there came with the packages of others, who do not know this project.
_OF_OTHERS = "node_modules"


class NestedMemory:
    """Knows which instructions the model has. It is an `Events` sink, because a new context lacks them."""

    def __init__(
        self,
        cwd: Path,
        memory: Memory,
        sources: frozenset[str],
        rules: Place,
        matches: Callable[[str, str], bool],
    ) -> None:
        """`memory` is that of the system prompt. `cwd` and `sources` are as in `read_memory`, and `rules` is a place without a
        folder. `matches` takes a pattern of a rule and a relative path.
        """
        self._cwd = str(cwd)
        self._above = tuple(map(str, up_to_repository_root(cwd)))
        self._place = replace(rules, top=self._above[-1])
        self._memory = memory
        self._sources = sources
        self._matches = matches
        self._begin()

    def _begin(self) -> None:
        self._reader = MemoryReader(self._memory.known)
        self._reader.rules = list(self._memory.rules)
        self._touched: set[str] = set()
        self._looked_into = set(self._above)

    def emit(self, event: Event) -> None:
        """Forgets what the model has got if a shorter context has replaced the old one."""
        if isinstance(event, ContextCompacted):
            self._begin()

    def is_new(self, path: str) -> bool:
        """Whether `about` has not been called for this path yet."""
        return path not in self._touched

    def about(self, path: str) -> Memory:
        """The instructions for a file or directory that the model does not have yet."""
        self._touched.add(path)
        named = os.path.expanduser(path)  # noqa: PTH111 - strings throughout
        real = os.path.realpath(os.path.join(self._cwd, named))  # noqa: PTH118 - strings throughout
        if not is_within(real, self._place.top):
            return Memory()
        if os.path.isfile(real):  # noqa: PTH113 - strings throughout
            self._reader.know(real)
        nearest_first = reversed(list(self._on_the_way_to(real)))
        groups = [
            group
            for directory in nearest_first
            for group in self._reader.of_directory(directory, self._sources, self._place)
        ]
        files = [file for group in reversed(groups) for file in group]
        for rule in [rule for rule in self._reader.rules if self._is_about(rule, real)]:
            self._reader.rules.remove(rule)
            users = replace(self._place, top=f"{_base(rule)}/.claude", is_users=True)
            place = users if rule.is_users else self._place
            files += self._reader.read(rule.path, place, is_rule=True, paths=rule.paths)
        return self._reader.memory(files)

    def _on_the_way_to(self, real: str) -> Iterator[str]:
        directory = self._place.top
        for name in os.path.relpath(real, directory).split("/"):
            directory = f"{directory.rstrip('/')}/{name}"
            is_there = os.path.isdir(directory)  # noqa: PTH112 - strings throughout
            if not is_there or name.startswith(".") or name == _OF_OTHERS:
                return
            if directory not in self._looked_into:
                self._looked_into.add(directory)
                yield directory

    def _is_about(self, rule: MemoryFile, real: str) -> bool:
        """Patterns are relative to the directory of `.claude`, and those of the user's own rules to the top of the repository."""
        base = self._place.top if rule.is_users else _base(rule)
        if real == base or not is_within(real, base):
            return False
        return any(self._matches(pattern, os.path.relpath(real, base)) for pattern in rule.paths)


def _base(rule: MemoryFile) -> str:
    return rule.path.rpartition("/.claude/rules/")[0]
