# os.path instead of pathlib: these are strings from a command's output.
# ruff: noqa: PTH118, PTH120
"""Finds out from the output of a failed command whether the sandbox denied something. If so, the model is told not to
try again.

A line of the output shows a denial if it contains a path and one of the kernel's messages for a denied access. In
addition, the sandbox must deny this path, and this process, which is outside of the sandbox, must be able to use the
path.
"""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import TYPE_CHECKING

from ralph.machine.repository import is_within_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ralph.sandbox.box_parts import BoxParts

_MOST_LINES = 200
_MOST_PATHS = 20
_MOST_TOLD = 3
_LONGEST_LINE = 2000
_MESSAGES = r"Permission denied|Operation not permitted|Read-only file system|Device or resource busy"
_DENIED = re.compile(rf"{_MESSAGES}|EACCES|EPERM|EROFS|EBUSY", re.IGNORECASE)
# A path in quotation marks anywhere in the line, or the word right before the message.
_PATH = re.compile(rf"[\"'`\u2018]([^\"'`\u2018\u2019]+)[\"'`\u2019]|([^\s:\"'`]+): (?:{_MESSAGES})")
_SIGNAL = re.compile(r"kill: .*?\(?(\d+)\)? ?[-:] Operation not permitted")


def denial_note(
    output: str,
    parts: BoxParts,
    working_directory: str,
    others: Sequence[str] = (),
    *,
    protected: Sequence[str] = (),
    outside: Callable[[str], str] = str,
) -> str | None:
    """A sentence that tells the model what the sandbox denied, or None if no line of the output shows a denial.

    `others` are directories that commands may write in addition to the working directory. `protected` are paths in
    writable directories that mounts protect from changes. `outside` converts a path inside the sandbox to the path
    outside.
    """
    told: dict[str, None] = {}
    for line in _telling_lines(output):
        places = (outside(path) for path in _paths(line, working_directory))
        told |= dict.fromkeys(_denials(line, parts, places, protected))
        if len(told) >= _MOST_TOLD:
            break
    if not told:
        return None
    allowed = ", ".join(("the working directory", *others, "$TMPDIR"))
    return f"the sandbox denies {'; '.join([*told][:_MOST_TOLD])}; allowed for writing: {allowed}"


def _denials(line: str, parts: BoxParts, places: Iterable[str], protected: Sequence[str]) -> Iterator[str]:
    if _is_foreign_process(line):
        yield "signals to processes that the command did not start"
    for place in places:
        path = os.path.realpath(place)
        is_protected = is_within_any(path, protected)
        denied = f"changing {path}" if is_protected else _denied(path, parts)
        if denied is not None:
            yield denied


def _telling_lines(output: str) -> Iterator[str]:
    lines = (line[:_LONGEST_LINE] for line in output.splitlines() if _DENIED.search(line[:_LONGEST_LINE]))
    return islice(lines, _MOST_LINES)


def _paths(line: str, working_directory: str) -> Iterator[str]:
    for found in islice(_PATH.finditer(line), _MOST_PATHS):
        path = found[1] or found[2]
        if "\0" not in path:
            expanded = os.path.expanduser(path)  # noqa: PTH111 - Path raises without a home
            yield os.path.normpath(os.path.join(working_directory, expanded))


def _denied(path: str, parts: BoxParts) -> str | None:
    """The access to the path that the sandbox denies although this process has it, as text: `reading PATH` or
    `writing PATH`. None if there is no such access.
    """
    exists = os.path.lexists(path)
    if exists and not parts.may_read(path) and os.access(path, os.R_OK):
        return f"reading {path}"
    if parts.may_write(path):
        return None
    could_write = os.access(path if exists else os.path.dirname(path), os.W_OK)
    return f"writing {path}" if could_write else None


def _is_foreign_process(line: str) -> bool:
    """Whether the line reports that a signal to a running process of this user was denied."""
    found = _SIGNAL.search(line)
    if found is None:
        return False
    try:
        return os.stat(f"/proc/{found[1]}").st_uid == os.getuid()  # noqa: PTH116 - the path is a string
    except OSError:
        return False
