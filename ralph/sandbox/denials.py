# os.path instead of pathlib: these are strings from a command's output.
# ruff: noqa: PTH114, PTH115, PTH118, PTH120
"""Finds out from the output of a command whether the sandbox denied something. If so, the model is told not to try again, and
what to use instead.

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
import stat
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ralph.machine.opened_file import KERNEL_PLACES
from ralph.machine.repository import is_within_any
from ralph.sandbox.denial_hints import NOTHING_REFUSED, hint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ralph.sandbox.box_plan import BoxPlan
    from ralph.sandbox.denial_hints import Refusals

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
# Programs that make all directories of a path name the last one.
_MAKING = re.compile(r"\bdirector(?:y|ies)\b|mkdir", re.IGNORECASE)
_NO_TERMINAL = re.compile(rf"{_NO_MORE}|(?:open|fork)pty|pseudo-?terminal|\bpty\b", re.IGNORECASE)
_TERMINALS = "/dev/pts"
_QUEUE = re.compile(r"\bmq_open\b|message queue", re.IGNORECASE)
_SENDING = re.compile(r"kill: |\bsignal\b")
_SIGNAL = re.compile(r"(?<!\d)(\d{1,10})\)? ?[-:] Operation not permitted")


def denial_note(
    output: str,
    plan: BoxPlan,
    working_directory: str,
    others: Sequence[str] = (),
    *,
    command: str = "",
    refusals: Refusals = NOTHING_REFUSED,
    protected: Sequence[str] = (),
    masked: Sequence[str] = (),
    outside: Callable[[str], str] = str,
) -> str | None:
    """A line that tells the model what the sandbox denied, or None if the output shows no denial.

    `others` are directories that commands may write in addition to the working directory. `protected` are paths in
    writable directories that mounts protect from changes, `masked` those that mounts hide. `outside` converts a path
    inside the sandbox to the path outside, and may raise OSError. `refusals` is what else the sandbox refuses.
    """
    hint = hint_of(output, refusals, partial(_is_kept_outside, plan, outside), command)
    told: dict[str, None] = {}
    for line in _telling_lines(output):
        if _is_foreign_process(line):
            told["signals to processes that the command did not start"] = None
        if _NO_TERMINAL.search(line) and not (plan.has_namespaces or plan.may_write(_TERMINALS)):
            told[f"making a terminal (in {_TERMINALS})"] = None
        if _QUEUE.search(line) and not plan.has_namespaces:
            told["POSIX message queues (use pipes or files)"] = None
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
                    makes = _MAKING.search(line) is not None
                    denied = _denied(path, plan, is_reading=is_reading, makes_directories=makes)
            except (OSError, ValueError):  # it cannot be looked at, or is no path at all
                continue
            if denied is not None:
                told[denied] = None
        if len(told) >= _MOST_TOLD:
            break
    if not told:
        return hint
    here = ("the working directory",) if plan.is_writable(working_directory) else ()
    allowed = ", ".join((*here, *others, "$TMPDIR"))
    denied = f"the sandbox denies {'; '.join([*told][:_MOST_TOLD])}; allowed for writing: {allowed}"
    return f"{hint}; {denied}" if hint else denied


def _is_kept_outside(plan: BoxPlan, outside: Callable[[str], str], path: str) -> bool:
    if "sockets in the file system" in plan.level.missing() or is_within_any(path, plan.sockets):
        return False
    try:
        real = _real(outside(path))
        return not plan.is_writable(real) and stat.S_ISSOCK(os.stat(real).st_mode)  # noqa: PTH116 - a string
    except (OSError, ValueError):
        return False


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
    """A path, which need not exist, without links. Raises OSError if it leads through a kernel file system or too many links."""
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


def _denied(path: str, plan: BoxPlan, *, is_reading: bool, makes_directories: bool) -> str | None:
    """`reading PATH` or `writing PATH`: what the sandbox denies although this process may. None if there is no such access.
    `is_reading`: a program could not read. `makes_directories`: it may have made those above the path too.
    """
    exists = os.path.lexists(path)
    if is_reading or (exists and not plan.may_read(path)):
        is_denied = exists and os.access(path, os.R_OK) and not plan.is_writable(path)
        why = plan.why_not_read(path)
        return f"reading {path}{f' ({why})' if why else ''}" if is_denied else None
    if plan.may_write(path):
        return None
    above = path if exists else os.path.dirname(path)
    while makes_directories and not os.path.lexists(above):
        above = os.path.dirname(above)
    could_write = os.access(above, os.W_OK)
    return f"writing {path}" if could_write else None


def _is_foreign_process(line: str) -> bool:
    found = _SIGNAL.search(line)
    if found is None or _SENDING.search(line, 0, found.start()) is None:
        return False
    try:
        return os.stat(f"/proc/{found[1]}").st_uid == os.getuid()  # noqa: PTH116 - the path is a string
    except OSError:
        return False
