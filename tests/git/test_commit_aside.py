"""Commits to a branch of its own: what they contain, what they leave as it is, and how the branch is named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from tests.git.repositories import Repository, cloned
from tests.git.test_snapshot import change_in_every_way

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.git.checkout import GitCheckout


def aside(
    checkout: GitCheckout,
    *,
    earlier: str | None = None,
    has_work: bool = True,
    pushes: bool = False,
    limit_s: float = math.inf,
) -> str | None:
    return checkout.commit_aside(
        "Red\n\nbody", earlier=earlier, has_work=has_work, pushes=pushes, limit_s=limit_s
    )


def place(repository: Repository) -> tuple[str, ...]:
    """All that a commit aside must leave as it is."""
    return (
        repository.git("rev-parse", "HEAD"),
        repository.git("symbolic-ref", "HEAD"),
        repository.git("ls-files", "--stage"),
        repository.git("status", "--porcelain"),
        *sorted(path.name for path in (repository.top / ".git").iterdir() if "COMMIT" not in path.name),
    )


@pytest.mark.parametrize("settings", [(), ("core.splitIndex", "true"), ("core.untrackedCache", "true")])
def test_it_has_the_tree_that_a_commit_would_have_and_head_index_and_files_stay(
    repository: Repository, settings: tuple[str, ...]
) -> None:
    if settings:
        repository.git("config", *settings)
        repository.git("update-index", "--refresh")
    change_in_every_way(repository, "ignored", "sub/.mcp.json")
    repository.write("a.txt", "changed\n")
    before = place(repository)
    checkout = repository.checkout()
    assert aside(checkout) == "ralph/red-1"
    assert place(repository) == before
    red = repository.git("log", "-1", "--format=%T %P %B", "ralph/red-1")
    assert checkout.commit("Green")
    tree, parent = repository.git("log", "-1", "--format=%T %P").split()
    assert red == f"{tree} {parent} Red\n\nbody"


def test_there_is_no_branch_without_work_and_none_twice_for_the_same(repository: Repository) -> None:
    checkout = repository.checkout()
    assert aside(checkout) is None
    repository.write("ignored")
    assert aside(checkout) is None
    repository.write("new")
    assert aside(checkout, has_work=False) is None
    assert aside(checkout) == "ralph/red-1"
    assert aside(checkout, earlier="ralph/red-1") == "ralph/red-1"
    assert aside(checkout) == "ralph/red-2"
    repository.write("newer")
    assert aside(checkout, earlier="ralph/red-1") == "ralph/red-3"
    assert aside(checkout, earlier="gone") == "ralph/red-4"
    repository.git("branch", "-D", "ralph/red-2")
    repository.git("branch", "ralph/red-2/below")
    assert aside(checkout) == "ralph/red-5", "git makes none above another"
    repository.git("branch", "-D", "ralph/red-2/below")
    assert aside(checkout) == "ralph/red-2", "the lowest that is free"


@pytest.mark.parametrize("is_here", [True, False])
def test_beside_a_branch_named_ralph_it_has_another_name(tmp_path: Path, is_here: bool) -> None:
    """Git has no branch `ralph/red-1` beside a branch `ralph`."""
    mine = cloned(tmp_path / "work", tmp_path / "home")
    mine.git("branch", "ralph") if is_here else mine.git("push", "-q", "origin", "HEAD:refs/heads/ralph")
    mine.write("work")
    checkout = mine.checkout()
    assert aside(checkout, pushes=not is_here) == "ralph-red-1"
    assert aside(checkout, pushes=not is_here) == "ralph-red-2"
    assert checkout.push("ralph-red-1") == 1


def test_before_the_first_commit_and_with_a_detached_head_it_is_made_all_the_same(tmp_path: Path) -> None:
    empty = Repository.empty(tmp_path / "work", tmp_path / "home")
    empty.write("a")
    assert aside(empty.checkout()) == "ralph/red-1"
    assert empty.git("ls-tree", "--name-only", "ralph/red-1") == "a"
    empty.commit_all()
    empty.git("checkout", "-q", "--detach")
    empty.write("b")
    assert aside(empty.checkout()) == "ralph/red-2"
    assert empty.git("rev-parse", "ralph/red-2^") == empty.git("rev-parse", "HEAD")


def test_names_of_the_remote_are_taken_too_and_it_is_pushed_there(tmp_path: Path) -> None:
    mine = cloned(tmp_path / "work", tmp_path / "home")
    checkout = mine.checkout()
    assert aside(checkout, pushes=True) is None, "the remote has all"
    mine.git("push", "-q", "origin", "HEAD:refs/heads/ralph/red-1", "HEAD:refs/heads/ralph/red-2")
    mine.git("update-ref", "-d", "refs/remotes/origin/ralph/red-1")
    mine.git("update-ref", "-d", "refs/remotes/origin/ralph/red-2")
    mine.write("work")
    assert aside(checkout, pushes=True) == "ralph/red-3"
    assert checkout.push("ralph/red-3") == 1
    heads = mine.git("ls-remote", "--heads", "origin")
    assert f"{mine.git('rev-parse', 'ralph/red-3')}\trefs/heads/ralph/red-3" in heads
    assert f"{mine.git('rev-parse', 'HEAD')}\trefs/heads/main" in heads
    mine.git("add", "work")
    mine.git("commit", "-qm", "by the agent")
    assert aside(checkout, pushes=True, has_work=False) == "ralph/red-4", "commits that the remote lacks"
    assert mine.git("rev-parse", "ralph/red-4") == mine.git("rev-parse", "HEAD")
    assert checkout.push("ralph/red-4") == 1


def test_what_takes_too_long_or_cannot_be_read_makes_no_branch(repository: Repository) -> None:
    repository.write("new")
    with pytest.raises(CheckoutError):
        aside(repository.checkout(), limit_s=0)
    (repository.top / ".git/MERGE_HEAD").write_text(repository.git("rev-parse", "HEAD"))
    with pytest.raises(CheckoutError, match="a merge is in progress"):
        aside(repository.checkout())
    (repository.top / ".git/MERGE_HEAD").unlink()
    assert repository.git("for-each-ref", "--format=%(refname)", "refs/heads/ralph/") == ""
