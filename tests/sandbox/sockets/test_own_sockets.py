"""Tests that programs which make Unix sockets work in the sandbox, where the machine can tell these sockets from others.
Postgres is a row of `tests/sandbox/workloads`, because it does not run as root.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from tests.sandbox.boxes import WITH_OVERLAYS as MEANS
from tests.sandbox.boxes import box_of, needs_overlays, shell_in
from tests.services.outside_programs import program_or_skip

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from ralph.sandbox.box_plan import Means

needs_landlock = pytest.mark.skipif(MEANS.landlock.abi == 0, reason="this kernel has no Landlock")

OF_PYTHON = {
    "the start method forkserver": """
import multiprocessing
if __name__ == '__main__':
    with multiprocessing.get_context('forkserver').Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
""",
    "a manager": """
import multiprocessing
with multiprocessing.get_context('fork').Manager() as manager:
    shared = manager.dict(a=1)
    assert shared.copy() == {'a': 1}
""",
    "a socket that is sent to another process": """
import multiprocessing, multiprocessing.reduction, socket
context = multiprocessing.get_context('fork')
ours, theirs = context.Pipe()
one, other = socket.socketpair()
def take(pipe):
    pipe.recv().sendall(b'x')
process = context.Process(target=take, args=(theirs,))
process.start()
ours.send(other)
assert one.recv(1) == b'x'
process.join()
assert process.exitcode == 0
""",
    "an asyncio server": """
import asyncio
async def main():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()
    async with await asyncio.start_unix_server(answer, 'server'):
        reader, writer = await asyncio.open_unix_connection('server')
        writer.write(b'hello\\n')
        assert await reader.read() == b'hello\\n'
asyncio.run(main())
""",
    "sockets of each kind, in files, abstract and in pairs": """
import os, socket
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for name in (f'file-{int(kind)}', f'\\0own-{os.getpid()}-{int(kind)}'):
        server, client = socket.socket(socket.AF_UNIX, kind), socket.socket(socket.AF_UNIX, kind)
        server.bind(name)
        server.listen()
        client.connect(name)
        server.accept()[0].send(b'x')
        assert client.recv(1) == b'x'
for name in ('letters', f'\\0letters-{os.getpid()}'):
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(name)
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b'x', name)
    assert receiver.recv(1) == b'x'
    one.send(b'y')
    assert other.recv(1) == b'y'
if os.fork() == 0:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.sendto(b'z', f'\\0letters-{os.getppid()}')
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert receiver.recv(1) == b'z'
with socket.socket(socket.AF_UNIX) as server:
    server.bind('/tmp/shared')
    server.listen()
    socket.socket(socket.AF_UNIX).connect(os.environ['TMPDIR'] + '/shared')
""",
}
OF_PROGRAMS = {
    "node": """
node -e "
const net = require('net'), server = net.createServer(one => one.end('hello'));
server.listen('node-socket', () => net.connect('node-socket').on('data', data => {
  process.exitCode = String(data) === 'hello' ? 0 : 1; server.close(); }));
"
""",
    "tmux": "export SHELL=/bin/sh; tmux -S s new-session -d 'sleep 60' && tmux -S s list-sessions && tmux -S s kill-server",
    "gpg": """
mkdir -m 700 g && export GNUPGHOME=$PWD/g && gpg --batch --quiet --passphrase '' --quick-generate-key a@b.example ed25519 &&
echo x | gpg --batch --quiet --clear-sign >signed && gpg --quiet --verify signed; code=$?; gpgconf --kill all; exit $code
""",
    "ssh-agent": 'eval "$(ssh-agent -a agent)" >/dev/null; ssh-add -l; test $? = 1',
    "socat": """
socat UNIX-LISTEN:s EXEC:cat & test "$(echo hello | socat -t 60 - UNIX-CONNECT:s,forever,interval=0.01)" = hello
""",
    "redis-server": """
redis-server --port 0 --unixsocket $PWD/r --save '' >log & until redis-cli -s r ping 2>&1 | grep -q PONG; do sleep 0.01; done
""",
    "dbus-run-session": "dbus-run-session -- true",
}
OTHERS = {"gpg": ("gpgconf",), "ssh-agent": ("ssh-add",), "redis-server": ("redis-cli",)}
"""Further programs that a script needs."""


def run(means: Means, work: Path, script: str, **plan: Any) -> subprocess.CompletedProcess[str]:
    with box_of(means, [work], **plan) as box:
        return shell_in(box, work, script, {"PATH": os.environ["PATH"], "HOME": str(work)})


@needs_overlays
@pytest.mark.parametrize("name", OF_PYTHON)
def test_python_makes_sockets_of_its_own(tmp_path, name) -> None:
    (tmp_path / "program.py").write_text(OF_PYTHON[name])
    ran = run(MEANS, tmp_path, f"exec {sys.executable} program.py")
    assert ran.returncode == 0, ran.stderr


@needs_overlays
@pytest.mark.parametrize("program", OF_PROGRAMS)
def test_programs_make_sockets_of_their_own(tmp_path, program) -> None:
    for needed in (program, *OTHERS.get(program, ())):
        program_or_skip(needed)
    ran = run(MEANS, tmp_path, OF_PROGRAMS[program])
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_overlays
def test_git_finds_the_repository_around_the_working_directory(tmp_path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    for name in ("objects", "refs"):
        (tmp_path / ".git" / name).mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    ran = run(MEANS, below, "git rev-parse --show-toplevel")
    assert ran.stdout == f"{tmp_path}\n", ran.stderr


WITHOUT_OVERLAYS = replace(MEANS, why_no_overlays="not used")


@needs_landlock
@pytest.mark.parametrize(
    ("means", "asked", "works"),
    [
        (MEANS, "deny", False),
        (WITHOUT_OVERLAYS, "auto", False),
        (WITHOUT_OVERLAYS, "allow", True),
        (replace(MEANS, bwrap=None), "auto", False),
        (replace(MEANS, bwrap=None), "allow", True),
    ],
)
def test_the_setting_says_whether_there_are_sockets(tmp_path, means, asked, works) -> None:
    if means.landlock.has_socket_paths:
        pytest.skip("this kernel's Landlock judges sockets itself")
    code = "import socket; socket.socket(socket.AF_UNIX).bind('s'); socket.socketpair(1, 2); print('made')"
    ran = run(means, tmp_path, f'{sys.executable} -c "{code}"', asked_sockets=asked)
    assert (ran.stdout == "made\n") is works, ran.stderr
    assert works or "PermissionError" in ran.stderr
