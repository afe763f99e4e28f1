"""Tests which outputs show that the sandbox refused a socket, an agent or a GPU, and what is told then. The texts are those that
real programs printed in the sandbox; the other tests here play these programs.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.sandbox.denials import GPUS, OUTSIDE, SOCKETS, Refusals, denial_note, hint_of
from tests.rows import every_row
from tests.sandbox.test_denials import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_SOCKETS = Refusals(unix_sockets=True)
NO_GPUS = Refusals(gpus=True)
NO_AGENTS = Refusals(agents=frozenset({"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS"}))
LAST = '  File "/usr/lib/python3.11/socket.py", line 232, in __init__\nPermissionError: [Errno 13] Permission denied'

# What is to be told, and what a program printed.
SOCKET_TEXTS = r"""
# CPython 3.11.7
fork or spawn |   File "/x/multiprocessing/forkserver.py", line 136, in ensure_running\n{LAST}
SyncManager(address= | {LAST}\n  File "/x/multiprocessing/managers.py", line 567, in start\n    raise EOFError\nEOFError
num_workers=0 |   File "/x/multiprocessing/resource_sharer.py", line 126, in _start\n{LAST}
use TCP |     with socket.socket(socket.AF_UNIX) as listener:\n{LAST}
which may be the cause: use TCP | {LAST}
use TCP |   File "/x/asyncio/unix_events.py", line 302, in create_unix_server\n{LAST}
# Chromium 156.0.8078.108 by playwright 1.65.2 and puppeteer-core 25.16.0, and by selenium 4.44.0
no Chromium starts |   - [pid=18][err] [18:18:1129/014617.615228:FATAL:chrome/browser/process_singleton_posix.cc:297] Check failed: . socket() failed: Permission denied (13)
which may be the cause: no Chromium starts | selenium.common.exceptions.SessionNotCreatedException: Message: session not created: Chrome instance exited. Examine ChromeDriver verbose log to determine the cause.
# Xvfb 21.1.7
-nolisten unix | _XSERVTransSocketOpenCOTSServer: Unable to open socket for unix\n_XSERVTransMakeAllCOTSServerListeners: failed to open listener for unix
-nolisten unix | xterm: Xt error: Can't open display: :99\nxdpyinfo:  unable to open display ":99".
# D-Bus 1.14.10
without D-Bus | dbus-daemon[4]: Failed to start message bus: Failed to open socket: Permission denied
# Postgres 17.10
which may be the cause: let Postgres listen on TCP | waiting for server to start.... stopped waiting\npg_ctl: could not start server\nExamine the log output.
let Postgres listen on TCP | 2026-11-29 01:46:40 UTC [7] LOG:  could not create Unix socket for address
# Redis 7.0.15
let Redis listen on TCP | Could not connect to Redis at r.sock: Permission denied
let Redis listen | 4:M 29 Nov 2026 # Failed opening Unix socket: creating socket: Permission denied
# MariaDB 10.11.19
--socket= --port | 2026-11-29  1:47:04 0 [ERROR] Can't start server : UNIX Socket : Permission denied
--socket= --port | ERROR 2002 (HY000): Can't connect to local server through socket '/x/m.sock' (13)
# GnuPG 2.2.40, OpenSSH 9.2, git 2.39
no-gpg-sign | gpg: can't connect to the agent: General error\ngpg: key generation failed: No agent running
no-gpg-sign | gpg: failed to start agent '/usr/bin/gpg-agent': General error
may be the cause: sign nothing | error: gpg failed to sign the data\nfatal: failed to write commit object
-i KEY | unix_listener: socket: Permission denied
-i KEY | Error connecting to agent: Permission denied
# tmux 3.3a
run_in_background | error connecting to /tmp/tmux-1000/default (Permission denied)
# gunicorn 27.0.1, node 20.20.2
127.0.0.1:PORT | [4] [ERROR] connection to /x/work/g.sock failed: [Errno 13] Permission denied
listen on 127.0.0.1 | Error: listen EACCES: permission denied s\n    at Server.setupListenHandle
listen on 127.0.0.1 | Error: connect EACCES /x/s\n    at PipeConnectWrap.afterConnect
# nginx 1.22.1
use TCP | nginx: [emerg] bind() to unix:/x/n.sock failed (13: Permission denied)
# Docker 28
use TCP | permission denied while trying to connect: dial unix /x/docker.sock: socket: permission denied
"""
# CUDA 13.0 with driver 580.159.04, PyTorch 2.11, JAX 0.10
GPU_TEXTS = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 304: OS call failed or operation not supported on this OS",
    "RuntimeError: No CUDA GPUs are available",
    "operation cuInit(0) failed: CUDA_ERROR_OPERATING_SYSTEM",
    (
        "WARNING:jax._src.xla_bridge:891: An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not "
        "installed. Falling back to cpu."
    ),
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    "Failed to initialize NVML: Insufficient Permissions",
)
# Without the sandbox these programs say the same, or other programs say something like it.
ORDINARY = (
    "PermissionError: [Errno 13] Permission denied: '/etc/shadow'",
    "OSError: [Errno 98] Address already in use",
    "Error: listen EACCES: permission denied 0.0.0.0:80",
    "Error: listen EACCES: permission denied :::443",
    "Error: connect ECONNREFUSED 127.0.0.1:5432",
    "[4] [ERROR] connection to ('127.0.0.1', 80) failed: [Errno 13] Permission denied",
    'File "/x/multiprocessing/managers.py", line 567, in start\nEOFError',
    'File "/x/multiprocessing/forkserver.py", line 1\nRuntimeError: bootstrapping phase',
    "Could not connect to Redis at 127.0.0.1:6379: Connection refused",
    'psql: error: connection to server at "127.0.0.1", port 5432 failed: Connection refused',
    "bash: line 1: ./run.sh: Permission denied",
    "make: *** [all] Error 1",
    "bash: line 1: ./scripts/unix/build.sh: Permission denied",
    "ls: cannot open directory '/x/unix-tools': Permission denied",
    "thread 'main' panicked at library/std/src/sys/unix/fs.rs: Permission denied (os error 13)",
    "x/sys/unix: open notes: permission denied",
    "error connecting to database (Permission denied)",
    "PermissionError: [Errno 13] Permission denied: 'data'\nassert family == socket.AF_UNIX",
    "File \"/x/multiprocessing/managers.py\", line 5\nPermissionError: [Errno 13] Permission denied: 'data'",
    "tests/test_driver.c:12: cuInit(0) was not called",
    "E   AssertionError: assert 'unix' in 'permission'",
    "FAILED tests/test_socket.py::test_socket - TimeoutError: timed out",
    "mount: permission denied (are you root?)",
    "error: Timed out waiting for the page to load",
    "xterm: Xt error: Can't open display: \nxterm: DISPLAY is not set",
    "git@example.com: Permission denied (publickey).",
    "Could not open a connection to your authentication agent.",
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
)


def nowhere(path: str) -> bool:
    return False


def printed() -> Iterator[tuple[str, str]]:
    """The rows of `SOCKET_TEXTS`: each with a text of one or more lines, and what is to be told."""
    for row in SOCKET_TEXTS.strip().splitlines():
        if not row.startswith("#"):
            instead, _, text = row.partition(" | ")
            yield text.replace("{LAST}", LAST).replace("\\n", "\n"), instead


@every_row(("text", "instead"), printed())
def test_where_sockets_are_refused_it_is_told_with_what_to_use_instead(text, instead) -> None:
    said = hint_of(f"before\n{text}\nafter", NO_SOCKETS, nowhere) or ""
    assert said.startswith("the sandbox refuses Unix sockets")
    assert instead in said
    assert "\n" not in said
    for other in (Refusals(), NO_GPUS, NO_AGENTS):
        assert "Unix sockets" not in (hint_of(text, other, nowhere) or "")


def test_each_row_of_the_tables_has_a_text() -> None:
    assert {row.instead for row in SOCKETS} == {
        row.instead
        for row in SOCKETS
        if any(row.instead in str(hint_of(text, NO_SOCKETS, nowhere)) for text, _ in printed())
    }
    assert len({row.pattern for row in (*OUTSIDE, *SOCKETS)}) == len(OUTSIDE) + len(SOCKETS)


@every_row("text", [*GPU_TEXTS, *(f"x {words} y" for words in GPUS)])
def test_a_gpu_that_is_not_given_is_told_only_where_the_machine_has_one(text) -> None:
    assert (hint_of(text, NO_GPUS, nowhere) or "").startswith("the sandbox gives commands no GPU: ")
    for other in (Refusals(), NO_SOCKETS, NO_AGENTS):
        assert hint_of(text, other, nowhere) is None


def test_where_tmp_is_closed_a_program_that_needs_it_and_does_not_say_so_is_told() -> None:
    closed = Refusals(tmp=True)
    # pnpm 12.21.0
    said = hint_of("Error: ERR_PNPM_STORE_DIR_OPEN_OPERATION_LOCK", closed, nowhere) or ""
    assert said.startswith("the sandbox denies writing /tmp: use npm")


@every_row(
    "text",
    [
        # git 2.39.5: `git add .`, and `git stash`
        "error: .env.example: can only add regular files, symbolic links or git-directories\nfatal: updating files failed",
        "secrets/k: Permission denied\nfatal: updating files failed",
        "error: .env.example: unsupported file type\nfatal: Unable to process path .env.example",
    ],
)
def test_where_rules_hide_files_git_is_told_to_take_up_named_ones(text) -> None:
    said = hint_of(text, Refusals(masked=True), nowhere) or ""
    assert said.startswith("the sandbox hides files that rules for Read deny: name the changed files")
    assert hint_of(text, Refusals(), nowhere) is None


@every_row("text", ORDINARY)
def test_an_ordinary_failure_gets_no_hint(text) -> None:
    everything = Refusals(unix_sockets=True, tmp=True, gpus=True)
    assert hint_of(text, everything, nowhere) is None


@every_row(
    ("text", "instead"),
    [
        ("Could not open a connection to your authentication agent.", "outside: use ssh with -i KEY"),
        ("Error connecting to agent: Connection refused", "outside: use ssh with -i KEY"),
        ("git@example.com: Permission denied (publickey).", "outside, which may be the cause: use ssh"),
        ("Error: Cannot autolaunch D-Bus without X11 $DISPLAY", "outside: do without the desktop"),
        ("Failed to connect to bus: No medium found", "outside: do without the desktop"),
        ("Failed to connect to user scope bus via local transport", "outside: do without the desktop"),
    ],
)
def test_an_agent_of_the_users_is_told_where_commands_do_not_get_its_address(text, instead) -> None:
    assert instead in (hint_of(text, NO_AGENTS, nowhere) or "")
    assert hint_of(text, Refusals(), nowhere) is None


@every_row(
    "text", ["Failed to connect to event bus: timeout", "docs/ssh.md: an authentication agent holds keys"]
)
def test_other_buses_and_agents_get_no_hint(text) -> None:
    assert hint_of(text, NO_AGENTS, nowhere) is None


@every_row(
    "text",
    [
        # Docker 28: with sockets refused, and with those of programs outside out of reach.
        "permission denied while trying to connect to the Docker daemon socket at unix://{0}: Get x: dial unix {0}: socket",
        "Cannot connect to the Docker daemon at unix://{0}. Is the docker daemon running?",
        "Get x: dial unix {0}: connect: connection refused",
        'psql: error: connection to server on socket "{0}" failed: Connection refused',
        "ERROR 2002 (HY000): Can't connect to local server through socket '{0}' (111)",
    ],
)
def test_a_socket_outside_is_told_where_it_is_one_and_the_sandbox_keeps_commands_from_it(
    text, tmp_path
) -> None:
    work, path = tmp_path / "work", tmp_path / "s.sock"
    work.mkdir(exist_ok=True)
    own = work / "s.sock"
    plan = plan_of(work)
    for one in (path, own):
        one.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as outside, socket.socket(socket.AF_UNIX) as inside:
        outside.bind(str(path))
        inside.bind(str(own))
        said = denial_note(text.format(path), plan, str(work))
        assert said is not None
        assert said.startswith("the sandbox keeps commands from sockets of programs outside: ")
        assert denial_note(text.format(own), plan, str(work)) is None
        assert denial_note(text.format(tmp_path / "none"), plan, str(work)) is None
        assert denial_note(text.format(path), replace(plan, sockets=(str(path),)), str(work)) is None


def test_a_hint_and_a_denied_path_are_one_line(tmp_path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    plan = plan_of(work)
    text = f"unix_listener: socket: Permission denied\ntouch: cannot touch '{tmp_path}/x': Permission denied"
    said = denial_note(text, plan, str(work), refusals=NO_SOCKETS) or ""
    assert said.startswith("the sandbox refuses Unix sockets: ")
    assert f"; the sandbox denies writing {tmp_path}/x; allowed for writing: " in said
    assert "\n" not in said


def test_the_cost_of_an_output_grows_with_its_length_alone() -> None:
    everything = Refusals(unix_sockets=True, tmp=True, gpus=True, agents=NO_AGENTS.agents)
    for text in (
        "unix " * 100_000,
        "Docker daemon " * 50_000,
        "listen EACCES: " * 50_000,
        "process_singleton" * 50_000,
    ):
        began = time.process_time()
        hint_of(text, everything, nowhere)
        assert time.process_time() - began < 3
