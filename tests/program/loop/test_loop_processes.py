"""The number of processes that an iteration of `ralph loop` needs beyond its run. Their number can be tested, but
not their time.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

# The process that has forked the launcher of this command: the supervisor.
_SUPERVISOR = "$(cut -d' ' -f4 /proc/$PPID/stat)"
LOOKS = ["config", "status", "ls-files"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_an_iteration_that_changes_nothing_makes_six_calls_of_git_and_one_supervisor_starts_all(
    ralph, checkout, iterations, tmp_path
) -> None:
    """An iteration needs a look at the checkout before and after it, and the check. No interpreter is started
    except that of the run.
    """
    log = tmp_path / "beside" / "log"
    log.parent.mkdir()
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "{_SUPERVISOR} $*" >>{log}\nexec {shutil.which("git")} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    ralph.environment["PATH"] = f"{program.parent}:{ralph.environment['PATH']}"
    iterations()
    check = f'echo "{_SUPERVISOR} check" >>{log}; false'
    # In namespaces of its own, the check does not see its supervisor.
    words = ("--until", check, "--add-dir", str(log.parent), "--sandbox", "off")
    assert ralph("loop", "go", "--max-iterations", "3", *words).code == 3

    calls = [line.split() for line in Path(log).read_text(encoding="utf-8").splitlines()]
    assert len({supervisor for supervisor, *_ in calls}) == 1
    names = [_name(words) for _, *words in calls]
    second = names.index(
        "check", names.index("check") + 1
    )  # before it, the loop also finds where the hooks are
    assert names[second + 1 :] == [*LOOKS, *LOOKS, "check"] * 2


def _name(words: list[str]) -> str:
    """The name of the git command if it belongs to a look, or `check`. Empty for other commands."""
    return next((word for word in words if word in {*LOOKS, "check"}), "")
