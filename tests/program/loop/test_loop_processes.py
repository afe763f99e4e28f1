"""The number of processes that an iteration of `ralph loop` needs beyond its run. Their number can be tested, but
not their time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes.scripts import before_git
from tests.program.model_answers import bash

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

# The process that has forked the launcher of this command: the supervisor.
_SUPERVISOR = "$(cut -d' ' -f4 /proc/$PPID/stat)"
LOOKS = ["config", "status", "ls-files"]
COMMITS = ["update-index", "diff-index", "write-tree", "commit-tree", "update-ref"]


@pytest.fixture
def log(ralph, tmp_path) -> Path:
    """The file to which each call of git adds a line: the supervisor that started it, and its arguments."""
    log: Path = tmp_path / "beside" / "log"
    log.parent.mkdir()
    before_git(ralph.environment, tmp_path / "bin", f'echo "{_SUPERVISOR} $*" >>{log}')
    return log


def test_an_iteration_that_changes_nothing_makes_eight_calls_of_git_and_one_supervisor_starts_all(
    ralph, checkout, iterations, log
) -> None:
    """An iteration needs a look at the checkout and at its branches before and after it, and the check. No interpreter is
    started except that of the run.
    """
    iterations()
    check = f'echo "{_SUPERVISOR} check" >>{log}; false'
    # In namespaces of its own, the check does not see its supervisor.
    words = ("--until", check, "--add-dir", str(log.parent), "--sandbox", "off")
    assert ralph("loop", "go", "--max-iterations", "3", *words).code == 3

    calls = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    assert len({supervisor for supervisor, *_ in calls}) == 1
    names = [_name(words) for _, *words in calls]
    second = names.index(
        "check", names.index("check") + 1
    )  # before it, the loop also finds where the hooks are
    assert names[second + 1 :] == [*LOOKS, "for-each-ref", *LOOKS, "for-each-ref", "check"] * 2


def test_an_iteration_that_is_committed_looks_at_the_whole_tree_twice(
    ralph, checkout, iterations, log
) -> None:
    """In a tree of 200,000 files each of these looks takes as long as `git status` by hand, and so does the commit."""
    iterations(*[[bash("date +%N >file")]] * 3)
    words = ("--commit", "--max-iterations", "3", "--sandbox", "off")
    assert ralph("loop", "go", *words).code == 0
    names = [_name(line.split()) for line in log.read_text(encoding="utf-8").splitlines()]
    first, second, third = (number for number, name in enumerate(names) if name == COMMITS[-1])
    for before, commit in ((first, second), (second, third)):
        of_iteration = [
            name for name in names[before + 1 : commit] if name not in {"", "config", "for-each-ref"}
        ]
        assert of_iteration == [*LOOKS[1:] * 2, *COMMITS[:-1]]


def _name(words: list[str]) -> str:
    """The name of the git command if it belongs to a look or a commit, or `check`. Empty for other commands."""
    return next((word for word in words if word in {*LOOKS, *COMMITS, "for-each-ref", "check"}), "")
