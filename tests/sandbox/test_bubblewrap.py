"""Tests the command line of bubblewrap, as words and with the real program."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ralph.machine.own_programs import ProgramSearch
from ralph.sandbox.bubblewrap import bwrap_command
from ralph.sandbox.detection import find_means
from tests.patience import TEST_S, within_s

MEANS = find_means(ProgramSearch(os.environ.get("PATH", "")))
needs_namespaces = pytest.mark.skipif(MEANS.bwrap is None, reason="no namespaces can be made here")
OWN_DEVICES = ("--tmpfs", "/dev/shm", "--remount-ro", "/dev")


def test_later_mounts_lie_on_top_and_only_places_in_tmp_are_bound_again() -> None:
    words = bwrap_command(
        "/usr/bin/bwrap",
        temporary="/var/ralph/tmp",
        writable=("/tmp/work", "/srv", "/dev/shm", "/var/ralph/tmp"),
        devices=("/dev/nvidia0",),
        visible=("/tmp/python", "/usr"),
        pinned=("/tmp/work/.git",),
        read_only=("/tmp/work/.git/config",),
        empty_directories=("/run/user",),
        empty_files=("/run/docker.sock",),
        closed="/var/ralph/closed",
        closed_directories=("/tmp/work/secrets",),
        has_queues=True,
        has_network=False,
    )
    assert words == [
        *("/usr/bin/bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-net"),
        *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
        *("--mqueue", "/dev/mqueue", "--bind", "/var/ralph/tmp", "/tmp"),
        *("--ro-bind", "/tmp/python", "/tmp/python"),
        *("--bind", "/tmp/work", "/tmp/work", "--bind", "/srv", "/srv"),
        *("--dev-bind", "/dev/nvidia0", "/dev/nvidia0"),
        *("--bind", "/tmp/work/.git", "/tmp/work/.git"),
        *("--ro-bind", "/tmp/work/.git/config", "/tmp/work/.git/config"),
        *("--tmpfs", "/run/user", "--ro-bind", "/dev/null", "/run/docker.sock"),
        *("--ro-bind", "/var/ralph/closed", "/tmp/work/secrets"),
        *OWN_DEVICES,
    ]


def test_places_that_hold_tmp_leave_it_to_the_command() -> None:
    words = bwrap_command("/usr/bin/bwrap", writable=("/", "/tmp"))
    assert words[4:] == [
        *("--bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--bind", "/tmp", "/tmp"),
        *OWN_DEVICES,
    ]


def enclosed(enclosure: dict[str, Any], script: str) -> subprocess.CompletedProcess[str]:
    assert MEANS.bwrap is not None
    return subprocess.run(
        [
            *bwrap_command(MEANS.bwrap, **enclosure),
            "--chdir",
            *enclosure["writable"],
            "/bin/sh",
            "-c",
            script,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
    )


@pytest.fixture
def work(tmp_path):
    for name in ("work/.git/hooks", "temporary", "sockets"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work" / ".git" / "config").write_text("[core]\n")
    (tmp_path / "sockets" / "agent").write_text("x")
    return tmp_path


def enclosure_of(work: Path, *, has_network: bool = True) -> dict[str, Any]:
    root = str(work / "work")
    return {
        "temporary": str(work / "temporary"),
        "writable": (root,),
        "visible": (str(work / "sockets"),),
        "pinned": (f"{root}/.git",),
        "read_only": (f"{root}/.git/config", f"{root}/.git/hooks"),
        "empty_directories": (str(work / "sockets"),),
        "has_network": has_network,
    }


@needs_namespaces
def test_a_command_sees_its_own_processes_and_temporary_files_only(work) -> None:
    ran = enclosed(
        enclosure_of(work), f"pwd; (cd /proc && echo [0-9]*); echo x > /tmp/mine; ls {work}/sockets; ls /dev"
    )
    directory, processes, *devices = ran.stdout.splitlines()
    assert directory == str(work / "work"), ran.stderr
    # bubblewrap, the shell and its subshell.
    assert processes == "1 2 3"
    assert {"null", "pts", "shm"} <= {*devices}
    assert not {name for name in devices if name.startswith(("sd", "vd", "nvme", "mem", "kmsg"))}
    assert (work / "temporary" / "mine").read_text() == "x\n"


@needs_namespaces
def test_what_makes_git_run_programs_is_read_only(work) -> None:
    tries = (
        "echo x > .git/config",
        "mv .git/config .git/other",
        "echo x > .git/hooks/pre-commit",
        "mv .git/hooks .git/other",
        "mv .git other",
        "rm -rf .git/hooks",
    )
    ran = enclosed(enclosure_of(work), "; ".join(f"({one}) && echo '{one}: done'" for one in tries))
    assert "done" not in ran.stdout
    assert (work / "work" / ".git" / "config").read_text() == "[core]\n"
    assert enclosed(enclosure_of(work), "echo x > .git/index && echo x > file").returncode == 0


@needs_namespaces
@pytest.mark.skipif(not MEANS.has_network_namespace, reason="no namespaces can be made here")
def test_without_network_loopback_works_and_nothing_else_is_there(work) -> None:
    ran = enclosed(enclosure_of(work, has_network=False), "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert ran.stdout.split() == ["lo"]


@needs_namespaces
def test_everything_ends_with_the_program_that_began_it(work) -> None:
    """That includes a process that has left its session and starts itself again."""
    assert MEANS.bwrap is not None
    daemon = "respawn() { setsid sh -c 'echo >> starts; sleep 0.01' & wait; respawn; }; respawn & sleep 600"
    words = bwrap_command(MEANS.bwrap, **enclosure_of(work))
    started = subprocess.Popen([*words, "--chdir", f"{work}/work", "/bin/bash", "-c", daemon])
    starts = work / "work" / "starts"
    deadline_s = time.monotonic() + within_s(10)
    while not (starts.exists() and starts.stat().st_size >= 3) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    (inside,) = {namespace_of(pid) for pid in children_of(started.pid)}
    assert inside != namespace_of(os.getpid())
    assert members_of(inside)
    started.kill()
    started.wait()
    while members_of(inside) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not members_of(inside)


def children_of(pid: int) -> set[int]:
    return {int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def namespace_of(pid: int) -> str | None:
    try:
        has_ended = ") Z " in Path(f"/proc/{pid}/stat").read_text()  # and waits for its parent
        return None if has_ended else str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it has ended
        return None


def members_of(namespace: str | None) -> set[int]:
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return {pid for pid in pids if namespace_of(pid) == namespace}
