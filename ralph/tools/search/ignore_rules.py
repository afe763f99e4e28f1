"""Walks a directory the way git sees it: without links, without `.git`, without what .gitignore files name.

The rules are those of gitignore(5). A rule is asked about a path itself, never about the directories above it:
an ignored directory is not entered in the first place.

Memory and time are bounded whatever lies there. An ignore file that is too big, or more rules than can be asked about
each path, is reported and not followed, as git does with one over 100 MB: what it names is seen then, so that nothing is
overlooked. A directory with too many entries is reported in the place of what is in it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ralph.tools.search.glob_pattern import Segment, segments_match, segments_of

_IGNORE_FILE = ".gitignore"
_REPOSITORY = ".git"
_UNESCAPED_SPACES_AT_END = re.compile(r"(?<!\\) +$")

MOST_IGNORE_BYTES = 512 * 1024
"""Of one ignore file."""
MOST_RULES = 5_000
"""In force for one path, of all files together. To ask them takes milliseconds; big projects have some hundreds."""
LONGEST_RULE = 4_096
"""As long as a path can be."""
MOST_ENTRIES = 250_000
"""Of one directory, as they are sorted."""
_STEPS_EVERY = 100

OnUnreadable = Callable[[str, OSError], None]
OnStep = Callable[[], None]
"""Called often, so that a walk can be left: by what it raises."""


class _Rule(NamedTuple):
    segments: list[Segment]
    is_negated: bool
    is_for_directories: bool
    is_about_name: bool


class _IgnoreFile(NamedTuple):
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


class _Found(NamedTuple):
    name: str
    is_directory: bool


class _Level(NamedTuple):
    """A directory that is being walked."""

    parts: list[str]
    files: list[_IgnoreFile]
    entries: Iterator[_Found]


def _nothing() -> None:
    """The step of a walk that nobody leaves."""


def walk(
    top: str | None,
    on_unreadable: OnUnreadable,
    on_step: OnStep = _nothing,
    *,
    hidden: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """Regular files below the working directory, relative, in the order of their paths.

    `top` is the top of the repository, None outside of one: rules from there down to here count. `hidden`: relative
    paths of what is passed over, with everything beneath it.
    """
    return _Walk(on_unreadable, on_step, hidden).run(top)


class _Walk:
    """With a stack of its own: a tree may be deeper than the interpreter's."""

    def __init__(self, on_unreadable: OnUnreadable, on_step: OnStep, hidden: frozenset[str]) -> None:
        self._on_unreadable = on_unreadable
        self._on_step = on_step
        self._hidden = hidden
        self._count = 0

    def run(self, top: str | None) -> Iterator[str]:
        levels = [self._level([], self._files_above(Path.cwd(), top))]
        while levels:
            level = levels[-1]
            found = next(level.entries, None)
            if found is None:
                levels.pop()
                continue
            self._step()
            parts = [*level.parts, found.name]
            if found.name == _REPOSITORY or (self._hidden and "/".join(parts) in self._hidden):
                continue
            if _is_ignored(parts, level.files, is_directory=found.is_directory):
                continue
            if found.is_directory:
                levels.append(self._level(parts, level.files))
            else:
                yield "/".join(parts)

    def _level(self, directory: list[str], files: list[_IgnoreFile]) -> _Level:
        """Without entries where it cannot be listed."""
        path = "/".join([".", *directory])
        entries: list[_Found] = []
        special: set[str] = set()
        try:
            entries, special = self._entries(path)
        except OSError as error:
            self._on_unreadable(path, error)
        if directory and _REPOSITORY in special:  # another one has rules of its own
            files = []
        if _IGNORE_FILE in special:
            files = self._with_rules(files, Path(path), way_here=[], depth=len(directory))
        return _Level(directory, files, iter(entries))

    def _entries(self, path: str) -> tuple[list[_Found], set[str]]:
        """Directories and regular files, in their order, and which names of git's there are. Raises OSError."""
        found, special = [], set()
        with os.scandir(path) as listing:
            for number, entry in enumerate(listing, start=1):
                self._step()
                if number > MOST_ENTRIES:
                    raise OSError(errno.EFBIG, f"it has more than {MOST_ENTRIES:,} entries")
                if entry.name in {_REPOSITORY, _IGNORE_FILE}:
                    special.add(entry.name)
                is_directory = entry.is_dir(follow_symlinks=False)
                if is_directory or entry.is_file(follow_symlinks=False):
                    found.append(_Found(entry.name, is_directory))
        return sorted(found, key=lambda one: os.fsencode(one.name)), special

    def _files_above(self, start: Path, top: str | None) -> list[_IgnoreFile]:
        """From the top down to above the start, which may itself be ignored: who names it wants to see it."""
        files: list[_IgnoreFile] = []
        if top is None:
            return files
        way = start.relative_to(top).parts
        for steps in range(len(way)):
            files = self._with_rules(files, Path(top, *way[:steps]), way_here=list(way[steps:]), depth=0)
        return files

    def _with_rules(
        self, files: list[_IgnoreFile], directory: Path, *, way_here: list[str], depth: int
    ) -> list[_IgnoreFile]:
        """The same files where this one cannot be followed."""
        path = directory / _IGNORE_FILE
        in_force = sum(len(file.rules) for file in files)
        try:
            rules = self._rules(path, MOST_RULES - in_force)
        except OSError as error:
            if error.errno == errno.EFBIG:
                self._on_unreadable(str(path), error)
            return files
        return [*files, _IgnoreFile(rules[::-1], way_here, depth)]

    def _rules(self, path: Path, most: int) -> list[_Rule]:
        """Raises OSError."""
        rules: list[_Rule] = []
        for line in _text_of(path).split("\n"):
            self._step()
            rule = _parsed(line)
            if rule is not None:
                rules.append(rule)
            if len(rules) > most:
                raise OSError(
                    errno.EFBIG, f"with it there are more than {MOST_RULES:,} rules; its own are not followed"
                )
        return rules

    def _step(self) -> None:
        self._count += 1
        if self._count % _STEPS_EVERY == 0:
            self._on_step()


def _is_ignored(parts: list[str], files: list[_IgnoreFile], *, is_directory: bool) -> bool:
    """The nearest file that says anything decides."""
    verdicts = (file.verdict(parts, is_directory=is_directory) for file in reversed(files))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _text_of(path: Path) -> str:
    """Empty for what is no regular file. Raises OSError, also for a link, which git does not follow either."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return ""
        data = file.read(MOST_IGNORE_BYTES + 1)
    if len(data) > MOST_IGNORE_BYTES:
        raise OSError(
            errno.EFBIG, f"it has more than {MOST_IGNORE_BYTES:,} bytes; its rules are not followed"
        )
    return data.decode("utf-8", "surrogateescape")


def _without_waiting(path: str, flags: int) -> int:
    """Of a FIFO nobody may ever open the other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _parsed(line: str) -> _Rule | None:
    pattern = _UNESCAPED_SPACES_AT_END.sub("", line.removesuffix("\r"))
    if not pattern or pattern.startswith("#"):
        return None
    if len(pattern) > LONGEST_RULE:
        raise OSError(
            errno.EFBIG, f"a rule has more than {LONGEST_RULE:,} characters; its rules are not followed"
        )
    is_negated = pattern.startswith("!")
    pattern = pattern.removeprefix("!")
    is_for_directories = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    is_about_name = "/" not in pattern
    return _Rule(segments_of(pattern.removeprefix("/")), is_negated, is_for_directories, is_about_name)
