# os.path instead of pathlib: these are strings from a command's output.
# ruff: noqa: PTH114, PTH115, PTH118, PTH120
"""Finds out from the output of a failed command whether the sandbox denied something. If so, the model is told not to
try again.

A line of the output shows a denial if it contains a path and one of the kernel's messages for a denied access. In
addition, the sandbox must deny this path, and this process, which is outside of the sandbox, must be able to use the
path.

The output is foreign text, and a note is only a help: a path that cannot be looked at shows nothing. A path in a kernel
file system, such as `/proc/self/cwd`, means something else in this process, and shows nothing either.
"""

from __future__ import annotations

import errno
import os
import re
from itertools import islice
from typing import TYPE_CHECKING

from ralph.machine.opened_file import KERNEL_PLACES
from ralph.machine.repository import is_within_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ralph.sandbox.box_plan import BoxPlan

_MOST_LINES = 200
_MOST_PATHS = 20
_MOST_TOLD = 3
_LONGEST_LINE = 2000
_MOST_LINKS = 40  # as in Linux
_MESSAGES = r"Permission denied|Operation not permitted|Read-only file system|Device or resource busy"
# Python says of each refusal that there are no more pseudo-terminals.
_NO_MORE = "out of pty devices"
_DENIED = re.compile(rf"{_MESSAGES}|EACCES|EPERM|EROFS|EBUSY|{_NO_MORE}", re.IGNORECASE)
# A path in quotation marks anywhere in the line, or the word right before the message.
_PATH = re.compile(
    rf"[\"'`\u2018]([^\"'`\u2018\u2019]+)[\"'`\u2019]|(?<![^\s:\"'`])([^\s:\"'`]+): (?:{_MESSAGES})"
)
# Programs that only read the files that they are given, and what other programs say when they could not read.
_READING = re.compile(
    r"^(?:\S*/)?(?:cat|tac|head|tail|less|more|nl|od|hexdump|strings|wc|diff|cmp|stat|ls|find|tree|du|jq|base64|md5sum|"
    r"sha[0-9]+sum|[efz]?grep|rg): |\bfor reading\b|\b(?:cannot|can't|could not|couldn't) (?:read|access|stat|open "
    r"(?:file|directory))\b"
)
_NO_TERMINAL = re.compile(rf"{_NO_MORE}|(?:open|fork)pty|pseudo-?terminal|\bpty\b", re.IGNORECASE)
_TERMINALS = "/dev/pts"
_SIGNAL = re.compile(r"(?<!\d)(\d{1,10})\)? ?[-:] Operation not permitted")


def denial_note(
    output: str,
    plan: BoxPlan,
    working_directory: str,
    others: Sequence[str] = (),
    *,
    protected: Sequence[str] = (),
    masked: Sequence[str] = (),
    outside: Callable[[str], str] = str,
) -> str | None:
    """A sentence that tells the model what the sandbox denied, or None if no line of the output shows a denial.

    `others` are directories that commands may write in addition to the working directory. `protected` are paths in
    writable directories that mounts protect from changes, `masked` those that mounts hide. `outside` converts a path
    inside the sandbox to the path outside, and may raise OSError.
    """
    told: dict[str, None] = {}
    for line in _telling_lines(output):
        if _is_foreign_process(line):
            told["signals to processes that the command did not start"] = None
        if _NO_TERMINAL.search(line) and not (plan.has_namespaces or plan.may_write(_TERMINALS)):
            told[f"making a terminal (in {_TERMINALS})"] = None
        is_reading = _READING.search(line) is not None
        for text in _paths(line):
            try:
                path = _real(outside(_absolute(text, working_directory)))
                denied: str | None
                if is_within_any(path, masked):
                    denied = f"reading {path}"
                elif is_within_any(path, protected) and not is_reading:
                    denied = f"changing {path}"
                else:
                    denied = _denied(path, plan, is_reading=is_reading)
            except (OSError, ValueError):  # it cannot be looked at, or is no path at all
                continue
            if denied is not None:
                told[denied] = None
        if len(told) >= _MOST_TOLD:
            break
    if not told:
        return None
    here = ("the working directory",) if plan.is_writable(working_directory) else ()
    allowed = ", ".join((*here, *others, "$TMPDIR"))
    return f"the sandbox denies {'; '.join([*told][:_MOST_TOLD])}; allowed for writing: {allowed}"


def _telling_lines(output: str) -> Iterator[str]:
    lines = (line[:_LONGEST_LINE] for line in output.splitlines() if _DENIED.search(line[:_LONGEST_LINE]))
    return islice(lines, _MOST_LINES)


def _paths(line: str) -> Iterator[str]:
    for found in islice(_PATH.finditer(line), _MOST_PATHS):
        yield found[1] or found[2]


def _absolute(text: str, working_directory: str) -> str:
    expanded = os.path.expanduser(text)  # noqa: PTH111 - Path raises without a home
    return os.path.normpath(os.path.join(working_directory, expanded))


def _real(path: str) -> str:
    """Resolves all symbolic links of an absolute path, which need not exist. Raises OSError if it leads through a kernel
    file system or through too many links, and ValueError if it is no path.
    """
    real, links, names = "/", 0, path.split("/")[::-1]
    while names:
        real = os.path.normpath(os.path.join(real, names.pop()))
        if os.path.islink(real):
            target, links = os.readlink(real), links + 1
            names += target.split("/")[::-1]
            real = "/" if target.startswith("/") else os.path.dirname(real)
        if links > _MOST_LINKS or is_within_any(real, KERNEL_PLACES):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return real


def _denied(path: str, plan: BoxPlan, *, is_reading: bool) -> str | None:
    """The access to the path that the sandbox denies although this process has it, as text: `reading PATH` or
    `writing PATH`. None if there is no such access. `is_reading` is True if a program could not read.
    """
    exists = os.path.lexists(path)
    if is_reading or (exists and not plan.may_read(path)):
        is_denied = exists and os.access(path, os.R_OK) and not plan.is_writable(path)
        why = plan.why_not_read(path)
        return f"reading {path}{f' ({why})' if why else ''}" if is_denied else None
    if plan.may_write(path):
        return None
    could_write = os.access(path if exists else os.path.dirname(path), os.W_OK)
    return f"writing {path}" if could_write else None


def _is_foreign_process(line: str) -> bool:
    """Whether the line reports that a signal to a running process of this user was denied."""
    found = _SIGNAL.search(line)
    if found is None or "kill: " not in line[: found.start()]:
        return False
    try:
        return os.stat(f"/proc/{found[1]}").st_uid == os.getuid()  # noqa: PTH116 - the path is a string
    except OSError:
        return False
