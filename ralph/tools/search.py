"""Implements Glob, which lists the files whose paths match a pattern, and Grep, which lists lines, files or counts that match a regular
expression, both with ripgrep. .gitignore files apply, both inside the directory and above it, up to the top of the repository, unless
they ignore the whole directory. Hidden files are included, but `.git` is not. Links are not followed. Results are sorted by path.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.files.opened_file import closed_after
from ralph.machine.files.paths import HELD_DIRECTORY, blocking_entry, blocks, repository_top
from ralph.machine.ripgrep import (
    FILES_AS_GIT_SEES_THEM,
    OUTSIDE_OF_REPOSITORIES,
    SORTED,
    Ripgrep,
    RipgrepError,
    ripgrep_path,
)
from ralph.machine.running_command import readable_text
from ralph.machine.starting import start_job
from ralph.tools.content import SNIFFED_BYTES, is_binary, kind_of, marked_encoding
from ralph.tools.glob_pattern import IGNORE_FILE, GlobPattern, is_ignored_whole, plain_glob
from ralph.tools.path_guard import HiddenPlaces
from ralph.tools.read import opened_regular
from ralph.values.answer import ToolError, ToolOutput, tool_errors
from ralph.values.outcome import ShortageError
from ralph.values.strict_json import is_encodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ralph.machine.ripgrep import Record
    from ralph.tools.tool_context import Arguments, ToolContext

_SPECIAL = re.compile(r"[*?\[{]")


def run_glob(arguments: Arguments, context: ToolContext) -> ToolOutput:
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


def run_grep(arguments: Arguments, context: ToolContext) -> ToolOutput:
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


MOST_ENTRIES = 1000
_MOST_NAMED = 5


class FoundList:
    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.entries: list[str] = []
        self.is_full = False
        self.stopped_in: list[str] = []
        self._bytes = 0

    def add(self, entry: str) -> bool:
        """Adds an entry and returns True. Returns False if the list is full, so that the search can stop."""
        size = len(entry.encode("utf-8", "replace")) + 1
        if len(self.entries) >= self.max_entries or self._bytes + size > self.max_bytes:
            self.is_full = True
            return False
        self.entries.append(entry)
        self._bytes += size
        return True

    def text(self, nothing: str, search: Search, hidden: HiddenPlaces) -> str:
        notes = []
        if self.is_full:
            notes.append(
                f"[only the first {len(self.entries):,} are shown; narrow the pattern or the path to see more]"
            )
        if search.is_cut_short:
            notes.append(search.why_stopped)
        if search.skipped:
            notes.append(f"[{search.skipped:,} could not be read and were skipped]")
        for says, paths in (
            ("searched only up to a NUL byte", self.stopped_in),
            ("left out, as they must not be read", hidden.those_there),
        ):
            if paths:
                more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
                notes.append(f"[{says}: {', '.join(paths[:_MOST_NAMED])}{more}]")
        return "\n".join([*(self.entries or [nothing]), *notes])


# A search in a large tree takes a second.
_LOOKS_AFTER_S = 2.0
# Patterns that ripgrep's file types read as `GlobPattern` does: names without classes, escapes, nested braces and
# empty alternatives. A colon would have a meaning of its own.
_PLAIN_GLOB = re.compile(r"(?:[\w.*?,+@ -]|\{[\w.*?+@ -]+(?:,[\w.*?+@ -]+)*\})+")


class SearchPlace(Struct, frozen=True):
    """The place to search: a whole directory, or one file in a directory."""

    directory: Path
    """The absolute path of the directory as the model wrote it. Its links are not resolved."""
    real: str
    """The path of the opened directory, with links resolved. The search begins there."""
    hidden: HiddenPlaces
    is_ignored: bool = False
    """True if rules ignore the whole directory. Then none apply in it, because the model has named it."""
    file_name: str | None = None
    """The name of the file in the directory `real`, or None if the whole directory is searched."""
    named: str | None = None
    """The name of the file in `directory`, as the model wrote it, or None if the whole directory is searched."""

    @property
    def target(self) -> str:
        return "./" + (self.file_name or "")


class LineQuery(Struct, frozen=True):
    pattern: str
    output_mode: str
    ignore_case: bool = False
    before: int = 0
    after: int = 0
    glob: str | None = None


def place_at(path: Path, shown: str, context: ToolContext) -> SearchPlace:
    """Where Grep or Glob searches `path`: for a file, its directory, limited to that file. Raises ToolError."""
    judged = context.guard.refuse_read(path, shown)
    with tool_errors(shown):
        mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        if not os.access(path, os.R_OK | os.X_OK):
            raise ToolError(f"{shown}: Permission denied")
        real = _opened_directory(path, shown, judged, context)
        top = repository_top(Path(real))
        counts_own = real not in {str(top), os.path.realpath(context.settings.cwd)}
        is_ignored = top is not None and is_ignored_whole(real, str(top), counts_own=counts_own)
        return SearchPlace(path, real, context.guard.hidden_beneath(real), is_ignored)
    if not stat.S_ISREG(mode):
        raise ToolError(f"{shown} is {kind_of(mode)}; only files and directories can be searched")
    with opened_regular(path, shown, context) as (descriptor, real):
        start = os.read(descriptor, SNIFFED_BYTES)
    if marked_encoding(start) is None and is_binary(start):
        raise ToolError(f"{shown} is a binary file")
    directory, name = os.path.split(real)
    return SearchPlace(
        path.parent, directory, HiddenPlaces(context.guard, directory, ()), file_name=name, named=path.name
    )


def _opened_directory(path: Path, shown: str, judged: str, context: ToolContext) -> str:
    with tool_errors(shown):
        descriptor = os.open(path, HELD_DIRECTORY)
    with closed_after(descriptor):
        return context.guard.refuse_opened(descriptor, path, shown, judged)


def list_files(place: SearchPlace, context: ToolContext, *, is_sorted: bool = True) -> Search:
    """Starts a listing, whose records are paths that begin with `./` and end with NUL. Raises ToolError and ShortageError."""
    order = SORTED if is_sorted else ()
    command = [*_options(place), *order, "--files", "--null", "--", place.target]
    return _started(command, place, context, search_end_s(context))


def files_matching(place: SearchPlace, glob: GlobPattern | None, search: Search) -> Iterator[str]:
    """The paths in a listing of `place` that match the glob and may be read."""
    for record, _size in search.records(b"\0"):
        path = os.fsdecode(record).removeprefix("./")
        if (glob is None or glob.matches(path)) and not place.hidden.hides(path):
            yield path


def ignored_note(place: SearchPlace, glob: GlobPattern | None, context: ToolContext) -> str:
    """How many ignored files match, for a result that found no file. Empty if none. Raises ToolError and ShortageError."""
    if place.is_ignored or place.file_name is not None:
        return ""
    with list_files(replace(place, is_ignored=True), context) as search:
        paths = [*islice(files_matching(place, glob, search), MOST_ENTRIES)]
        if not paths:
            return ""
        number = f"{'at least ' if search.is_cut_short or len(paths) == MOST_ENTRIES else ''}{len(paths):,}"
    subject = "ignored file matches" if number == "1" else "ignored files match"
    return (
        f"{number} {subject}, such as {context.shown(place.directory / paths[0])}: name the ignored directory in path, "
        "or read the file by its name"
    )


def search_end_s(context: ToolContext) -> float:
    """The time at which a search that begins now must end, by the clock."""
    return context.clock.now_s() + context.settings.search_timeout_s


def search_lines(
    place: SearchPlace, query: LineQuery, context: ToolContext, deadline_s: float, *, is_sorted: bool
) -> Search:
    """Starts a search for lines. Without `is_sorted`, it uses all processors, and the files come in any order. The records are
    as of ripgrep's `--null`: `PATH NUL NUMBER : LINE`, or `PATH NUL` for a list of files. The caller must compare the paths
    with the glob, which ripgrep does not always apply. Raises ToolError and ShortageError.
    """
    command = [
        *_options(place),
        *(SORTED if is_sorted else ()),
        "--null",
        "--with-filename",
        "--no-heading",
        "--line-number",
        "--no-mmap",  # a mapped file would be searched beyond a NUL byte
    ]
    match query.output_mode:
        case "content":
            command += ["--before-context", str(query.before), "--after-context", str(query.after)]
        case "count":  # the caller counts lines: ripgrep's own counts leave out files with a NUL byte
            command += ["--max-columns", "1"]
        case _ if place.file_name is None:
            command.append("--files-with-matches")
        case _:  # ripgrep would list a file that matches beyond a NUL byte
            command += ["--max-count", "1", "--max-columns", "1"]
    if query.ignore_case:
        command.append("--ignore-case")
    # The file types of ripgrep match names only, so the caller applies all other patterns.
    if query.glob is not None and _PLAIN_GLOB.fullmatch(query.glob):
        # --glob would include ignored files again.
        command += ["--type-add", f"wanted:{query.glob}", "--type", "wanted"]
    command += ["--regexp", query.pattern, "--", place.target]
    return _started(command, place, context, deadline_s)


class Search(Ripgrep):
    """A search that ends when its time is up. It looks for a .gitignore file that ripgrep would read for ever."""

    def __init__(
        self, arguments: list[str], place: SearchPlace, context: ToolContext, deadline_s: float
    ) -> None:
        self._place = place
        self._context = context
        self._deadline_s = deadline_s
        self._looks_at_s = context.clock.now_s() + _LOOKS_AFTER_S
        self._may_look = True
        self._has_ended = False
        self._endless_reading = ""
        super().__init__(
            ripgrep_path(context.search),
            arguments,
            cwd=place.real,
            is_over=self._is_time_up,
            start=context.box.start,
        )

    def __exit__(self, *error: object) -> None:
        self._has_ended = True
        super().__exit__(*error)

    def failure(self) -> str | None:
        if self.ending_signal():  # a file without end may have filled its memory
            self._look()
        return self._endless_reading or super().failure()

    @property
    def why_stopped(self) -> str:
        """A note for the model, if `is_cut_short` is True."""
        after = f"stopped after {self._context.settings.search_timeout_s:g} s: more may exist; narrow the pattern or the path"
        return f"[{self._endless_reading or after}]"

    def _is_time_up(self) -> bool:
        now_s = self._context.clock.now_s()
        if now_s >= self._looks_at_s and self._may_look:
            self._may_look = False
            with suppress(ShortageError):  # the time limit is still there
                start_job(self._look, name="search for a block")
        return bool(self._endless_reading) or self._context.give_up.is_set() or now_s >= self._deadline_s

    def _look(self) -> None:
        real = self._place.real
        above = Path(real).parents if repository_top(Path(real)) else ()
        read_above = (path for path in (f"{directory}/{IGNORE_FILE}" for directory in above) if blocks(path))
        found = next(read_above, None) or blocking_entry(
            [real],
            lambda entry: entry.name == IGNORE_FILE,
            lambda: self._has_ended or self._context.clock.now_s() >= self._deadline_s,
        )
        if found is not None:
            self._endless_reading = (
                f"the search would read {self._context.shown(Path(found))} for ever, which is a pipe, a device or a socket: "
                "remove it, or search elsewhere"
            )


def _started(arguments: list[str], place: SearchPlace, context: ToolContext, deadline_s: float) -> Search:
    try:
        return Search(arguments, place, context, deadline_s)
    except RipgrepError as error:
        raise ToolError(
            f"{error}, so Glob and Grep do not work in this run. Use Bash with find and grep -rn instead, or Read"
        ) from None


def _options(place: SearchPlace) -> list[str]:
    return [
        *FILES_AS_GIT_SEES_THEM,
        *(("--no-ignore",) if place.is_ignored else ()),
        *(() if repository_top(Path(place.real)) else OUTSIDE_OF_REPOSITORIES),
        *(
            word
            for path in place.hidden.paths
            if _is_text(path)
            for word in ("--glob", f"!/{_as_glob(path)}")
        ),
    ]


def _as_glob(path: str) -> str:
    """A glob that matches only this path."""
    return re.sub(r"([\\*?\[\]{}!])", r"\\\1", path)


def _is_text(path: str) -> bool:
    """Whether a path is valid UTF-8. Ripgrep cannot take any other path as a glob."""
    return path.encode("utf-8", "replace") == os.fsencode(path)
