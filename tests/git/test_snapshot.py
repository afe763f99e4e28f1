"""Tests what counts as progress in a git checkout. Uses the real git."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.git import look as look_module
from ralph.git.look import Changes, Snapshot
from ralph.values.ports import SignalReceived
from tests.git.repositories import Repository, Watch, changes_by
from tests.processes.children import children
from tests.processes.one_supervisor import SUPERVISOR
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable


# All at once: each is found beside the others.
PROGRESS = [
    (lambda r: r.write("edited", "x"), ["edited"]),
    (lambda r: (r.top / "deleted").unlink(), ["deleted"]),
    (lambda r: r.write("n/new"), ["n/new"]),
    (lambda r: (r.write("staged"), r.git("add", "staged")), ["staged"]),
    (lambda r: (r.top / "mode").chmod(0o755), ["mode"]),
    (lambda r: ((r.top / "link").unlink(), (r.top / "link").symlink_to("a")), ["link"]),
    (lambda r: ((r.top / "tree").unlink(), r.write("tree/x")), ["tree", "tree/x"]),
    (lambda r: fifo(r, (r.top / "fifo").unlink), ["fifo"]),
    (lambda r: r.write("ignored-plan"), ["ignored-plan"]),
    (lambda r: r.write("a\nb"), ["a\nb"]),
    (lambda r: r.write("--force"), ["--force"]),
    (lambda r: Path(os.fsdecode(os.fsencode(r.top) + b"/\xff")).touch(), ["\udcff"]),
    (lambda r: r.write(":(top)*"), [":(top)*"]),
]
# One after the other.
THEN = [
    ("edited again", lambda r: r.write("edited", "y"), ("edited",)),
    ("new edited", lambda r: r.write("n/new", "y"), ("n/new",)),
    ("link", lambda r: ((r.top / "link").unlink(), (r.top / "link").symlink_to("b")), ("link",)),
    ("staged alone", lambda r: r.git("add", "n/new"), ()),
    ("branch", lambda r: r.git("switch", "-q", "-c", "other"), ()),
    ("detached", lambda r: r.git("switch", "-q", "--detach"), ()),
]
NO_PROGRESS = [
    ("touched", lambda r: os.utime(r.top / "a.txt")),
    ("new touched", lambda r: os.utime(r.top / "new")),
    ("written again", lambda r: r.write("dir/b.txt")),
    ("ignored", lambda r: r.write("ignored")),
    ("an empty directory", lambda r: (r.top / "empty").mkdir()),
    ("ralph's own", lambda r: r.write(".ralph/loop.json")),
    ("an untracked fifo", lambda r: os.mkfifo(r.top / "fifo")),
]


def fifo(repository: Repository, before: Callable[[], None]) -> None:
    before()
    os.mkfifo(repository.top / "fifo")


def nested(repository: Repository) -> Repository:
    inner = Repository.empty(repository.top / "inner", repository.top.parent / "home")
    inner.write("f")
    return inner


def change_in_every_way(repository: Repository, *more: str) -> None:
    """Leaves changes of each kind uncommitted. `more` are the paths of further new files."""
    for path in ("deleted", "moved", "file", "directory/x"):
        repository.write(path)
    repository.commit_all()
    for path in ("new", "a\nb", "*", "staged", "intended", ".ralph/loop.json", *more):
        repository.write(path)
    repository.git("add", "staged")
    repository.git("add", "-N", "intended")
    repository.git("mv", "moved", "to")
    (repository.top / "deleted").unlink()
    (repository.top / "file").unlink()
    repository.write("file/x")
    (repository.top / "directory/x").unlink()
    (repository.top / "directory").rmdir()
    repository.write("directory")
    nested(repository).commit_all()


def test_these_are_progress(repository: Repository) -> None:
    for name in ("edited", "deleted", "mode", "link", "tree", "fifo"):
        repository.write(name)
    repository.commit_all()
    watch = Watch(repository.checkout(plan_file="ignored-plan"))
    for act, _files in PROGRESS:
        act(repository)
    changed = sorted(file for _act, files in PROGRESS for file in files)
    assert watch.changes() == Changes(0, tuple(changed))
    for name, act, then_changed in THEN:
        act(repository)
        assert watch.changes() == Changes(0, then_changed), name


def test_these_are_no_progress(repository: Repository) -> None:
    repository.write("new")
    checkout = repository.checkout()
    before = checkout.snapshot()
    for _name, act in NO_PROGRESS:
        act(repository)
    assert checkout.snapshot() == before


def test_ralphs_own_directory_does_not_count_where_it_is_committed_either(repository: Repository) -> None:
    repository.write("dir/.ralph/loop.json")
    repository.commit_all()
    write = lambda: repository.write("dir/.ralph/loop.json", "x")  # noqa: E731
    assert changes_by(repository, write, directory="dir") is None
    repository.write("dir/.ralph/loop.json")
    assert changes_by(repository, write) == Changes(0, ("dir/.ralph/loop.json",))


def test_commits_are_counted_and_their_files_named(repository: Repository) -> None:
    def act() -> None:
        for number in range(3):
            repository.write(f"new-{number}")
            repository.commit_all()
        repository.write("a.txt", "not committed")

    assert changes_by(repository, act) == Changes(3, ("a.txt", "new-0", "new-1", "new-2"))


def test_a_first_commit_counts(tmp_path: Path) -> None:
    repository = Repository.empty(tmp_path / "work", tmp_path / "home")
    assert repository.checkout().snapshot().head == ""
    assert changes_by(repository, lambda: (repository.write("a"), repository.commit_all())) == Changes(
        1, ("a",)
    )


def stashed(repository: Repository) -> None:
    repository.write("a.txt", "stashed")
    repository.git("stash", "-q")


def on_another_branch(repository: Repository) -> None:
    repository.git("switch", "-q", "-c", "other")
    repository.write("other")
    repository.commit_all()
    repository.git("switch", "-q", "main")


def merged(repository: Repository) -> None:
    on_another_branch(repository)
    repository.git("merge", "-q", "other")


def pushed(repository: Repository) -> None:
    on_another_branch(repository)
    repository.git("update-ref", "refs/remotes/origin/other", "other")


@pytest.mark.parametrize(
    ("act", "name"), [(stashed, "stash"), (on_another_branch, "other"), (merged, None), (pushed, None)]
)
def test_work_that_is_left_beside_the_branch_is_progress_and_named(
    repository: Repository, act, name: str | None
) -> None:
    repository.git("branch", "older")
    lines: list[str] = []
    watch = Watch(repository.checkout(warn=lines.append))
    act(repository)
    assert watch.changes() is not None
    assert [line.partition(",")[0] for line in lines] == ([f"work was left on {name}"] if name else [])


def written_commit(repository: Repository, parent: str) -> str:
    about = "me <me@x> 4000000000 +0000"
    text = (
        f"tree {repository.git('rev-parse', 'HEAD^{tree}')}\n{parent}author {about}\ncommitter {about}\n\nx\n"
    )
    file = repository.write("../commit", text)
    return repository.git("hash-object", "--literally", "-t", "commit", "-w", str(file))


@pytest.mark.parametrize(
    ("commit", "is_named"),
    [
        (lambda _: "1" * 40, False),
        (lambda one: one.git("rev-parse", "HEAD^{tree}"), False),
        (lambda one: written_commit(one, ""), True),
        (lambda one: written_commit(one, f"parent {'1' * 40}\n"), True),
    ],
    ids=["missing", "a tree", "without a parent", "with a missing parent"],
)
def test_no_branch_that_a_command_has_broken_hinders_a_look(
    repository: Repository, commit, *, is_named: bool
) -> None:
    lines: list[str] = []
    watch = Watch(repository.checkout(warn=lines.append))
    repository.write(".git/refs/heads/odd", commit(repository) + "\n")
    assert watch.changes() is not None
    assert [line.partition(",")[0] for line in lines] == (["work was left on odd"] if is_named else [])


def test_history_that_was_taken_back_is_progress_of_no_commits(repository: Repository) -> None:
    repository.write("a.txt", "x")
    repository.commit_all()
    assert changes_by(repository, lambda: repository.git("reset", "-q", "--hard", "HEAD~")) == Changes(
        0, ("a.txt",)
    )


def test_an_amended_commit_is_one_that_was_not_there(repository: Repository) -> None:
    repository.write("a.txt", "x")
    repository.commit_all()
    changes = changes_by(repository, lambda: repository.git("commit", "-q", "--amend", "-m", "other"))
    assert changes == Changes(1, ())


def forget_the_past(repository: Repository) -> None:
    repository.git("commit", "-q", "--amend", "-m", "other")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "-q", "--prune=now")


def begin_anew(repository: Repository) -> None:
    shutil.rmtree(repository.top / ".git")
    repository.git("init", "-q", "-b", "trunk")


@pytest.mark.parametrize(
    ("rewrite", "files"),
    [(forget_the_past, ("new",)), (begin_anew, (".gitignore", "a.txt", "dir/b.txt", "new"))],
)
def test_where_the_commit_of_before_is_gone_digests_tell_what_changed(
    repository: Repository, rewrite, files: tuple[str, ...]
) -> None:
    def act() -> None:
        rewrite(repository)
        repository.write("new")

    assert changes_by(repository, act) == Changes(0, files)


NO_COMMITS = ("--output=written", "main", "HEAD", "0" * 40, "0" * 64, "0" * 41, "{id}\n", "{id}^", "{blob}")


def test_a_recorded_head_that_is_no_commit_is_unknown(repository: Repository) -> None:
    checkout = repository.checkout()
    now, blob = checkout.snapshot(), repository.git("rev-parse", "HEAD:a.txt")
    for head in NO_COMMITS:
        recorded = Snapshot("", head.format(id=now.head, blob=blob), {**(now.files or {}), "new": "digest"})
        for before, after in ((recorded, now), (now, recorded)):
            assert checkout.changes(before, after) == Changes(0, ("new",)), head
    assert not (repository.top / "written").exists()


def test_what_a_killed_loop_recorded_is_enough_to_tell_changes(repository: Repository) -> None:
    checkout = repository.checkout()
    before = checkout.snapshot()
    repository.write("new")
    repository.commit_all()
    changes = checkout.changes(Snapshot(before.digest, before.head), checkout.snapshot())
    assert changes.commits == 1
    assert "new" in changes.files


def test_a_part_of_a_checkout_shows_the_progress_of_the_whole(repository: Repository) -> None:
    assert changes_by(repository, lambda: repository.write("a.txt", "x"), directory="dir") == Changes(
        0, ("a.txt",)
    )


def test_a_linked_working_tree_has_a_state_of_its_own(repository: Repository) -> None:
    repository.git("worktree", "add", "-q", "../linked", "-b", "linked")
    linked = Repository(repository.top.parent / "linked", repository.top.parent / "home")
    assert changes_by(linked, lambda: linked.write("a.txt", "x")) == Changes(0, ("a.txt",))
    assert changes_by(linked, lambda: repository.write("a.txt", "x")) is None
    assert linked.checkout().git_directory != repository.checkout().git_directory


def test_a_new_hook_is_told_in_a_linked_working_tree_too(repository: Repository) -> None:
    repository.git("worktree", "add", "-q", "../linked", "-b", "linked")
    linked = Repository(repository.top.parent / "linked", repository.top.parent / "home")
    for one in (repository, linked):
        checkout, hook = one.checkout(), repository.top / ".git/hooks/post-commit"
        before = checkout.snapshot()
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\n")
        assert checkout.changes(before, checkout.snapshot()) == Changes(0, (), ("hooks/post-commit",))
        hook.unlink()


@every_row(
    ("content", "name"),
    [(b"s \n", "s "), (b"\ns\n", "\ns"), (b"s\nt\n", "s\nt"), (b"s\0\n", "s"), (b"./" * 4500 + b"s\n", "s")],
)
def test_a_new_hook_is_told_wherever_a_planted_file_leads_git(
    repository: Repository, tmp_path: Path, content: bytes, name: str
) -> None:
    checkout = repository.checkout()
    checkout.snapshot()
    planted, commondir = repository.top / ".git" / name, repository.top / ".git/commondir"
    copy = tmp_path / f"copy{abs(hash(content))}"
    shutil.copytree(repository.top / ".git", copy)
    shutil.move(copy, planted)
    commondir.write_bytes(content)
    before = checkout.snapshot()
    (planted / "hooks").mkdir(exist_ok=True)
    (planted / "hooks/post-commit").write_text("#!/bin/sh\n")
    assert checkout.changes(before, checkout.snapshot()) == Changes(0, (), ("hooks/post-commit",))
    commondir.unlink()
    shutil.rmtree(planted)


def test_edits_and_commits_in_inner_repositories_are_progress(repository: Repository) -> None:
    inner, watch = nested(repository), Watch(repository.checkout())
    inner.write("f", "x")
    assert watch.changes() == Changes(0, ("inner/f",))
    inner.commit_all()
    assert watch.changes() is not None
    repository.git("submodule", "--quiet", "add", "./inner", "inner")
    repository.commit_all()
    added = ("submodule.inner.active", "submodule.inner.url")
    assert watch.changes() == Changes(1, (".gitmodules", "inner"), added)
    inner.write("f", "y")
    assert watch.changes() == Changes(0, ("inner/f",))
    inner.commit_all()
    assert watch.changes() is not None
    os.utime(inner.top / "f")
    assert watch.changes() is None


def test_an_inner_repository_that_is_broken_ends_nothing(repository: Repository) -> None:
    inner = nested(repository)
    inner.commit_all()
    (inner.top / ".git/index").write_bytes(b"damaged")
    assert repository.checkout().snapshot().digest


def test_a_merge_in_progress_can_be_looked_at(repository: Repository) -> None:
    conflict(repository)
    assert changes_by(repository, lambda: repository.write("a.txt", "resolved")) == Changes(0, ("a.txt",))


def conflict(repository: Repository) -> str:
    repository.git("switch", "-q", "-c", "other")
    repository.write("a.txt", "theirs")
    repository.commit_all()
    repository.git("switch", "-q", "main")
    repository.write("a.txt", "ours")
    repository.commit_all()
    return repository.git("merge", "-q", "other", fails=True)


@pytest.mark.ordinary_user
def test_an_unreadable_file_is_what_it_is(repository: Repository) -> None:
    repository.write("new").chmod(0)
    assert changes_by(repository, lambda: None) is None


def test_of_a_big_file_size_and_time_count(repository: Repository, monkeypatch) -> None:
    monkeypatch.setattr(look_module, "MOST_READ_BYTES", 10)
    repository.write("at", "0123456789")
    big = repository.write("over", "0123456789+")
    assert changes_by(repository, lambda: os.utime(repository.top / "at")) is None
    assert changes_by(repository, lambda: os.utime(big)) == Changes(0, ("over",))


def test_a_file_that_vanishes_meanwhile_is_absent(tmp_path: Path) -> None:
    repository = Repository(tmp_path, tmp_path / "home")
    digests = look_module.FileDigests(repository.waiter, repository.seams().clock)
    assert digests.of(str(tmp_path / "no/such")) == look_module.ABSENT
    assert digests.of("/dev/null/below") == look_module.ABSENT


def test_a_plan_that_is_a_link_counts_with_what_it_leads_to(repository: Repository) -> None:
    plan = repository.top.parent / "plan"
    plan.write_text("1")
    (repository.top / "PLAN.md").symlink_to(plan)
    assert changes_by(repository, lambda: plan.write_text("2")) == Changes(0, ("PLAN.md",))


def test_looking_writes_nothing(repository: Repository) -> None:
    os.utime(repository.top / "a.txt")
    before = (repository.top / ".git/index").stat()
    repository.checkout().snapshot()
    assert (repository.top / ".git/index").stat().st_mtime_ns == before.st_mtime_ns


def test_a_signal_ends_the_call_and_nothing_is_left(repository: Repository) -> None:
    checkout, before = repository.checkout(), children()
    repository.waiter.inbox.note_signal(signal.SIGTERM)
    with pytest.raises(SignalReceived):
        checkout.snapshot()
    assert children() - {SUPERVISOR.pid} <= before


def test_a_signal_ends_the_reading_of_files(repository: Repository) -> None:
    digests = look_module.FileDigests(repository.waiter, repository.seams().clock)
    repository.waiter.inbox.note_signal(signal.SIGTERM)
    with pytest.raises(SignalReceived):
        [digests.of(str(repository.top / "a.txt")) for _ in range(200)]


def test_two_thousand_new_files_take_a_second_and_not_a_call_each(repository: Repository) -> None:
    (repository.top / "many").mkdir()
    for number in range(2_000):
        (repository.top / f"many/{number}").write_bytes(b"x" * 100)
    checkout, began_s = repository.checkout(), time.process_time()
    assert len(checkout.snapshot().files or ()) == 2_001
    assert time.process_time() - began_s < 10
