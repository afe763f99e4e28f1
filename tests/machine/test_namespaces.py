"""A command in namespaces ends like any other: with its status, its grace period, and everything that it has started."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.machine import launcher
from ralph.machine.command_supervisor import CommandSupervisor, SupervisedCommand
from ralph.places.gather import gather_places
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.patience import wait_until
from tests.processes.descriptors import open_descriptors, wait_until_closed
from tests.program.namespaces import needs_namespaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[[str], SupervisedCommand]

pytestmark = needs_namespaces


@pytest.fixture
def start(tmp_path, monkeypatch) -> Iterator[Start]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    work = tmp_path / "work"
    work.mkdir()
    roots = [str(work)]
    plan = plan_box(SandboxSettings(net="off"), environment, (work,))
    box = CommandBox(plan, roots, environment, lambda: gather_places(roots, environment))
    supervisor = CommandSupervisor(environment, most_processes=0, confinement=box.confinement)

    def run(command: str) -> SupervisedCommand:
        return supervisor.start(
            ["/bin/bash", "-c", command], cwd=work, environment=box.variables(environment), grace_s=5
        )

    yield run
    supervisor.close()
    box.close()


def ended(process: SupervisedCommand) -> tuple[int, str]:
    status = process.wait_for_end()
    said = b""
    while chunk := os.read(process.output_descriptor, 65_536):
        said += chunk
    assert process.kill_what_is_left()
    process.close()
    return status, said.decode()


def members(directory: Path) -> list[int]:
    """The processes that have a process namespace of their own and work in a directory."""
    found = []
    own = Path("/proc/self/ns/pid").readlink()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == directory:
                found += [int(entry.name)] if (entry / "ns" / "pid").readlink() != own else []
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.parametrize(
    ("command", "status"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_a_command_has_its_own_status(start, command, status) -> None:
    assert ended(start(command)) == (status, "")


def test_a_request_to_stop_reaches_the_command_and_leaves_it_time(start, tmp_path) -> None:
    process = start("trap 'echo cleaned; exit 3' TERM; touch there; while :; do sleep 0.01; done")
    wait_until((tmp_path / "work" / "there").exists)
    process.ask_to_stop()
    status, said = ended(process)
    assert (status, said.splitlines()[-1]) == (3, "cleaned")  # bash also tells of its `sleep`


def test_what_a_command_leaves_behind_may_finish_and_is_then_ended(start, tmp_path) -> None:
    # A busy machine may let it start too late. Without time for it, it never writes.
    wait_until(lambda: ended(start("exec > >(sleep 0.03; cat); echo late")) == (0, "late\n"))
    asked = "(trap 'echo asked; exit' TERM; touch there; while :; do sleep 0.01; done) & until [ -e there ]; do :; done"
    assert ended(start(asked))[1].splitlines()[-1] == "asked"
    assert ended(start("(trap '' TERM; exec setsid sleep 600 >/dev/null 2>&1) & :")) == (0, "")
    wait_until(lambda: members(tmp_path / "work") == [])


@pytest.mark.parametrize(("command", "stopped"), [(":", 0), ("sleep 600 & setsid sleep 600 & :", 2)])
def test_what_a_command_leaves_running_is_counted(start, command, stopped) -> None:
    process = start(f"exec >/dev/null 2>&1; {command}")
    assert (ended(process), process.stopped) == ((0, ""), stopped)


def test_everything_ends_with_the_launcher(start, tmp_path) -> None:
    others = {*launcher.children_of(os.getpid())}
    process = start("r() { setsid sh -c 'touch there; sleep 0.01' & wait; r; }; r & sleep 600")
    wait_until((tmp_path / "work" / "there").exists)
    (supervisor,) = [
        pid
        for pid in launcher.children_of(os.getpid())
        if pid not in others and b"supervisor.py" in command_line(pid)
    ]
    (its_launcher,) = launcher.children_of(supervisor)
    os.kill(its_launcher, signal.SIGKILL)
    wait_until(lambda: members(tmp_path / "work") == [])
    process.wait_for_end()
    wait_until(process.kill_what_is_left)
    process.close()


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def mounts(of_test: Path) -> list[str]:
    """The mounts of this process, without those that tests of other workers make in their directories meanwhile."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if "/popen-gw" not in line or str(of_test) in line]


def test_many_commands_leave_nothing_behind(start, tmp_path) -> None:
    """No process, so no namespace either, which would need a process, a mount or a descriptor."""
    ended(start(":"))
    mounted = mounts(tmp_path)
    before = {*launcher.children_of(os.getpid())}, open_descriptors()
    for _ in range(4):
        found = ended(start("setsid sleep 600 >/dev/null 2>&1 & echo x > /tmp/x; :"))
        assert found == (0, ""), found[1]
    assert {*launcher.children_of(os.getpid())} - before[0] == set()
    wait_until_closed(before[1])
    assert mounts(tmp_path) == mounted
    assert members(tmp_path / "work") == []
