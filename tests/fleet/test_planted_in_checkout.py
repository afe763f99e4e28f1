"""No git call of a worker runs a program that an agent put into its checkout, or follows the agent to another
repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ralph.fleet import checkouts
from ralph.fleet.checkouts import Delivered, GitCalls, GitTerms, MadeCommit, Repositories, head_of, trailer_of
from ralph.git.answer import CheckoutError
from ralph.machine.files.opened_copies import copy_objects
from ralph.values.outcome import Outcome
from tests.fleet.checked_out import checked_out, source_with
from tests.git.http_repository import HttpRepository
from tests.git.repositories import Repository, committed
from tests.git.test_planted_programs import plant_everything, program
from tests.processes.one_supervisor import SUPERVISOR

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.fleet.checkouts import JobCheckout

FIRST = trailer_of("set", "job", 1, 1)
ATTRIBUTES = "*.txt diff=evil merge=evil\n*.bin filter=evil\n"


@pytest.fixture
def source(tmp_path: Path) -> Repository:
    """A clone of the job's repository `remote.git`, which is beside it."""
    return source_with(ATTRIBUTES, tmp_path)


@pytest.fixture
def checkout(source: Repository) -> JobCheckout:
    return checked_out(source, ATTRIBUTES)


def test_nothing_that_was_planted_runs(source: Repository, checkout: JobCheckout, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    agent = Repository(checkout.directory, tmp_path / "home")
    inner = Repository.empty(agent.top / "inner", tmp_path / "home")
    inner.write("f")
    inner.commit_all()
    agent.git("-c", "user.name=A", "-c", "user.email=a@b", "add", "inner")
    agent.git("-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "-m", "a submodule")
    inner.write(".gitattributes", "* filter=evil diff=evil\n")
    elsewhere = tmp_path / "elsewhere.git"
    agent.git("clone", "-q", "--bare", ".", str(elsewhere))
    refs = agent.git("-C", str(elsewhere), "for-each-ref")
    plant_everything(inner, marks)
    plant_everything(agent, marks)
    inner.write("f", "TEXT\n")
    agent.git("config", "remote.origin.url", str(elsewhere))
    agent.git("config", "remote.origin.pushurl", str(elsewhere))
    agent.git("config", f"url.{elsewhere}.insteadOf", str(tmp_path / "remote.git"))
    agent.git("config", f"url.{elsewhere}.pushInsteadOf", str(tmp_path / "remote.git"))
    agent.write("a.txt", "changed\n")
    agent.write("secret.bin", "TEXT\n")
    bin_of_agent = agent.top / "bin"
    for name in ("git", "git-receive-pack", "ssh"):
        program(bin_of_agent / name, marks)
    search_path = source.environment["PATH"]
    source.environment["PATH"] = f"{bin_of_agent}:{search_path}"
    for mark in marks.iterdir():  # what the preparation itself has run
        mark.unlink()
    taken = checkout.snapshot(None, "Checkpoint")
    assert taken is not None
    assert checkout.push_checkpoint(taken.commit, "refs/ralph/job/1") == Delivered(taken.commit)
    final = checkout.finish("Job", FIRST)
    assert checkout.push_branch(final.commit, "ralph/job", None) == Delivered(final.commit)
    assert checkout.contains(final.commit, checkout.commit)
    assert [path.name for path in marks.iterdir()] == []
    source.environment["PATH"] = search_path
    remote = str(tmp_path / "remote.git")
    assert source.git("-C", remote, "show", "ralph/job:secret.bin") == "TEXT"
    assert source.git("-C", str(elsewhere), "for-each-ref") == refs


def test_a_remote_on_this_machine_runs_nothing_that_its_configuration_names(
    source: Repository, checkout: JobCheckout, tmp_path: Path
) -> None:
    """An agent without a sandbox can write there too."""
    marks = tmp_path / "marks"
    marks.mkdir()
    remote = Repository(tmp_path / "remote.git", tmp_path / "home")
    plant_everything(remote, marks)
    for mark in marks.iterdir():
        mark.unlink()
    (checkout.directory / "a.txt").write_text("changed\n")
    final = checkout.finish("Job", FIRST)
    assert checkout.push_branch(final.commit, "ralph/job", None) == Delivered(final.commit)
    again = Repositories(tmp_path / "other", GitCalls(source.environment, SUPERVISOR))
    assert (
        again.check_out(str(remote.top), "ralph/job", tmp_path / "again/checkout", "x").commit == final.commit
    )
    assert [path.name for path in marks.iterdir()] == []


def test_a_filter_of_the_users_own_runs_if_the_settings_name_it(
    source: Repository, checkout: JobCheckout, tmp_path: Path
) -> None:
    """That of git-lfs loads a file's content from the remote."""
    remote, named, ran = str(tmp_path / "remote.git"), GitTerms(filters=("evil",)), tmp_path / "ran"
    source.git("config", "--global", "filter.evil.clean", f"touch {ran}; tr a-z A-Z")
    source.git("config", "--global", "filter.evil.smudge", "git config remote.origin.url")
    (checkout.directory / "x.bin").write_text("hello\n")
    left = checkout.finish("Job", FIRST)
    assert left == MadeCommit(checkout.commit, ("x.bin (its filter evil is not in loop.git_filters)",))
    checkout.use(GitCalls(source.environment, SUPERVISOR, terms=named))
    final = checkout.finish("Job", FIRST)
    checkout.push_branch(final.commit, "ralph/job", None)
    assert source.git("-C", remote, "show", "ralph/job:x.bin") == "HELLO"
    checkout.use(GitCalls(source.environment, SUPERVISOR))
    ran.unlink()
    (checkout.directory / "x.bin").write_text("other\n")
    assert checkout.finish("Job", FIRST).left_out == left.left_out
    assert not ran.exists()
    repositories = Repositories(tmp_path / "others", GitCalls(source.environment, SUPERVISOR))
    with pytest.raises(CheckoutError, match=r"x\.bin goes through your filter 'evil'"):
        repositories.check_out(remote, "ralph/job", tmp_path / "refused/checkout", "ralph/job")
    repositories = Repositories(tmp_path / "mirrors", GitCalls(source.environment, SUPERVISOR, terms=named))
    again = repositories.check_out(remote, "ralph/job", tmp_path / "again/checkout", "ralph/job")
    assert (again.directory / "x.bin").read_text().strip() == remote


@pytest.fixture
def private(tmp_path: Path) -> Repository:
    """A repository that the agent must not read, with a commit that it knows by name."""
    made = committed(tmp_path / "private", tmp_path / "home")
    made.write("key", "secret\n")
    made.commit_all()
    return made


@pytest.mark.parametrize("way", ["alternates", "objects", "folders", "files"])
def test_no_objects_of_another_repository_are_pushed(
    checkout: JobCheckout, private: Repository, way: str
) -> None:
    """The last three ways look to git like objects of the agent's own."""
    objects, theirs = checkout.directory / ".git/objects", private.top / ".git/objects"
    mirror = (objects / "info/alternates").read_text()
    commit = private.git("rev-parse", "HEAD")
    (checkout.directory / ".git/HEAD").write_text(f"{commit}\n")
    if way == "alternates":
        (objects / "info/alternates").write_text(f"{mirror}{theirs}\n")
    elif way == "objects":
        (theirs / "info/alternates").write_text(mirror)
        shutil.rmtree(objects)
        objects.symlink_to(theirs)
    else:
        for file in theirs.glob("??/*"):
            linked = file if way == "files" else file.parent
            there = objects / linked.relative_to(theirs)
            there.parent.mkdir(exist_ok=True)
            if not there.exists():
                there.symlink_to(linked)
    with pytest.raises(
        CheckoutError, match="pack-objects" if way == "alternates" else "the agent has replaced it"
    ):
        checkout.finish("Job", FIRST)


# Exchanges the folder and the link as soon as somebody opens the first file: git has seen then that the folder is one.
EXCHANGE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
events = libc.inotify_init1(0)
IN_OPEN, AT_FDCWD, EXCHANGE = 0x20, -100, 2
assert libc.inotify_add_watch(events, b"d/a0000", IN_OPEN) >= 0
print("ready", flush=True)
os.read(events, 4096)
assert libc.renameat2(AT_FDCWD, b"d", AT_FDCWD, b"l", EXCHANGE) == 0
print("exchanged", flush=True)
"""


def test_a_folder_that_becomes_a_link_while_git_stages_shows_no_file_of_another_place(
    checkout: JobCheckout, tmp_path: Path
) -> None:
    """Commands of the job may run during a checkpoint (`run_in_background`)."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("secret\n")
    top = checkout.directory
    (top / ".gitignore").write_text("/l\n")
    (top / "l").symlink_to(private)
    (top / "d").mkdir()
    for number in range(3000):
        (top / f"d/a{number:04}").write_text("x")
    (top / "d/key").write_text("public\n")
    command = [sys.executable, "-c", EXCHANGE]
    with subprocess.Popen(command, cwd=top, stdout=subprocess.PIPE, text=True) as racing:
        assert racing.stdout is not None
        assert racing.stdout.readline() == "ready\n"
        taken = checkout.snapshot(None, "Checkpoint")
        assert racing.stdout.readline() == "exchanged\n"
    assert taken is not None
    assert (top / "d").is_symlink()
    remote = Repository(top.parent / "git", tmp_path / "home")
    assert remote.git("show", f"{taken.commit}:d/key") == "public"


def test_objects_that_become_links_after_the_look_are_not_pushed(
    checkout: JobCheckout, private: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, theirs = checkout.directory / ".git/objects", private.top / ".git/objects"
    commit = private.git("rev-parse", "HEAD")
    (checkout.directory / ".git/HEAD").write_text(f"{commit}\n")
    before = checkout.commit

    def exchanged(git: str, place: str) -> None:
        copy_objects(git, place)
        (theirs / "info/alternates").write_text((objects / "info/alternates").read_text())
        objects.rename(objects.with_name("own"))
        objects.symlink_to(theirs)

    monkeypatch.setattr(checkouts, "copy_objects", exchanged)
    with pytest.raises(CheckoutError, match="pack-objects"):
        checkout.finish("Job", FIRST)
    assert checkout.contains(before, before)
    assert not checkout.contains(before, commit)


def test_a_checkpoint_has_the_commit_of_a_submodule(checkout: JobCheckout, tmp_path: Path) -> None:
    agent = Repository(checkout.directory, tmp_path / "home")
    inner = Repository.empty(agent.top / "inner", tmp_path / "home")
    inner.write("f")
    inner.commit_all()
    agent.git("-c", "user.name=A", "-c", "user.email=a@b", "add", "inner")
    agent.git("-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "-m", "a submodule")
    inner.write("f", "more\n")
    inner.commit_all()
    taken = checkout.snapshot(None, "Checkpoint")
    assert taken is not None
    own = Repository(checkout.directory.parent / "git", tmp_path / "home")
    assert own.git("rev-parse", f"{taken.commit}:inner") == inner.git("rev-parse", "HEAD")
    assert checkout.snapshot(taken.commit, "Checkpoint") is None


@pytest.mark.parametrize("way", ["link", "file"])
def test_a_repository_that_leads_to_another_one_is_refused_before_anything_is_spent(
    source: Repository, private: Repository, tmp_path: Path, way: str
) -> None:
    leading = tmp_path / "leading"
    leading.mkdir()
    if way == "link":
        (leading / ".git").symlink_to(private.top / ".git")
    else:
        (leading / ".git").write_text(f"gitdir: {private.top}/.git\n")
    repositories = Repositories(tmp_path / "mirrors", GitCalls(source.environment, SUPERVISOR))
    with pytest.raises(CheckoutError, match="which is not its own") as raised:
        repositories.check_out(str(leading), None, tmp_path / "job/checkout", "ralph/job")
    assert raised.value.outcome is Outcome.CONFIG
    worktree = tmp_path / "linked"
    private.git("worktree", "add", "-q", "--detach", str(worktree))
    repositories.check_out(str(worktree), None, tmp_path / "job/checkout", "ralph/job")


@pytest.mark.parametrize("way", ["link", "file"])
def test_another_repository_in_the_place_of_git_is_not_read(
    checkout: JobCheckout, private: Repository, way: str
) -> None:
    git = checkout.directory / ".git"
    shutil.rmtree(git)
    if way == "link":
        git.symlink_to(private.top / ".git")
    else:
        git.write_text(f"gitdir: {private.top}/.git\n")
    assert head_of(checkout.directory) is None
    assert checkout.finish("Job", FIRST).commit == checkout.commit


def test_a_credential_helper_is_not_taken_from_the_checkout(source: Repository, tmp_path: Path) -> None:
    """Git itself searches PATH for it."""
    marks = tmp_path / "marks"
    marks.mkdir()
    source.git("config", "--global", "credential.helper", "of-the-user")
    repositories = Repositories(tmp_path / "mirrors", GitCalls(source.environment, SUPERVISOR))
    with HttpRepository(tmp_path / "remote.git") as served:
        checkout = repositories.check_out(served.url, None, tmp_path / "job/checkout", "ralph/job")
        planted = program(checkout.directory / "bin/git-credential-of-the-user", marks)
        source.environment["PATH"] = f"{planted.parent}:{source.environment['PATH']}"
        served.status = 401
        with pytest.raises(CheckoutError):
            checkout.push_branch(checkout.commit, "ralph/job", None)
    assert list(marks.iterdir()) == []


def test_head_is_read_from_plain_files_only(checkout: JobCheckout, private: Repository) -> None:
    git = checkout.directory / ".git"
    head = checkout.commit
    assert head_of(checkout.directory) == head
    branch = git / "refs/heads/ralph/job"
    branch.unlink()
    assert head_of(checkout.directory) is None
    branch.symlink_to(private.top / ".git/refs/heads/main")
    assert head_of(checkout.directory) is None
    branch.unlink()
    shutil.rmtree(branch.parent)
    branch.parent.symlink_to(private.top / ".git/refs/heads")
    (git / "HEAD").write_text("ref: refs/heads/ralph/main\n")
    assert head_of(checkout.directory) is None
    for text in (
        "ref: refs/../../../../private/.git/refs/heads/main\n",
        "ref: HEAD\n",
        "ref: refs/heads/\0\n",
        "",
        "x" * 5000,
    ):
        (git / "HEAD").write_text(text)
        assert head_of(checkout.directory) is None, text
    (git / "HEAD").unlink()
    os.mkfifo(git / "HEAD")
    assert head_of(checkout.directory) is None
    (git / "HEAD").unlink()
    (git / "HEAD").write_text("ref: refs/heads/ralph/job\n")
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{head} refs/heads/ralph/job\n")
    assert head_of(checkout.directory) == head


SECRET = "MY-known-QWERTY-77"


def test_no_credential_of_the_worker_is_published(source: Repository, tmp_path: Path) -> None:
    source.environment["MY_API_KEY"] = SECRET
    checkout = checked_out(source, ATTRIBUTES)
    top, own = checkout.directory, Repository(checkout.directory.parent / "git", tmp_path / "home")
    (top / "a.txt").write_text(f"key={SECRET}\n")
    (top / f"name-{SECRET}").write_text("x")
    (top / "fixture").write_text("sk-ant-api03-0123456789abcdef0123456789\n")
    taken = checkout.snapshot(None, "Checkpoint")
    assert taken is not None
    assert taken.left_out == (
        "a.txt (holds a credential that ralph knows)",
        "name-[redacted] (holds a credential that ralph knows)",
    )
    assert own.git("diff", "--name-only", checkout.commit, taken.commit) == "fixture"
    assert checkout.push_checkpoint(taken.commit, "refs/ralph/job/1") == Delivered(taken.commit)
    assert checkout.snapshot(taken.commit, "Checkpoint") is None
    agent = Repository(top, tmp_path / "home")
    agent.commit_all()
    final = checkout.finish("Job", FIRST)
    with pytest.raises(
        CheckoutError, match=r"holds a credential that ralph knows \(a.txt, name-\[redacted\]\)"
    ):
        checkout.push_branch(final.commit, "ralph/job", None)
    assert "ralph/job" not in source.git("-C", str(tmp_path / "remote.git"), "branch", "--list")
