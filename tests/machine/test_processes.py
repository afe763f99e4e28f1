from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap

import pytest

from ralph.machine import launcher, processes

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")


@linux_only
def test_the_first_command_makes_this_process_undumpable_and_an_adopter() -> None:
    """A child of an ordinary user cannot read the memory and the environment of a non-dumpable process
    (prctl(2)).
    """
    script = textwrap.dedent("""
        import ctypes, os
        from pathlib import Path
        from ralph.machine.command_supervisor import CommandSupervisor
        libc = ctypes.CDLL(None)
        def state():
            adopts = ctypes.c_int()
            libc.prctl(37, ctypes.byref(adopts), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
            return libc.prctl(3, 0, 0, 0, 0), adopts.value  # PR_GET_DUMPABLE
        print(*state())
        environment = {"PATH": os.environ["PATH"]}
        command = CommandSupervisor(environment).start(["true"], cwd=Path("/"), environment=environment, grace_s=1)
        command.wait_for_end()
        command.close()
        print(*state())
    """)
    assert subprocess.check_output([sys.executable, "-c", script]).split() == [b"1", b"0", b"0", b"1"]


def adopts_and_is_dumpable() -> tuple[bool, bool]:
    adopts, libc = ctypes.c_int(), ctypes.CDLL(None)
    libc.prctl(37, ctypes.byref(adopts), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    return bool(adopts.value), bool(libc.prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE


@linux_only
def test_this_process_adopts_orphans_from_its_first_command_on_and_its_memory_is_private() -> None:
    processes.protect_this_process()
    assert adopts_and_is_dumpable() == (True, False)


@linux_only
def test_what_a_test_started_changes_nothing_for_the_tests_after_it() -> None:
    """The test above has made this process an adopter. Nobody would reap what it adopts: Slurm, for one, waits for that. The
    user, who may not be root, must be able to look at it in /proc.
    """
    assert adopts_and_is_dumpable() == (False, True)


def test_what_would_ask_somebody_is_answered_in_the_environment() -> None:
    given = {"PATH": "/bin", "PAGER": "more", "CI": "1", "GIT_ASKPASS": "mine", "CDPATH": "/elsewhere"}
    made = processes.environment_for_commands(given)
    assert (made["PAGER"], made["EDITOR"], made["TERM"]) == ("cat", "false", "dumb")
    assert (made["CI"], made["PATH"], made["GIT_ASKPASS"]) == ("1", "/bin", "mine")
    assert "CDPATH" not in made, "rules take the word of cd as it is"
    assert processes.environment_for_commands({})["GIT_ASKPASS"] == "false"


@linux_only
def test_children_are_found_with_and_without_the_kernels_list(monkeypatch) -> None:
    opened = os.open

    def without_lists(path: str, flags: int) -> int:
        return opened(f"{path}-missing" if path.endswith("/children") else path, flags)

    with subprocess.Popen(["sleep", "99"]) as child:
        listed = launcher.children_of(os.getpid())
        assert child.pid in listed
        monkeypatch.setattr(os, "open", without_lists)
        assert sorted(launcher.children_of(os.getpid())) == sorted(listed)
        child.kill()
    assert launcher.children_of(child.pid) == [], "it is gone"
