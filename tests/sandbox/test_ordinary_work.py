"""Tests that ordinary development works in the sandbox, at each level that this machine can simulate. Only work that
the tests of terminals and the last test list may fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from ralph.places.git_places import git_places
from ralph.sandbox.bubblewrap import TEMPORARY
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.places.test_one_table import tools_in
from tests.sandbox.boxes import LEVELS, box_of, means_of, shell_in

if TYPE_CHECKING:
    from collections.abc import Iterator

IDENTITY = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
PYTHON = f"{sys.executable} -I"
POOL = """
import multiprocessing
with multiprocessing.get_context('fork').Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
queue, lock = multiprocessing.Queue(), multiprocessing.Lock()
"""
LOOPBACK = """
import http.server, threading, urllib.request
server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
assert urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/').status == 200
"""


@pytest.fixture(params=LEVELS)
def work(request, tmp_path):
    """A function that runs a shell command in a linked worktree, at one level."""
    means = means_of(request.param)
    main, linked = (tmp_path / name for name in ("main", "linked"))
    main.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **IDENTITY}
    script = f"git init -q && git commit -q --allow-empty -m x && git worktree add -q {linked}"
    subprocess.run(["/bin/sh", "-c", script], cwd=main, env=environment, check=True, capture_output=True)
    assert not git_places([str(linked)], {}, os.getuid()).refused
    with box_of(means, [linked], {"HOME": str(tmp_path)}) as box:
        yield lambda command: shell_in(box, linked, command, environment)


def test_ordinary_work_stays_ordinary(work) -> None:
    for command in (
        "echo a > a && git add a && git commit -q -m a && git gc -q && git branch other && git stash list",
        "git init -q --bare in.git && git push -q in.git HEAD:refs/heads/x",
        "mkdir -p one/two && mv a one/two/a && ln one/two/a b && ln -s b c && rm -r one",
        f'{PYTHON} -c "{POOL}{LOOPBACK}"',
        f"{PYTHON} -m venv --without-pip venv && venv/bin/python -c pass",
        "file=$(mktemp) && echo x > $file && cat $file",
        "cat /etc/passwd > /dev/null && ls -la / > /dev/null",
    ):
        ran = work(command)
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
    ran = work("yes | head -1")
    assert (ran.stdout, ran.stderr) == ("y\n", "")


TERMINAL = """
import pty
assert pty.spawn(['true']) == 0
"""
# Waits for what is typed, as the user's shell does.
TYPED = """
import os, select, sys, tty
terminal = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
select.select([terminal], [], [], 10)
print(os.read(terminal, 99))
os.write(terminal, b'x')
"""


@pytest.fixture
def terminal() -> Iterator[str]:
    """The user's terminal, into which a password was typed."""
    ours, theirs = os.openpty()
    os.write(ours, b"password\n")
    yield os.ttyname(theirs)
    os.close(ours)
    os.close(theirs)


def test_no_command_reads_what_the_user_types_or_writes_to_the_users_terminal(work, terminal) -> None:
    ran = work(f'{PYTHON} -c "{TYPED}" {terminal}')
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines()[-1].startswith(("PermissionError", "FileNotFoundError")), ran.stderr
    for words in (f"cat {terminal}", f"echo x > {terminal}", "cat /dev/tty"):
        assert work(words).returncode in (1, 2), words


def test_a_terminal_of_its_own_needs_namespaces_or_the_users_word(work, request) -> None:
    """Landlock cannot tell a command's terminal from the user's."""
    is_alone = request.node.callspec.params["work"] == "landlock"
    assert work(f'{PYTHON} -c "{TERMINAL}"').returncode == int(is_alone)


def test_a_command_does_not_hold_the_ruleset(work) -> None:
    """A command that held the ruleset's descriptor could add rules for the commands that follow."""
    ran = work("for one in /proc/$$/fd/*; do readlink $one; done")
    assert ran.stdout, ran.stderr
    assert "landlock" not in ran.stdout


MANAGER = 'import multiprocessing; multiprocessing.get_context("fork").Manager()'


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo x > /etc/ralph-test", ("Permission denied", "Read-only file system", "cannot create")),
        (f"{PYTHON} -c '{MANAGER}'", ("PermissionError", "EOFError")),
    ],
)
def test_what_is_known_to_fail_fails_with_the_kernels_words(work, command, words) -> None:
    ran = work(command)
    assert ran.returncode != 0
    assert any(one in ran.stderr for one in words), ran.stderr


@pytest.mark.parametrize("level", LEVELS)
def test_of_a_home_in_tmp_only_what_the_table_shows_is_readable(level, monkeypatch) -> None:
    """A command may read all that is in its own /tmp, so nothing that is denied may be mounted there."""
    with TemporaryDirectory(dir=TEMPORARY) as place, TemporaryDirectory() as work:
        home, beside = Path(place, "home"), Path(place, "beside")
        for name in "home/bin/shown home/notes home/.ssh/key beside/bin/shown beside/keys/key".split():
            path = Path(place, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("shown" if path.name == "shown" else "canary")
        # An entry of PATH that a link leads to is seen as a whole, so it may hold nothing that is denied.
        Path(place, "link").symlink_to(beside)
        monkeypatch.setenv("PATH", f"{home}/bin:{beside}/bin:{place}/link/bin:{os.environ['PATH']}")
        variables = {"HOME": str(home), "GNUPGHOME": str(beside / "keys")}
        with box_of(
            means_of(level), [os.path.realpath(work)], variables, read=(str(Path(place, "link")),)
        ) as box:
            names = "home/bin/shown beside/bin/shown home/notes home/.ssh/key beside/keys/key link/keys/key"
            ran = shell_in(box, work, f"cd {place}; cat {names}")
    assert ran.stdout == "shownshown", ran.stderr


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_shown_of_a_home_in_tmp_stays_visible(level) -> None:
    with TemporaryDirectory(dir=TEMPORARY) as home, TemporaryDirectory(dir="/var/tmp") as work:
        Path(home, ".pyenv").mkdir()
        Path(home, ".pyenv/shown").write_text("shown")
        Path(home, ".npmrc").write_text("registry=shown\n//r/:_authToken=canary\n")
        Path(home, "notes").write_text("canary")
        with box_of(means_of(level), [work], {"HOME": home}) as box:
            ran = shell_in(box, work, f"cd {home}; cat .pyenv/shown .npmrc notes")
    assert ran.stdout == ("shownregistry=shown\n" if level == "namespaces" else "shown"), ran.stderr


QUEUE = """
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
queue = c.mq_open(b'/ralph-test', os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600, None)
text = ctypes.create_string_buffer(8192)
print(c.mq_send(queue, b'text', 4, 0), c.mq_receive(queue, text, 8192, None), text.value.decode())
"""


@pytest.mark.skipif(not Path("/proc/sys/fs/mqueue").is_dir(), reason="this kernel has no message queues")
def test_message_queues_are_the_commands_own_and_need_namespaces(work, request) -> None:
    is_alone = request.node.callspec.params["work"] == "landlock"
    for _ in range(2):  # nothing is left for the next command
        ran = work(f'{PYTHON} -c "{QUEUE}"')
        assert ran.stdout == ("-1 -1 \n" if is_alone else "0 4 text\n"), ran.stderr


def test_with_namespaces_a_command_sees_its_own_processes_alone(work, request) -> None:
    listing = "for one in /proc/[0-9]*; do tr '\\0' ' ' < $one/cmdline; echo; done"
    ran = work(f"sleep 60 & until grep -qz '^sleep$' /proc/$!/cmdline; do :; done; {listing}; kill $!")
    seen = [line.split()[0] for line in ran.stdout.splitlines() if line.strip()]
    if request.node.callspec.params["work"] == "namespaces":
        assert {*seen} == {"/bin/sh", "sleep"}, ran.stdout
    else:
        assert "sleep" in seen


def test_a_link_of_a_command_leads_no_later_box_anywhere_else() -> None:
    """The program bwrap makes missing directories for its mounts while the root of the machine is at /oldroot."""
    with TemporaryDirectory(dir=TEMPORARY) as place, TemporaryDirectory(dir="/var/tmp") as other:
        work = Path(place, "one/two")
        work.mkdir(parents=True)
        with box_of(means_of("namespaces"), [work], {"HOME": "/"}) as box:
            planted = shell_in(box, work, f"git init -q; mv {place} /tmp/old; ln -s /oldroot{other} {place}")
            assert planted.returncode == 0, planted.stderr
            ran = shell_in(box, work, f"touch {work}/made")
        assert not [*Path(other).iterdir()]
        assert ran.returncode == 0, ran.stderr
        assert Path(work, "made").exists()


TOKEN_FILE = (
    '[http "https://github.com/"]\n\textraheader = AUTHORIZATION: basic eC1hY2Nlc3MtdG9rZW46c2VjcmV0\n'
)


@pytest.mark.parametrize("level", ["namespaces", "landlock"])
@pytest.mark.parametrize(
    ("setting", "content", "is_copied"),
    [
        ("includeIf.gitdir:**.path", TOKEN_FILE, True),
        ("includeIf.gitdir:**.path", f"{TOKEN_FILE}[user]\n\tname = canary\n", False),
        ("include.path", "[user]\n\tname = canary\n", False),
        ("core.excludesFile", "canary\n", False),
    ],
)
def test_what_a_checkout_tells_git_to_read_in_the_home_is_a_copy_or_told(
    tmp_path, level, setting, content, is_copied
) -> None:
    """The first is how actions/checkout keeps its token since version 6."""
    means_of(level)
    home, work, named = tmp_path / "home", tmp_path / "home/work", tmp_path / "home/temp/named"
    for directory in (work, named.parent):
        directory.mkdir(parents=True)
    named.write_text(content)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    made = ["git init -q", f"git config '{setting}' {named}", "touch new"]
    subprocess.run(["/bin/sh", "-c", "; ".join(made)], cwd=work, env=environment, check=True)
    plan = plan_box(SandboxSettings(), environment, (work,))
    told = [one.text for one in plan.notices if str(named) in one.text]
    assert (told == []) == (is_copied and plan.has_namespaces)
    for tools in tools_in(work, environment, level):
        output = str(tools.call("Bash", {"command": f"git status --short; cat {named}"}).content)
        assert "canary" not in output
        assert "AUTHORIZATION" not in output
        assert ("?? new" in output) == (is_copied and level == "namespaces")
