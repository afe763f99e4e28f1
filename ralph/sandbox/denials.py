"""Finds out from the output of a command whether the sandbox denied something. If so, the model is told not to try again, and
what to use instead.

A line shows a denial if it contains a path and one of the kernel's messages for a denied access, and if the sandbox must deny
this path and this process, which is outside it, can use it. The output is foreign text, and a note is only a help: a path
that cannot be looked at, or that is in a kernel file system, shows nothing.

Where a program has words of its own, a table has what to use instead. They are those of real programs; the tests have them
with their versions. A row counts only where its subject is refused.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.machine.files.opened_file import KERNEL_PLACES
from ralph.machine.files.paths import is_within_any
from ralph.machine.own_process import way_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ralph.sandbox.box_plan import BoxPlan

_MOST_CHARACTERS = 100_000
_MOST_LINES = 200
_MOST_PATHS = 20
_MOST_TOLD = 3
_LONGEST_LINE = 2000
_MESSAGES = r"(?i:Permission denied|Operation not permitted|Read-only file system|Device or resource busy)"
# Python says of each refusal that there are no more pseudo-terminals.
_NO_MORE = "out of pty devices"
# Node says so of a directory in a read-only file system.
_NOT_MADE = "ENOENT: no such file or directory, mkdir "
_DENIED = re.compile(
    rf"{_MESSAGES}|EACCES|EPERM|EROFS|EBUSY|{_NO_MORE}|AccessDenied|{_NOT_MADE}|\bis(?:n't| not) writ(?:e)?able\b",
    re.IGNORECASE,
)
_WORD = r"([^\s:\"'`]+)"
_PATHS = tuple(
    re.compile(pattern)
    for pattern in (
        # In quotation marks. An apostrophe within a word is none, and quotation marks may be within others.
        r"(?<!\w)[\"'`\u2018]([^\"'`\u2018\u2019]+)[\"'`\u2019]",
        rf"(?<![^\s:\"'`]){_WORD}(?:: Cannot [a-z ]{{1,20}}| - [a-z]+)? ?(?:: |\((?:\d+: )?){_MESSAGES}",
        rf"(?:{_MESSAGES}|AccessDeniedException): {_WORD}",
        rf"(?<![^\s:\"'`]){_WORD} is(?:n't| not) writ(?:e)?able\b",
    )
)
# A message on a line of its own, below the line that names the path.
_ALONE = re.compile(rf"\s*{_MESSAGES}(?: \(os error \d+\))?\.?\s*")
_FAILING = re.compile(r"\b(?:can(?:not|'t)|could(?: not|n't)|failed|unable)\b")
_LAST = re.compile(rf"(?<![^\s:]){_WORD}$")
_MOST_LINES_ABOVE = 3
_OWN_SETTINGS = (
    "; a program that must write its own settings works with XDG_CONFIG_HOME=$TMPDIR or HOME=$TMPDIR"
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
_SENDING = re.compile(r"kill: |\bsignal\b")
_SIGNAL = re.compile(r"(?<!\d)(\d{1,10})\)? ?[-:] Operation not permitted")


class Refusals(Struct, frozen=True):
    """The things that a sandbox refuses although the machine has them."""

    unix_sockets: bool = False
    """Whether commands can make no Unix sockets."""
    tmp: bool = False
    """Whether commands cannot write in /tmp."""
    masked: bool = False
    """Whether rules hide files in the work, which git finds changed."""
    gpus: bool = False
    """Whether the machine has GPUs of which commands get none."""
    agents: frozenset[str] = frozenset()
    """The variables with the addresses of the user's agents that commands do not get."""


NOTHING_REFUSED = Refusals()


class Hint(Struct, frozen=True):
    pattern: str
    """A pattern that is found in a line of the output. The group `path` is the path of a socket."""
    instead: str
    beside: str = ""
    """A text that the output must contain too."""
    is_sure: bool = True
    """False if the output is the same with another cause."""
    agent: str = ""
    """The variable with the address of the agent that the program asks."""


_REFUSED = "PermissionError: [Errno 13] Permission denied\n"
"""Python's words for a socket that the sandbox refuses. For a file, they end with its name."""
_NO_BROWSER = "no Chromium starts without them"
_MARIADB = "let the database listen on TCP alone: --socket= --port=3306 --bind-address=127.0.0.1"
_NO_SIGNATURE = "sign nothing (git commit --no-gpg-sign)"
_KEY = "use ssh with -i KEY, or leave it to the user"

OUTSIDE = (
    Hint(r"Docker daemon.{0,40} unix://(?P<path>/[^\s:]+?)[.:]?(?:\s|$)", "use no containers"),
    Hint(r"dial unix (?P<path>/[^\s:]+): ", "start a server for the command"),
    Hint(r'server on socket "(?P<path>/[^"]+)" failed', "use TCP, or start a server for the command"),
    Hint(r"through socket '(?P<path>/[^']+)' \(\d+\)", "use TCP, or start a server for the command"),
    Hint(
        r"connection to your authentication agent|[Ee]rror connecting to agent", _KEY, agent="SSH_AUTH_SOCK"
    ),
    Hint(r"Permission denied \(publickey", _KEY, agent="SSH_AUTH_SOCK", is_sure=False),
    Hint(
        r"autolaunch D-Bus|[Ff]ailed to connect to (?:(?:the|system|session|user|scope|D-Bus) )*bus\b",
        "do without the desktop",
        agent="DBUS_SESSION_BUS_ADDRESS",
    ),
)
"""Clients of sockets that programs outside have made."""

SOCKETS = (
    Hint(r"multiprocessing/forkserver\.py", "use multiprocessing's start method fork or spawn", _REFUSED),
    Hint(
        r"multiprocessing/managers\.py",
        "let the manager listen on TCP: multiprocessing.managers.SyncManager(address=('127.0.0.1', 0))",
        _REFUSED,
    ),
    Hint(
        r"multiprocessing/resource_sharer\.py",
        "send no sockets, files or tensors between processes (a DataLoader of PyTorch: num_workers=0)",
        _REFUSED,
    ),
    Hint(r"process_singleton.{0,80}socket\(\) failed: Permission denied", _NO_BROWSER),
    Hint(r"session not created: (?:Chrome instance exited|DevToolsActivePort)", _NO_BROWSER, is_sure=False),
    Hint(
        r"failed to open listener for unix|open display:? \S?:\d",
        "Xvfb :98 -listen tcp -nolisten unix -nolisten local, with DISPLAY=127.0.0.1:98",
    ),
    Hint(r"Failed to start message bus: .{0,40}socket: Permission denied", "do without D-Bus"),
    Hint(
        r"pg_ctl: could not start server|could not create Unix socket",
        "let Postgres listen on TCP alone: pg_ctl -o \"-k '' -h 127.0.0.1\"",
        is_sure=False,
    ),
    Hint(
        r"connect to Redis at [^\s:]+: Permission|opening Unix socket: creating socket: Permission",
        "let Redis listen on TCP: --port, and redis-cli -p",
    ),
    Hint(r"start server : UNIX Socket : Permission denied|through socket '[^']+' \(13\)", _MARIADB),
    Hint(r"can't connect to the (?:gpg-)?agent|failed to start (?:gpg-)?agent", _NO_SIGNATURE),
    Hint(r"gpg failed to sign the data", _NO_SIGNATURE, is_sure=False),
    Hint(r"unix_listener: |connecting to agent: Permission denied", f"{_KEY}; no ControlMaster"),
    Hint(
        r"error (?:connecting to|creating) /\S+ \(Permission denied\)",
        "start what must keep running with run_in_background of Bash",
    ),
    Hint(r"connection to /\S+ failed: \[Errno 13\]", "bind the server to 127.0.0.1:PORT"),
    Hint(r"(?:listen EACCES: permission denied|connect EACCES) (?!\S*:\d+\b)\S", "listen on 127.0.0.1"),
    Hint(r"AF_UNIX|unix_events\.py", "use TCP on 127.0.0.1", _REFUSED),
    Hint(r'/socket\.py", line \d+, in __init__$', "use TCP instead of AF_UNIX", _REFUSED, is_sure=False),
    Hint(
        r"(?i)\b(?:(?:dial|listen) unix |unix:\S|unix([ -]domain)?[ -]sockets?\b).{0,300}\bpermission denied",
        "use TCP on 127.0.0.1",
    ),
)
"""Programs that make Unix sockets."""

TMP = (Hint(r"ERR_PNPM_STORE_DIR_OPEN_OPERATION_LOCK", "use npm"),)
"""Programs that need files in /tmp, whatever TMPDIR says, and name none."""

MASKED = (
    Hint(
        r"can only add regular files, symbolic links|unsupported file type$|fatal: updating files failed",
        "name the changed files (git add FILE, git commit FILE), and use no stash",
    ),
)
"""Git, where it takes up all changes: it ends at the first file that a rule hides."""

GPUS = (
    # PyTorch, TensorFlow and JAX warn, compute on the CPU, and succeed.
    "OS call failed or operation not supported on this OS",
    "CUDA_ERROR_OPERATING_SYSTEM",
    "call to cuInit",
    "Falling back to cpu",
    "CUDA backend failed to initialize",
    "No CUDA GPUs are available",
    "CUDA_ERROR_NO_DEVICE",
    "no CUDA-capable device is detected",
    "Found no NVIDIA driver",
    "NVIDIA-SMI has failed",
    "Failed to initialize NVML",
    "Unable to open /dev/kfd",
    "No HIP GPUs are available",
)
"""The words of programs that find no GPU."""


def about_gpus(output: str) -> str:
    """Words in the output that say that a program found no GPU, or an empty string. Such a program may succeed."""
    return next((words for words in GPUS if words in output), "")


def hint_of(output: str, refusals: Refusals, is_kept_outside: Callable[[str], bool]) -> str | None:
    """Says what the sandbox did, and what to use instead. None if the output does not show it. `is_kept_outside` says whether a
    path is that of a socket outside to which the sandbox lets no command connect.
    """
    text = output[-_MOST_CHARACTERS:] + "\n"
    tables = (
        (OUTSIDE, True, "keeps commands from sockets of programs outside", ""),
        (
            SOCKETS,
            refusals.unix_sockets,
            "refuses Unix sockets",
            "; the user can allow them (--unix-sockets allow)",
        ),
        (TMP, refusals.tmp, "denies writing /tmp", "; the user can open it (sandbox.write)"),
        (MASKED, refusals.masked, "hides files that rules for Read deny", ""),
    )
    for rows, are_refused, what, way_out in tables:
        for row in rows if are_refused else ():
            found = re.search(row.pattern, text, re.MULTILINE)
            if found is None or row.beside not in text:
                continue
            if rows is not OUTSIDE or (
                row.agent in refusals.agents if row.agent else is_kept_outside(found["path"])
            ):
                may_be = "" if row.is_sure else ", which may be the cause"
                return f"the sandbox {what}{may_be}: {row.instead}{way_out}"
    if refusals.gpus and about_gpus(text):
        return (
            "the sandbox gives commands no GPU: compute on the CPU; the user can give it (--gpu auto or all)"
        )
    return None


def denial_note(
    output: str,
    plan: BoxPlan,
    working_directory: str,
    others: Sequence[str] = (),
    *,
    refusals: Refusals = NOTHING_REFUSED,
    protected: Sequence[str] = (),
    outside: Callable[[str], str] = str,
) -> str | None:
    """A line that tells the model what the sandbox denied, or None if the output shows no denial.

    `others` are directories that commands may write in addition to the working directory. `protected` are paths in
    writable directories that mounts protect from changes. `outside` converts a path inside the sandbox to the path
    outside, and may raise OSError. `refusals` is what else the sandbox refuses.
    """
    hint = hint_of(output, refusals, partial(_is_kept_outside, plan, outside))
    told: dict[str, None] = {}
    for line in islice(_denying_lines(output), _MOST_LINES):
        if _is_foreign_process(line):
            told["signals to processes that the command did not start"] = None
        if _NO_TERMINAL.search(line) and not (plan.has_namespaces or plan.may_write(_TERMINALS)):
            told[f"making a terminal (in {_TERMINALS})"] = None
        is_reading = _READING.search(line) is not None
        for named in islice(_named_paths(line), _MOST_PATHS):
            try:
                path = _real(
                    outside(os.path.normpath(os.path.join(working_directory, os.path.expanduser(named))))
                )
                denied: str | None
                if is_within_any(path, plan.masked):
                    denied = f"reading {path}"
                elif is_within_any(path, protected) and not is_reading:
                    denied = f"changing {path}"
                else:
                    makes = _MAKING.search(line) is not None
                    denied = _denied(path, plan, is_reading=is_reading, makes_directories=makes)
            except (OSError, ValueError):  # it cannot be looked at, or is not a path at all
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
    denied += _OWN_SETTINGS if any(map(_is_of_settings, told)) else ""
    return f"{hint}; {denied}" if hint else denied


def _denying_lines(output: str) -> Iterator[str]:
    """The lines with a message of a denial. Before a message on a line of its own is what failed, from a line above."""
    lines = output.splitlines()
    for number, whole in enumerate(lines):
        line = whole[:_LONGEST_LINE]
        if _DENIED.search(line) is None:
            continue
        if _ALONE.fullmatch(line):
            above = (one[:_LONGEST_LINE] for one in lines[max(number - _MOST_LINES_ABOVE, 0) : number][::-1])
            line = f"{next(filter(_FAILING.search, above), '')}\n{line}"
        yield line


def _named_paths(line: str) -> Iterator[str]:
    """The possible paths in a line with a message of a denial, from the line above too."""
    above, is_below, _ = line.rpartition("\n")
    for pattern in _PATHS:
        yield from (found[1] for found in pattern.finditer(line))
    if is_below:
        yield from (found[1] for found in _LAST.finditer(above))


def _is_kept_outside(plan: BoxPlan, outside: Callable[[str], str], path: str) -> bool:
    if "sockets in the file system" in plan.level.missing() or is_within_any(path, plan.sockets):
        return False
    try:
        real = _real(outside(path))
        return not plan.is_writable(real) and stat.S_ISSOCK(os.stat(real).st_mode)
    except (OSError, ValueError):
        return False


def _real(path: str) -> str:
    """A path, which need not exist, without links. Raises OSError if it leads through a kernel file system or too many links."""
    real = path
    for real, _, _ in way_to(path):
        if is_within_any(real, KERNEL_PLACES):
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
    return f"writing {path}" if os.access(above, os.W_OK) else None


def _is_of_settings(denied: str) -> bool:
    """Whether what was denied is writing a dotfile of the home directory."""
    return denied.startswith(f"writing {os.path.realpath(os.path.expanduser('~'))}/.")


def _is_foreign_process(line: str) -> bool:
    found = _SIGNAL.search(line)
    if found is None or _SENDING.search(line, 0, found.start()) is None:
        return False
    try:
        return os.stat(f"/proc/{found[1]}").st_uid == os.getuid()
    except OSError:
        return False
