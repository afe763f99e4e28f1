"""The supervisor with real processes: what it forks, what each command is given, and what the supervisor's end
costs.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine import command_supervisor as ours
from ralph.machine import launcher, supervisor
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.running_command import NEVER_STARTED
from ralph.machine.starting import environment_for_commands
from tests.conftest import may_pass_over_permissions
from tests.patience import wait_until, within_s
from tests.processes.children import children, is_gone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.machine.command_supervisor import SupervisedCommand

roots = pytest.mark.skipif(
    not may_pass_over_permissions(), reason="only root may look into a process that is not dumpable"
)
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")
ENVIRONMENT = {"PATH": os.environ["PATH"]}
# Starts a command that gets the supervisor's pid, and waits to be killed.
STARTER = """
import os, sys, time
from pathlib import Path
from ralph.machine.command_supervisor import CommandSupervisor
serving = CommandSupervisor({})
serving.start_early()
environment = dict(os.environ, SUPERVISOR=str(serving.pid))
command = serving.start(["/bin/sh", "-c", sys.argv[1]], cwd=Path("/"), environment=environment, grace_s=60)
os.write(1, os.read(command.output_descriptor, 100))
time.sleep(99)
"""
PARENT = "of() { sed -n 's/^PPid:[^0-9]*//p' /proc/$1/status; }"
"""Defines a shell function that prints the parent of a process."""


@pytest.fixture
def serving() -> Iterator[CommandSupervisor]:
    supervising = CommandSupervisor(ENVIRONMENT)
    yield supervising
    supervising.close()


def started(
    serving: CommandSupervisor,
    line: str,
    *,
    grace_s: float = 0.3,
    cwd: str = "/",
    streams: Mapping[str, Any] = {},
    **environment: str,
) -> SupervisedCommand:
    """Starts a line of a shell. `streams` are descriptors by the names of the parameters of `start`."""
    command, variables = ["/bin/sh", "-c", line], ENVIRONMENT | environment
    return serving.start(command, cwd=Path(cwd), environment=variables, grace_s=grace_s, **streams)


def finished(command: SupervisedCommand) -> tuple[int, str]:
    """Waits for the end of the command, and returns its exit status and its output."""
    status = command.wait_for_end()
    deadline_s = time.monotonic() + within_s()
    while not command.kill_what_is_left():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    output = b""
    while part := os.read(command.output_descriptor, 65_536):
        output += part
    command.close()
    return status, output.decode()


def ran(serving: CommandSupervisor, line: str, *, cwd: str = "/", **environment: Any) -> str:
    status, output = finished(started(serving, line, cwd=cwd, **environment))
    assert status == 0, output
    return output


def waiting_launcher(serving: CommandSupervisor) -> int:
    """Waits until the supervisor has a launcher that waits for a command. Returns the launcher's process id."""
    deadline_s = time.monotonic() + within_s()
    assert serving.pid is not None
    while not (found := launcher.children_of(serving.pid)) or "S" not in state_of(found[0]):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    [pid] = found
    return pid


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_both_ends_know_the_same_protocol() -> None:
    """The supervisor is a script that ralph does not import, so it has constants of its own."""
    assert (ours._CONTROL, ours._HEAD_BYTES, ours._IN_GROUP) == (
        supervisor.CONTROL,
        supervisor.HEAD_BYTES,
        supervisor.IN_GROUP,
    )


@linux_only
def test_one_launcher_serves_one_command_after_another(serving) -> None:
    launchers = {ran(serving, f"{PARENT}; echo $PPID $(of $PPID)") for _ in range(3)}
    assert serving.pid is not None
    assert launchers == {f"{waiting_launcher(serving)} {serving.pid}\n"}
    assert (parent_of(serving.pid), os.getsid(serving.pid)) == (os.getpid(), serving.pid)


@linux_only
@roots
def test_nothing_of_a_command_is_left_in_the_launcher(serving, tmp_path) -> None:
    with (tmp_path / "input").open("w+b") as source:
        source.write(b"one\ntwo\n")
        source.seek(0)
        first = started(serving, "read one; echo $one", streams={"input_from": source.fileno()}, ONE="1")
        assert (finished(first), ran(serving, "cat; echo .$ONE").strip()) == ((0, "one\n"), ".")
    missing = serving.start(["/no/such"], cwd=tmp_path, environment={}, grace_s=0.3)
    assert finished(missing)[0] == 127
    taker = waiting_launcher(serving)
    assert sorted(os.listdir(f"/proc/{taker}/fd")) == ["0", "1", "2", "3"]  # noqa: PTH208 - names
    assert {os.readlink(f"/proc/{taker}/fd/{number}") for number in range(3)} == {os.devnull}  # noqa: PTH115 - as they are
    assert os.readlink(f"/proc/{taker}/cwd") == "/"  # noqa: PTH115 - as it is


@linux_only
def test_a_request_to_stop_that_came_too_late_does_not_reach_the_next_command(serving) -> None:
    """When two signals are pending together, the launcher notices after the first one that the command has ended. It
    must not pass the second one on to the next command.
    """
    ran(serving, ":")
    taker = waiting_launcher(serving)
    before = serving.pid
    assert before is not None
    command = started(serving, f"kill -STOP {before} {taker}; exit 3")
    while not (shells := launcher.children_of(taker)) or state_of(shells[0]) != "Z":
        time.sleep(0.001)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        os.kill(taker, number)
    assert finished(command)[0] == 3
    os.kill(before, signal.SIGCONT)
    assert (ran(serving, "echo again"), serving.pid) == ("again\n", before)


def test_each_command_is_given_its_own(serving, tmp_path) -> None:
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    line = "pwd; umask; ulimit -n; echo $OWN$OTHER; cat"
    umask = os.umask(0o027)
    try:
        said = ran(serving, line, cwd=str(tmp_path), OWN="first")
        assert said.split() == [str(tmp_path), "0027", str(usual), "first"]
        os.umask(0o022)
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual - 1, most))
        assert ran(serving, line, OTHER="2nd").split() == ["/", "0022", str(usual - 1), "2nd"]
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))


def test_more_words_than_a_datagram_takes_arrive(serving) -> None:
    environment = {f"LONG_{number}": "x" * 100_000 for number in range(10)}
    line = "for n in 0 1 2 3 4 5 6 7 8 9; do eval printf %s '$LONG_'$n; done | wc -c"
    assert ran(serving, line, **environment).split() == ["1000000"]


def test_a_variable_without_a_name_which_the_system_allows_stops_no_command() -> None:
    environment = environment_for_commands(ENVIRONMENT | {"": "x"})
    serving = CommandSupervisor(environment)
    command = serving.start(["/bin/sh", "-c", "echo ran"], cwd=Path("/"), environment=environment, grace_s=1)
    assert finished(command) == (0, "ran\n")
    serving.close()


@linux_only
@roots
def test_a_command_has_no_descriptor_but_the_usual_and_the_supervisor_none_of_a_command(serving) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        for _ in range(3):
            assert ran(serving, "cd /proc/self/fd; echo *").split()[:3] == ["0", "1", "2"]
            assert ran(serving, "exec ls /proc/self/fd").split() == ["0", "1", "2", "3"], "3 is the listing"
        assert sorted(os.listdir(f"/proc/{serving.pid}/fd")) == ["0", "1", "2", "3"]  # noqa: PTH208 - names
    finally:
        os.close(reading)
        os.close(writing)


@linux_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_supervisor_that_is_dead_or_stopped_when_a_command_comes_is_replaced(serving, number) -> None:
    ran(serving, ":")
    assert serving.pid is not None
    os.kill(serving.pid, number)
    while state_of(serving.pid) not in "TZ":
        time.sleep(0.001)
    assert ran(serving, "echo again") == "again\n"


@linux_only
def test_a_supervisor_that_is_replaced_leaves_no_ended_launcher(serving) -> None:
    before = children()
    for _ in range(3):
        ran(serving, ":")
        # On a busy machine it may have been replaced before this command.
        ran(serving, "kill -STOP $SUPERVISOR 2>/dev/null; :", SUPERVISOR=str(serving.pid))
        ran(serving, ":")
        assert children() - before == {serving.pid}


@linux_only
def test_a_request_that_no_launcher_took_was_never_started(serving, tmp_path) -> None:
    ran(serving, ":")
    taker = waiting_launcher(serving)
    assert serving.pid is not None
    os.kill(serving.pid, signal.SIGSTOP)
    os.kill(taker, signal.SIGSTOP)
    serving._running = lambda: serving._serving  # as if the signals came a moment later
    command = started(serving, f"touch {tmp_path}/effect")
    os.kill(serving.pid, signal.SIGKILL)
    assert finished(command) == (NEVER_STARTED, "")
    assert not (tmp_path / "effect").exists()


@linux_only
def test_a_waiting_launcher_that_somebody_stops_is_continued(serving) -> None:
    ran(serving, ":")
    for _ in range(3):
        os.kill(waiting_launcher(serving), signal.SIGSTOP)
        assert ran(serving, "echo goes on") == "goes on\n"


@linux_only
def test_children_of_this_process_that_were_there_before_are_left_alone(serving) -> None:
    with subprocess.Popen(["sleep", "99"]) as other:
        finished(started(serving, "setsid sleep 99 & kill -9 $PPID; sleep 99"))
        assert other.poll() is None
        other.kill()


def test_input_and_errors_may_be_files_of_their_own(serving, tmp_path) -> None:
    (tmp_path / "input").write_text("given\n")
    with (tmp_path / "input").open("rb") as source, (tmp_path / "errors").open("wb") as errors:
        streams = {"input_from": source.fileno(), "errors_to": errors.fileno()}
        line = "cat; echo bad >&2; ls -l /proc/self/fd"
        status, output = finished(started(serving, line, streams=streams))
    assert status == 0
    assert output.startswith("given\n")
    assert (tmp_path / "errors").read_text() == "bad\n"
    if Path("/proc/self/fd").is_dir():
        assert output.count(str(tmp_path)) == 2, "one descriptor for each"


@pytest.mark.parametrize(
    ("word", "error"), [("\0", ValueError), ("x" * 200_000, OSError), ("\ud800", ValueError)]
)
def test_a_word_that_no_command_line_can_hold_is_refused(serving, word, error) -> None:
    with pytest.raises(error):
        started(serving, word)
    assert ran(serving, "echo still there") == "still there\n"


def test_a_missing_directory_is_an_os_error(serving) -> None:
    with pytest.raises(FileNotFoundError):
        started(serving, "true", cwd="/no/such")


def test_without_a_limit_no_control_group_is_made() -> None:
    serving = CommandSupervisor(ENVIRONMENT, most_processes=0)
    groups = Path("/proc/self/cgroup").read_text() if Path("/proc/self/cgroup").exists() else ""
    assert ran(serving, "cat /proc/self/cgroup 2>/dev/null || true") == groups
    assert serving.why_no_group() == "none was asked for"
    serving.close()


@linux_only
def test_no_command_can_trace_the_supervisor() -> None:
    """The supervisor's script runs in a process whose control socket has ended, so it returns at once. The process then
    must not be dumpable (prctl(2), PR_GET_DUMPABLE), because only a dumpable process can be traced.
    """
    script = """
import ctypes, os, socket, sys
ours, theirs = socket.socketpair()
ours.shutdown(socket.SHUT_WR)
os.dup2(ours.fileno(), 0)  # it stays open: the supervisor closes all but the first four
os.dup2(os.dup(theirs.fileno()), 3)
sys.path.append(sys.argv[1])
import supervisor
assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1
supervisor.main(str(os.getppid()), "", "")
os.write(1, b"%d" % ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""
    folder = str(Path(supervisor.__file__).parent)
    assert subprocess.check_output([sys.executable, "-c", script, folder]) == b"0"


@linux_only
def test_a_supervisor_whose_waiting_launcher_was_killed_ends_and_is_replaced(serving) -> None:
    ran(serving, ":")
    before = serving.pid
    assert before is not None
    os.kill(waiting_launcher(serving), signal.SIGKILL)
    assert is_gone(before)
    assert ran(serving, "echo again") == "again\n"
    assert serving.pid != before


@linux_only
def test_a_stopped_launcher_does_not_save_its_tree(serving) -> None:
    ran(serving, ":")
    line = "kill -STOP $SUPERVISOR; kill -STOP $PPID; echo $$; sleep 99"
    command = started(serving, line, SUPERVISOR=str(serving.pid))
    shell = int(os.read(command.output_descriptor, 100))
    command.ask_to_stop()
    command.kill_what_is_left()
    assert finished(command)[0] == -signal.SIGKILL
    assert is_gone(shell)
    assert ran(serving, "echo again") == "again\n"


@linux_only
def test_a_launcher_that_its_command_stops_is_continued(serving) -> None:
    for _ in range(5):
        assert finished(started(serving, "kill -STOP $PPID; exit 3"))[0] == 3


@linux_only
def test_a_stopped_launcher_ends_its_command_when_ralph_is_killed() -> None:
    line = "kill -STOP $SUPERVISOR; kill -STOP $PPID; echo $$ $PPID; sleep 99"
    with subprocess.Popen([sys.executable, "-c", STARTER, line], stdout=subprocess.PIPE) as ralph:
        assert ralph.stdout
        shell, stopped = map(int, ralph.stdout.readline().split())
        ralph.kill()
    try:
        assert is_gone(shell)
        assert is_gone(stopped)
    finally:
        launcher.send_signal([stopped, shell], signal.SIGKILL)


def test_asking_to_stop_reaches_the_whole_tree_and_leaves_the_supervisor(serving) -> None:
    # A shell that has just forked may have its parent's trap still, and lose a signal by it.
    sleep = "sh -c 'echo; exec sleep 99' & wait"
    line = f"(trap 'echo child; exit' TERM; {sleep}) & trap 'echo parent; exit 7' TERM; {sleep}"
    command = started(serving, line, grace_s=60)
    before = serving.pid
    lines = b""
    while lines.count(b"\n") < 2:
        lines += os.read(command.output_descriptor, 100)
    command.ask_to_stop()
    status, output = finished(command)
    assert (status, set(output.split())) == (7, {"child", "parent"})
    ran(serving, ":")
    assert serving.pid == before


@linux_only
def test_its_memory_is_that_of_the_first_commands(serving) -> None:
    """A test by hand has shown that the memory after 1,000 commands is that after 10. Here fewer commands run, of
    very different sizes.
    """

    def own_kib() -> int:
        lines = Path(f"/proc/{waiting_launcher(serving)}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))

    def run(count: int) -> int:
        for number in range(count):
            ran(serving, ": " + "x" * (number % 5 * 20_000))
        return own_kib()

    assert run(60) <= run(10) + 64


@linux_only
def test_the_supervisor_ends_with_its_socket(serving) -> None:
    serving.start_early()
    assert serving.pid is not None
    assert serving._serving is not None
    serving._serving._control.close()
    assert is_gone(serving.pid)


@linux_only
def test_no_supervisor_and_no_launcher_is_left_of_a_closed_one() -> None:
    before = set(launcher.children_of(os.getpid()))
    supervising = CommandSupervisor(ENVIRONMENT)
    ran(supervising, "true & true")
    supervising.close()
    supervising.close()
    assert set(launcher.children_of(os.getpid())) == before


def may_lock(place: Path) -> bool:
    with place.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_held_lock_is_free_when_no_process_of_the_command_is_left(serving, tmp_path) -> None:
    """The launcher lets go of it too, although it waits for the next command."""
    place = tmp_path / "lock"
    reading, writing = os.pipe()
    with place.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        streams = {"input_from": reading, "held": held.fileno()}
        command = started(serving, "sleep 99 & echo begun; read word; kill $!", streams=streams)
    os.close(reading)
    assert os.read(command.output_descriptor, 6) == b"begun\n"
    assert not may_lock(place)
    os.close(writing)
    finished(command)
    wait_until(lambda: may_lock(place))


def test_the_output_may_go_to_a_file(serving, tmp_path) -> None:
    with (tmp_path / "output").open("wb") as output:
        command = started(serving, "echo to a file", streams={"output_to": output.fileno()})
        assert finished(command) == (0, "")
    assert (tmp_path / "output").read_text() == "to a file\n"
