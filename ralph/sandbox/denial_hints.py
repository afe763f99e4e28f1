"""Finds out from a command's output that the sandbox has refused a socket, an agent or a GPU, where the program says it in its own
words or says something else. The tables name for each such output what to use instead. No I/O happens here.

A row counts only in a sandbox that refuses what its table is about. The texts are those of real programs; the tests have
them with their versions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_CHARACTERS = 100_000


class Refusals(Struct, frozen=True):
    """The things that a sandbox refuses although the machine has them."""

    unix_sockets: bool = False
    """Whether commands can make no Unix sockets."""
    tmp: bool = False
    """Whether commands cannot write in /tmp."""
    gpus: bool = False
    """Whether the machine has GPUs of which commands get none."""
    processes: bool = False
    """Whether commands run in the background, into which other commands cannot look."""
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
    is_silent: bool = False
    """Whether the program says nothing. The pattern is looked for in the command then."""
    agent: str = ""
    """The variable with the address of the agent that the program asks."""


_REFUSED = "PermissionError: [Errno 13] Permission denied\n"
"""Python's words for a socket that the sandbox refuses. For a file, they end with its name."""
_IN_BACKGROUND = "start what shall go on with run_in_background of Bash"
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
    Hint(r"connect to cache daemon: Permission denied", "give git the credentials in another way"),
    Hint(r"error (?:connecting to|creating) /\S+ \(Permission denied\)", _IN_BACKGROUND),
    Hint(r"No Sockets found in ", _IN_BACKGROUND, is_sure=False),
    Hint(r"Timed out waiting for daemon to start", "use mypy", is_sure=False),
    Hint(r"socket\.error reported errno\.EACCES", "use [inet_http_server] of supervisord", is_sure=False),
    Hint(r"connection to /\S+ failed: \[Errno 13\]", "bind the server to 127.0.0.1:PORT"),
    Hint(r"Permission denied \(addr='ipc://", "use tcp://127.0.0.1:PORT"),
    Hint(r"(?:listen EACCES: permission denied|connect EACCES) (?!\S*:\d+\b)\S", "listen on 127.0.0.1"),
    Hint(r"bit out of range 0 - FD_SETSIZE on fd_set", "use another program than socat"),
    Hint(r"or HotSpot VM not loaded", "kill -3 PID lets a Java process print its threads"),
    Hint(r"because some of the raylet failed", "use multiprocessing instead of ray", is_sure=False),
    Hint(r"AF_UNIX|unix_events\.py", "use TCP on 127.0.0.1", _REFUSED),
    Hint(r'/socket\.py", line \d+, in __init__$', "use TCP instead of AF_UNIX", _REFUSED, is_sure=False),
    Hint(
        r"(?i)\b(?:(?:dial|listen) unix |unix:\S|unix([ -]domain)?[ -]sockets?\b).{0,300}\bpermission denied",
        "use TCP on 127.0.0.1",
    ),
)
"""Programs that make Unix sockets."""

TMP = (
    Hint(r"\b(?:xvfb-run|Xvfb)\b", "no X server starts without", is_sure=False, is_silent=True),
    Hint(r"ERR_PNPM_STORE_DIR_OPEN_OPERATION_LOCK", "use npm"),
)
"""Programs that need files in /tmp, whatever TMPDIR says, and name none."""

PROCESSES = (
    Hint(
        r"\blsof\s[^|;&\n]*-\w*i|\bfuser\s[^|;&\n]*\d/(?:tcp|udp)",
        "KillBash ends what runs in the background",
        is_sure=False,
        is_silent=True,
    ),
)
"""Programs that look for processes by what they have open."""

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


def hint_of(
    output: str, refusals: Refusals, is_kept_outside: Callable[[str], bool], command: str = ""
) -> str | None:
    """Says what the sandbox did, and what to use instead. None if neither the output nor the command shows it. `is_kept_outside` says
    whether a path is that of a socket outside to which the sandbox lets no command connect.
    """
    text = output[-_MOST_CHARACTERS:] + "\n"
    for row in OUTSIDE:
        found = _found(row, text)
        if found and (row.agent in refusals.agents if row.agent else is_kept_outside(found["path"])):
            may_be = "" if row.is_sure else ", which may be the cause"
            return f"the sandbox keeps commands from sockets of programs outside{may_be}: {row.instead}"
    for row in SOCKETS if refusals.unix_sockets else ():
        if _found(row, text):
            may_be = "" if row.is_sure else ", which may be the cause"
            return f"the sandbox refuses Unix sockets{may_be}: {row.instead}; the user can allow them (--unix-sockets allow)"
    for row in TMP if refusals.tmp else ():
        if _found(row, command if row.is_silent else text):
            may_be = "" if row.is_sure else ", which may be the cause"
            return f"the sandbox denies writing /tmp{may_be}: {row.instead}; the user can open it (sandbox.write)"
    for row in PROCESSES if refusals.processes else ():
        if _found(row, command):
            return f"the sandbox lets no command look into what another one has open, which may be the cause: {row.instead}"
    if refusals.gpus and about_gpus(text):
        return (
            "the sandbox gives commands no GPU: compute on the CPU; the user can give it (--gpu auto or all)"
        )
    return None


def _found(row: Hint, text: str) -> re.Match[str] | None:
    return re.search(row.pattern, text, re.MULTILINE) if row.beside in text else None
