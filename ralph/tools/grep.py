"""Implements Grep, which lists lines, files or counts that match a regular expression, sorted by path."""

from __future__ import annotations

import os
import re
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.running_command import readable_text
from ralph.tools.search.file_search import (
    MOST_ENTRIES,
    FoundList,
    LineQuery,
    files_matching,
    ignored_note,
    list_files,
    place_at,
    search_end_s,
    search_lines,
)
from ralph.tools.search.glob_pattern import GlobPattern, plain_glob
from ralph.values.answer import ToolError, ToolOutput
from ralph.values.strict_json import is_encodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.machine.ripgrep import Record
    from ralph.tools.search.file_search import Search, SearchPlace
    from ralph.tools.tool_context import Arguments, ToolContext


_LONGEST_LINE = 500
_OTHER_ESCAPE = re.compile(r"\\[^n]")
_NEGATED_CLASS = re.compile(r"\[\^\]?+[^\]]*+\]?")
_LINE_BREAK = re.compile(r"\n|\\n")
_MOST_CONTEXT_LINES = 1000
# Enough for all that a result can show, if few of the lines are long.
_MOST_SORTED_BYTES = 4 * 1024 * 1024
# What ripgrep says of a file whose later lines it did not search, behind those that matched.
_STOPPED = re.compile(
    rb"(.+): (?:WARNING: stopped searching binary file after match|binary file matches) \(found ", re.DOTALL
)


def run(arguments: Arguments, context: ToolContext) -> ToolOutput:
    pattern, path = arguments["pattern"], arguments.get("path", ".")
    _check_pattern(pattern)
    place = place_at(context.resolve(path), path, context)
    around: int = arguments.get("-C", 0)
    before: int = arguments.get("-B", around)
    after: int = arguments.get("-A", around)
    query = LineQuery(
        pattern=arguments["pattern"],
        output_mode=arguments.get("output_mode", "files_with_matches"),
        ignore_case=arguments.get("-i", False),
        before=min(before, _MOST_CONTEXT_LINES),
        after=min(after, _MOST_CONTEXT_LINES),
        glob=plain_glob(arguments.get("glob") or "./") or None,
    )
    lists_files = query.output_mode == "files_with_matches" and place.file_name is None
    separator = b"\0" if lists_files else b"\n"
    deadline_s = search_end_s(context)
    with search_lines(place, query, context, deadline_s, is_sorted=False) as search:
        records = _in_order(search, query, separator)
        if records is not None:
            return _output(arguments, search, records, query, place=place, context=context)
    with search_lines(place, query, context, deadline_s, is_sorted=True) as search:
        return _output(arguments, search, search.records(separator), query, place=place, context=context)


def _in_order(search: Search, query: LineQuery, separator: bytes) -> list[Record] | None:
    """The records of a search that is not sorted, sorted by path."""
    files: dict[bytes, list[Record]] = {}
    size, last, is_apart = 0, b"", False
    for record in search.records(separator):
        size += len(record[0])
        if size > _MOST_SORTED_BYTES:
            return None
        name, has_name, _ = record[0].partition(b"\0")
        if separator == b"\n" and not has_name:
            is_apart = is_apart or record[0] == b"--"
            stopped = _STOPPED.match(record[0])
            if stopped is None:
                continue
            name = stopped[1]
        of_file = files.setdefault(name, [])
        if is_apart and name == last:
            of_file.append((b"--", 2))
        of_file.append(record)
        last, is_apart = name, False
    if not search.is_cut_short and search.ending_signal():
        return None
    between = [(b"--", 2)] if query.output_mode == "content" and (query.before or query.after) else []
    in_order: list[Record] = []
    for name in sorted(files, key=lambda name: name.split(b"/")):
        in_order += [*(between if in_order else ()), *files[name]]
    return in_order


def _output(
    arguments: Arguments,
    search: Search,
    records: Iterable[Record],
    query: LineQuery,
    *,
    place: SearchPlace,
    context: ToolContext,
) -> ToolOutput:
    found = FoundList(
        min(arguments.get("head_limit", MOST_ENTRIES), MOST_ENTRIES), context.settings.max_output_bytes
    )
    has_numbers = arguments.get("-n", True)
    glob = GlobPattern(query.glob) if query.glob is not None and place.file_name is None else None
    if query.output_mode == "count":
        records = _counted(records)
    for entry in _entries(
        records, search.is_stopped, query, place, context, glob=glob, has_numbers=has_numbers
    ):
        if isinstance(entry, _StoppedSearch):
            found.stopped_in.append(entry.path)
        elif not found.add(entry):
            break
    failure = None if found.entries or search.is_cut_short else search.failure()
    if failure:
        raise ToolError(f"the search failed: {failure}")
    has_none = not (found.entries or found.stopped_in or search.is_cut_short)
    nothing = (has_none and _why_none(place, glob, context)) or "No matches found"
    text = found.text(nothing, search, place.hidden)
    return ToolOutput(text, is_error=search.is_cut_short and not found.entries)


def _why_none(place: SearchPlace, glob: GlobPattern | None, context: ToolContext) -> str:
    """The result if no file was searched. Empty if one was."""
    if place.file_name is not None:
        return ""
    with list_files(place, context, is_sorted=False) as search:
        if next(files_matching(place, glob, search), None) is not None or search.is_cut_short:
            return ""
    why = "there is none" if glob is None else "none matches the glob"
    return f"No matches found: no file was searched; {ignored_note(place, glob, context) or why}"


def _counted(records: Iterable[Record]) -> Iterator[Record]:
    for name, of_file in groupby(records, key=lambda record: record[0].partition(b"\0")[:2]):
        if not name[1]:
            yield from of_file
            continue
        number = sum(1 for _ in of_file)
        yield b"%b\0%d" % (name[0], number), 0


def _check_pattern(pattern: str) -> None:
    if "\0" in pattern or not is_encodable(pattern):
        raise ToolError("the pattern contains a character that no text file does")
    without_escapes = _OTHER_ESCAPE.sub("", pattern)
    if _LINE_BREAK.search(_NEGATED_CLASS.sub("", without_escapes)):
        raise ToolError(
            "the pattern contains a line break, which never matches: lines are searched one by one. "
            "Search for one of the lines, with -A or -B to see those around it"
        )


class _StoppedSearch(Struct, frozen=True):
    """An entry for a file in which the search stopped at a NUL byte, behind its lines."""

    path: str


def _entries(
    records: Iterable[Record],
    is_stopped: Callable[[], bool],
    query: LineQuery,
    place: SearchPlace,
    context: ToolContext,
    *,
    glob: GlobPattern | None,
    has_numbers: bool,
) -> Iterator[str | _StoppedSearch]:
    """Yields the results as lines for the model."""
    shown_directory = context.shown(place.directory)
    prefix = "" if shown_directory == "." else shown_directory.rstrip("/") + "/"
    lists_files = query.output_mode == "files_with_matches"
    is_apart = False
    for record in records:
        name, has_name, rest = record[0].partition(b"\0")
        stopped = None
        if not has_name and not (lists_files and place.file_name is None):
            is_apart = is_apart or record[0] == b"--"
            stopped = _STOPPED.match(record[0])
            if stopped is None:
                continue
            name = stopped[1]
        path = os.fsdecode(name).removeprefix("./")
        if (glob is not None and not glob.matches(path)) or place.hidden.hides(path):
            continue
        if place.hidden.holds_secret(path, is_stopped):
            continue
        path = place.named or path
        if stopped is not None:
            yield _StoppedSearch(prefix + path)
            continue
        if is_apart:
            is_apart = False
            yield "--"
        if lists_files:
            yield prefix + path
        elif query.output_mode == "count":
            yield f"{prefix}{path}:{rest.decode()}"
        else:
            yield _line(prefix + path, rest, record, context, has_numbers=has_numbers)


def _line(path: str, rest: bytes, record: Record, context: ToolContext, *, has_numbers: bool) -> str:
    """One line of output, as `PATH:NUMBER:LINE`."""
    digits = len(rest) - len(rest.lstrip(b"0123456789"))
    mark = rest[digits : digits + 1].decode("ascii", "replace")
    # Redact before the cut: half a credential would not be recognised.
    text = context.redactor.redact(readable_text(rest[digits + 1 :].removesuffix(b"\r"))[0])
    if len(text) > _LONGEST_LINE:
        text = f"{text[:_LONGEST_LINE]} [line cut: {record[1] - len(path):,} bytes]"
    number = f"{rest[:digits].decode()}{mark}" if has_numbers else ""
    return f"{path}{mark}{number}{text}"
