"""Runs the probe at every level that this machine can simulate. Each access that the level promises to deny must be
denied. Any other access that works without a sandbox must still work, because the docs list it as not protected.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ralph.machine.own_programs import ProgramSearch
from ralph.sandbox import probe
from ralph.sandbox.box_plan import Means, box_level
from ralph.sandbox.detection import find_means
from ralph.sandbox.landlock import Support
from ralph.sandbox.seccomp import MACHINES
from ralph.sandbox.self_test import ProbeError, SelfTest
from tests.patience import TEST_S, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
    pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this architecture"),
]
MEANS = find_means(ProgramSearch(os.environ.get("PATH", "")), has_overlays=True)
WITHOUT_NAMESPACES = msgspec.structs.replace(MEANS, bwrap=None, has_network_namespace=False)
LEVELS = {
    "namespaces": MEANS,
    "namespaces without overlays": msgspec.structs.replace(MEANS, why_no_overlays="not used"),
    "landlock": WITHOUT_NAMESPACES,
    "landlock alone": msgspec.structs.replace(WITHOUT_NAMESPACES, why_no_filter="not used"),
    "namespaces alone": msgspec.structs.replace(MEANS, landlock=Support(0, "not used")),
    "none": msgspec.structs.replace(WITHOUT_NAMESPACES, landlock=Support(0, "not used")),
}
NOT_HERE = {"namespaces": MEANS.bwrap is None, "landlock": MEANS.landlock.abi == 0, "none": False}
# x32 exists only there.
MAY_BE_UNTRIED = set() if platform.machine() == "x86_64" else {"make a system call by its x32 number"}


@pytest.fixture(scope="module")
def unconfined() -> dict[str, str]:
    """The result of each row on this machine without a sandbox."""
    with SelfTest(MEANS) as test:
        return {one.row: one.verdict for one in test.run_unconfined()}


def means_of(level: str) -> Means:
    if NOT_HERE[level.partition(" ")[0]]:
        pytest.skip(
            "no namespaces can be made here"
            if level.startswith("namespaces")
            else "this kernel has no Landlock"
        )
    return LEVELS[level]


# Without a filter and a network of its own, a level promises the same with and without a network.
@pytest.mark.parametrize(
    ("level", "net"),
    [
        *(("namespaces", "full"), ("namespaces", "off"), ("namespaces without overlays", "full")),
        *(("landlock", "full"), ("landlock", "off")),
        *(("landlock alone", "off"), ("namespaces alone", "off"), ("none", "full")),
    ],
)
def test_each_level_denies_what_it_promises_and_no_more(level, net, unconfined) -> None:
    means = means_of(level)
    with SelfTest(means, net) as test:
        assert test.level.name == level.partition(" ")[0]
        results = {one.row: one for one in test.run()}
    assert {*results} == {row.name for row in probe.ROWS}
    assert [one for one in results.values() if one.is_broken] == []
    untried = {name for name, one in results.items() if one.verdict == probe.UNTRIED}
    assert untried <= MAY_BE_UNTRIED, [results[name] for name in untried]
    # Where nothing is promised, what the machine allows stays allowed.
    denied = {
        name
        for name, one in results.items()
        if not one.is_promised and one.verdict == probe.DENIED and unconfined[name] == probe.ALLOWED
    }
    has_filter = not means.why_no_filter
    # The filter refuses TCP fast open whatever the network setting is; a refused sender connects first.
    expected = {"connect by TCP fast open"} if has_filter and net == "full" else set()
    if level == "landlock alone":  # no terminal can be made, in which a command could type
        expected |= {"type into a terminal"}
        # Landlock denies them for other reasons.
        expected |= {
            "connect to a socket by a hard link made inside",
            "connect to a socket through another process's root",
        }
    if os.getuid() == 0 and level == "none":
        # A process may not look into one that has more capabilities, and the box has dropped those of root.
        denied -= {row.name for row in probe.ROWS if row.protection.startswith("other processes")}
    assert denied == expected


# Prints the broken rows of the levels that this machine has. It is run as an ordinary user.
AS_USER = """
import os, sys
sys.path += sys.argv[1:]
sys.dont_write_bytecode = True
import msgspec
from ralph.machine.own_programs import ProgramSearch
from ralph.sandbox.detection import find_means
from ralph.sandbox.self_test import SelfTest
all_means = find_means(ProgramSearch(os.environ["PATH"]), has_overlays=True)
without_namespaces = msgspec.structs.replace(all_means, bwrap=None, has_network_namespace=False)
for name, means in {"namespaces": all_means, "landlock": without_namespaces}.items():
    if {"namespaces": means.bwrap, "landlock": means.landlock.abi}[name]:
        with SelfTest(means, "off") as test:
            print(name, [one.row for one in test.run() if one.is_broken])
"""
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@functools.cache
def python_for_others() -> str | None:
    """A Python of this version that another user may run."""
    # setpriv looks the program up with root's rights, so the program itself must ask whether the user may run it.
    ask = "import os, sys; os.access(sys.executable, os.X_OK) and print(*sys.version_info[:2])"
    for python in (sys.executable, "/usr/bin/python3"):
        ran = subprocess.run([*NOBODY, python, "-c", ask], capture_output=True, text=True, check=False)
        if ran.stdout.split() == [str(number) for number in sys.version_info[:2]]:
            return python
    return None


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
def test_an_ordinary_users_box_keeps_its_promises_too() -> None:
    python = python_for_others()
    if python is None or not os.access(Path(__file__), os.R_OK):
        pytest.skip("other users may not run this Python")
    paths = [str(Path(__file__).parents[2]), *(path for path in sys.path if path.endswith("-packages"))]
    ran = subprocess.run(
        [*NOBODY, python, "-c", AS_USER, *paths],
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_S,
        env={"PATH": os.environ["PATH"]},
    )
    assert ran.returncode == 0, ran.stderr
    tried = [line.rpartition(" ")[0] for line in ran.stdout.splitlines() if line.endswith("[]")]
    assert tried, ran.stdout
    assert len(tried) == len(ran.stdout.splitlines()), ran.stdout


def test_the_machine_by_itself_denies_little(unconfined) -> None:
    """If the machine denied much, the other tests would show nothing about the sandbox."""
    allowed = [name for name, verdict in unconfined.items() if verdict == probe.ALLOWED]
    assert len(allowed) >= 30, unconfined


def test_every_protection_of_a_row_is_one_of_a_level() -> None:
    known = {*box_level(MEANS, "off").reaches}
    assert {row.protection for row in probe.ROWS} - {""} == known
    names = [row.name for row in probe.ROWS]
    assert len({*names}) == len(names) >= 45


def test_nothing_of_a_probe_is_left() -> None:
    with SelfTest(WITHOUT_NAMESPACES) as test:
        assert test.directory.exists()
        test.run(rows=["leave a process behind", "write a new file outside"])
        root = test.directory / "root"
    assert not test.directory.exists()
    # A process that was killed may still be ending.
    wait_until(lambda: not [one for one in Path("/proc").glob("[0-9]*/cwd") if leads_to(one, root)])


def leads_to(link: Path, directory: Path) -> bool:
    try:
        return str(link.readlink()).startswith(str(directory))
    except OSError:
        return False


def test_a_probe_that_does_not_come_to_its_end_is_an_error_with_its_reason(monkeypatch) -> None:
    monkeypatch.setattr(probe, "__file__", "/no/such/probe")
    with SelfTest(LEVELS["none"]) as test, pytest.raises(ProbeError, match="can't open file"):
        test.run()


def test_a_row_that_is_denied_although_nothing_promises_it_is_not_broken() -> None:
    with SelfTest(LEVELS["none"]) as test:
        (one,) = test.run(rows=["read a secret"])
    assert (one.verdict, one.is_promised, one.is_broken) == (probe.ALLOWED, False, False)
