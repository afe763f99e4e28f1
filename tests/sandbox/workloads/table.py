"""The table of workloads: what people run, what must be seen of it, and what happens to it at each level of the sandbox.

A row that fails says what is seen of the failure and what ralph tells the model about it. Rows that need Unix sockets fail
where the sandbox refuses them: at `landlock`, and with namespaces where no overlays can be made.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Fails(Struct, frozen=True):
    """The marks of a command that fails, or runs into its limit."""

    seen: str
    """A text in its output."""
    told: str
    """A text in the line of ralph's about a denial. Empty if there is no such line."""


class Workload(Struct, frozen=True):
    """A row. Its commands are played in an empty home with a repository in it, `work`."""

    name: str
    needs: str
    """The programs of `programs.py`, separated by spaces."""
    commands: str | tuple[str | tuple[str, dict[str, Any]], ...]
    """A command of Bash, or several ones and calls of other tools with their arguments. The first that fails is the last."""
    seen: str
    """A text in the output of the last command if all is well."""
    without_sockets: Fails | None = None
    """How it fails where Unix sockets are refused. None if it works there."""
    namespaces: Fails | None = None
    """How it fails with namespaces, whatever sockets do. None if it works there."""
    landlock: Fails | None = None
    is_for_ci: bool = False
    """Whether it is played in each run of CI: it takes a second or two, and CI has what it needs."""
    timeout_s: float = 60
    has_repository: bool = True
    home: tuple[str, ...] = ()
    """Files of the user's home that are there before, each with its name as content."""
    sandbox: dict[str, Any] = field(default_factory=dict)
    """Fields of `SandboxSettings`."""

    def fails(self, level: str, *, has_sockets: bool) -> Fails | None:
        """How the row says that it fails, or None if it must work."""
        if level == "off":
            return None
        own = self.namespaces if level == "namespaces" else self.landlock
        return own or (None if has_sockets else self.without_sockets)


def _python(code: str) -> str:
    """A script for the Python of the first needed program, if that is one of PyPI, or for this Python."""
    return f"cat > it.py <<'END'\n{code.strip()}\nEND\n$INTERPRETER it.py"


def _background(command: str) -> tuple[str, dict[str, Any]]:
    return "Bash", {"command": command, "run_in_background": True}


_DENIED = "Permission denied"
_OUTSIDE = "keeps commands from sockets of programs outside"
_NOT_MADE = "denies writing "
_CHROMIUM = Fails("socket() failed: Permission denied", "no Chromium starts")

WORKLOADS = (
    # --- Python
    Workload(
        "forkserver",
        "python",
        _python("""
import multiprocessing
if __name__ == '__main__':
    with multiprocessing.get_context('forkserver').Pool(2) as pool:
        print(pool.map(abs, [-1, -2]))
"""),
        "[1, 2]",
        Fails("forkserver.py", "fork or spawn"),
        is_for_ci=True,
    ),
    Workload(
        "Manager",
        "python",
        _python("""
import multiprocessing
if __name__ == '__main__':
    with multiprocessing.Manager() as manager:
        print(manager.dict(a=1))
"""),
        "{'a': 1}",
        Fails("EOFError", "SyncManager(address="),
        is_for_ci=True,
    ),
    Workload(
        "Manager on TCP",
        "python",
        _python("""
from multiprocessing.managers import SyncManager
if __name__ == '__main__':
    manager = SyncManager(address=('127.0.0.1', 0))
    manager.start()
    print(manager.dict(a=1))
    manager.shutdown()
"""),
        "{'a': 1}",
    ),
    Workload(
        "fork, spawn and futures",
        "python",
        _python("""
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
if __name__ == '__main__':
    for method in ('fork', 'spawn'):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(pool.map(abs, [-1, -2]))
    print(*ProcessPoolExecutor(2).map(abs, [-3]))
"""),
        "[1, 2]\n3",
        is_for_ci=True,
    ),
    Workload(
        "socket through a pipe",
        "python",
        _python("""
import multiprocessing, socket
def child(end):
    print('got', end.recv().fileno() > 0)
if __name__ == '__main__':
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=child, args=(theirs,))
    process.start()
    ours.send(socket.socket())
    process.join()
    raise SystemExit(process.exitcode)
"""),
        "got True",
        Fails("timed out after", "num_workers=0"),
        is_for_ci=True,
        timeout_s=10,
    ),
    Workload(
        "PyTorch: workers of a DataLoader",
        "torch",
        _python("""
import torch
from torch.utils.data import DataLoader
if __name__ == '__main__':
    print('sum', sum(batch.sum().item() for batch in DataLoader(torch.ones(8), 2, num_workers=2)))
"""),
        "sum 8.0",
        Fails("timed out after", "num_workers=0"),
        timeout_s=60,
    ),
    Workload(
        "asyncio on a socket",
        "python",
        _python("""
import asyncio
async def serve(reader, writer):
    writer.write(b'hello')
    writer.close()
async def main():
    server = await asyncio.start_unix_server(serve, 's')
    reader, ours = await asyncio.open_unix_connection('s')
    print(await reader.read())
    ours.close()
asyncio.run(main())
"""),
        "b'hello'",
        Fails("unix_events.py", "use TCP"),
        is_for_ci=True,
    ),
    Workload(
        "pair of datagram sockets",
        "python",
        _python("""
import socket
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
one.send(b'hello')
print(other.recv(9))
"""),
        "b'hello'",
        Fails(_DENIED, "use TCP"),
        is_for_ci=True,
    ),
    Workload(
        "abstract socket",
        "python",
        _python("""
import os, socket
name = f'\\0ralph-{os.getpid()}'
one, other = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
one.bind(name)
one.listen()
other.connect(name)
print('connected')
"""),
        "connected",
        Fails(_DENIED, "use TCP"),
        is_for_ci=True,
    ),
    Workload(
        "POSIX message queue",
        "python",
        _python("""
import ctypes, os
call = ctypes.CDLL(None, use_errno=True)
if call.mq_open(b'/ralph-workload', os.O_CREAT | os.O_RDWR, 0o600, None) < 0:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), 'mq_open')
call.mq_unlink(b'/ralph-workload')
print('made')
"""),
        "made",
        landlock=Fails(_DENIED, ""),
        is_for_ci=True,
    ),
    Workload(
        "gunicorn on a socket",
        "gunicorn curl",
        """printf 'def app(environ, start):\n    start("200 OK", [])\n    return [b"hello"]\n' > it.py
gunicorn --bind unix:$PWD/g.sock it:app >log 2>&1 &
for _ in $(seq 20); do curl -s --unix-socket g.sock http://x/ && exit; sleep 0.3; done; cat log; exit 1""",
        "hello",
        Fails("failed: [Errno 13]", "127.0.0.1:PORT"),
        timeout_s=40,
    ),
    Workload(
        "matplotlib",
        "matplotlib",
        _python("""
import matplotlib
matplotlib.use('agg')
import matplotlib.pyplot as plot
plot.plot([1])
plot.savefig('it.png')
print('drawn')
"""),
        "drawn",
    ),
    Workload("IPython", "ipython", "ipython -c 'print(40+2)'", "42"),
    Workload(
        "jupyter nbconvert",
        "jupyter",
        """cat > it.ipynb <<'END'
{"cells": [{"cell_type": "code", "execution_count": null, "metadata": {}, "outputs": [], "source": ["print(40+2)"], "id": "a"}],
 "metadata": {"kernelspec": {"name": "python3", "display_name": "x"}}, "nbformat": 4, "nbformat_minor": 5}
END
jupyter nbconvert --to markdown --execute --stdout it.ipynb""",
        "42",
        timeout_s=90,
    ),
    Workload("ansible", "ansible", "ansible localhost -m command -a 'echo hello'", "hello"),
    Workload("uv tool", "uv", "uv tool install -q cowsay==6.1 && uv tool run cowsay -t hello", "hello"),
    # --- Browsers and displays
    Workload(
        "Chromium by playwright",
        "playwright chromium",
        _python("""
import shutil
from playwright.sync_api import sync_playwright
with sync_playwright() as p:
    browser = p.chromium.launch(executable_path=shutil.which('chromium'), args=['--no-sandbox'], timeout=0)
    page = browser.new_page()
    page.set_content('<title>hello</title>')
    print(page.title())
    browser.close()
"""),
        "hello",
        _CHROMIUM,
        is_for_ci=True,
    ),
    Workload(
        "Chromium by itself",
        "chromium",
        "chromium --headless --no-sandbox --user-data-dir=$PWD/u --dump-dom 'data:text/html,<p>hello</p>'",
        "<p>hello</p>",
        _CHROMIUM,
    ),
    Workload(
        "xvfb-run",
        "xvfb-run",
        "xvfb-run -a sh -c 'echo display $DISPLAY' && sleep 1",
        "display :",
        landlock=Fails("timed out after", ""),
        timeout_s=20,
    ),
    Workload(
        "dbus-run-session",
        "dbus-run-session",
        """dbus-run-session -- dbus-send --session --print-reply --dest=org.freedesktop.DBus / \\
org.freedesktop.DBus.ListNames""",
        "org.freedesktop.DBus",
        Fails("Failed to start message bus", "without D-Bus"),
        timeout_s=20,
    ),
    # --- Databases
    Workload(
        "Postgres on a socket",
        "postgres",
        (
            "initdb -D data -U dev --no-sync --auth=trust >/dev/null",
            """pg_ctl -D data -w -l log -o "-k $PWD -c listen_addresses=''" start || exit
psql -h $PWD -U dev -Atc 'select 40+2' postgres; code=$?; pg_ctl -D data -m fast stop; exit $code""",
        ),
        "42",
        Fails("pg_ctl: could not start server", "may be the cause: let Postgres listen on TCP"),
        is_for_ci=True,
    ),
    Workload(
        "Postgres on TCP",
        "postgres",
        (
            "initdb -D data -U dev --no-sync --auth=trust >/dev/null",
            """pg_ctl -D data -w -l log -o "-k '' -h 127.0.0.1 -p 25431" start || exit
psql -h 127.0.0.1 -p 25431 -U dev -Atc 'select 40+2' postgres; code=$?; pg_ctl -D data -m fast stop; exit $code""",
        ),
        "42",
    ),
    Workload(
        "Redis on a socket",
        "redis-server",
        """redis-server --port 0 --unixsocket $PWD/r.sock --save '' >log 2>&1 &
for _ in $(seq 20); do redis-cli -s r.sock ping 2>/dev/null | grep PONG && exit; sleep 0.2; done; cat log; exit 1""",
        "PONG",
        Fails("Failed opening Unix socket", "let Redis listen on TCP"),
        timeout_s=30,
    ),
    # --- In the background
    Workload(
        "server in the background",
        "python",
        (
            _background(
                _python("""
from http.server import HTTPServer, SimpleHTTPRequestHandler
server = HTTPServer(('127.0.0.1', 0), SimpleHTTPRequestHandler)
open('port', 'w').write(str(server.server_port))
server.serve_forever()
""")
            ),
            "until [ -s port ]; do sleep 0.1; done",
            """python -c "import urllib.request as r; print(r.urlopen('http://127.0.0.1:$(cat port)/port').status)" """,
            ("KillBash", {"shell_id": "bash_1"}),
        ),
        "bash_1 was stopped",
        is_for_ci=True,
    ),
    # --- Keys and agents
    Workload(
        "gpg key",
        "gpg",
        """export GNUPGHOME=$PWD/keys; mkdir -m 700 keys
gpg --batch --passphrase '' --quick-generate-key a@example.com ed25519 sign 0 && gpg --list-secret-keys --with-colons""",
        "sec:",
        Fails("can't connect to the agent", "no-gpg-sign"),
        is_for_ci=True,
    ),
    Workload(
        "git commit -S",
        "gpg git",
        """export GNUPGHOME=$PWD/keys; mkdir -m 700 keys
gpg -q --batch --passphrase '' --quick-generate-key 'A Developer <developer@example.com>' ed25519 sign 0
git commit -q -S --allow-empty -m x && git log --show-signature -1""",
        "Good signature",
        Fails("gpg failed to sign the data", "no-gpg-sign"),
    ),
    Workload(
        "ssh-agent",
        "ssh-agent",
        """eval $(ssh-agent -a $PWD/agent) && ssh-keygen -q -t ed25519 -N '' -f key && ssh-add key && ssh-add -l
code=$?; ssh-agent -k >/dev/null; exit $code""",
        "(ED25519)",
        Fails("unix_listener", "-i KEY"),
        is_for_ci=True,
    ),
    # --- Programs outside, which stay out of reach
    Workload(
        "client of a socket outside",
        "python",
        _python("""
import os, socket
one = socket.socket(socket.AF_UNIX)
one.connect(os.environ['OUTSIDE'] + '/server')
print('connected')
"""),
        "connected",
        Fails(_DENIED, "use TCP"),
        namespaces=Fails("ConnectionRefusedError", ""),
        is_for_ci=True,
    ),
    Workload(
        "docker's client",
        "docker",
        "docker -H unix://$OUTSIDE/server ps",
        "CONTAINER ID",
        Fails("daemon", _OUTSIDE),
        namespaces=Fails("daemon", _OUTSIDE),
    ),
    Workload(
        "agent of the user's",
        "ssh-agent",
        "timeout 3 ssh-add -l; test $? = 124 && echo asked",
        "asked",
        namespaces=Fails("Could not open a connection", f"{_OUTSIDE}: use ssh with -i KEY"),
        landlock=Fails("Could not open a connection", f"{_OUTSIDE}: use ssh with -i KEY"),
        timeout_s=20,
    ),
    # --- Terminals and processes
    Workload(
        "tmux",
        "tmux",
        "T=$PWD/t; tmux -S $T new-session -d 'sleep 20' && tmux -S $T list-sessions; code=$?; tmux -S $T kill-server; exit $code",
        "1 windows",
        Fails("error connecting to /", "run_in_background"),
        is_for_ci=True,
    ),
    Workload(
        "script",
        "script",
        "script -qec 'echo hello; tty' /dev/null",
        "/dev/pts/",
        landlock=Fails("failed to create pseudo-terminal", "making a terminal"),
        is_for_ci=True,
    ),
    Workload("expect", "expect", "expect -c 'spawn echo hello; expect hello; expect eof'", "hello"),
    Workload("gdb", "gdb", "gdb -q -batch -ex run -ex quit --args true 2>&1", "exited normally"),
    Workload("strace", "strace", "strace -c true 2>&1 | tail -1", "total"),
    # --- Java and JavaScript
    Workload(
        "node on a socket",
        "node",
        """cat > it.js <<'END'
const net = require('net')
const server = net.createServer(c => c.end('hello')).listen('s', () =>
  net.connect('s').on('data', d => { console.log(String(d)); server.close() }))
END
node it.js""",
        "hello",
        Fails("listen EACCES", "listen on 127.0.0.1"),
    ),
    Workload(
        "pnpm",
        "pnpm node",
        """printf '{"name":"it","version":"1.0.0","dependencies":{"is-odd":"3.0.1"}}' > package.json
pnpm install --reporter=append-only && node -e 'console.log(require("is-odd")(3))'; code=$?; ls -A; exit $code""",
        "true\n.git",
        landlock=Fails("ERR_PNPM_STORE_DIR_OPEN_OPERATION_LOCK", "use npm"),
    ),
    # --- git, and places
    Workload(
        "git init here",
        "git",
        ("git init -q -b main && git commit -q --allow-empty -m x", "cat .git/config"),
        "repositoryformatversion",
        has_repository=False,
        is_for_ci=True,
    ),
    Workload(
        "git clone here",
        "git",
        (
            "git init -q $TMPDIR/up && git -C $TMPDIR/up commit -q --allow-empty -m x && git clone -q file://$TMPDIR/up .; ls -A",
            "git log --oneline && git remote -v",
        ),
        "origin",
        has_repository=False,
    ),
    Workload(
        "models and browsers in the user's caches",
        "python",
        """cat ${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}/models--x/refs/main &&
cat ${PLAYWRIGHT_BROWSERS_PATH:-${XDG_CACHE_HOME:-$HOME/.cache}/ms-playwright}/chromium-1/INSTALLATION_COMPLETE""",
        ".cache/huggingface/hub/models--x/refs/main.cache/ms-playwright/chromium-1/INSTALLATION_COMPLETE",
        is_for_ci=True,
        home=(
            ".cache/huggingface/hub/models--x/refs/main",
            ".cache/ms-playwright/chromium-1/INSTALLATION_COMPLETE",
        ),
    ),
    Workload(
        "fixed name in /tmp",
        "python",
        "echo hello > /tmp/ralph-workload-$$ && cat /tmp/ralph-workload-$$; code=$?; rm -f /tmp/ralph-workload-$$; exit $code",
        "hello",
        landlock=Fails(_DENIED, _NOT_MADE),
        is_for_ci=True,
    ),
)
