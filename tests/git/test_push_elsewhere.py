"""Pushes from checkouts of every kind, and pushes to repositories on this machine that name programs of their
own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from ralph.loop.checkout import check_checkout
from ralph.places.state import running_below
from ralph.sandbox.protected_files import CommandMark, entries_of
from tests.git.repositories import Repository, cloned
from tests.git.test_planted_programs import HOOKS, program
from tests.processes.scripts import before_git, script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.git.checkout import GitCheckout


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return cloned(tmp_path / "work", tmp_path / "home")


def work(repository: Repository, name: str = "new") -> str:
    repository.write(name, name)
    return repository.commit_all()


def pushed(repository: Repository, remote: Path, branch: str = "main") -> str:
    return repository.git("--git-dir", str(remote), "rev-parse", branch)


@pytest.mark.parametrize(
    "script",
    ["git config remote.origin.pushurl ../other", "git config -f shared remote.origin.pushurl ../other"],
)
def test_no_loop_takes_a_remote_from_a_command_whose_change_nobody_has_undone(
    repository: Repository, tmp_path: Path, script: str
) -> None:
    """The command of another run that still works, or was killed."""
    repository.git("init", "-q", "--bare", "../other")
    repository.git("config", "include.path", "../shared")
    repository.write("shared", "[core]\n\tabbrev = 12\n")
    head = work(repository)
    mark = CommandMark(running_below(f"{tmp_path}/home/.local/state/ralph"), ["x"], ["x"])
    mark.begin(entries_of([f"{repository.top}/.git/config", f"{repository.top}/shared"]))
    checkout = repository.checkout()
    assert check_checkout(checkout, commits=False, pushes=True) == []
    subprocess.run(script, shell=True, cwd=repository.top, check=True)
    with pytest.raises(
        CheckoutError, match="changed during a command of a ralph that still runs it, or was killed"
    ):
        check_checkout(repository.checkout(), commits=False, pushes=True)
    check_checkout(repository.checkout(), commits=False, pushes=False)
    assert (checkout.push(), pushed(repository, tmp_path / "remote.git")) == (1, head)
    mark.end()
    check_checkout(repository.checkout(), commits=False, pushes=True)
    mark.close()


# --- from checkouts of every kind


def shallow(source: Repository) -> Repository:
    work(source)
    source.git("push", "-q", "origin", "main")
    source.git("clone", "-q", "--depth", "1", f"file://{source.top.parent}/remote.git", "../other")
    return Repository(source.top.parent / "other", source.top.parent / "home")


def partial(source: Repository) -> Repository:
    remote = source.top.parent / "remote.git"
    source.git("--git-dir", str(remote), "config", "uploadpack.allowFilter", "true")
    source.git("clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{remote}", "../other")
    made = Repository(source.top.parent / "other", source.top.parent / "home")
    made.git("checkout", "-q", "main")
    return made


def with_other_ids(source: Repository) -> Repository:
    shutil.rmtree(source.top.parent / "remote.git")
    made = Repository(source.top.parent / "other", source.top.parent / "home")
    made.top.mkdir()
    made.git("init", "-q", "-b", "main", "--object-format=sha256")
    made.git("init", "-q", "--bare", "--object-format=sha256", "../remote.git")
    made.git("remote", "add", "origin", "../remote.git")
    return made


def linked(source: Repository) -> Repository:
    source.git("worktree", "add", "-q", "-b", "topic/one", "../other")
    return Repository(source.top.parent / "other", source.top.parent / "home")


@pytest.mark.parametrize("make", [shallow, partial, with_other_ids, linked])
def test_every_kind_of_checkout_is_pushed_from(
    repository: Repository, tmp_path: Path, make: Callable[[Repository], Repository]
) -> None:
    made = make(repository)
    for name in ("name", "email"):
        made.git("config", f"user.{name}", "x")
    head = work(made, "dir/newer")
    assert len(head) == (64 if make is with_other_ids else 40)
    assert (made.checkout().push(), made.checkout().unpushed()) == (1, 0)
    branch = "topic/one" if make is linked else "main"
    assert pushed(made, tmp_path / "remote.git", branch) == head
    assert made.git("rev-parse", f"origin/{branch}") == head


def test_every_push_address_gets_it_and_one_that_fails_is_told(
    repository: Repository, tmp_path: Path
) -> None:
    repository.git("init", "-q", "--bare", "../second.git")
    for place in ("remote.git", "second.git"):
        repository.git("config", "--add", "remote.origin.pushurl", f"../{place}")
    head = work(repository)
    repository.checkout().push()
    assert {pushed(repository, tmp_path / name) for name in ("remote.git", "second.git")} == {head}
    shutil.rmtree(tmp_path / "remote.git")
    head = work(repository, "more")
    with pytest.raises(CheckoutError, match=r"remote\.git"):
        repository.checkout().push()
    assert pushed(repository, tmp_path / "second.git") == head


def test_what_the_users_own_files_say_of_this_directory_counts(
    repository: Repository, tmp_path: Path
) -> None:
    """A push runs in a temporary git directory. Conditions (`includeIf`) must refer to the checkout and not to that
    directory.
    """
    home = tmp_path / "home"
    repository.git("config", "remote.origin.url", "mine:remote")
    (home / ".gitconfig").write_text(f'[includeIf "gitdir:{repository.top}/"]\n\tpath = of-work\n')
    (home / "of-work").write_text(f'[url "{tmp_path}/"]\n\tinsteadOf = mine:\n\tpushInsteadOf = mine:\n')
    (tmp_path / "remote.git").rename(tmp_path / "remote")
    head = work(repository)
    assert (repository.checkout().push(), pushed(repository, tmp_path / "remote")) == (1, head)


def test_what_the_user_says_in_the_environment_counts(repository: Repository, tmp_path: Path) -> None:
    repository.git("config", "remote.origin.url", "mine:remote.git")
    repository.environment |= {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{tmp_path}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "mine:",
    }
    work(repository)
    assert repository.checkout().push() == 1


def test_a_git_that_knows_no_settings_by_environment_is_refused(
    repository: Repository, tmp_path: Path
) -> None:
    is_old = 'case "$*" in *" version") echo git version 2.31.9; exit;; esac'
    before_git(repository.environment, tmp_path / "bin", is_old)
    with pytest.raises(CheckoutError, match=r"--push needs git 2\.32 or newer, this is git version 2\.31\.9"):
        check_checkout(repository.checkout(), commits=False, pushes=True)
    check_checkout(repository.checkout(), commits=True, pushes=False)


# --- to repositories on this machine


def plant(remote: Path, marks: Path, repository: Repository) -> None:
    """Plants everything that git may run in a repository that receives a push."""
    for name in HOOKS:
        program(remote / "hooks" / name, marks)
    planted = script(marks.parent / "planted", f": > '{marks}/planted'")  # reads no input: it may get none
    repository.git("init", "-q", "--bare", "../other.git")
    (remote / "objects" / "info").mkdir(exist_ok=True)
    (remote / "objects" / "info" / "alternates").write_text(f"{marks.parent}/other.git/objects\n")
    core = ("alternateRefsCommand", "fsmonitor", "sshCommand", "pager", "editor")
    with (remote / "config").open("a") as config:
        config.write("[core]\n" + "".join(f'\t{name} = "{planted}"\n' for name in core))
        config.write(f'\thooksPath = "{remote}/hooks"\n')
        config.write(f'[hook "evil"]\n\tcommand = "{planted}"\n\tevent = pre-receive\n')
        config.write("[receive]\n\tprocReceiveRefs = refs/heads\n")
        config.write(f'[uploadpack]\n\tpackObjectsHook = "{planted}"\n')
        config.write(f'[gc]\n\tauto = 1\n\trecentObjectsHook = "{planted}"\n')


def ran(marks: Path) -> set[str]:
    return {path.name for path in marks.iterdir()}


@pytest.mark.parametrize("url", ["../remote.git", "../remote", "file://{}/remote.git"])
def test_a_remote_on_this_machine_runs_none_of_its_programs(
    repository: Repository, tmp_path: Path, marks: Path, url: str
) -> None:
    repository.git("config", "remote.origin.url", url.format(tmp_path))
    plant(tmp_path / "remote.git", marks, repository)
    work(repository)
    checkout = repository.checkout()
    # `receive.procReceiveRefs` without its hook: git refuses, as the user's own git would.
    with pytest.raises(CheckoutError, match="proc-receive"):
        checkout.push()
    repository.git("--git-dir", str(tmp_path / "remote.git"), "config", "--unset", "receive.procReceiveRefs")
    check_checkout(checkout, commits=True, pushes=True)
    assert checkout.push() == 1
    empty = Repository.empty(tmp_path / "empty", tmp_path / "home")
    empty.git("remote", "add", "origin", url.format(tmp_path))
    check_checkout(empty.checkout(), commits=True, pushes=True)
    assert ran(marks) == set()


def test_the_same_remote_runs_them_for_git_itself(
    repository: Repository, tmp_path: Path, marks: Path
) -> None:
    """Without this test, the test above could pass because nothing was planted."""
    plant(tmp_path / "remote.git", marks, repository)
    repository.git("--git-dir", str(tmp_path / "remote.git"), "config", "--unset", "receive.procReceiveRefs")
    work(repository)
    options = ["-c", "core.hooksPath=/dev/null", "-c", "core.alternateRefsCommand=true"]
    repository.git(*options, "push", "-q", "origin", "main")
    assert {"planted", "pre-receive", "update", "post-receive", "reference-transaction"} <= ran(marks)


def test_a_remote_that_would_check_files_out_is_refused(
    repository: Repository, tmp_path: Path, marks: Path
) -> None:
    other = Repository.empty(tmp_path / "other", tmp_path / "home")
    work(other)
    other.git("config", "receive.denyCurrentBranch", "updateInstead")
    repository.git("config", "remote.origin.url", "../other")
    work(repository)
    with pytest.raises(
        CheckoutError, match=r"a push to \.\./other would update the files there .*updateInstead"
    ):
        repository.checkout().push()


@pytest.mark.parametrize(
    ("url", "config"),
    [
        ("../other", "[receive]\n\tdenyCurrentBranch = updateInstead\n"),  # beside an invalid `.git`
        (
            "../other",
            '[includeIf "gitdir:**/other/."]\n\tpath = more\n',
        ),  # as `git receive-pack` alone sees it
        ("~/../other", "[receive]\n\tdenyCurrentBranch = updateInstead\n"),
    ],
)
def test_no_place_and_no_condition_hides_that_a_remote_checks_files_out(
    repository: Repository, tmp_path: Path, marks: Path, monkeypatch, url: str, config: str
) -> None:
    monkeypatch.setenv("HOME", repository.environment["HOME"])
    other = tmp_path / "other"
    repository.git("clone", "-q", "--bare", "../remote.git", str(other))
    if "includeIf" not in config:
        (other / ".git").mkdir()
        (other / ".git/HEAD").write_text("ref: refs/heads/main\n")
    planted = program(tmp_path / "planted", marks)
    with (other / "config").open("a") as file:
        file.write(f'{config}[filter "x"]\n\tsmudge = "{planted}"\n')
    (other / "more").write_text("[receive]\n\tdenyCurrentBranch = updateInstead\n")
    repository.git("--git-dir", str(other), "config", "core.bare", "false")
    repository.git("--git-dir", str(other), "--work-tree", str(other), "checkout", "-q", "-f", "main")
    repository.git("config", "remote.origin.url", url)
    repository.write(".gitattributes", "* filter=x\n")
    work(repository)
    with pytest.raises(CheckoutError, match="would update the files there"):
        repository.checkout().push()
    assert ran(marks) == set()


def test_where_the_agent_may_write_only_a_remote_that_was_there_is_pushed_to(
    repository: Repository, tmp_path: Path
) -> None:
    """A remote that replaces another at the same path is a new one. Outside of the directories that an agent may
    write to, a new remote is allowed.
    """
    repository.git("clone", "-q", "--bare", "../remote.git", "backup.git")
    repository.write(".gitignore", "backup.git\n")
    repository.git("config", "remote.origin.url", "backup.git")
    checkout = repository.checkout()
    work(repository)
    assert checkout.push() == 1
    kept = checkout.pins_text()
    shutil.move(repository.top / "backup.git", repository.top / "old.git")
    shutil.copytree(repository.top / "old.git", repository.top / "backup.git")
    work(repository, "more")
    again = repository.checkout()
    assert again.restore_pins(kept) == []
    for each in (checkout, again):
        with pytest.raises(
            CheckoutError, match=r"backup\.git lies where the agent may write, and did not exist"
        ):
            each.push()
    shutil.rmtree(repository.top / "backup.git")
    (repository.top / "backup.git").symlink_to("old.git")
    assert checkout.push() == 1, "it is the one that was there"


def test_a_directory_that_was_added_is_one_where_the_agent_may_write(
    repository: Repository, tmp_path: Path
) -> None:
    added = tmp_path / "added"
    added.mkdir()
    repository.git("clone", "-q", "--bare", "../remote.git", "../added/b.git")
    repository.git("config", "remote.origin.url", str(added / "b.git"))
    work(repository)

    def checkout(*writable: Path) -> GitCheckout:
        made = repository.checkout(writable=writable)
        made.restore_pins(kept)
        return made

    pinned = json.loads(repository.checkout().pins_text())
    kept = json.dumps({**pinned, "places": []})
    with pytest.raises(CheckoutError, match="lies where the agent may write"):
        checkout(added).push()
    assert checkout().push() == 1


def test_pins_keep_a_push_where_it_went_and_what_changed_is_named(
    repository: Repository, tmp_path: Path
) -> None:
    checkout = repository.checkout()
    kept = checkout.pins_text()
    head = work(repository)
    repository.git("init", "-q", "--bare", "../thief.git")
    repository.git("config", "remote.origin.url", "../thief.git")
    repository.git("config", "remote.pushDefault", "thief")
    repository.git("config", "remote.thief.url", "../thief.git")
    repository.git("config", f"url.{tmp_path}/thief.git.insteadOf", str(tmp_path / "remote.git"))
    assert (checkout.push(), pushed(repository, tmp_path / "remote.git")) == (1, head)
    head = work(repository, "more")
    again = repository.checkout()
    [notice] = again.restore_pins(kept)
    assert "has changed since the loop began (remote.origin.url, remote.pushdefault, " in notice
    assert (again.push(), pushed(repository, tmp_path / "remote.git")) == (1, head)
    assert repository.git("--git-dir", "../thief.git", "for-each-ref") == ""


def test_the_current_branch_does_not_choose_the_remote(repository: Repository, tmp_path: Path) -> None:
    """An agent chooses the current branch, and the user's configuration ties `deploy` to another remote."""
    repository.git("init", "-q", "--bare", "../prod.git")
    repository.git("remote", "add", "prod", "../prod.git")
    repository.git("branch", "deploy")
    repository.git("push", "-q", "--set-upstream", "prod", "deploy")
    before = pushed(repository, tmp_path / "prod.git", "deploy")
    kept = repository.checkout().pins_text()
    assert json.loads(kept)["branch"] == "main"
    repository.git("switch", "-q", "deploy")
    head = work(repository)
    checkout = repository.checkout()
    checkout.restore_pins(kept)
    assert checkout.unpushed() == 1
    with pytest.raises(
        CheckoutError,
        match=r"deploy is tied to the remote prod, but the loop began on main, .* to origin",
    ):
        checkout.push()
    with pytest.raises(CheckoutError, match="deploy is tied to the remote prod"):
        check_checkout(checkout, commits=True, pushes=True)
    assert pushed(repository, tmp_path / "prod.git", "deploy") == before
    assert "deploy" not in repository.git("ls-remote", "origin")
    repository.git("push", "-q", "origin", "main:ralph/red-1")
    repository.git("update-ref", "-d", "refs/remotes/origin/ralph/red-1")
    repository.write("red")
    red = checkout.commit_aside("red", earlier=None, has_work=True, pushes=True, limit_s=99)
    assert red == "ralph/red-2", "the names at the remote of the loop count"
    assert checkout.push(red) == 2
    repository.git("stash", "-q", "-u")
    repository.git("switch", "-q", "-c", "new", "--track", "prod/deploy")
    repository.git("reset", "-q", "--hard", head)
    assert checkout.push() == 0, "its commits are there with the red ones"
    assert pushed(repository, tmp_path / "remote.git", "new") == head
    assert pushed(repository, tmp_path / "prod.git", "deploy") == before


def test_a_record_of_an_older_ralph_knows_no_branch(repository: Repository, tmp_path: Path) -> None:
    kept = json.loads(repository.checkout().pins_text())
    del kept["branch"]
    checkout = repository.checkout()
    assert checkout.restore_pins(json.dumps(kept)) == []
    head = work(repository)
    assert (checkout.push(), pushed(repository, tmp_path / "remote.git")) == (1, head)
