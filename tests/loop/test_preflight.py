"""Everything that would make commits and pushes fail must be reported before money is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.git import push
from ralph.git.answer import CheckoutError
from ralph.git.checkout import GitCheckout
from ralph.loop.checkout import PlainDirectory, check_checkout, open_checkout
from ralph.values.outcome import Outcome
from tests.git.repositories import Repository, cloned
from tests.git.test_snapshot import conflict

if TYPE_CHECKING:
    from pathlib import Path

STOPS = [
    ("detached", lambda r: r.git("switch", "-q", "--detach"), False, "HEAD is detached.*git switch"),
    ("conflict", conflict, False, "a.txt has conflicts; resolve"),
    ("merge", lambda r: (conflict(r), r.git("add", "-A")), False, "a merge is in progress; finish or abort"),
    ("no name", lambda r: r.git("config", "user.name", ""), False, "does not know who commits.*user.name"),
    (
        "no remote",
        lambda r: r.git("remote", "remove", "origin"),
        True,
        "no remote to push to; add one: git remote add",
    ),
    (
        "gone",
        lambda r: r.git("remote", "set-url", "origin", "/no/such.git"),
        True,
        "remote origin does not take branch main: .*no/such.git.*; try: git push --dry-run",
    ),
    (
        "went on",
        lambda r: (
            r.write("b"),
            r.commit_all(),
            r.git("push", "-q", "origin", "main"),
            r.git("reset", "-q", "--hard", "HEAD~"),
            r.write("c"),
            r.commit_all(),
        ),
        True,
        "rejected",
    ),
]


@pytest.mark.parametrize(
    ("act", "pushes", "words"), [row[1:] for row in STOPS], ids=[row[0] for row in STOPS]
)
def test_this_stops_a_loop_before_it_begins(tmp_path: Path, act, pushes: bool, words: str) -> None:
    repository = cloned(tmp_path / "work", tmp_path / "home")
    act(repository)
    with pytest.raises(CheckoutError, match=words) as told:
        check_checkout(repository.checkout(), commits=True, pushes=pushes)
    assert "\n" not in str(told.value)


def test_a_good_checkout_is_not_changed_by_looking(tmp_path: Path) -> None:
    repository = cloned(tmp_path / "work", tmp_path / "home")
    repository.write("b")
    repository.commit_all()
    assert check_checkout(repository.checkout(), commits=True, pushes=True) == []
    assert "b" not in repository.git("ls-tree", "--name-only", "origin/main").split()
    assert repository.checkout().unpushed() == 1


@pytest.mark.parametrize(("url", "is_fine"), [("../remote.git", True), ("/no/such", False)])
def test_a_first_commit_needs_a_remote_that_answers(tmp_path: Path, url: str, is_fine: bool) -> None:
    repository = Repository.empty(tmp_path / "work", tmp_path / "home")
    repository.git("init", "-q", "--bare", "../remote.git")
    repository.git("remote", "add", "origin", url)
    if is_fine:
        assert check_checkout(repository.checkout(), commits=True, pushes=True) == []
        return
    with pytest.raises(CheckoutError, match="/no/such"):
        check_checkout(repository.checkout(), commits=True, pushes=True)


def test_what_is_uncommitted_already_is_told_to_who_lets_ralph_commit(repository: Repository) -> None:
    for name in ("b", "c", "d", "e\nf", ".ralph/x"):
        repository.write(name)
    [notice] = check_checkout(repository.checkout(), commits=True, pushes=False)
    assert notice.startswith(
        "b, c, d and 1 more are uncommitted already: the loop's first commit will include them"
    )
    assert check_checkout(repository.checkout(), commits=False, pushes=False) == []


def test_a_filter_of_the_users_own_that_does_not_run_is_told_if_a_tracked_file_goes_through_it(
    repository: Repository,
) -> None:
    for name in ("used", "a b", "unused", "named"):
        repository.git("config", "--global", f"filter.{name}.clean", "/usr/bin/env cat")
    repository.git("config", "--global", "filter.lfs.clean", "git-lfs clean -- %f")
    repository.filters = ("named",)
    repository.write(
        ".gitattributes", "x filter=used\ny filter=lfs\nz filter=named\nuntracked filter=unused\n"
    )
    for path in "xyz":
        repository.write(path)
    repository.git("add", ".gitattributes", "x", "z")
    repository.git("commit", "-q", "-m", "files")
    (repository.top / "y").unlink()
    repository.write("untracked")
    assert check_checkout(repository.checkout(), commits=False, pushes=False) == []
    [told, uncommitted] = check_checkout(repository.checkout(), commits=True, pushes=False)
    assert "untracked is uncommitted" in uncommitted
    assert told.startswith("ralph's own git does not run these filters of yours")
    assert "through them: used (x); " in told
    assert told.endswith('[loop] git_filters = ["used"]')


def test_settings_that_are_not_followed_are_named(repository: Repository) -> None:
    repository.git("config", "core.sshCommand", "ssh -i key")
    [notice] = check_checkout(repository.checkout(), commits=True, pushes=False)
    assert "core.sshcommand" in notice
    assert "-i key" not in notice


def test_somebody_elses_repository_is_refused_with_what_to_do(repository: Repository) -> None:
    seams = repository.seams(GIT_TEST_ASSUME_DIFFERENT_OWNER="1")
    checkout = open_checkout(repository.top, "P", seams)
    with pytest.raises(CheckoutError, match=r"belongs to another user.*safe\.directory"):
        check_checkout(checkout, commits=False, pushes=False)


def test_a_missing_git_program_is_told(repository: Repository) -> None:
    seams = replace(repository.seams(), environment={"PATH": "/no/such"})
    checkout = open_checkout(repository.top, "P", seams)
    with pytest.raises(CheckoutError, match="there is no git program on PATH "):
        check_checkout(checkout, commits=False, pushes=False)


def test_a_git_program_that_is_left_out_is_named_with_the_reason(repository: Repository) -> None:
    program = repository.write("bin/git", "#!/bin/sh\n")
    program.chmod(0o755)
    seams = replace(repository.seams(), environment={"PATH": str(program.parent)})
    with pytest.raises(CheckoutError, match=f"{program} does not count: commands may write {repository.top}"):
        check_checkout(open_checkout(repository.top, "P", seams), commits=False, pushes=False)


def test_another_checkouts_variables_do_not_lead_astray(repository: Repository) -> None:
    seams = repository.seams(GIT_DIR="/no/such", GIT_INDEX_FILE="/no/index", GIT_WORK_TREE="/")
    checkout = open_checkout(repository.top / "dir", "P", seams)
    assert isinstance(checkout, GitCheckout)
    assert check_checkout(checkout, commits=True, pushes=False) == []


@pytest.mark.parametrize(
    ("commits", "pushes", "option"), [(True, False, "--commit"), (False, True, "--push")]
)
def test_outside_of_git_nothing_is_committed_or_pushed(tmp_path: Path, commits, pushes, option: str) -> None:
    repository = Repository(tmp_path, tmp_path / "home")
    checkout = open_checkout(tmp_path, "P", repository.seams())
    assert isinstance(checkout, PlainDirectory)
    assert check_checkout(checkout, commits=False, pushes=False) == []
    with pytest.raises(
        CheckoutError, match=f"not in a git checkout; run git init there, or leave out {option}"
    ):
        check_checkout(checkout, commits=commits, pushes=pushes)


def test_a_push_that_takes_too_long_is_no_fault_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "REMOTE_LIMIT_S", 0.1)
    repository = cloned(tmp_path / "work", tmp_path / "home")
    repository.environment["GIT_SSH_COMMAND"] = "sleep 30 #"
    repository.git("remote", "set-url", "origin", "ssh://localhost/nowhere")
    with pytest.raises(CheckoutError, match=r"origin does not take branch main: .* took longer") as caught:
        check_checkout(repository.checkout(), commits=False, pushes=True)
    assert caught.value.outcome is Outcome.API_UNAVAILABLE
