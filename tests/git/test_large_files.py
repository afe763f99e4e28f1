"""Tests that a push brings what the pointers of the real git-lfs stand for, by no word of the repository, or is refused."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from ralph.git.look import status_of
from ralph.pages.content import Excerpts
from ralph.pages.git_changes import GitQuestion, GitReader
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor
from tests.git.http_repository import HttpRepository
from tests.git.repositories import Repository, cloned
from tests.processes.scripts import script
from tests.rows import every_row
from tests.services.outside_programs import program_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ralph.git.checkout import GitCheckout

CONTENT = "large\n" * 100
STANDARD = {
    "filter.lfs.clean": "git-lfs clean -- %f",
    "filter.lfs.smudge": "git-lfs smudge -- %f",
    "filter.lfs.process": "git-lfs filter-process",
    "filter.lfs.required": "true",
}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A clone of `remote.git` whose commit that nobody has pushed has a large file."""
    program_or_skip("git-lfs")
    made = cloned(tmp_path / "work", tmp_path / "home")
    for name, value in STANDARD.items():
        made.git("config", "--global", name, value)
    add(made, "x.bin", CONTENT)
    return made


def add(repository: Repository, name: str, content: str) -> None:
    repository.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    repository.write(name, content)
    repository.commit_all()


def identifier(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def kept_at(place: Path, folder: str = "lfs") -> set[str]:
    """The ids of the large files in a git directory, or in another folder of a directory."""
    return {path.name for path in place.glob(f"{folder}/objects/*/*/*")}


@pytest.fixture
def served(repository: Repository, tmp_path: Path) -> Iterator[HttpRepository]:
    Repository(tmp_path / "remote.git", tmp_path / "home").git("config", "http.receivepack", "true")
    with HttpRepository(tmp_path / "remote.git") as server:
        repository.git("remote", "set-url", "origin", server.url)
        yield server


def begun(repository: Repository) -> GitCheckout:
    """A checkout in which a loop has begun: where a push goes is known."""
    checkout = repository.checkout()
    checkout.pins_text()
    return checkout


def tried_out(repository: Repository) -> None:
    checkout = repository.checkout()
    git = checkout.git()
    checkout.push_of(git, status_of(git)).try_out()


def test_a_clone_of_what_was_pushed_has_the_large_files(repository: Repository, tmp_path: Path) -> None:
    tried_out(repository)
    assert (repository.checkout().push(), kept_at(tmp_path / "remote.git")) == (1, {identifier(CONTENT)})
    repository.git("clone", "-q", str(tmp_path / "remote.git"), "../fresh")
    assert (tmp_path / "fresh/x.bin").read_text() == CONTENT


def test_a_server_gets_each_large_file_once(repository: Repository, served: HttpRepository) -> None:
    checkout = begun(repository)
    assert checkout.push() == 1
    assert {one: content.decode() for one, content in served.large.kept.items()} == {
        identifier(CONTENT): CONTENT
    }
    add(repository, "y.bin", "more")
    served.large.kept.clear()
    checkout.push()
    assert set(served.large.kept) == {identifier("more")}
    served.asked.clear()
    repository.write("small")
    repository.commit_all()
    assert checkout.push() == 1
    assert not [path for path in served.asked if "/lfs/" in path]


def test_other_branches_bring_their_large_files(repository: Repository, tmp_path: Path) -> None:
    repository.git("branch", "ralph/red-1")
    repository.git("reset", "-q", "--hard", "HEAD~")
    repository.checkout().push("ralph/red-1")
    assert kept_at(tmp_path / "remote.git") == {identifier(CONTENT)}


def test_a_linked_working_tree_brings_the_large_files_of_its_repository(
    repository: Repository, tmp_path: Path
) -> None:
    repository.git("worktree", "add", "-q", "-b", "beside", str(tmp_path / "beside"))
    beside = Repository(tmp_path / "beside", tmp_path / "home")
    beside.environment = repository.environment
    add(beside, "y.bin", "more")
    assert beside.checkout(writable=(repository.top,)).push() == 2  # as with --add-dir
    assert kept_at(tmp_path / "remote.git") == {identifier(CONTENT), identifier("more")}


@pytest.mark.parametrize(("status", "outcome"), [(500, Outcome.API_UNAVAILABLE), (403, Outcome.AUTH)])
def test_no_commit_is_pushed_whose_large_files_the_server_refuses(
    repository: Repository, served: HttpRepository, status: int, outcome: Outcome
) -> None:
    served.large.status = status
    with pytest.raises(CheckoutError, match=r"^git lfs push: ") as raised:
        repository.checkout().push()
    assert raised.value.outcome is outcome
    assert repository.git("ls-remote", "origin", "refs/heads/main").split()[0] == repository.git(
        "rev-parse", "HEAD~"
    )


@pytest.mark.parametrize("key", ["url", "pushurl"])
def test_what_the_repository_says_of_a_server_is_not_obeyed(
    repository: Repository, served: HttpRepository, tmp_path: Path, key: str
) -> None:
    with HttpRepository(tmp_path / "remote.git") as elsewhere:
        text = f"[lfs]\n\t{key} = {elsewhere.url}/info/lfs\n"
        repository.write(".lfsconfig", text)
        repository.commit_all()
        for act in (lambda: tried_out(repository), repository.checkout().push):
            with pytest.raises(CheckoutError, match=rf"\.lfsconfig .* yourself: git config lfs\.{key} URL"):
                act()
        repository.git("config", f"lfs.{key}", f"{served.url}/info/lfs")
        assert repository.checkout().push() == 2
        assert (set(served.large.kept), elsewhere.asked) == ({identifier(CONTENT)}, [])


def test_what_an_agent_writes_into_the_configuration_is_not_obeyed(
    repository: Repository, served: HttpRepository, tmp_path: Path
) -> None:
    checkout = begun(repository)
    marks = tmp_path / "marks"
    marks.mkdir()
    with HttpRepository(tmp_path / "remote.git") as elsewhere:
        for name, value in {
            "lfs.url": f"{elsewhere.url}/info/lfs",
            "remote.origin.lfspushurl": f"{elsewhere.url}/info/lfs",
            "lfs.standalonetransferagent": "evil",
            "lfs.customtransfer.evil.path": "touch",
            "lfs.customtransfer.evil.args": str(marks / "ran"),
            "alias.lfs": f"!touch {marks}/alias",
        }.items():
            repository.git("config", name, value)
        assert checkout.push() == 1
        assert (set(served.large.kept), elsewhere.asked, list(marks.iterdir())) == (
            {identifier(CONTENT)},
            [],
            [],
        )


def without_git_lfs(repository: Repository, place: Path) -> None:
    """Takes git-lfs from the PATH, and from the user's configuration."""
    repository.git("config", "--global", "--remove-section", "filter.lfs")
    place.mkdir()
    for name in ("git", "sh"):
        (place / name).symlink_to(str(shutil.which(name)))
    repository.environment["PATH"] = str(place)


def test_nothing_is_pushed_without_git_lfs(repository: Repository, tmp_path: Path) -> None:
    without_git_lfs(repository, tmp_path / "bin")
    for act in (lambda: tried_out(repository), repository.checkout().push):
        with pytest.raises(CheckoutError, match="no git-lfs on PATH"):
            act()


def test_a_git_lfs_that_commands_can_write_does_not_run(repository: Repository, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "git-lfs").symlink_to(script(repository.top / "git-lfs", f"touch {tmp_path}/ran"))
    repository.environment["PATH"] = f"{own}:{repository.environment['PATH']}"
    with pytest.raises(CheckoutError, match="commands may write what"):
        repository.checkout().push()
    assert not (tmp_path / "ran").exists()


def test_a_pointer_without_its_file_is_refused(repository: Repository, tmp_path: Path) -> None:
    shutil.rmtree(repository.top / ".git/lfs/objects")
    (repository.top / "x.bin").unlink()  # git would have its pointer made again, and its file with it
    with pytest.raises(CheckoutError, match=r"pointers of git-lfs at x\.bin"):
        repository.checkout().push()
    assert kept_at(tmp_path / "remote.git") == set()


def test_each_version_of_a_file_is_brought_whatever_another_one_is(
    repository: Repository, tmp_path: Path
) -> None:
    """The older version is a text that only looks like a pointer, so that nothing is missing."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    repository.git("rm", "-q", "--cached", ".gitattributes")
    repository.write(".gitattributes", "")
    repository.write("y.bin", pointer)
    repository.commit_all()
    add(repository, "y.bin", "more")
    repository.write(".gitattributes", "x.bin filter=lfs -text\n")
    repository.git("add", ".gitattributes")
    repository.git("commit", "-q", "-m", "text again")
    repository.checkout().push()
    assert identifier("more") in kept_at(tmp_path / "remote.git")


def test_a_text_that_looks_like_a_pointer_is_pushed(repository: Repository) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    repository.write("example.txt", pointer)
    repository.commit_all()
    assert repository.checkout().push() == 2


def test_a_commit_of_ralphs_writes_no_large_file_where_the_repository_says(
    repository: Repository, tmp_path: Path
) -> None:
    repository.git("config", "lfs.storage", str(tmp_path / "elsewhere"))
    repository.write("y.bin", "more")
    checkout = repository.checkout()
    assert checkout.commit("more")
    assert not (tmp_path / "elsewhere").exists()
    assert identifier("more") in kept_at(repository.top / ".git")
    assert "lfs.storage" in checkout.git().settings.left_out


@pytest.mark.parametrize("whose", ["work", "remote.git"])
def test_large_files_in_another_place_are_refused(repository: Repository, tmp_path: Path, whose: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Repository(tmp_path / whose, tmp_path / "home").git("config", "lfs.storage", str(elsewhere))
    for act in (lambda: tried_out(repository), repository.checkout().push):
        with pytest.raises(CheckoutError, match=r"large files elsewhere|files elsewhere \(lfs\.storage\)"):
            act()
    assert list(elsewhere.iterdir()) == []


def test_a_repository_without_large_files_asks_nothing_more(tmp_path: Path) -> None:
    plain = cloned(tmp_path / "work", tmp_path / "home")
    for name, value in STANDARD.items():  # as somebody has them who has installed git-lfs
        plain.git("config", "--global", name, value)
    Repository(tmp_path / "remote.git", tmp_path / "home").git("config", "http.receivepack", "true")
    with HttpRepository(tmp_path / "remote.git") as server:
        plain.git("remote", "set-url", "origin", server.url)
        plain.write("b")
        plain.commit_all()
        assert plain.checkout().push() == 1
        assert [path.partition("remote.git")[2] for path in server.asked] == [
            "/info/refs?service=git-receive-pack",
            "/git-receive-pack",
        ]


# A command's program of the shell in the checkout, after which x.bin has changed.
PLANTED = {
    "a link": "mv .git/lfs ../lfs && ln -s ../../outside .git/lfs",
    "a link further in": "rm -rf .git/lfs/objects && ln -s ../../../outside .git/lfs/objects",
    "the directory of another repository": "mkdir in && cp -p .gitattributes x.bin in && echo gitdir: ../../other/.git >in/.git",
    "a link in a repository inside": "git init -q in && cp -p .gitattributes x.bin in && git -C in add -A && "
    "git -C in -c user.name=x -c user.email=x commit -q -m x && rm -rf in/.git/lfs && ln -s ../../../outside in/.git/lfs",
}


@every_row(("name", "script"), PLANTED.items())
def test_no_look_of_ralphs_writes_a_large_file_elsewhere(tmp_path_factory, name: str, script: str) -> None:
    program_or_skip("git-lfs")
    place = tmp_path_factory.mktemp("place")
    made = cloned(place / "work", place / "home")
    for key, value in STANDARD.items():
        made.git("config", "--global", key, value)
    add(made, "x.bin", CONTENT)
    (place / "outside").mkdir()
    shutil.copytree(place / "work", place / "other")
    made.git("-c", f"alias.plant=!{script}", "plant")
    before = {path for top in ("outside", "other") for path in (place / top).rglob("*")}
    for path in place.glob("work/**/x.bin"):
        path.write_text(CONTENT.upper())  # of the same size, so that git asks git-lfs
    made.checkout().snapshot()
    reader = GitReader(made.seams(), Excerpts(Redactor()))
    assert reader.facts(GitQuestion(made.top, has_uncommitted=True)).files
    assert {path for top in ("outside", "other") for path in (place / top).rglob("*")} == before
