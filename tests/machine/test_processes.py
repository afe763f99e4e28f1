from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ralph.machine import launcher, processes
from tests.children import children, is_gone, is_running
from tests.patience import within_s
from tests.rows import every_row

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")


def started(command: str, grace_s: float = 0.3) -> processes.SupervisedCommand:
    environment = {"PATH": os.environ["PATH"]}
    return processes.SupervisedCommand(
        ["/bin/sh", "-c", command], cwd=Path("/"), environment=environment, grace_s=grace_s
    )


def finish(command: processes.SupervisedCommand) -> int:
    status = command.wait_for_end()
    deadline_s = time.monotonic() + within_s()
    while not command.kill_what_is_left() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    command.close()
    return status


@every_row(("command", "status"), [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137), ("kill $$", 143)])
def test_the_status_is_the_commands(command: str, status: int) -> None:
    assert finish(started(command)) == status


def test_a_program_that_is_not_there_ends_with_127_and_says_so() -> None:
    command = processes.SupervisedCommand(["/no/such"], cwd=Path("/"), environment={}, grace_s=1)
    assert os.read(command.output_descriptor, 100) == b"/no/such: No such file or directory\n"
    assert finish(command) == 127


def test_a_missing_directory_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        processes.SupervisedCommand(["true"], cwd=Path("/no/such"), environment={}, grace_s=1)


def test_asking_to_stop_reaches_the_whole_tree() -> None:
    command = started(
        "(trap 'echo child; exit' TERM; sleep 99 & wait) & trap 'echo parent; exit 7' TERM; sleep 99 & wait"
    )
    time.sleep(0.2)
    command.ask_to_stop()
    status = command.wait_for_end()
    assert status == 7
    assert set(os.read(command.output_descriptor, 100).split()) == {b"child", b"parent"}
    finish(command)


@linux_only
def test_a_stopped_launcher_does_not_save_its_tree() -> None:
    command = started("kill -STOP $PPID; echo $$; sleep 99")
    shell = int(os.read(command.output_descriptor, 100))
    deadline_s = time.monotonic() + within_s()
    command.kill_what_is_left()
    finish(command)
    assert is_gone(shell)
    assert time.monotonic() < deadline_s


@linux_only
def test_a_tree_dies_with_a_parent_that_is_killed() -> None:
    """A process like ralph gets SIGKILL; its command ignores TERM and has a daemon in another session."""
    script = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from ralph.machine.processes import SupervisedCommand
        line = "trap '' TERM; echo $$; setsid sh -c 'trap \\"\\" TERM; echo $$; sleep 99; sleep 99' & sleep 99; sleep 99"
        command = SupervisedCommand(
            ["/bin/sh", "-c", line], cwd=Path("/"), environment={"PATH": os.environ["PATH"]}, grace_s=60)
        while True:
            sys.stdout.buffer.write(os.read(command.output_descriptor, 100))
            sys.stdout.buffer.flush()
    """)
    before = children()
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(is_running(pid) for pid in pids)
        parent.send_signal(signal.SIGKILL)
        assert all(is_gone(pid) for pid in pids)
    # Other tests made this process the adopter of its descendants: the launcher is ours now.
    for pid in children() - before:
        os.waitpid(pid, 0)


@linux_only
def test_children_of_this_process_that_were_there_before_are_left_alone() -> None:
    with subprocess.Popen(["sleep", "99"]) as other:
        assert finish(started("setsid sleep 99 & kill -9 $PPID; sleep 99")) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()


@linux_only
def test_the_first_command_makes_this_process_undumpable_and_an_adopter() -> None:
    """Of an undumpable process an ordinary user's child can read neither memory nor environment (prctl(2))."""
    script = textwrap.dedent("""
        import ctypes, os
        from pathlib import Path
        from ralph.machine.processes import SupervisedCommand
        libc = ctypes.CDLL(None)
        def state():
            adopts = ctypes.c_int()
            libc.prctl(37, ctypes.byref(adopts), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
            return libc.prctl(3, 0, 0, 0, 0), adopts.value  # PR_GET_DUMPABLE
        print(*state())
        command = SupervisedCommand(["true"], cwd=Path("/"), environment={"PATH": os.environ["PATH"]}, grace_s=1)
        command.wait_for_end()
        command.close()
        print(*state())
    """)
    assert subprocess.check_output([sys.executable, "-c", script]).split() == [b"1", b"0", b"0", b"1"]


def test_what_would_ask_somebody_is_answered_in_the_environment() -> None:
    environment = processes.environment_for_commands(
        {"PATH": "/bin", "PAGER": "more", "CI": "1", "GIT_ASKPASS": "mine"}
    )
    assert (environment["PAGER"], environment["EDITOR"], environment["TERM"]) == ("cat", "false", "dumb")
    assert (environment["CI"], environment["PATH"], environment["GIT_ASKPASS"]) == ("1", "/bin", "mine")
    assert processes.environment_for_commands({})["GIT_ASKPASS"] == "false"


@linux_only
def test_children_are_found_with_and_without_the_kernels_list() -> None:
    with subprocess.Popen(["sleep", "99"]) as child:
        assert child.pid in launcher.children_of(os.getpid())
        assert sorted(launcher._children_by_scan(os.getpid())) == sorted(launcher.children_of(os.getpid()))
        child.kill()


def test_a_process_that_is_gone_has_no_children() -> None:
    with subprocess.Popen(["true"]) as child:
        pass
    assert launcher.children_of(child.pid) == []


def test_the_status_is_known_where_a_parent_has_left_sigchld_ignored() -> None:
    """The system would forget it, and it would read as 0."""
    script = textwrap.dedent("""
        import signal
        from pathlib import Path
        from ralph.machine.processes import SupervisedCommand
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print(SupervisedCommand(["false"], cwd=Path("/"), environment={}, grace_s=1).wait_for_end())
    """)
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout == "1\n"
