from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from ralph.places.git_places import foreign_directories, git_places
from ralph.sandbox import landlock
from ralph.sandbox.box_plan import Means
from tests.rows import every_row
from tests.sandbox.boxes import box_of
from tests.sandbox.restricted import verdicts

if TYPE_CHECKING:
    from pathlib import Path

SUPPORT = landlock.support()
MEANS = Means(SUPPORT)


def git(*words: str, cwd: Path) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *words], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    made = tmp_path / "repository"
    made.mkdir()
    git("init", "-q", cwd=made)
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=made)
    return made


def granted(root: Path, user: int | None = None):
    return git_places([str(root)], {}, os.getuid() if user is None else user)


def test_a_checkouts_git_directory_may_be_written_also_from_below(repository) -> None:
    below = repository / "a"
    below.mkdir()
    assert granted(below).granted == (str(repository / ".git"),)
    assert granted(repository / "a", user=os.getuid() + 1).granted == ()
    assert "another user" in granted(repository / "a", user=os.getuid() + 1).refused[0][1]


def test_a_linked_worktree_has_two_and_they_must_know_it(repository, tmp_path) -> None:
    linked = tmp_path / "linked"
    git("worktree", "add", "-q", str(linked), cwd=repository)
    own = repository / ".git" / "worktrees" / "linked"
    assert granted(linked).granted == (str(own), str(repository / ".git"))
    # Another directory names the same git directory, as one from an unpacked archive could.
    false = tmp_path / "false"
    false.mkdir()
    (false / ".git").write_text((linked / ".git").read_text())
    assert granted(false).granted == ()
    assert granted(false).refused == ((str(own), f"it does not name {false} as its working tree"),)


def test_a_worktree_cannot_name_any_other_directory_as_its_common_one(repository, tmp_path) -> None:
    """A checkout contains a git directory that names another repository as its common directory."""
    false = tmp_path / "false"
    own = false / "own" / "worktrees" / "x"
    own.mkdir(parents=True)
    (false / ".git").write_text(f"gitdir: {own}\n")
    (own / "gitdir").write_text(f"{false}/.git\n")
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text(f"{repository}/.git\n")
    found = granted(false)
    assert str(repository / ".git") not in found.granted
    assert found.refused == ((str(repository / ".git"), f"{own} is not one of its worktrees"),)


def test_a_directory_that_a_planted_file_makes_the_common_one_is_known(repository, tmp_path) -> None:
    """Git makes no `commondir` in `.git`, but follows one that an archive or a command without a sandbox brought."""
    shutil.copytree(repository / ".git", tmp_path / "s")
    shutil.copytree(tmp_path / "s", repository / ".git/s")
    (repository / ".git/commondir").write_text("s\n")
    assert granted(repository).granted == (str(repository / ".git"), str(repository / ".git/s"))
    (repository / ".git/commondir").write_text("../../s\n")
    found = granted(repository)
    assert found.granted == (str(repository / ".git"),)
    assert found.refused == ((str(tmp_path / "s"), f"{repository}/.git/commondir names it"),)


@every_row("name", [".git", "own/commondir", "own/gitdir", "own/config"])
def test_a_nul_in_a_file_of_git_is_no_error(tmp_path, name) -> None:
    checkout = tmp_path / name.replace("/", "-")
    own = checkout / "own"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (checkout / ".git").write_text("gitdir: own\n")
    (own / "commondir").write_text("s\n")
    (checkout / name).write_bytes(b"gitdir: s\0x" if name == ".git" else b"worktree = s\0x\n")
    assert granted(checkout).granted == ()


def test_a_submodule_is_known_by_its_own_configuration(repository, tmp_path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git("init", "-q", cwd=outer)
    git("submodule", "add", "-q", str(repository), "part", cwd=outer)
    assert granted(outer / "part").granted == (str(outer / ".git" / "modules" / "part"),)
    false = tmp_path / "false"
    false.mkdir()
    (false / ".git").write_text(f"gitdir: {outer}/.git/modules/part\n")
    assert granted(false).granted == ()


def test_a_link_and_a_plain_directory_are_refused(repository, tmp_path) -> None:
    (tmp_path / "linking").mkdir()
    (tmp_path / "linking" / ".git").symlink_to(repository / ".git")
    assert granted(tmp_path / "linking").granted == ()
    (tmp_path / "plain").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "plain" / ".git").write_text(f"gitdir: {tmp_path}/home\n")
    assert granted(tmp_path / "plain").granted == ()


def looks_bare(directory: Path) -> Path:
    """Makes a directory that git takes for a bare repository, with files that any tree may contain."""
    for name in ("objects", "refs", "logs"):
        (directory / name).mkdir(parents=True)
    (directory / "HEAD").write_text("ref: refs/heads/main\n")
    return directory


def test_a_tree_cannot_open_the_directories_around_the_working_directory(repository) -> None:
    """A clone contains files that look like a bare repository, and the user works in a directory below them."""
    brought = looks_bare(repository / "brought")
    work = brought / "work"
    work.mkdir()
    assert (granted(work).granted, granted(work).parts) == ((str(repository / ".git"),), ())
    # In a bare repository itself, its hooks are protected.
    assert granted(brought).granted == (str(brought),)


def test_a_git_directory_that_commands_may_write_names_no_other_one(repository) -> None:
    """The working directory is called `worktrees`, like a directory of git."""
    brought = looks_bare(repository / "brought")
    work = brought / "worktrees"
    (work / "x").mkdir(parents=True)
    (work / ".git").write_text("gitdir: x\n")
    (work / "x" / "gitdir").write_text("../.git\n")
    (work / "x" / "HEAD").write_text("ref: refs/heads/main\n")
    (work / "x" / "commondir").write_text("../..\n")
    found = granted(work)
    assert (found.granted, found.parts) == ((str(work / "x"),), ())
    assert found.refused == ((str(brought), f"{work}/x, which names it, is where commands may write"),)


@pytest.mark.parametrize(("work_in", "place"), [(".", "."), (".", "other"), (".git", ".git")])
def test_of_a_repository_that_may_hold_other_work_only_gits_own_directories_may_be_written(
    tmp_path, work_in, place
) -> None:
    """An archive contains a repository and a submodule that refers back to it, and the user works in a part of the
    archive.
    """
    work = tmp_path / work_in / "work"
    work.mkdir(parents=True)
    brought = looks_bare(tmp_path / place)
    (brought / "config").write_text(f"worktree = {os.path.relpath(work, brought)}\n")
    (work / ".git").write_text(f"gitdir: {os.path.relpath(brought, work)}\n")
    (brought / "logs").rmdir()
    (brought / "logs").symlink_to("/etc")
    found = granted(work)
    assert (found.granted, found.parts) == ((), (f"{brought}/objects", f"{brought}/refs"))


def test_a_false_worktree_gets_nothing(tmp_path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    (work / ".git").write_text(f"gitdir: {other}\n")
    (other / "gitdir").write_text(f"{work}/.git\n")
    (other / "HEAD").write_text("ref: refs/heads/main\n")
    (other / "commondir").write_text(f"{looks_bare(tmp_path / 'bare')}\n")
    assert granted(work).granted == granted(work).parts == ()


def test_a_worktree_inside_of_its_bare_repository_can_commit(repository, tmp_path) -> None:
    bare = tmp_path / "bare"
    git("clone", "-q", "--bare", str(repository), str(bare), cwd=tmp_path)
    for name in ("one", "two"):
        git("worktree", "add", "-q", "-b", name, name, cwd=bare)
    (bare / "two/link").symlink_to("file")
    assert foreign_directories(str(bare / "one"), [str(bare / "one")]) == ()
    found = granted(bare / "one")
    assert found.granted == (str(bare / "worktrees" / "one"),)
    assert found.parts == tuple(str(bare / name) for name in ("objects", "refs", "logs"))
    with box_of(MEANS, [bare / "one"]) as box:
        for name, may_write in (("objects/ab", True), ("two/file", False), ("config", False)):
            assert box.parts.may_write(f"{bare}/{name}") is may_write, name
        if SUPPORT.abi:
            git_commit = f"git -C {bare}/one -c user.name=x -c user.email=x@y commit -q --allow-empty -m y"
            attempts = {"commit": f"__import__('subprocess').run({git_commit.split()}, check=True)"}
            assert verdicts(attempts, ruleset=box.confinement("/").ruleset) == {"commit": "done"}


@pytest.mark.skipif(SUPPORT.abi == 0, reason="this kernel has no Landlock")
def test_the_ruleset_follows_what_is_made_later(tmp_path) -> None:
    home, work = tmp_path / "home", tmp_path / "home/work"
    for name in (".ssh", "work", ".nvm", ".cargo"):
        (home / name).mkdir(parents=True)
    (home / ".ssh" / "id").write_text("secret")
    (home / ".nvm/notes").write_text("x")
    with box_of(MEANS, [work], {"HOME": str(home)}) as box:
        first = box.confinement("/").ruleset
        assert box.confinement("/").ruleset == first
        (home / ".netrc").write_text("made later")
        (home / ".cargo/later").write_text("x")
        shared = "/dev/shm/ralph-{os.getpid()}"
        denied = {
            "secret": f"open('{home}/.ssh/id')",
            "secret through /proc": f"open('/proc/self/root{home}/.ssh/id')",
            "later secret": f"open('{home}/.netrc')",
            "write at home": f"open('{home}/new', 'w')",
            "terminal": "os.openpty()",
        }
        allowed = {
            "notes": f"open('{home}/.nvm/notes')",
            "write": f"open('{work}/new', 'w')",
            "names": f"os.listdir('{home}/.ssh')",
            "shared memory": f"open(f'{shared}', 'w') and os.unlink(f'{shared}')",
        }
        attempts = denied | allowed | {"later": f"open('{home}/.cargo/later')"}
        wanted = dict.fromkeys(denied, "EACCES") | dict.fromkeys(allowed, "done")
        assert verdicts(attempts, ruleset=first) == wanted | {"later": "EACCES"}
        assert verdicts(attempts, ruleset=box.confinement("/").ruleset) == wanted | {"later": "done"}
