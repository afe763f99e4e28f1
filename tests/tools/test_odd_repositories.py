"""Unusual repositories: worktrees, submodules, bare, broken and large ones, and one with a lock that somebody
left.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ralph.prompt.memory import read_memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def git(directory: Path, *arguments: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "protocol.file.allow=always")
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *who, *arguments], cwd=directory, env=environment, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit, which ignores *.log and contains instructions."""
    made = tmp_path / "repository"
    made.mkdir()
    git(made, "init", "-q")
    for name, content in ((".gitignore", "*.log\n"), ("AGENTS.md", "outer"), ("a.py", "x = 1\n")):
        (made / name).write_text(content)
    (made / "a.log").write_text("x\n")
    git(made, "add", ".")
    git(made, "commit", "-qm", "first")
    return made


@pytest.fixture
def worktree(repository: Path) -> Path:
    git(repository, "worktree", "add", "-q", "../worktree")
    return repository.parent / "worktree"


@pytest.fixture
def submodule(repository: Path) -> Path:
    """A submodule of the repository. Only its own ignore rules count inside it."""
    part = repository.parent / "part"
    part.mkdir()
    git(part, "init", "-q")
    (part / ".gitignore").write_text("*.tmp\n")
    git(part, "add", ".")
    git(part, "commit", "-qm", "part")
    git(repository, "submodule", "add", "-q", str(part), "sub")
    assert (repository / "sub/.git").is_file()
    return repository / "sub"


def instructions(directory: Path) -> list[str]:
    return [found.text for found in read_memory(directory, None).files]


@pytest.fixture
def search_in(make_tools: Callable[..., Any]) -> Callable[[Path], set[str]]:
    """The paths that Glob finds in a directory."""

    def found(directory: Path) -> set[str]:
        return set(make_tools(cwd=directory).ok("Glob", pattern="*").splitlines())

    return found


def test_t18_a_worktree_is_a_repository_of_its_own(worktree, search_in) -> None:
    (worktree / "b.log").touch()
    (worktree / "deep").mkdir()
    (worktree / "deep/c.log").touch()
    (worktree / "deep/c.py").touch()
    assert search_in(worktree) == {".gitignore", "AGENTS.md", "a.py", "deep/c.py"}
    assert (search_in(worktree / "deep"), instructions(worktree / "deep")) == ({"c.py"}, ["outer"])


def test_t18_a_submodule_ends_where_its_git_file_is(submodule, search_in) -> None:
    (submodule / "b.log").touch()
    (submodule / "b.tmp").touch()
    (submodule / "CLAUDE.md").write_text("inner")
    assert search_in(submodule) == {".gitignore", "CLAUDE.md", "b.log"}
    assert {name for name in search_in(submodule.parent) if name.startswith("sub/")} == {
        *("sub/.gitignore", "sub/CLAUDE.md", "sub/b.log")
    }
    assert instructions(submodule) == ["inner"]


def test_t18_a_bare_repository_is_a_directory_like_any_other(repository, make_tools) -> None:
    git(repository, "clone", "-q", "--bare", ".", "../bare.git")
    bare = repository.parent / "bare.git"
    tools = make_tools(cwd=bare)
    assert "HEAD" in tools.ok("Glob", pattern="*")
    assert "must be run in a work tree" in tools.error("Bash", command="git status")
    assert "first" in tools.ok("Bash", command="git log --oneline")
    assert instructions(bare) == []


def test_t18_a_git_file_that_leads_nowhere_is_gits_error_and_no_other_tools(make_tools, tmp_path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nonexistent\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "a.log").touch()
    tools = make_tools()
    assert "not a git repository" in tools.error("Bash", command="git status")
    assert tools.ok("Glob", pattern="*") == ".gitignore"
    tools.ok("Write", file_path="a.py", content="x\n")


@pytest.mark.parametrize("kind", ["repository", "worktree"])
def test_t18_a_lock_that_somebody_left_is_gits_error_and_stays(request, make_tools, kind) -> None:
    directory: Path = request.getfixturevalue(kind)
    tools = make_tools(cwd=directory)
    lock = directory / tools.ok("Bash", command="git rev-parse --git-path index.lock")
    lock.touch()
    tools.ok("Write", file_path="b.py", content="x\n")
    refusal = tools.error("Bash", command="git add b.py")
    assert "index.lock': File exists" in refusal
    assert refusal.endswith("Exit code 128")
    for tool, arguments in (("Read", {"file_path": "a.py"}), ("Glob", {"pattern": "*"})):
        tools.ok(tool, **arguments)
    tools.ok("Edit", file_path="a.py", old_string="1", new_string="2")
    tools.box.close()
    assert lock.exists()


def test_t18_a_repository_of_many_files_is_listed_within_bounds(repository, make_tools) -> None:
    (repository / "0000.py").write_text("wanted = 1\n")
    for number in range(1, 1100):  # a link is a file as well, and much cheaper to make
        (repository / f"{number:04}.py").hardlink_to(repository / "0000.py")
    tools = make_tools(cwd=repository)
    for output in (tools.ok("Glob", pattern="*.py"), tools.ok("Grep", pattern="wanted")):
        lines = output.splitlines()
        assert len(lines) == 1001
        assert "only the first 1,000 are shown" in lines[-1]
