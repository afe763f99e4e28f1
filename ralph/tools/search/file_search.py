"""Lists the files below a directory, or searches their lines, with ripgrep. .gitignore files apply, both inside the
directory and above it, up to the top of the repository. Hidden files are included, but `.git` is not. Links are not
followed. Results are sorted by path.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.repository import HELD_DIRECTORY, repository_top
from ralph.machine.ripgrep import (
    FILES_AS_GIT_SEES_THEM,
    OUTSIDE_OF_REPOSITORIES,
    SORTED,
    Ripgrep,
    RipgrepError,
)
from ralph.tools.files.file_type import SNIFFED_BYTES, is_binary, kind_of
from ralph.tools.files.path_guard import HiddenPlaces
from ralph.tools.files.text_encoding import marked_encoding
from ralph.tools.read import open_regular
from ralph.values.tool_calls import ToolError, os_error_text

if TYPE_CHECKING:
    from ralph.tools.tool_room import ToolRoom

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


def place_at(path: Path, shown: str, room: ToolRoom) -> SearchPlace:
    """The place to search for `path`, which a call of Grep or Glob names. For a file, this is its directory with the
    search limited to that file. Raises ToolError if the path cannot be searched or must not be.
    """
    judged = room.guard.refuse_read(path, shown)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ToolError(f"{shown}: {os_error_text(error)}") from None
    if stat.S_ISDIR(mode):
        if not os.access(path, os.R_OK | os.X_OK):
            raise ToolError(f"{shown}: Permission denied")
        real = _opened_directory(path, shown, judged, room)
        return SearchPlace(path, real, room.guard.hidden_beneath(real))
    if not stat.S_ISREG(mode):
        raise ToolError(f"{shown} is {kind_of(mode)}; only files and directories can be searched")
    descriptor, real = open_regular(path, shown, room)
    try:
        start = os.read(descriptor, SNIFFED_BYTES)
    finally:
        os.close(descriptor)
    if marked_encoding(start) is None and is_binary(start):
        raise ToolError(f"{shown} is a binary file")
    directory, name = os.path.split(real)
    return SearchPlace(path.parent, directory, HiddenPlaces(room.guard, directory, ()), name, path.name)


def _opened_directory(path: Path, shown: str, judged: str, room: ToolRoom) -> str:
    """Returns the real path of a directory. Raises ToolError if the directory cannot be opened or must not be read."""
    try:
        descriptor = os.open(path, HELD_DIRECTORY)
    except OSError as error:
        raise ToolError(f"{shown}: {os_error_text(error)}") from None
    try:
        return room.guard.refuse_opened(descriptor, path, shown, judged)
    finally:
        os.close(descriptor)


def list_files(place: SearchPlace, room: ToolRoom) -> Ripgrep:
    """Starts a listing of files. Each record of the result is a path that begins with `./` and ends with NUL. Raises
    ToolError and ShortageError.
    """
    return _started(
        [*_options(place), *SORTED, "--files", "--null", "--", place.target], place, room, search_end_s(room)
    )


def search_end_s(room: ToolRoom) -> float:
    """The time at which a search that begins now must end, by the clock."""
    return room.clock.now_s() + room.settings.search_timeout_s


def search_lines(
    place: SearchPlace, query: LineQuery, room: ToolRoom, deadline_s: float, *, is_sorted: bool
) -> Ripgrep:
    """Starts a search for lines. Without `is_sorted`, it uses all processors, and the files come in any order. The records of the result have the form of ripgrep's `--null`: `PATH NUL NUMBER :
    LINE`, `PATH NUL COUNT` or `PATH NUL`. Ripgrep does not apply every glob, so the caller must compare the paths
    with the glob again. Raises ToolError and ShortageError.
    """
    command = [
        *_options(place),
        *(SORTED if is_sorted else ()),
        "--null",
        "--with-filename",
        "--no-heading",
        "--line-number",
    ]
    match query.output_mode:
        case "content":
            command += ["--before-context", str(query.before), "--after-context", str(query.after)]
        case "count":
            command.append("--count")
        case _:
            command.append("--files-with-matches")
    if query.ignore_case:
        command.append("--ignore-case")
    # The file types of ripgrep match names only, so the caller applies all other patterns.
    if query.glob is not None and _PLAIN_GLOB.fullmatch(query.glob):
        # --glob would include ignored files again.
        command += ["--type-add", f"wanted:{query.glob}", "--type", "wanted"]
    command += ["--regexp", query.pattern, "--", place.target]
    return _started(command, place, room, deadline_s)


def _started(arguments: list[str], place: SearchPlace, room: ToolRoom, deadline_s: float) -> Ripgrep:
    try:
        return Ripgrep(
            room.ripgrep,
            arguments,
            cwd=place.real,
            is_over=lambda: room.give_up.is_set() or room.clock.now_s() >= deadline_s,
            start=room.box.start,
        )
    except RipgrepError as error:
        raise ToolError(
            f"{error}, so Glob and Grep do not work in this run. Use Bash with find and grep -rn instead, or Read"
        ) from None


def _options(place: SearchPlace) -> list[str]:
    return [
        *FILES_AS_GIT_SEES_THEM,
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
    """Whether a path is valid UTF-8. Ripgrep cannot take any other path as a glob. The caller then filters ripgrep's
    results.
    """
    return path.encode("utf-8", "replace") == os.fsencode(path)
