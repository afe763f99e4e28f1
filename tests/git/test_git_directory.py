"""Which git directory belongs to a checkout: ralph reads it from the file system, and git gives the same answer."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from ralph.git.runner import git_directory_of
from ralph.loop.checkout import CheckoutLock, holder_of
from ralph.machine.files.paths import (
    common_directory,
    git_directory,
    git_entry,
    repository_top,
    up_to_repository_root,
)
from ralph.places.git_places import git_places
from ralph.sandbox.planning import about_git
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
    own = str(git_directory_of(top))
    assert Path(os.path.realpath(common_directory(own) or own)) == common
    assert set(map(Path, git_places([str(top)], {}, os.getuid()).claimed)) == {git.resolve(), common}


def test_git_says_what_is_wrong_with_a_file_that_leads_nowhere(repository: Repository) -> None:
    (repository.top / ".git").rename(repository.top.parent / "elsewhere")
    (repository.top / ".git").write_text("gitdir: ../gone\n")
    with pytest.raises(CheckoutError, match=r"not a git repository: .*/gone"):
        _ = repository.checkout().git_directory


NOWHERE = {
    "a file that names nothing": lambda place: place.write_text("nothing that git knows\n"),
    "a file that names what is gone": lambda place: place.write_text("gitdir: ../gone\n"),
    "a file that names a file": lambda place: place.write_text("gitdir: a.txt\n"),
    "a link that leads nowhere": lambda place: place.symlink_to("../gone"),
    "a named pipe": os.mkfifo,
}


@pytest.mark.parametrize("make", NOWHERE.values(), ids=NOWHERE)
def test_without_a_git_directory_nothing_is_written_into_the_current_one(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object]
) -> None:
    (repository.top / ".git").rename(repository.top.parent / "elsewhere")
    make(repository.top / ".git")
    monkeypatch.chdir(repository.top)
    before = sorted(repository.top.iterdir())
    with pytest.raises(CheckoutError, match="does not lead to a git directory"):
        git_directory_of(repository.top)
    with pytest.raises(CheckoutError):
        CheckoutLock(repository.checkout(), repository.top, datetime.now(UTC), place=tmp_path)
    assert holder_of(repository.top, tmp_path) is None
    assert sorted(repository.top.iterdir()) == before


def test_all_look_for_it_in_one_way(repository: Repository) -> None:
    """The nearest `.git` counts, whatever it is: for what git does, for the sandbox, and for the files of a project."""
    inner, below = repository.top / "inner", repository.top / "inner/below"
    below.mkdir(parents=True)
    outer = (str(repository.top / ".git"),)

    def seen() -> tuple[Path | None, Path, tuple[str, ...], list[str]]:
        notices = about_git([str(below)], {})
        claimed = git_places([str(below)], {}, os.getuid()).claimed
        return repository_top(below), up_to_repository_root(below)[-1], claimed, [n.text for n in notices]

    assert seen() == (repository.top, repository.top, outer, [])
    for name in ("objects", "refs"):
        (inner / name).mkdir()
    (inner / "HEAD").write_text("ref: refs/heads/main\n")
    assert seen() == (repository.top, repository.top, (str(inner), *outer), [])
    (inner / ".git").symlink_to("gone")
    assert seen() == (inner, inner, (str(inner / "gone"),), [])
    (inner / "gone").mkdir()
    notice = f"commands may not write the git directory {inner}/gone ({inner}/.git is a link), so that git commit fails"
    assert seen() == (inner, inner, (str(inner / "gone"),), [notice])


def test_the_root_directory_may_be_a_checkout() -> None:
    """Paths are compared as texts, and `//.git` is another text than `/.git`."""
    assert ((git_entry("/"), git_entry("/work")), git_directory("/")) == (("/.git", "/work/.git"), "/.git")
