"""In a partial clone, git fetches missing objects by itself, with the program that the repository names for it. ralph's own
calls fetch nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from ralph.git.runner import CheckoutGit
from ralph.pages.content import Excerpts
from ralph.pages.git_changes import CommitRange, GitQuestion, GitReader
from ralph.values.redaction import Redactor
from tests.git.repositories import Repository, cloned
from tests.processes.scripts import script

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def partial(tmp_path: Path) -> Repository:
    """A clone that has the files of the last commit alone. What fetches others leaves the file `mark`."""
    source = cloned(tmp_path / "work", tmp_path / "home")
    for text in ("second\n", "third\n"):
        source.write("a.txt", text)
        source.commit_all()
    source.git("push", "-q", "origin", "main")
    remote = tmp_path / "remote.git"
    source.git("--git-dir", str(remote), "config", "uploadpack.allowFilter", "true")
    source.git("clone", "-q", "--filter=blob:none", "-b", "main", f"file://{remote}", "../partial")
    made = Repository(tmp_path / "partial", tmp_path / "home")
    made.git("config", "user.name", "x")
    made.git("config", "user.email", "x@example.com")
    planted = script(tmp_path / "upload-pack", f": >{tmp_path}/mark; exit 1")
    made.git("config", "remote.origin.uploadpack", str(planted))
    return made


def test_nothing_that_ralph_asks_git_fetches_what_is_missing(partial: Repository, tmp_path: Path) -> None:
    first, last = partial.git("rev-parse", "HEAD~1", "HEAD").split()
    packs = partial.top / ".git/objects/pack"
    before = sorted(path.name for path in packs.iterdir())
    checkout = partial.checkout()
    taken = checkout.snapshot()
    partial.write("new")
    partial.write("a.txt", "fourth\n")
    changes = checkout.changes(taken, checkout.snapshot())
    assert checkout.commit("x")
    reader = GitReader(partial.seams(), Excerpts(Redactor()))
    looked = [checkout.look_through(begin)[1] for begin in (last, first)]
    assert [len(commits) for commits in looked] == [1, 0]
    here, missing = (
        reader.facts(GitQuestion(partial.top, (CommitRange(1, begin, None),), looked=looked[0]))
        for begin in (last, first)
    )
    with pytest.raises(CheckoutError):
        CheckoutGit(partial.top, partial.seams()).read("cat-file", "blob", f"{first}:a.txt")
    assert not (tmp_path / "mark").exists()
    assert sorted(path.name for path in packs.iterdir()) == before
    assert changes is not None
    assert [one.subject for one in here.commits] == ["x"]
    assert "git could not list the commits" in missing.notes[0], "it says why"
    partial.git("cat-file", "blob", f"{first}:a.txt", fails=True)
    assert (tmp_path / "mark").exists(), "git itself fetches"
