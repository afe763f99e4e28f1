"""Walks a directory the way git sees it: without links, without `.git`, without what .gitignore files name.

The rules are those of gitignore(5). A rule is asked about a path itself, never about the directories above it:
an ignored directory is not entered in the first place.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ralph.effects.tools.glob_pattern import Segment, segments_match, segments_of

_IGNORE_FILE = ".gitignore"
_UNESCAPED_SPACES_AT_END = re.compile(r"(?<!\\) +$")

OnUnreadable = Callable[[str, OSError], None]


@dataclass(frozen=True)
class _Rule:
    segments: list[Segment]
    is_negated: bool
    is_for_directories: bool
    is_about_name: bool


@dataclass(frozen=True)
class _IgnoreFile:
    rules: list[_Rule]
    """The last one first: it wins."""
    way_here: list[str]
    """The parts that lead from its directory to where the walk starts."""
    depth: int
    """Parts of a walked path that lead to its directory, when that lies below the start."""

    def verdict(self, parts: list[str], *, is_directory: bool) -> bool | None:
        """True: ignored, False: wanted all the same, None: nothing said."""
        path = [*self.way_here, *parts[self.depth :]]
        for rule in self.rules:
            if rule.is_for_directories and not is_directory:
                continue
            if segments_match(rule.segments, path[-1:] if rule.is_about_name else path):
                return not rule.is_negated
        return None


def walk(top: str | None, on_unreadable: OnUnreadable, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
    """Regular files below the working directory, relative, in the order of their paths.

    `top` is the top of the repository, None outside of one: rules from there down to here count. `hidden`: relative
    paths of what is passed over, with everything beneath it.
    """
    return _walk([], _files_above(Path.cwd(), top), on_unreadable, hidden)


def _walk(
    directory: list[str], files: list[_IgnoreFile], on_unreadable: OnUnreadable, hidden: frozenset[str]
) -> Iterator[str]:
    path = "/".join([".", *directory])
    try:
        with os.scandir(path) as listing:
            entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        on_unreadable(path, error)
        return
    names = {entry.name for entry in entries}
    if directory and ".git" in names:  # another repository has rules of its own
        files = []
    if _IGNORE_FILE in names:
        files = [*files, *_read(Path(path), way_here=[], depth=len(directory))]
    for entry in entries:
        parts = [*directory, entry.name]
        if entry.name == ".git" or (hidden and "/".join(parts) in hidden):
            continue
        if entry.is_dir(follow_symlinks=False):
            if not _is_ignored(parts, files, is_directory=True):
                yield from _walk(parts, files, on_unreadable, hidden)
        elif entry.is_file(follow_symlinks=False) and not _is_ignored(parts, files, is_directory=False):
            yield "/".join(parts)


def _is_ignored(parts: list[str], files: list[_IgnoreFile], *, is_directory: bool) -> bool:
    """The nearest file that says anything decides."""
    verdicts = (file.verdict(parts, is_directory=is_directory) for file in reversed(files))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _files_above(start: Path, top: str | None) -> list[_IgnoreFile]:
    """From the top down to above the start, which may itself be ignored: who names it wants to see it."""
    if top is None:
        return []
    way = start.relative_to(top).parts
    return [
        file
        for steps in range(len(way))
        for file in _read(Path(top, *way[:steps]), way_here=list(way[steps:]), depth=0)
    ]


def _read(directory: Path, *, way_here: list[str], depth: int) -> list[_IgnoreFile]:
    try:
        text = _text_of(directory / _IGNORE_FILE)
    except OSError:
        return []
    rules = [rule for line in text.split("\n") if (rule := _parsed(line)) is not None]
    return [_IgnoreFile(rules[::-1], way_here, depth)]


def _text_of(path: Path) -> str:
    """Empty for what is no regular file."""
    with open(path, encoding="utf-8", errors="surrogateescape", opener=_without_waiting) as file:
        return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""


def _without_waiting(path: str, flags: int) -> int:
    """Of a FIFO nobody may ever open the other end."""
    return os.open(path, flags | os.O_NONBLOCK)


def _parsed(line: str) -> _Rule | None:
    pattern = _UNESCAPED_SPACES_AT_END.sub("", line.removesuffix("\r"))
    if not pattern or pattern.startswith("#"):
        return None
    is_negated = pattern.startswith("!")
    pattern = pattern.removeprefix("!")
    is_for_directories = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    is_about_name = "/" not in pattern
    return _Rule(segments_of(pattern.removeprefix("/")), is_negated, is_for_directories, is_about_name)
