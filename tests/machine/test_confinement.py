"""The process of a command restricts itself before its program runs, and a program whose sandbox fails does not run."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.machine import launcher, restriction
from ralph.machine.command_supervisor import CommandSupervisor, Confinement
from ralph.machine.starting import start_confined
from ralph.sandbox.landlock import READ, READ_DIR, WRITE, Rule, build_ruleset
from ralph.sandbox.seccomp import make_filter
from tests.program.namespaces import MEANS

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
NOTHING = Confinement(restriction.NO_RULESET, restriction.NO_FILTER)


def ran(tmp_path, confinement: Confinement, command: str) -> tuple[int, str]:
    [result] = ran_after_another(tmp_path, [confinement], command)
    return result


def ran_after_another(tmp_path, confinements: Iterable[Confinement], command: str) -> list[tuple[int, str]]:
    """The status and the output of a command that one supervisor runs in each of these sandboxes."""
    confined = iter(confinements)
    results: list[tuple[int, str]] = []
    supervisor = CommandSupervisor(
        {"PATH": os.environ["PATH"]}, most_processes=0, confinement=lambda _directory: next(confined)
    )
    try:
        for _ in confinements:
            started = supervisor.start(
                ["/bin/sh", "-c", command], cwd=tmp_path, environment={"PATH": os.environ["PATH"]}, grace_s=1
            )
            status = started.wait_for_end()
            results.append((status, os.read(started.output_descriptor, 4096).decode()))
            started.close()
    finally:
        supervisor.close()
    return results


@pytest.mark.parametrize(
    ("confinement", "step"),
    [
        (Confinement(restriction.NO_RULESET, bytes(8)), "seccomp"),
        (Confinement(0, restriction.NO_FILTER), "landlock"),
    ],
)
def test_a_program_whose_sandbox_fails_does_not_run(tmp_path, confinement, step) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        if confinement.ruleset == 0:
            confinement = Confinement(nothing, restriction.NO_FILTER)
        status, said = ran(tmp_path, confinement, "touch ran")
    finally:
        os.close(nothing)
    assert status == launcher.NOT_CONFINED
    assert said.startswith(f"the command was not started: its sandbox could not be set up ({step}: ")
    assert list(tmp_path.iterdir()) == []


def test_a_program_whose_namespaces_fail_does_not_run(tmp_path) -> None:
    with Path(os.devnull).open() as nothing:
        spaces = (nothing.fileno(),)
        confinement = Confinement(
            restriction.NO_RULESET, restriction.NO_FILTER, spaces=spaces, directory=str(tmp_path)
        )
        status, said = ran(tmp_path, confinement, "touch ran")
    assert status == launcher.NOT_CONFINED
    why = "its sandbox could not be set up (namespaces: Invalid argument)"
    assert (said, list(tmp_path.iterdir())) == (f"the command was not started: {why}\n", [])


@pytest.mark.skipif(MEANS.landlock.abi == 0, reason="this kernel has no Landlock")
def test_the_process_that_waits_for_a_command_is_never_one_with_other_restrictions(tmp_path) -> None:
    """It restricts itself before there is a command, as it was for the last one."""
    everything, no_internet = (
        make_filter(platform.machine(), internet=internet, unix_sockets=False) or restriction.NO_FILTER
        for internet in ("all", "none")
    )
    reads = Rule("/", READ | READ_DIR)
    writes = Rule(str(tmp_path), READ | READ_DIR | WRITE)
    rulesets = [build_ruleset(1, [reads]), build_ruleset(1, [reads, writes])]
    ways = {
        ("internet", "writes", "unlimited"): Confinement(rulesets[1], everything, ruleset_number=1),
        ("writes", "unlimited"): Confinement(rulesets[1], no_internet, ruleset_number=1),
        ("internet", "unlimited"): Confinement(rulesets[0], everything, ruleset_number=2),
        ("internet", "writes", "1"): Confinement(rulesets[1], everything, 512, ruleset_number=1),
    }
    order = [way for way in ways for _ in range(2)] * 2
    look = 'import _socket; _socket.socket(); print("internet")'
    command = (
        f"{sys.executable} -I -S -c '{look}' 2>&-; (: > new) 2>&- && echo writes; ulimit -f;"
        "grep -cE '^CapEff:.0+$' /proc/self/status"
    )
    try:
        results = ran_after_another(tmp_path, [ways[way] for way in order], command)
    finally:
        for one in rulesets:
            os.close(one)
    assert [tuple(said.split()) for _, said in results] == [(*way, "1") for way in order]


def test_a_thread_that_starts_a_confined_process_leaves_the_others_as_they_are(tmp_path) -> None:
    core_limit = resource.getrlimit(resource.RLIMIT_CORE)
    process = start_confined(
        ["/bin/sh", "-c", "grep NoNewPrivs /proc/self/status"],
        restriction.NO_RULESET,
        restriction.NO_FILTER,
        stdout=-1,
    )
    said, _ = process.communicate()
    assert said == b"NoNewPrivs:\t1\n"
    assert "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()
    assert resource.getrlimit(resource.RLIMIT_CORE) == core_limit, "which all threads share"


def test_a_confined_start_that_fails_starts_nothing(tmp_path) -> None:
    with pytest.raises(OSError, match="seccomp"):
        start_confined(["/bin/touch", str(tmp_path / "ran")], restriction.NO_RULESET, bytes(8))
    assert list(tmp_path.iterdir()) == []
