"""Tests where a push goes, how many commits it reports, and what it says when it fails."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from ralph.git import push as push_module
from ralph.git import runner
from ralph.git.answer import CheckoutError, GitAnswer
from ralph.git.push import target_of
from ralph.git.settings import PinnedSetting, RemoteSettings
from ralph.machine.waiter import InboxWaiter
from ralph.values.ports import SignalReceived
from tests.git.repositories import CLOCK, Repository, cloned
from tests.processes.children import children
from tests.processes.one_supervisor import SUPERVISOR
from tests.processes.scripts import first_on_path
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path


def told(*values: str) -> RemoteSettings:
    pairs = (value.partition("=") for value in values)
    return RemoteSettings(tuple(PinnedSetting(name, value) for name, _, value in pairs))


ORIGIN, FORK = "remote.origin.url=o", "remote.fork.url=f"
UPSTREAM = ("branch.work.remote=origin", "branch.work.merge=refs/heads/main")


@every_row(
    ("values", "target"),
    [
        ((ORIGIN,), "origin work"),
        ((FORK,), "fork work"),
        ((ORIGIN, FORK), "origin work"),
        ((ORIGIN, FORK, "branch.work.remote=fork"), "fork work"),
        ((ORIGIN, "branch.work.remote=."), "origin work"),
        ((ORIGIN, FORK, *UPSTREAM, "remote.pushdefault=fork"), "fork work"),
        ((ORIGIN, FORK, "remote.pushdefault=origin", "branch.work.pushremote=fork"), "fork work"),
        ((ORIGIN, *UPSTREAM), "origin work"),
        ((ORIGIN, *UPSTREAM, "push.default=upstream"), "origin main"),
        ((ORIGIN, FORK, *UPSTREAM, "push.default=upstream", "branch.work.pushremote=fork"), "fork work"),
    ],
)
def test_a_push_goes_where_git_would_send_it(values, target: str) -> None:
    found = target_of(told(*values), "work")
    assert f"{found.remote} {found.remote_branch}" == target


@every_row(
    ("values", "target"),
    [
        ((FORK,), "origin new"),
        ((FORK, "branch.new.remote=."), "origin new"),
        (
            (FORK, "branch.new.remote=origin", "branch.new.merge=refs/heads/x", "push.default=upstream"),
            "origin x",
        ),
        ((FORK, "branch.new.remote=fork"), "origin new, tied to fork"),
        ((FORK, "branch.new.pushremote=fork"), "origin new, tied to fork"),
        ((FORK, "branch.new.remote=fork", "remote.pushdefault=origin"), "origin new"),
        ((FORK, "branch.work.pushremote=origin", "remote.pushdefault=fork"), "origin new"),
        (
            (FORK, "branch.new.remote=fork", "branch.new.merge=refs/heads/x", "push.default=upstream"),
            "origin new, tied to fork",
        ),
    ],
)
def test_another_branch_goes_to_the_remote_of_the_branch_on_which_the_loop_began(values, target: str) -> None:
    found = target_of(told(ORIGIN, *UPSTREAM, *values), "new", "work")
    tied = f", tied to {found.elsewhere}" if found.elsewhere else ""
    assert f"{found.remote} {found.remote_branch}{tied}" == target


@every_row(
    ("values", "branch", "words"),
    [
        ((), "work", "no remote"),
        ((FORK, "remote.b.url=b"), "work", "is named origin"),
        ((ORIGIN,), None, "detached"),
    ],
)
def test_a_branch_without_a_way_is_told_what_to_do(values, branch, words: str) -> None:
    with pytest.raises(CheckoutError, match=words):
        target_of(told(*values), branch)


def test_a_push_brings_what_the_remote_lacks_and_writes_no_configuration(tmp_path: Path) -> None:
    repository = cloned(tmp_path / "work", tmp_path / "home")
    checkout, configuration = repository.checkout(), (repository.top / ".git/config").read_text()
    assert (checkout.unpushed(), checkout.push()) == (0, 0)
    for name in ("b", "c"):
        repository.write(name)
        head = repository.commit_all()
    assert (checkout.unpushed(), checkout.push(), checkout.unpushed()) == (2, 2, 0)
    assert repository.git("ls-remote", "origin", "refs/heads/main").split()[0] == head
    repository.git("switch", "-q", "-c", "other")
    repository.write("d")
    repository.commit_all()
    assert (checkout.unpushed(), checkout.push(), checkout.unpushed()) == (1, 1, 0)
    assert (repository.top / ".git/config").read_text() == configuration


def test_commits_of_a_submodule_that_no_remote_has_are_named(tmp_path: Path) -> None:
    repository = cloned(tmp_path / "work", tmp_path / "home")
    source = cloned(tmp_path / "other" / "source", tmp_path / "home")
    repository.git("submodule", "--quiet", "add", str(source.top.with_name("remote.git")), "sub")
    repository.commit_all()
    lines: list[str] = []
    checkout = repository.checkout(warn=lines.append)
    assert (checkout.push(), lines) == (1, [])
    inner = Repository(repository.top / "sub", tmp_path / "home")
    inner.write("more")
    inner.git("add", "-A")
    inner.git("-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "-m", "more")
    repository.commit_all()
    assert checkout.push() == 1
    assert lines == ["these submodules have commits that no remote has: sub; push them yourself"]


def test_a_remote_that_went_on_keeps_what_it_has(tmp_path: Path) -> None:
    repository = cloned(tmp_path / "work", tmp_path / "home")
    repository.write("b")
    theirs = repository.commit_all()
    repository.git("push", "-q", "origin", "main")
    repository.git("reset", "-q", "--hard", "HEAD~")
    repository.write("c")
    repository.commit_all()
    with pytest.raises(
        CheckoutError, match=r"^git push: ! refs/heads/main:refs/heads/main \[rejected\].*; error: failed"
    ):
        repository.checkout().push()
    assert repository.git("ls-remote", "origin", "refs/heads/main").split()[0] == theirs


@pytest.fixture
def silent(tmp_path: Path) -> Repository:
    """A repository whose remote is reached through a program that never answers."""
    repository = cloned(tmp_path / "work", tmp_path / "home")
    silent = f"trap '' TERM; : > {tmp_path}/began; sleep 99; sleep 99"
    first_on_path(repository.environment, tmp_path / "bin/ssh", silent)
    repository.git("remote", "set-url", "origin", "ssh://host/x")
    return repository


def test_a_remote_that_says_nothing_is_given_up(silent: Repository, monkeypatch) -> None:
    monkeypatch.setattr(push_module, "REMOTE_LIMIT_S", 0.2)
    monkeypatch.setattr(runner, "_GRACE_S", 0.1)
    before = children()
    with pytest.raises(CheckoutError, match=r"git push took longer than 0\.2 s and was stopped"):
        silent.checkout().push()
    assert children() - {SUPERVISOR.pid} <= before


def test_a_signal_ends_a_push_and_nothing_is_left(silent: Repository, monkeypatch) -> None:
    monkeypatch.setattr(runner, "_GRACE_S", 0.1)
    before = children()

    def stop_it_once_it_runs() -> None:
        if (silent.top.parent / "began").exists() and not silent.waiter.was_stopped:
            silent.waiter.inbox.note_signal(signal.SIGTERM)

    silent.waiter = InboxWaiter(CLOCK, on_look=stop_it_once_it_runs)
    with pytest.raises(SignalReceived):
        silent.checkout().push()
    assert children() - {SUPERVISOR.pid} <= before


@pytest.mark.parametrize("has_remote", [True, False])
def test_what_cannot_be_told_is_none(repository: Repository, has_remote: bool) -> None:
    if has_remote:
        repository.git("config", "remote.origin.url", "/no/such")
    assert repository.checkout().unpushed() is None


@every_row(
    ("said", "words"),
    [
        ("fatal: a\n\nAnother process\nremove it\n", "fatal: a"),
        ("hint: x\nPermission denied\nfatal: no\n\nPlease make sure\n", "Permission denied; fatal: no"),
        (
            "fatal: unable to access 'https://me:hunter22@h/x/': no",
            "fatal: unable to access 'https://[redacted]@h/x/': no",
        ),
        ("fatal: https://ghp_abc@h", "fatal: https://[redacted]@h"),
        ("fatal: ssh://git@h", "fatal: ssh://git@h"),
        ("\x1b[31mfatal: x\x1b[0m", "fatal: x"),
        ("", "it ended with 1"),
        ("fatal: " + "x" * 600, "fatal: " + "x" * 493 + "..."),
    ],
)
def test_a_failure_is_told_in_gits_last_telling_lines_without_credentials(said: str, words: str) -> None:
    assert GitAnswer(1, b"", said.encode()).complaint() == words
