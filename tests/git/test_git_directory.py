"""Which git directory belongs to a checkout: ralph reads it from the file system, and git gives the same answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from ralph.machine.repository import common_directory, git_directory
from ralph.places.git_places import git_places
from tests.git.repositories import Repository

if TYPE_CHECKING:
    from collections.abc import Callable


def linked(repository: Repository) -> Path:
    repository.git("worktree", "add", "-q", "--detach", "../a linked\none")
    return repository.top.parent / "a linked\none"


def submodule(repository: Repository) -> Path:
    repository.git("submodule", "add", "-q", str(repository.top), "inner")
    return repository.top / "inner"


def separate(repository: Repository) -> Path:
    repository.git("init", "-q", "--separate-git-dir=../separate")
    return repository.top


def link(repository: Repository) -> Path:
    (repository.top / ".git").rename(repository.top.parent / "elsewhere")
    (repository.top / ".git").symlink_to("../elsewhere")
    return repository.top


@pytest.mark.parametrize("make", [lambda repository: repository.top, linked, submodule, separate, link])
def test_it_is_the_one_that_git_uses(repository: Repository, make: Callable[[Repository], Path]) -> None:
    top = make(repository)
    told = Repository(top, top.parent / "home")
    git = Path(told.git("rev-parse", "--absolute-git-dir"))
    common = (top / told.git("rev-parse", "--git-common-dir")).resolve()
    assert told.checkout().git_directory == git.resolve()
    own = os.path.realpath(git_directory(str(top)) or "")
    assert Path(os.path.realpath(common_directory(own) or own)) == common
    assert set(map(Path, git_places([str(top)], {}, os.getuid()).claimed)) == {git.resolve(), common}


def test_git_says_what_is_wrong_with_a_file_that_leads_nowhere(repository: Repository) -> None:
    (repository.top / ".git").rename(repository.top.parent / "elsewhere")
    (repository.top / ".git").write_text("gitdir: ../gone\n")
    with pytest.raises(CheckoutError, match=r"not a git repository: .*/gone"):
        _ = repository.checkout().git_directory
