"""Implements Glob, which lists the files whose paths match a pattern, sorted by path."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ralph.tools.search.file_search import (
    MOST_ENTRIES,
    FoundList,
    files_matching,
    ignored_note,
    list_files,
    place_at,
)
from ralph.tools.search.glob_pattern import GlobPattern
from ralph.values.answer import ToolError, ToolOutput

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.tools.tool_context import Arguments, ToolContext

_SPECIAL = re.compile(r"[*?\[{]")


def run(arguments: Arguments, context: ToolContext) -> ToolOutput:
    start, pattern = _start_and_pattern(arguments["pattern"], arguments.get("path", "."), context)
    glob = GlobPattern(pattern)
    place = place_at(start, context.shown(start), context)
    if place.file_name is not None:
        raise ToolError(f"{context.shown(start)} is a file; path must be a directory")
    found = FoundList(MOST_ENTRIES, context.settings.max_output_bytes)
    shown_start = context.shown(place.directory)
    prefix = "" if shown_start == "." else shown_start.rstrip("/") + "/"
    with list_files(place, context) as search:
        for path in files_matching(place, glob, search):
            if not found.add(prefix + path):
                break
        failure = None if found.entries or search.is_cut_short else search.failure()
        if failure:
            raise ToolError(failure)
        has_none = not (found.entries or search.is_cut_short)
        nothing = (has_none and ignored_note(place, glob, context)) or "No files found"
        text = found.text(nothing, search, place.hidden)
        return ToolOutput(text, is_error=search.is_cut_short and not found.entries)


def _start_and_pattern(pattern: str, path: str, context: ToolContext) -> tuple[Path, str]:
    """The directory where the search starts, and the pattern relative to it."""
    start = context.resolve(path)
    if not pattern.startswith(("/", "~/", "../")):
        return start, pattern
    special = _SPECIAL.search(pattern)
    plain_end = pattern.rfind("/", 0, special.start() if special else len(pattern))
    start /= (
        context.resolve(pattern[: plain_end + 1])
        if pattern.startswith(("/", "~"))
        else pattern[: plain_end + 1]
    )
    # The rest of the pattern is relative to that directory: a slash keeps it from matching names at any depth.
    return start.resolve(), "/" + pattern[plain_end + 1 :]
