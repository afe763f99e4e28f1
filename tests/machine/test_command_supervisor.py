"""The supervisor over real processes: what it forks, what each command is given, and what its end costs."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.machine import command_supervisor as ours
from ralph.machine import launcher, supervisor
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.running_command import NEVER_STARTED
from tests.children import is_gone
from tests.patience import within_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.machine.command_supervisor import ForkedCommand

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")
ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def serving() -> Iterator[CommandSupervisor]:
    supervising = CommandSupervisor(ENVIRONMENT)
    yield supervising
    supervising.close()


def started(
    serving: CommandSupervisor, line: str, *, grace_s: float = 0.3, cwd: str = "/", **environment: str
) -> ForkedCommand:
    command = ["/bin/sh", "-c", line]
    return serving.start(command, cwd=Path(cwd), environment=ENVIRONMENT | environment, grace_s=grace_s)


def finished(command: ForkedCommand) -> tuple[int, str]:
    """Status and output."""
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


def ran(serving: CommandSupervisor, line: str, *, cwd: str = "/", **environment: str) -> str:
    status, output = finished(started(serving, line, cwd=cwd, grace_s=0.3, **environment))
    assert status == 0, output
    return output


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_both_ends_know_the_same_protocol() -> None:
    """The supervisor is no module of ralph's process, and has its own."""
    assert (ours._CONTROL, ours._HEAD_BYTES, ours._IN_GROUP) == (
        supervisor.CONTROL,
        supervisor.HEAD_BYTES,
        supervisor.IN_GROUP,
    )


@pytest.mark.parametrize(
    ("line", "status"), [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137), ("kill $$", 143)]
)
def test_the_status_is_the_commands(serving: CommandSupervisor, line: str, status: int) -> None:
    assert finished(started(serving, line))[0] == status


@linux_only
def test_one_process_serves_all_commands_and_each_has_a_launcher_of_its_own(
    serving: CommandSupervisor,
) -> None:
    launchers = [
        int(ran(serving, "echo $PPID; sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status").split()[0])
        for _ in range(3)
    ]
    assert len(set(launchers)) == 3
    assert serving.pid is not None
    assert parent_of(serving.pid) == os.getpid()
    assert os.getsid(serving.pid) == serving.pid


def test_each_command_is_given_its_own(serving: CommandSupervisor, tmp_path: Path) -> None:
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    line = "pwd; umask; ulimit -n; echo $OWN$OTHER; cat"
    umask = os.umask(0o027)
    try:
        assert ran(serving, line, cwd=str(tmp_path), OWN="first").split() == [
            str(tmp_path),
            "0027",
            str(usual),
            "first",
        ]
        os.umask(0o022)
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual - 1, most))
        assert ran(serving, line, OTHER="2nd").split() == ["/", "0022", str(usual - 1), "2nd"]
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))


def test_more_words_than_a_datagram_takes_arrive(serving: CommandSupervisor) -> None:
    environment = {f"LONG_{number}": "x" * 100_000 for number in range(10)}
    line = (
        'echo "$(printf %s "$LONG_0$LONG_1$LONG_2$LONG_3$LONG_4$LONG_5$LONG_6$LONG_7$LONG_8$LONG_9" | wc -c)"'
    )
    assert ran(serving, line, **environment).split() == ["1000000"]


@linux_only
def test_a_command_has_no_descriptor_but_the_usual_and_the_supervisor_none_of_a_command(
    serving: CommandSupervisor,
) -> None:
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
def test_a_command_that_kills_the_supervisor_ends_alone_and_its_effects_are_unknown(
    serving: CommandSupervisor,
) -> None:
    ran(serving, ":")
    before = serving.pid
    line = "(trap '' TERM; setsid sh -c 'echo $$; trap \"\" TERM; sleep 99; sleep 99') & sleep 0.1; kill -9 $SUPERVISOR; sleep 99"
    status, output = finished(started(serving, line, SUPERVISOR=str(before)))
    assert status == -signal.SIGKILL
    assert is_gone(int(output))
    assert ran(serving, "echo again") == "again\n"
    assert serving.pid != before


@linux_only
def test_a_command_that_kills_its_launcher_leaves_nothing(serving: CommandSupervisor) -> None:
    for _ in range(20):
        status, output = finished(started(serving, "sleep 99 & echo $! $$; kill -9 $PPID; sleep 99"))
        assert status == -signal.SIGKILL
        assert all(is_gone(int(pid), limit_s=0) for pid in output.split())


@linux_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_supervisor_that_is_dead_or_stopped_when_a_command_comes_is_replaced(
    serving: CommandSupervisor, number: int
) -> None:
    ran(serving, ":")
    assert serving.pid is not None
    os.kill(serving.pid, number)
    state = Path(f"/proc/{serving.pid}/stat")
    while state.read_text().rpartition(")")[2].split()[0] not in "TZ":
        time.sleep(0.001)
    assert ran(serving, "echo again") == "again\n"


@linux_only
def test_a_request_that_a_dying_supervisor_did_not_take_was_never_started(
    serving: CommandSupervisor, tmp_path: Path
) -> None:
    ran(serving, ":")
    assert serving.pid is not None
    os.kill(serving.pid, signal.SIGSTOP)
    serving._running = lambda: serving._serving  # type: ignore[method-assign,assignment,return-value] # as if the signal came a moment later
    command = started(serving, f"touch {tmp_path}/effect")
    os.kill(serving.pid, signal.SIGKILL)
    assert finished(command) == (NEVER_STARTED, "")
    assert not (tmp_path / "effect").exists()


@linux_only
def test_a_stopped_launcher_does_not_save_its_tree(serving: CommandSupervisor) -> None:
    command = started(serving, "kill -STOP $PPID; echo $$; sleep 99")
    shell = int(os.read(command.output_descriptor, 100))
    command.ask_to_stop()
    command.kill_what_is_left()
    assert finished(command)[0] == -signal.SIGKILL
    assert is_gone(shell)
    assert ran(serving, "echo again") == "again\n"


def test_asking_to_stop_reaches_the_whole_tree_and_leaves_the_supervisor(serving: CommandSupervisor) -> None:
    line = "(trap 'echo child; exit' TERM; echo; sleep 99 & wait) & trap 'echo parent; exit 7' TERM; echo; sleep 99 & wait"
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
def test_its_memory_is_that_of_the_first_commands(serving: CommandSupervisor) -> None:
    """After 1,000 as after 10 by hand; here fewer, and of very different sizes."""

    def own_kib() -> int:
        lines = Path(f"/proc/{serving.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))

    def run(count: int) -> int:
        for number in range(count):
            ran(serving, ": " + "x" * (number % 5 * 20_000))
        return own_kib()

    assert run(200) <= run(10) + 64


@linux_only
def test_the_supervisor_ends_with_its_socket(serving: CommandSupervisor) -> None:
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
