"""Links and entries of indexes that commands leave for the user's own git, with real repositories."""

from __future__ import annotations

import os
import struct
import subprocess
import time

import pytest

from ralph.places.nested_repositories import last_look
from ralph.places.planted_in_git import names_in_index
from tests.git.repositories import Repository, cloned
from tests.rows import every_row

NAMES = (
    ".bashrc",
    ".github/x",
    "a",
    "a.git/HEAD",
    "dir/..x",
    "dir/.gitignore",
    f"long/{'x' * 200}",
    "z \u00e4",
)


def git(repository: Repository, *arguments: str) -> str:
    made = subprocess.run(
        ["git", *arguments], cwd=repository.top, env=repository.environment, check=True, capture_output=True
    )
    return made.stdout.decode()


@pytest.fixture
def repository(tmp_path_factory) -> Repository:
    place = tmp_path_factory.mktemp("place")
    return cloned(place / "work", place / "home")


def index_of(name: bytes, *, length: int | None = None) -> bytes:
    """An index with one entry, as version 2 has it."""
    flags = struct.pack(">H", len(name) if length is None else length)
    entry = bytes(40) + bytes(20) + flags + name
    return b"DIRC" + struct.pack(">LL", 2, 1) + entry.ljust(len(entry) // 8 * 8 + 8, b"\0") + bytes(20)


def told_after(repository: Repository, change) -> str:
    time.sleep(0.05)
    since_s = time.time()
    change(repository.top / ".git")
    return last_look([str(repository.top)], since_s, repository.environment)


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("ids", ["sha1", "sha256"])
def test_the_names_in_an_index_are_those_that_git_lists(tmp_path, version, ids) -> None:
    work = tmp_path / "work"
    subprocess.run(["git", "init", "-q", f"--object-format={ids}", work], check=True)
    for name in NAMES:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    for words in (["add", "-A"], ["update-index", f"--index-version={version}"], ["add", "-N", "."]):
        subprocess.run(["git", *words], cwd=work, check=True)
    (work / "new").touch()
    subprocess.run(["git", "add", "-N", "new"], cwd=work, check=True)  # which needs the flags of version 3
    found = [*names_in_index((work / ".git/index").read_bytes(), 20 if ids == "sha1" else 32)]
    assert sorted(map(os.fsdecode, found)) == sorted((*NAMES, "new"))
    assert last_look([str(work)], 0.0, {}) == ""


@every_row(
    ("name", "is_told"),
    [
        (b"../../.bashrc", True),
        (b"../x", True),
        (b".git/hooks/pre-commit", True),
        (b"sub/.GIT/config", True),
        (b"sub/.g\xe2\x80\x8cit/config", True),
        (b"a/git~1/config", True),
        (b".git. /config", True),
        (b"git~10/config", False),
        (b"/etc/x", True),
        (b"a//b", True),
        (b"a/./b", True),
        (b"a/../../b", True),
        (b".gitignore", False),
        (b"a..b/...", False),
        (b"x.git/config", False),
    ],
)
def test_an_entry_that_git_would_write_elsewhere_is_told(tmp_path_factory, name, is_told) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = cloned(place / "work", place / "home")
    told = told_after(repository, lambda directory: (directory / "index").write_bytes(index_of(name)))
    assert (f"{repository.top}/.git/index (" in told) is is_told
    assert (os.fsdecode(name) in told or "\\" in told) is is_told


@pytest.mark.parametrize("content", [b"", b"DIRC", index_of(b"a/b", length=1), index_of(b"a", length=40)])
def test_an_index_that_is_not_as_git_writes_it_is_told(repository, content) -> None:
    told = told_after(repository, lambda directory: (directory / "index").write_bytes(content))
    assert "(it is damaged)" in told


def test_an_old_index_and_links_that_were_there_are_left_alone(repository) -> None:
    (repository.top / ".git/MERGE_MSG").symlink_to("../x")
    assert told_after(repository, lambda _: None) == ""
    assert (repository.top / ".git/MERGE_MSG").is_symlink()


@pytest.mark.parametrize("name", ["MERGE_MSG", "logs/HEAD", "logs/refs/heads", "refs/x", "modules/a/index"])
def test_a_link_that_was_made_is_removed_and_told(repository, name) -> None:
    home = repository.top.parent / "home/.bashrc"
    home.write_text("mine")
    link = repository.top / ".git" / name

    def plant(_) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.exists():
            link.rename(repository.top / "away")
        link.symlink_to(home)

    told = told_after(repository, plant)
    assert f"{link} (to {home})" in told
    assert not link.is_symlink()
    assert home.read_text() == "mine"


def test_a_link_of_git_itself_is_left_alone(repository) -> None:
    def switch(_) -> None:
        git(repository, "config", "core.preferSymlinkRefs", "true")
        git(repository, "symbolic-ref", "HEAD", "refs/heads/other")

    told = told_after(repository, switch)
    assert "links made" not in told
    assert (repository.top / ".git/HEAD").is_symlink()


@pytest.mark.ordinary_user
def test_a_folder_of_git_that_cannot_be_listed_is_told(repository) -> None:
    folder = repository.top / ".git/x"
    told = told_after(repository, lambda _: folder.mkdir(mode=0o300))
    folder.chmod(0o700)
    assert f"could not be looked through: {folder}" in told
