"""A command plants something for the user's next `git status`. Each row is tried at both levels of the sandbox, with the real
tools, and then the user calls git: no planted program runs.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.git.repositories import Repository, cloned, committed
from tests.git.test_planted_programs import program
from tests.places.test_one_table import LEVELS, tools_of

if TYPE_CHECKING:
    from pathlib import Path

# The checkout has the submodules `part` and `a/b` and the linked worktree `../linked`. $P is a program that leaves a mark.
ATTACKS = {
    "the configuration of a submodule": "git config -f .git/modules/part/config core.fsmonitor $P",
    "of a submodule with a path": "git config -f .git/modules/a/b/config core.fsmonitor $P",
    "of the working tree of a submodule": "git config -f .git/modules/part/config.worktree core.fsmonitor $P; "
    "git config -f .git/modules/part/config extensions.worktreeConfig true",
    "another directory of a submodule": "cp -r .git/modules/part x; git config -f x/config core.fsmonitor $P; "
    "echo ../../../x >.git/modules/part/commondir",
    "another directory of submodules": "cp -r .git/modules x; git config -f x/part/config core.fsmonitor $P; "
    "git config -f x/part/config core.worktree $PWD/part; "
    "mv .git/modules y; ln -s ../x .git/modules",
    "another directory of a submodule with a path": "cp -r .git/modules/a x; git config -f x/b/config core.fsmonitor $P; "
    "git config -f x/b/config core.worktree $PWD/a/b; "
    "mv .git/modules/a y; ln -s ../../x .git/modules/a",
    "a link in the place of a submodule": "cp -r .git/modules/part x; git config -f x/config core.fsmonitor $P; "
    "git config -f x/config core.worktree $PWD/part; "
    "mv .git/modules/part y; ln -s ../../x .git/modules/part",
    "the same, renamed": "cp -r .git/modules x; git config -f x/part/config core.fsmonitor $P; mv .git/modules y; mv x .git/modules",
    "the configuration of a linked worktree": "git config -f .git/worktrees/linked/config.worktree core.fsmonitor $P",
    "another directory of a linked worktree": "cp -r .git x; git config -f x/config core.fsmonitor $P; "
    "echo $PWD/x >.git/worktrees/linked/commondir",
    "worktrees, renamed": "cp -r .git/worktrees x; cp -r .git z; git config -f z/config core.fsmonitor $P; "
    "echo $PWD/z >x/linked/commondir; mv .git/worktrees y; mv x .git/worktrees",
    "a hook of a submodule": "mkdir -p .git/modules/part/hooks; cp $P .git/modules/part/hooks/post-index-change",
    "attributes": "git config --file ../home/none x.y z; echo '* filter=mine' >.git/info/attributes",
    "attributes through a link": "mkdir x; echo '* filter=mine' >x/attributes; rm -r .git/info; ln -s ../x .git/info",
    "attributes of a submodule": "mkdir -p .git/modules/part/info; echo '* filter=mine' >.git/modules/part/info/attributes",
    "a common directory": "cp -r .git x; git config -f x/config core.fsmonitor $P; echo ../x >.git/commondir",
}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    home = tmp_path / "home"
    made = cloned(home / "work", home)
    committed(home / "source", home)
    for place in ("part", "a/b"):
        made.git("submodule", "add", "-q", "../source", place)
    made.git("config", "extensions.worktreeConfig", "true")
    made.commit_all()
    made.git("worktree", "add", "-q", "../linked")
    marks = home / "marks"
    marks.mkdir()
    made.git("config", "--global", "filter.mine.clean", str(program(home / "filter", marks)))
    return made


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_a_command_planted_runs_at_the_users_git_status(
    repository: Repository, level: str, attack: str
) -> None:
    home = repository.top.parent
    marks = home / "marks"
    planted = program(home / "planted", marks)
    for tools in tools_of(repository, level):
        script = f"P={planted}; {ATTACKS[attack]}"
        tools.call("Bash", {"command": script})
        tools.call("Bash", {"command": "true"})  # what was new is known now
    for mark in marks.iterdir():
        mark.unlink()
    for path in (repository.top, home / "linked", repository.top / "part", repository.top / "a/b"):
        for file in path.glob("*.txt"):
            os.utime(file, (1, 1))
            file.write_bytes(file.read_bytes())
        subprocess.run(
            ["git", "status"], cwd=path, env=repository.environment, check=False, capture_output=True
        )
    assert [mark.name for mark in marks.iterdir()] == []


@pytest.mark.parametrize("level", LEVELS)
def test_ordinary_work_of_git_goes_through(repository: Repository, level: str) -> None:
    """Commits, a rebase, a search by halves, and worktrees and submodules need lock files, HEAD and the like."""
    home = repository.top.parent
    work = (
        "set -e; git switch -qc topic; echo x >x; git add x; git commit -qm x; git rebase -q main; git bisect start;"
        " git bisect reset 2>&1; git -C part switch -qc topic; git -C part commit -qm y --allow-empty;"
        " git worktree add -q sub/new; git -C sub/new commit -qm z --allow-empty; git worktree remove sub/new;"
        " git worktree add -q sub/newer; git stash -q -u 2>/dev/null || true; git status >/dev/null; echo done"
    )
    for tools in tools_of(repository, level):
        said = tools.call(
            "Bash",
            {
                "command": f"export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@y GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@y; {work}"
            },
        )
        assert "done" in said.content, said.content
        assert "undone" not in said.content
        said = tools.call("Bash", {"command": "git worktree remove --force sub/newer && echo removed"})
        assert "removed" in said.content, said.content
    assert home.exists()
