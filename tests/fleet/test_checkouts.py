"""The git work of a job with real repositories: checkouts, checkpoints and branches."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.fleet import checkouts
from ralph.fleet.checkouts import (
    Delivered,
    GitCalls,
    NotDelivered,
    Repositories,
    checkpoint_ref,
    git_terms,
    trailer_of,
)
from ralph.git.answer import CheckoutError
from ralph.values.outcome import CannotError, Outcome
from ralph.values.ports import Interrupted
from tests.fleet.checked_out import checked_out
from tests.git.http_repository import HttpRepository
from tests.git.repositories import Repository, cloned
from tests.processes.one_supervisor import SUPERVISOR
from tests.processes.scripts import before_git, first_on_path, script

if TYPE_CHECKING:
    from typing import IO

    from ralph.fleet.checkouts import JobCheckout, MadeCommit

REF = checkpoint_ref("set", "job", 1)
FIRST = trailer_of("set", "job", 1, 1)


class World:
    """A bare remote with one commit, and the workers of a machine."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.source = cloned(place / "source", place / "home")
        self.remote = str(place / "remote.git")
        self.calls = GitCalls(self.source.environment, SUPERVISOR)
        self.repositories = Repositories(place / "mirrors", self.calls)
        self._number = 0

    def check_out(self, ref: str | None = None, repository: str | None = None) -> JobCheckout:
        return self.repositories.check_out(repository or self.remote, ref, self.room(), "ralph/job")

    def restore(self, commit: str, ref: str = REF) -> JobCheckout:
        return self.repositories.restore(self.remote, ref, commit, self.room(), "ralph/job")

    def room(self) -> Path:
        self._number += 1
        return self.place / f"work-{self._number}" / "checkout"

    def agent(self, checkout: JobCheckout) -> Repository:
        """The repository as the agent uses it, with a name and an address."""
        agent = Repository(checkout.directory, self.place / "home")
        with (checkout.directory / ".git/config").open("a") as config:
            config.write("[user]\n\tname = Agent\n\temail = agent@example.com\n")
        return agent

    def in_own(self, checkout: JobCheckout, *arguments: str) -> str:
        """Asks the worker's own git directory."""
        return self.source.git(f"--git-dir={checkout.directory.parent}/git", *arguments)

    def parents(self, checkout: JobCheckout, commit: str | None) -> list[str]:
        return self.in_own(checkout, "log", "-1", "--format=%P", str(commit)).split()

    def at_remote(self, *arguments: str) -> str:
        return self.source.git("-C", self.remote, *arguments)

    def hook(self, text: str) -> None:
        """Lets the remote call this script before it takes a push over HTTP."""
        script(Path(self.remote, "hooks/pre-receive"), text)


def checkpoint(checkout: JobCheckout, parent: str | None = None) -> MadeCommit:
    made = checkout.snapshot(parent, "Checkpoint")
    assert made is not None
    return made


def rest_of(checkout: JobCheckout, base: str | None = None) -> tuple[str, str | None, list[str], list[str]]:
    """Ends the job. Returns its commit, and what `JobCheckout.rest` says of all else."""
    final = checkout.finish("Do it", FIRST).commit
    return final, *checkout.rest(final, base or checkout.commit, "ralph/job", FIRST)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_agent_can_commit_although_the_user_has_told_git_no_name(world: World) -> None:
    agent = Repository(world.check_out().directory, world.place / "home")
    agent.write("f")
    agent.commit_all()
    assert agent.git("log", "-1", "--format=%cn <%ce>") == "ralph <ralph@localhost>"
    world.source.git("config", "--global", "user.name", "User")
    world.source.git("config", "--global", "user.email", "user@example.com")
    agent = Repository(world.check_out().directory, world.place / "home")
    agent.write("f")
    agent.commit_all()
    assert agent.git("log", "-1", "--format=%cn <%ce>") == "User <user@example.com>"


def files_of(directory: Path) -> dict[str, str]:
    """The files of a directory without `.git`: links as their targets, and a star behind what can be executed."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if ".git" not in path.relative_to(directory).parts and not (path.is_dir() and not path.is_symlink()):
            text = f"-> {path.readlink()}" if path.is_symlink() else path.read_text()
            found[str(path.relative_to(directory))] = text + "*" * (
                not path.is_symlink() and os.access(path, os.X_OK) and bool(path.stat().st_mode & 0o100)
            )
    return found


def test_a_ref_is_a_branch_a_tag_a_commit_or_the_remotes_head(world: World) -> None:
    first = world.source.git("rev-parse", "HEAD")
    world.source.git("tag", "-a", "-m", "one", "v1")
    world.source.write("a.txt", "second\n")
    second = world.source.commit_all()
    world.source.git("push", "-q", "origin", "main:feature/x", "v1")
    for ref, commit in [
        (None, first),
        ("feature/x", second),
        ("v1", first),
        (first, first),
        (second[:9], second),
    ]:
        checkout = world.check_out(ref)
        assert checkout.commit == commit, ref
        agent = world.agent(checkout)
        # No third line: no file differs.
        assert agent.git("status", "--porcelain=v2", "--branch").splitlines() == [
            f"# branch.oid {commit}",
            "# branch.head ralph/job",
        ]
        assert agent.git("remote", "get-url", "origin") == world.remote


def test_a_repository_with_a_checked_out_branch_can_be_the_jobs_repository(world: World) -> None:
    checkout = world.check_out(repository=str(world.source.top))
    (checkout.directory / "new").write_text("new\n")
    final = checkout.finish("Job", FIRST)
    assert checkout.push_branch(final.commit, "ralph/job", None) == Delivered(final.commit)
    with pytest.raises(
        CheckoutError, match="the branch is checked out there, and git does not push to such"
    ) as no:
        checkout.push_branch(final.commit, "main", checkout.commit)
    assert no.value.outcome is Outcome.CONFIG
    for setting in ("ignore", "updateInstead"):
        world.source.git("config", "receive.denyCurrentBranch", setting)
        with pytest.raises(CheckoutError, match="the branch is checked out there"):
            checkout.push_branch(final.commit, "main", checkout.commit)
    assert world.source.git("rev-parse", "main") == checkout.commit
    assert world.source.git("status", "--porcelain") == ""


def test_a_shallow_clone_can_be_the_jobs_repository(world: World) -> None:
    """A CI's checkout is one."""
    world.source.write("a.txt", "second\n")
    head = world.source.commit_all()
    world.source.git("clone", "-q", "--depth=1", f"file://{world.source.top}", "../shallow")
    shallow = str(world.place / "shallow")
    checkout = world.check_out(repository=shallow)
    agent = world.agent(checkout)
    assert agent.git("log", "--format=%H") == head
    agent.write("f")
    agent.commit_all()
    taken = checkpoint(checkout)
    checkout.push_checkpoint(taken.commit, REF)
    restored = world.repositories.restore(shallow, REF, taken.commit, world.room(), "ralph/job")
    assert files_of(restored.directory) == files_of(checkout.directory)
    final = restored.finish("Job", FIRST)
    assert restored.push_branch(final.commit, "ralph/job", None) == Delivered(final.commit)


def test_a_restored_checkpoint_is_the_agents_checkout_on_another_machine(world: World) -> None:
    checkout = checked_out(world.source)
    agent = world.agent(checkout)
    agent.write("gone.txt")
    agent.write("tool.sh", "run\n").chmod(0o755)
    head = agent.commit_all("by the agent")
    (checkout.directory / "gone.txt").unlink()
    (checkout.directory / "link").symlink_to("a.txt")
    agent.write("a.txt", "changed\n")
    agent.write("new/name with\nbreak", "untracked\n")
    agent.write("staged.txt", "staged\n")
    agent.write("ignored.txt", "ignored\n")
    agent.git("add", "staged.txt")
    before = agent.git("status", "--porcelain")
    taken = checkpoint(checkout)
    assert agent.git("status", "--porcelain") == before, "the agent's index is not touched"
    assert checkout.push_checkpoint(taken.commit, REF) == Delivered(taken.commit)
    elsewhere = Repositories(world.place / "other machine", world.calls)
    restored = elsewhere.restore(world.remote, REF, taken.commit, world.room(), "ralph/job")
    (checkout.directory / "ignored.txt").unlink()
    assert (files_of(restored.directory), restored.commit) == (files_of(checkout.directory), head)
    agent.git("reset", "-q", "staged.txt")
    there = world.agent(restored)
    assert there.git("status", "--porcelain", "--branch") == agent.git("status", "--porcelain", "--branch")
    assert restored.snapshot(taken.commit, "Checkpoint") is None
    there.write("more.txt")
    second = checkpoint(restored, taken.commit)
    assert restored.push_checkpoint(second.commit, REF) == Delivered(second.commit)
    assert world.at_remote("log", "-1", "--format=%P", REF).split() == [head, taken.commit]


def test_without_a_change_there_is_no_checkpoint(world: World) -> None:
    checkout = checked_out(world.source)
    assert checkout.snapshot(None, "Checkpoint") is None
    agent = world.agent(checkout)
    agent.write("ignored.txt")
    assert checkout.snapshot(None, "Checkpoint") is None
    agent.git("commit", "-q", "--allow-empty", "-m", "a new HEAD")
    first = checkpoint(checkout)
    assert checkout.snapshot(first.commit, "Checkpoint") is None
    agent.write("a.txt", "changed\n")
    second = checkpoint(checkout, first.commit)
    assert world.in_own(checkout, "show", f"{second.commit}:a.txt") == "changed"


def test_a_checkpoint_follows_every_kind_of_change(world: World) -> None:
    """Each row ends in a checkpoint whose tree is the working tree without ignored files."""
    checkout = checked_out(world.source)
    agent = world.agent(checkout)
    top = checkout.directory

    def folder_for_file() -> None:
        (top / "a.txt").unlink()
        agent.write("a.txt/inner")

    def file_for_folder() -> None:
        shutil.rmtree(top / "dir")
        agent.write("dir")

    def forced() -> None:
        agent.write("ignored.txt", "tracked\n")
        agent.git("add", "-f", "ignored.txt")
        agent.git("commit", "-q", "-m", "forced")

    def unborn() -> None:
        agent.git("checkout", "-q", "--orphan", "new")

    def packed() -> None:
        agent.git("checkout", "-q", "-f", "ralph/job")
        agent.git("pack-refs", "--all")
        agent.git("gc", "-q", "--prune=now")
        agent.write("b.txt")

    parent = None
    for act in (folder_for_file, file_for_folder, forced, unborn, packed):
        act()
        taken = checkout.snapshot(parent, "Checkpoint")
        assert taken is not None or act is unborn
        if taken is not None:
            parent = taken.commit
            listed = agent.git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
            there = {name for name in listed if name and (top / name).is_file()}
            own = world.in_own(checkout, "ls-tree", "-rz", "--name-only", taken.commit)
            assert set(own.split("\0")) - {""} == there, act.__name__


def test_large_files_that_git_does_not_track_are_left_out_and_named(world: World, monkeypatch) -> None:
    monkeypatch.setattr(checkouts, "MOST_FILE_BYTES", 1000)
    monkeypatch.setattr(checkouts, "MOST_UNTRACKED_BYTES", 2000)
    checkout = checked_out(world.source)
    agent = world.agent(checkout)
    agent.write("tracked", "x" * 5000)
    agent.commit_all()
    agent.write("tracked", "y" * 5000)
    agent.write("huge", "x" * 1001)
    agent.write("one", "x" * 900)
    agent.write("two", "x" * 901)
    agent.write("three", "x" * 902)
    first = checkpoint(checkout)
    assert first.left_out == ("three (902 bytes)", "huge (1,001 bytes)")
    agent.write("one", "x" * 1100)
    second = checkpoint(checkout, first.commit)
    assert second.left_out == ("huge (1,001 bytes)", "one (1,100 bytes)")
    assert checkout.push_checkpoint(second.commit, REF) == Delivered(second.commit)
    assert world.at_remote("ls-tree", "--name-only", second.commit).split() == [
        *(".gitignore", "a.txt", "dir", "three", "tracked", "two")
    ]
    assert world.at_remote("cat-file", "-s", f"{second.commit}:tracked") == "5000"
    agent.write("one", "x" * 150)
    third = checkpoint(checkout, second.commit)
    assert third.left_out == ("huge (1,001 bytes)",)
    assert world.in_own(checkout, "cat-file", "-s", f"{third.commit}:one") == "150"


def test_files_that_cannot_be_read_are_left_out_and_named(world: World, monkeypatch) -> None:
    checkout = checked_out(world.source)
    (checkout.directory / "a.txt").write_text("changed\n")
    for name in ("closed", "open"):
        (checkout.directory / name).touch()
    (checkout.directory / "dir/b.txt").unlink()
    os.mkfifo(checkout.directory / "dir/b.txt")
    closed = [os.fsencode(checkout.directory / name) for name in ("a.txt", "closed")]
    # Root can read all files.
    monkeypatch.setattr(
        os, "access", lambda path, mode, may=os.access: os.fsencode(path) not in closed and may(path, mode)
    )
    taken = checkpoint(checkout)
    assert taken.left_out == tuple(f"{name} (cannot be read)" for name in ("closed", "a.txt", "dir/b.txt"))
    assert checkout.push_checkpoint(taken.commit, REF) == Delivered(taken.commit)
    assert world.at_remote("diff", "--name-only", "main", taken.commit) == "open"


def test_a_repository_inside_the_checkout_is_left_out_and_named(world: World) -> None:
    checkout = checked_out(world.source)
    inner = Repository.empty(checkout.directory / "inner", world.place / "home")
    inner.write("f")
    inner.commit_all()
    (checkout.directory / "new").write_text("new\n")
    taken = checkpoint(checkout)
    assert taken.left_out == ("inner/ (a repository of its own)",)


def test_secrets_of_the_user_in_a_checkout_are_left_out_and_named(world: World) -> None:
    """`users` are all variables of the worker: git gets none that looks like a credential."""
    place = world.room()
    users = {name: f"{place}/{name}" for name in ("GOOGLE_APPLICATION_CREDENTIALS", "KUBECONFIG")}
    calls = GitCalls(world.source.environment, SUPERVISOR, users={**world.source.environment, **users})
    checkout = Repositories(world.place / "mirrors", calls).check_out(world.remote, None, place, "ralph/job")
    for name in ("new", *users):
        (checkout.directory / name).write_text("new")
    taken = checkpoint(checkout)
    assert sorted(taken.left_out) == [f"{name} (agents may not read it)" for name in sorted(users)]
    assert checkout.push_checkpoint(taken.commit, REF) == Delivered(taken.commit)
    assert world.at_remote("diff", "--name-only", "main", taken.commit) == "new"


def test_protected_files_below_the_top_are_left_out_and_named(world: World) -> None:
    world.source.write("sub/.mcp.json", "mine")
    world.source.commit_all()
    world.source.git("push", "-q", "origin", "main")
    checkout = world.check_out()
    (checkout.directory / "sub/.mcp.json").write_text("changed")
    (checkout.directory / "sub/.claude").mkdir()
    (checkout.directory / "sub/.claude/settings.json").write_text("new")
    (checkout.directory / "new").write_text("new\n")
    taken = checkpoint(checkout)
    why = "(agents and later runs obey it)"
    assert sorted(taken.left_out) == [f"sub/.claude/settings.json {why}", f"sub/.mcp.json {why}"]
    assert checkout.push_checkpoint(taken.commit, REF) == Delivered(taken.commit)
    assert world.at_remote("diff", "--name-only", "main", taken.commit) == "new"


def test_a_checkpoint_keeps_a_submodule_that_is_not_checked_out(world: World) -> None:
    world.source.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    world.source.git("commit", "-q", "-m", "a submodule")
    world.source.git("push", "-q", "origin", "main")
    checkout = world.check_out()
    assert checkout.snapshot(None, "Checkpoint") is None


def test_a_zombie_does_not_overwrite_the_checkpoint_of_its_successor(world: World) -> None:
    zombie = checked_out(world.source)
    (zombie.directory / "f").write_text("1")
    first = checkpoint(zombie)
    zombie.push_checkpoint(first.commit, REF)
    successor = world.restore(first.commit)
    (successor.directory / "f").write_text("2")
    second = checkpoint(successor, first.commit)
    (zombie.directory / "f").write_text("3")
    late = checkpoint(zombie, first.commit)
    successor.push_checkpoint(second.commit, REF)
    assert zombie.push_checkpoint(late.commit, REF) == NotDelivered(second.commit)
    assert world.at_remote("rev-parse", REF) == second.commit
    # Whoever still owns the job may overwrite what was found.
    assert zombie.push_checkpoint(late.commit, REF) == Delivered(late.commit)
    # The successor's checkpoint is no longer at the ref, but the store names it.
    assert world.restore(second.commit).commit == successor.commit


def test_checkpoints_are_removed_but_nothing_of_another_job_and_no_work_that_the_job_has_not_made(
    world: World,
) -> None:
    checkout = checked_out(world.source)
    own = world.agent(checkout)
    own.write("f")
    commit = own.commit_all()
    checkout.finish("Do it", FIRST)
    for attempt in (1, 2):
        checkout.push_checkpoint(checkout.commit, checkpoint_ref("set", "job", attempt))
    assert checkout.push_beside(commit, f"{REF}{checkouts.WORK}") == f"{REF}-work"
    others = (
        *("refs/heads/x/refs/ralph/set/job/1", "refs/ralph/later/job/1", "refs/ralph/set/job/1-rest"),
        *("refs/ralph/set/job/2-work", "refs/ralph/set/job2/1"),
    )
    for other in others:
        checkout.push_checkpoint(checkout.commit, other)
    assert world.repositories.remove_checkpoints(world.remote, "set", "job", (commit,)) == 3
    assert world.repositories.remove_checkpoints(world.remote, "set", "job", (commit,)) == 0
    assert world.at_remote("for-each-ref", "--format=%(refname)").split() == ["refs/heads/main", *others]
    with pytest.raises(CheckoutError, match="the checkpoint 1111111 at refs/ralph/set/job/1 is gone"):
        world.restore("1111111")


def test_checkpoints_that_another_removes_first_are_removed_and_what_the_host_keeps_is_told(
    world: World,
) -> None:
    checkout = world.check_out()
    checkout.push_checkpoint(checkout.commit, REF)
    world.at_remote("config", "receive.hideRefs", "refs/ralph")
    with pytest.raises(CheckoutError, match="hidden ref"):
        world.repositories.remove_checkpoints(world.remote, "set", "job")
    another = f'case "$*" in *" push "*) git --git-dir={world.remote} update-ref -d {REF};; esac'
    before_git(world.source.environment, world.place / "bin", another)
    assert world.repositories.remove_checkpoints(world.remote, "set", "job") == 1


def test_what_was_left_uncommitted_becomes_a_last_commit_with_the_jobs_trailer(world: World) -> None:
    checkout = checked_out(world.source)
    agent = world.agent(checkout)
    agent.write("committed")
    head = agent.commit_all()
    assert checkout.finish("Do it", FIRST) == checkouts.MadeCommit(head, ())
    agent.write("left")
    final = checkout.finish("Do it\n\nlong", FIRST)
    assert final.commit != head
    assert checkout.push_branch(final.commit, "ralph/job", None) == Delivered(final.commit)
    assert world.at_remote("log", "-1", "--format=%B%an <%ae>%n%P", "ralph/job").splitlines() == [
        *("Do it", "", "long", "", "Ralph-Job: set/job 1 1", "ralph <ralph@localhost>", head)
    ]
    assert checkout.contains(final.commit, head)
    assert not checkout.contains(head, final.commit)
    assert not world.check_out().contains(head, final.commit), "it does not know that commit"
    world.source.git("config", "--global", "user.name", "User")
    world.source.git("config", "--global", "user.email", "user@example.com")
    own = checkout.finish("Do it", FIRST)
    checkout.push_branch(own.commit, "by-user", None)
    assert world.at_remote("log", "-1", "--format=%an <%ae>", "by-user") == "User <user@example.com>"


def test_what_the_agent_left_beside_its_branch_is_one_commit(world: World) -> None:
    checkout = checked_out(world.source)
    agent = world.agent(checkout)
    agent.git("branch", "merged")
    ids = {}
    for name in ("packed", "loose"):
        agent.git("switch", "-q", "-c", name)
        agent.write(name)
        ids[name] = agent.commit_all()
        agent.git("switch", "-q", "ralph/job")
        if name == "packed":
            agent.git("pack-refs", "--all")
    for text in ("first", "second"):
        agent.write("a.txt", text)
        agent.git("stash", "-q")
        ids[text] = agent.git("rev-parse", "stash")
    agent.git("tag", "-a", "-m", "x", "v1", "packed")
    for name, of in (
        ("tagged", agent.git("rev-parse", "v1")),
        ("tree", agent.git("rev-parse", "HEAD^{tree}")),
    ):
        (checkout.directory / f".git/refs/heads/{name}").write_text(of)
    (checkout.directory / ".git/refs/heads/broken").write_text("1" * 40)
    agent.write("f")
    final, rest, names, lacks = rest_of(checkout)
    assert names == ["packed", "tagged", "tags/v1", "loose", "stash@{0}", "stash@{1}"]
    assert lacks == ["broken (a branch that cannot be read)", "tree (a branch that cannot be read)"]
    parents = [final, ids["packed"], ids["loose"], ids["second"], ids["first"]]
    assert world.parents(checkout, rest) == parents
    assert world.in_own(checkout, "diff", "--name-only", final, str(rest)) == ""


def test_commits_that_only_a_tag_or_another_worktree_has_are_left_beside_the_branch(
    world: World, monkeypatch
) -> None:
    world.source.git("tag", "theirs")
    world.source.git("tag", "-a", "-m", "x", "annotated")
    world.source.git("push", "-q", "--tags", "origin")
    checkout = world.check_out()
    agent = world.agent(checkout)
    ids = []
    for number, keep in enumerate((["tag", "kept"], ["tag", "-a", "-m", "x", "noted"])):
        agent.write(f"f{number}")
        ids.append(agent.commit_all())
        agent.git(*keep)
        agent.git("reset", "-q", "--hard", "HEAD~1")
        agent.git("pack-refs", "--all")
    agent.git("worktree", "add", "-q", "--detach", "beside")
    agent.git("-C", "beside", "commit", "-q", "--allow-empty", "-m", "in a worktree")
    ids.append(agent.git("-C", "beside", "rev-parse", "HEAD"))
    final, rest, names, lacks = rest_of(checkout)
    assert (names, lacks) == (["tags/kept", "tags/noted", "worktrees/beside/HEAD"], [])
    parents = world.parents(checkout, rest)
    assert parents == [final, *ids]
    monkeypatch.setattr(checkouts, "_MOST_HEADS", 2)
    *_, names, lacks = rest_of(checkout)
    assert names == ["tags/kept", "tags/noted"]
    assert lacks == ["worktrees/beside/HEAD (a branch, of more than 2)"]


def test_a_repository_that_the_agent_has_committed_as_a_link_is_named(world: World) -> None:
    checkout = world.check_out()
    agent = world.agent(checkout)
    who = ("-c", "user.name=A", "-c", "user.email=a@b.example")
    for name in ("app", "module"):
        agent.git("init", "-q", name)
        agent.git(*who, "-C", name, "commit", "-q", "--allow-empty", "-m", name)
    agent.write(".gitmodules", '[submodule "m"]\n\tpath = module\n\turl = https://example.com/m\n')
    agent.commit_all()
    assert rest_of(checkout)[1:] == (None, [], ["app (a repository of its own)"])


def test_names_of_branches_are_escaped_in_the_commit_with_what_is_left_beside_the_branch(
    world: World,
) -> None:
    checkout = world.check_out()
    agent = world.agent(checkout)
    agent.git("switch", "-q", "-c", "feature")
    agent.write("f")
    commit = agent.commit_all()
    agent.git("switch", "-q", "ralph/job")
    for name in (b"\xff", b"x\n\nRalph-Job: other"):
        heads = os.fsencode(checkout.directory / ".git/refs/heads")
        Path(os.fsdecode(heads + b"/" + name)).write_text(commit)
    _, rest, names, _ = rest_of(checkout)
    assert sorted(names) == ["feature", "x\n\nRalph-Job: other", "\udcff"]
    message = world.in_own(checkout, "log", "-1", "--format=%B", str(rest)).split("\n")
    assert message[0].startswith("Work beside the branch: ")
    assert message[1:] == ["", FIRST]


def test_what_is_no_file_or_behind_a_link_in_the_place_of_a_file_hinders_no_commit(world: World) -> None:
    checkout = world.check_out()
    agent = world.agent(checkout)
    agent.write("d/f")
    agent.commit_all()
    (agent.top / "d").rename(agent.top / "e")
    (agent.top / "d").symlink_to("e")
    (agent.top / "a.txt").unlink()
    os.mkfifo(agent.top / "a.txt")
    made = checkout.finish("Do it", FIRST)
    assert made.left_out == ("a.txt (cannot be read)",)
    listed = world.in_own(checkout, "ls-tree", "-r", "--name-only", made.commit).split()
    assert {"a.txt", "d", "e/f"} <= {*listed}
    assert "d/f" not in listed


def test_what_the_remote_or_the_branch_has_is_not_left_beside_it(world: World) -> None:
    world.source.git("push", "-q", "origin", "HEAD:refs/heads/theirs")
    checkout = world.check_out()
    agent = world.agent(checkout)
    agent.git("branch", "theirs", "origin/theirs")
    agent.git("switch", "-q", "-c", "feature")
    agent.write("f")
    agent.commit_all()
    agent.git("switch", "-q", "ralph/job")
    agent.git("merge", "-q", "feature")
    agent.write("g")
    assert rest_of(checkout)[1:] == (None, [], [])


def test_a_commit_that_only_a_checkpoint_has_is_left_beside_the_branch(world: World) -> None:
    """The checkpoint is removed when the job has ended, whether the mirror has it at its own ref or at the branch."""
    checkout = checked_out(world.source)
    agent = world.agent(checkout)
    agent.write("paid")
    head = agent.commit_all()
    taken = checkpoint(checkout)
    for ref in (REF, "refs/heads/ralph/job"):
        checkout.push_checkpoint(taken.commit, ref)
    restored = world.restore(taken.commit)
    assert restored.commit == head
    there = world.agent(restored)
    there.git("branch", "keep")
    there.git("reset", "-q", "--hard", "HEAD~1")
    final, rest, names, _ = rest_of(restored, checkout.commit)
    assert (names, world.parents(restored, rest)) == (["keep"], [final, head])


def test_work_beside_a_branch_replaces_nothing(world: World) -> None:
    checkout = checked_out(world.source)
    agent = world.agent(checkout)
    made = []
    for text in ("one", "two"):
        agent.write("a.txt", text)
        made.append(agent.commit_all())
        checkout.finish("Do it", FIRST)
    one, two = made
    ref = f"{REF}{checkouts.REST}"
    assert checkout.push_beside(one, ref) == ref
    assert checkout.push_beside(one, ref) == ref, "the same twice is one"
    assert checkout.push_beside(two, ref) == f"{ref}-{two[:12]}"


def test_a_branch_is_pushed_only_from_where_it_was_expected(world: World) -> None:
    checkout = checked_out(world.source)
    base = checkout.commit
    (checkout.directory / "f").write_text("1")
    mine = checkout.finish("mine", FIRST).commit
    (checkout.directory / "f").write_text("2")
    newer = checkout.finish("newer", FIRST).commit
    assert world.repositories.branch_at(world.remote, "ralph/job") is None
    assert checkout.push_branch(mine, "ralph/job", base) == NotDelivered(None)
    assert checkout.push_branch(mine, "ralph/job", None) == Delivered(mine)
    assert checkout.push_branch(mine, "ralph/job", None) == Delivered(mine), "the same push again"
    assert world.repositories.branch_at(world.remote, "ralph/job") == mine
    assert checkout.push_branch(newer, "ralph/job", None) == NotDelivered(mine)
    assert checkout.push_branch(newer, "ralph/job", mine) == Delivered(newer)
    assert checkout.push_branch(base, "ralph/job", mine) == NotDelivered(newer)
    assert world.repositories.branch_at(world.remote, "job") is None, "a branch is not its last part"
    for impossible in ("ralph", "ralph/job/part"):
        with pytest.raises(
            CheckoutError, match=rf"^the branch ralph/job exists, .* cannot have {impossible} "
        ):
            world.repositories.branch_at(world.remote, impossible)


def test_a_push_whose_answer_was_lost_has_arrived(world: World) -> None:
    checkout = checked_out(world.source)
    (checkout.directory / "f").write_text("1")
    commit = checkout.finish("mine", FIRST).commit
    push_fails = f'{shutil.which("git")} "$@" || exit; case "$*" in *" push "*) exit 1; esac'
    first_on_path(world.source.environment, world.place / "bin/git", push_fails)
    assert checkout.push_branch(commit, "ralph/job", None) == Delivered(commit)
    assert world.at_remote("rev-parse", "ralph/job") == commit


def test_a_hook_of_the_remote_that_refuses_is_an_error_with_its_reason(world: World) -> None:
    with HttpRepository(Path(world.remote)) as served:
        world.hook("echo no such branches here >&2; exit 1")
        checkout = world.check_out(repository=served.url)
        with pytest.raises(CheckoutError, match="pre-receive hook declined") as error:
            checkout.push_branch(checkout.commit, "ralph/job", None)
        assert error.value.outcome is Outcome.CONFIG


def test_a_repository_over_http(world: World) -> None:
    with HttpRepository(Path(world.remote)) as served:
        checkout = world.check_out(repository=served.url)
        (checkout.directory / "f").write_text("1")
        commit = checkout.finish("mine", FIRST).commit
        assert checkout.push_branch(commit, "ralph/job", None) == Delivered(commit)
        served.status = 401
        with pytest.raises(CheckoutError, match="Authentication failed for") as error:
            world.repositories.branch_at(served.url.replace("//", "//user:pw@"), "ralph/job")
        assert error.value.outcome is Outcome.AUTH
        assert "pw" not in str(error.value)
        with pytest.raises(CheckoutError, match="could not read Username") as error:
            world.repositories.branch_at(served.url, "ralph/job")
        assert error.value.outcome is Outcome.AUTH
        served.status = 503
        with pytest.raises(CheckoutError) as error:
            world.check_out(repository=served.url)
        assert error.value.is_temporary
        served.status = 404
        with pytest.raises(
            CheckoutError, match="there is no such repository, or it may not be read"
        ) as error:
            checkout.push_branch(commit, "other", None)
        assert not error.value.is_temporary


@pytest.mark.parametrize(
    ("repository", "ref", "message", "outcome"),
    [
        ("REMOTE", "none", "has no branch, tag or commit none$", Outcome.CONFIG),
        ("REMOTE", "--all", "has no branch, tag or commit --all$", Outcome.CONFIG),
        ("REMOTE", "f" * 40, "has no branch, tag or commit ffff", Outcome.CONFIG),
        ("/none.git", None, "^/none.git: there is no such repository", Outcome.CONFIG),
        ("http://127.0.0.1:1/x.git", None, "Failed to connect", Outcome.API_UNAVAILABLE),
        ("ssh://127.0.0.1:1/x.git", None, "Connection refused", Outcome.API_UNAVAILABLE),
    ],
)
def test_errors_say_what_is_wrong_in_one_line(world: World, repository, ref, message, outcome) -> None:
    with pytest.raises(CheckoutError, match=message) as error:
        world.check_out(ref, repository.replace("REMOTE", world.remote))
    assert error.value.outcome is outcome
    assert error.value.is_temporary == (outcome is Outcome.API_UNAVAILABLE)
    assert "\n" not in str(error.value)


def test_an_empty_repository_has_no_commit_to_begin_with(world: World) -> None:
    world.source.git("init", "-q", "--bare", str(world.place / "empty.git"))
    with pytest.raises(CheckoutError, match="HEAD names no commit; name a branch"):
        world.check_out(repository=str(world.place / "empty.git"))


def test_locks_that_a_killed_fetch_left_in_a_mirror_are_in_nobodys_way(world: World) -> None:
    world.check_out()
    (mirror,) = (world.place / "mirrors").glob("*.git")
    for name in ("packed-refs.lock", "refs/heads/main.lock", "config.lock"):
        (mirror / name).touch()
    world.source.write("a.txt", "second\n")
    commit = world.source.commit_all()
    world.source.git("push", "-q", "origin", "main")
    assert world.check_out("main").commit == commit


def is_locked_by(file: IO[str]) -> bool:
    """Tries to take the lock of a file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_WORKER = """
import os, sys
from pathlib import Path
from ralph.fleet.checkouts import GitCalls, Repositories
from ralph.machine.command_supervisor import CommandSupervisor
mirrors, remote, directory = sys.argv[1:]
calls = GitCalls(os.environ, CommandSupervisor(os.environ, most_processes=0))
Repositories(Path(mirrors), calls).check_out(remote, None, Path(directory), "ralph/job")
"""


def test_the_fetch_of_a_killed_worker_ends_before_another_worker_fetches(world: World) -> None:
    pid_file = world.place / "pid"
    fetch = (
        f'trap "" TERM; echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; while :; do sleep 0.1; done'
    )
    environment = dict(world.source.environment)
    before_git(environment, world.place / "bin", f'case "$*" in *" fetch "*) {fetch}; esac')
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(world.place / "mirrors"), world.remote, str(world.room())],
        env=environment,
        cwd=Path(checkouts.__file__).parents[2],
    )
    while not pid_file.exists():
        assert worker.poll() is None
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    (lock,) = (world.place / "mirrors").glob("*.lock")
    with lock.open() as held:
        while not is_locked_by(held):
            time.sleep(0.01)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)
    assert world.check_out().commit


def test_a_stop_from_another_thread_ends_the_call_and_its_processes(world: World) -> None:
    pid_file = world.place / "pid"
    hangs = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 1000"
    first_on_path(world.source.environment, world.place / "bin/git", hangs)

    def stop() -> None:
        while not pid_file.exists():
            time.sleep(0.01)
        world.calls.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(Interrupted):
        world.repositories.branch_at(world.remote, "main")
    stopper.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    with pytest.raises(Interrupted):
        world.check_out()


def test_a_full_disk_is_outcome_74(world: World) -> None:
    world.check_out()
    (world.place / "mirrors").rename(world.place / "aside")
    (world.place / "mirrors").touch()
    with pytest.raises(CheckoutError) as error:
        world.check_out()
    assert error.value.outcome is Outcome.IO_ERROR


@pytest.mark.parametrize("way", ["folder", "cache", "given", "link", "program"])
def test_a_worker_does_not_begin_where_commands_may_write_the_users_git_configuration(
    tmp_path: Path, way: str
) -> None:
    home, folder = tmp_path / "home", tmp_path / "state/work"
    (home / ".config/ralph").mkdir(parents=True)
    folder.mkdir(parents=True)
    settings = f'[sandbox]\nwrite = ["{tmp_path}/given"]\n[loop]\ngit_filters = ["mine"]\n'
    (home / ".config/ralph/config.toml").write_text(settings)
    environment = {"HOME": str(home)}
    (home / ".gitconfig").write_text("[user]\n\tname = x\n")
    terms = git_terms(environment, folder)
    assert {str(folder), str(tmp_path / "given")} <= {*terms.writable}
    assert terms.filters == ("mine",)
    place = {
        "folder": folder,
        "cache": home / ".cache/ralph/packages/x",
        "given": tmp_path / "given",
        "link": folder,
        "program": tmp_path / "given",
    }[way]
    place.mkdir(parents=True, exist_ok=True)
    if way == "link":
        (home / ".gitconfig").unlink()
        (home / ".gitconfig").symlink_to(place / "more")
    elif way == "program":
        (place / "more").touch()
        (home / ".gitconfig").write_text(f'[credential]\n\thelper = "!{place}/more get"\n')
    else:
        (home / ".gitconfig").write_text(f"[include]\n\tpath = {place}/more\n")
    with pytest.raises(CannotError, match="more belongs to your own git configuration"):
        git_terms(environment, folder)
