"""Finds out whether git ignores a directory as a whole, so that a search which names it does not find it empty. Ripgrep
applies the rules to files. Only which rules it gets is decided here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.machine.repository import beginning_of
from ralph.tools.search.glob_pattern import GlobPattern
from ralph.values.tool_calls import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IGNORE_FILE = ".gitignore"
_ANY_FILE = "any file of no special name"


def is_ignored_whole(directory: str, top: str, *, counts_own: bool) -> bool:
    """Whether rules ignore the directory, one above it, or any file directly in it, by a rule that names its place, such
    as `out/*`. Both paths are absolute and without links. `top` is the top of the repository. With `counts_own`, any
    rule in the directory's own file counts too, such as a `*` there.
    """
    parts = () if directory == top else tuple(os.path.relpath(directory, top).split("/"))
    if any(_is_ignored(top, parts[:depth], is_directory=True) for depth in range(1, len(parts) + 1)):
        return True
    of_file = (*parts, _ANY_FILE)
    if counts_own and (own := _verdict(top, of_file, len(parts), is_directory=False)) is not None:
        return own
    return _is_ignored(top, of_file, most=len(parts), names_place=True)


def _is_ignored(
    top: str,
    parts: Sequence[str],
    *,
    most: int | None = None,
    is_directory: bool = False,
    names_place: bool = False,
) -> bool:
    """Whether the rules ignore the path with these parts. The nearest file with a rule for it decides."""
    depths = reversed(range(len(parts) if most is None else most))
    verdicts = (
        _verdict(top, parts, depth, is_directory=is_directory, names_place=names_place) for depth in depths
    )
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _verdict(
    top: str, parts: Sequence[str], depth: int, *, is_directory: bool, names_place: bool = False
) -> bool | None:
    """Whether the rules in the directory `depth` levels below the top ignore the path with these parts."""
    path = "/".join(parts[depth:])
    for rule in _rules("/".join((top.rstrip("/"), *parts[:depth], IGNORE_FILE))):
        is_negated = rule.startswith("!")
        pattern = rule.removeprefix("!")
        if pattern.endswith("/") and not is_directory:
            continue
        pattern = pattern.rstrip("/")
        if not pattern or (names_place and "/" not in pattern):
            continue
        with suppress(ToolError):  # too many alternatives in braces
            if GlobPattern(pattern).matches(path):
                return not is_negated
    return None


def _rules(file: str) -> Iterator[str]:
    """The rules of a file, the last one first. Reads its first 64 KiB."""
    for line in reversed(os.fsdecode(beginning_of(file)).split("\n")):
        rule = line.removesuffix("\r")
        while rule.endswith(" ") and not rule.endswith("\\ "):
            rule = rule[:-1]
        if rule and not rule.startswith("#"):
            yield rule
