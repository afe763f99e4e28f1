"""A forked ralph must be an ordinary child process, and one fork must not affect the next."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ralph.mock_api import Fault, MockApi, Scenario, Step, Turn
from tests.conftest import may_pass_over_permissions
from tests.patience import PATIENCE_S, wait_until
from tests.processes import fork_server
from tests.processes.children import children, is_gone
from tests.processes.fork_server import REPOSITORY, start_ralph
from tests.processes.owned import OWNER
from tests.program.conftest import Ralph, iteration_of_loop, processes_of, ralph_in

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere every start is that of an interpreter"
)
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nowhere",
    "PYTHONPATH": str(REPOSITORY),
    "ANTHROPIC_API_KEY": "sk-ant-fork-0001",  # without one it would not wait for its prompt
}
STARTS_ONE_AND_DIES = """
import os, sys
from pathlib import Path
from tests.processes import fork_server
fork_server.start_ralph(["--version"], Path("/"), {"PATH": os.environ["PATH"]}, stdout=-3).wait()
print(fork_server._servers[0].process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
FAILS_WITHIN = """
import socket, sys
from ralph.cli import command_line
from tests.processes import forked_processes

def fail(words):
    raise SystemError("in the middle")

command_line.run_cli = fail
forked_processes._get_ready(socket.socket(fileno=int(sys.argv[1])), forked_processes._prepare)
"""


roots = pytest.mark.skipif(
    not may_pass_over_permissions(), reason="only root may look into a process that is not dumpable"
)


def waiting(cwd: Path, **popen: Any) -> subprocess.Popen[bytes]:
    """Starts a ralph that waits for its prompt."""
    return start_ralph(["-"], cwd, ENVIRONMENT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, **popen)


@pytest.mark.parametrize(
    "words", [["--version"], ["--bogus"], ["sessions", "ls"], ["run", "--help"], ["fleet", "--help"]]
)
def test_it_says_and_returns_what_a_fresh_interpreter_does(words, tmp_path) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    forked, fresh = (
        start_ralph(words, tmp_path, ENVIRONMENT, afresh=afresh, **pipes) for afresh in (False, True)
    )
    assert forked.communicate() == fresh.communicate()
    assert forked.returncode == fresh.returncode


@roots
def test_it_is_a_child_of_the_tests_and_the_system_shows_it_as_it_was_started(tmp_path) -> None:
    with waiting(tmp_path, start_new_session=True) as process:
        place = Path(f"/proc/{process.pid}")
        shown = [
            {part for part in (place / name).read_bytes().split(b"\0") if part}
            for name in ("environ", "cmdline")
        ]
        assert process.pid in children()
        assert shown[0] == {os.fsencode(f"{name}={value}") for name, value in ENVIRONMENT.items()}
        assert shown[1] == {os.fsencode(word) for word in (sys.executable, "-m", "ralph", "-")}
        assert (place / "cwd").readlink() == tmp_path
        assert os.getsid(process.pid) == process.pid
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_it_has_the_umask_and_the_ignored_signals_of_the_moment_it_was_started_at(tmp_path) -> None:
    def state(process: subprocess.Popen[bytes]) -> tuple[str, bool]:
        with process:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            process.kill()
        fields = dict(line.split(":", 1) for line in lines)
        return fields["Umask"].strip(), bool(int(fields["SigIgn"], 16) & 1 << signal.SIGHUP - 1)

    usual = os.umask(0o027)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert state(waiting(tmp_path)) == ("0027", True)
    finally:
        signal.signal(signal.SIGHUP, before)
        os.umask(usual)
    assert state(waiting(tmp_path)) == (f"{usual:04o}", False)


@roots
def test_an_iteration_of_a_forked_loop_has_all_that_one_of_a_fresh_loop_has(tmp_path) -> None:
    shown = []
    for place in ("forked", "fresh"):
        (tmp_path / place).mkdir()
        ralph = replace(ralph_in(tmp_path / place), starts_afresh=place == "fresh")
        server = MockApi(Scenario([Step(Turn("Late."), Fault(stall_before_headers_s=60))])).start()
        ralph.environment |= {"ANTHROPIC_BASE_URL": server.base_url, OWNER: f"both {os.getpid()}"}
        process = ralph.start("loop", "go")
        assert server.wait_for_requests(1, PATIENCE_S)
        shown.append(facts_of(iteration_of_loop(ralph), process.pid, tmp_path / place))
        process.kill()
        process.communicate()
        wait_until(partial(has_nothing_left, ralph))
        server.close()
    assert shown[0] == shown[1], set(shown[0]) ^ set(shown[1])


def has_nothing_left(ralph: Ralph) -> bool:
    return not processes_of(ralph)


def facts_of(process_id: int, parent: int, place: Path) -> list[str]:
    """The facts that the system shows about a process, without those that differ in each process."""
    proc = Path(f"/proc/{process_id}")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
    names = ("Umask", "PPid", "NSsid", "NSpgid", "SigBlk", "SigIgn", "SigCgt", "CoreDumping")
    seen = [f"{name} {status[name]}" for name in names]
    seen += sorted(str(one.readlink()) for one in (proc / "fd").iterdir())
    seen += (proc / "cmdline").read_text().split("\0")
    seen += sorted((proc / "environ").read_text().split("\0"))
    own = {str(place): "PLACE", str(parent): "PARENT", str(process_id): "OWN"}
    text = "\n".join(seen)
    for word, name in own.items():
        text = re.sub(rf"(?<!\d){re.escape(word)}(?!\d)", name, text)
    # A forked loop has the socket by which it asks for forks, so the number of its next descriptor is another.
    numbers = (
        r"(?<=\[)\d+|[0-9a-f]{8}-[-0-9a-f]{27}|(?<=/work-)\w+|(?<=ralph-loop-)\w+|(?<=127.0.0.1:)\d+"
        r"|(?<=--iteration\n)\d+"
    )
    limits = (proc / "limits").read_text()  # as they are: a limit may be the same number as a process id
    return [line for line in [*re.sub(numbers, "N", text).splitlines(), *limits.splitlines()] if line]


def test_a_server_ends_with_the_process_that_started_it_however_that_ended() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STARTS_ONE_AND_DIES], env=ENVIRONMENT, capture_output=True, check=False
    )
    assert ran.returncode == -signal.SIGKILL
    assert is_gone(int(ran.stdout))


def start_that_fails(command: list[str], **popen: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", FAILS_WITHIN, command[3]], stderr=subprocess.DEVNULL, **popen
    )


@pytest.mark.parametrize(
    ("start", "environment", "words"),
    [
        (subprocess.Popen, {"BASH_MAX_TIMEOUT_MS": "no number"}, r"AssertionError: exit codes \[78, 78\]"),
        (start_that_fails, {}, "SystemError: in the middle"),
    ],
)
def test_a_server_that_cannot_get_ready_is_an_error_with_its_words(start, environment, words) -> None:
    with pytest.raises(RuntimeError, match=rf"(?s)could not get ready:.*{words}"):
        fork_server._Server(start, environment=environment)
