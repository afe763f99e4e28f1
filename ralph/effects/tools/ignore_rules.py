"""Walks a directory the way git sees it: without links, without `.git`, without what .gitignore files name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

_IGNORE_FILE = ".gitignore"

OnUnreadable = Callable[[str, OSError], None]


@dataclass(frozen=True)
class _Rules:
    """One .gitignore file."""

    prefix: str
    """What leads from its directory to where the walk starts; ends in a slash, or is empty."""
    depth: int
    """Characters of a walked path that lead to its directory, when that lies below the start."""
    spec: GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """True: ignored, False: wanted all the same, None: nothing said. A directory's path ends in a slash."""
        return self.spec.check_file(self.prefix + path[self.depth :]).include


def walk(top: str | None, on_unreadable: OnUnreadable) -> Iterator[str]:
    """Regular files below the working directory, relative, in the order of their paths.

    `top` is the top of the repository, None outside of one: rules from there down to here count.
    """
    rules = _rules_above(str(Path.cwd()), top)
    return _walk("", rules, on_unreadable)


def _walk(directory: str, rules: list[_Rules], on_unreadable: OnUnreadable) -> Iterator[str]:
    try:
        with os.scandir("./" + directory) as listing:
            entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        on_unreadable("./" + directory, error)
        return
    names = {entry.name for entry in entries}
    if directory and ".git" in names:  # another repository has rules of its own
        rules = []
    if _IGNORE_FILE in names:
        rules = [*rules, *_rules_in("./" + directory, prefix="", depth=len(directory))]
    for entry in entries:
        path = directory + entry.name
        if entry.name == ".git":
            continue
        if entry.is_dir(follow_symlinks=False):
            if not _is_ignored(path + "/", rules):
                yield from _walk(path + "/", rules, on_unreadable)
        elif entry.is_file(follow_symlinks=False) and not _is_ignored(path, rules):
            yield path


def _is_ignored(path: str, rules: list[_Rules]) -> bool:
    """The nearest file that says anything decides."""
    verdicts = (one.verdict(path) for one in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _rules_above(start: str, top: str | None) -> list[_Rules]:
    """None of them when the start is itself ignored: who asks for it by name wants to see it."""
    if top is None or start == top:
        return []
    rules: list[_Rules] = []
    way = Path(start).relative_to(top).parts
    for steps in range(len(way)):
        rules += _rules_in(str(Path(top, *way[:steps])), prefix="/".join(way[steps:]) + "/", depth=0)
    return [] if _is_ignored("", rules) else rules


def _rules_in(directory: str, *, prefix: str, depth: int) -> list[_Rules]:
    try:
        text = Path(directory, _IGNORE_FILE).read_text(encoding="utf-8", errors="surrogateescape")
        return [_Rules(prefix, depth, GitIgnoreSpec.from_lines(text.split("\n")))]
    except (OSError, ValueError):  # unreadable, or a pattern that git would skip too
        return []
