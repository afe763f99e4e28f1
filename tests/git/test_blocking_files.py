"""The search for a file for which git would wait."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from ralph.git.runner import blocking_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.git.repositories import Repository


def found(repository: Repository, **variables: str) -> str | None:
    return blocking_file(str(repository.top), repository.environment | variables, lambda: False)


def test_an_ordinary_repository_has_none(repository: Repository, monkeypatch) -> None:
    """A link to the null device counts as an empty file, and a loop of configurations ends."""
    git = repository.top / ".git"
    (git / "info/exclude").symlink_to(os.devnull)
    with (git / "config").open("a") as config:
        config.write("[include]\n\tpath = config\n\tpath = ~/none\n[core]\n\tpager = \\0\n")
    os.mkfifo(repository.top / "pipe")  # git reads it in no directory
    with socket.socket(socket.AF_UNIX) as daemon:
        monkeypatch.chdir(git)  # the whole path may be too long for a socket
        daemon.bind("fsmonitor--daemon.ipc")
        assert found(repository) is None


@pytest.mark.parametrize(
    "name",
    [
        *(".gitignore", "dir/.gitignore", ".gitattributes", "dir/.gitattributes", "below/.git/HEAD"),
        *(".git/HEAD", ".git/logs/HEAD", ".git/info/exclude", ".git/info/attributes", ".git/index"),
        *(".git/config", ".git/packed-refs", ".git/refs/heads/main", ".git/objects/info/alternates"),
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_found(repository: Repository, name: str) -> None:
    path = repository.top / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True, parents=True)
    os.mkfifo(path)
    assert found(repository) == str(path)


def test_a_pipe_behind_a_link_in_the_git_directory_is_found(repository: Repository, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "again").symlink_to(elsewhere)
    (repository.top / "unread").symlink_to(elsewhere)
    os.mkfifo(elsewhere / "HEAD")
    assert found(repository) is None
    (repository.top / ".git/refs/heads/linked").symlink_to(elsewhere)
    assert found(repository) == f"{repository.top}/.git/refs/heads/linked/HEAD"


def test_a_pipe_in_the_repository_that_lends_objects_is_found(repository: Repository, tmp_path: Path) -> None:
    for name, lender in (("one", "../two"), ("two", "../one")):
        (tmp_path / name / "info").mkdir(parents=True)
        (tmp_path / name / "info/alternates").write_text(f"{lender}\n")
    (repository.top / ".git/objects/info/alternates").write_text(f"{tmp_path}/one\n")
    assert found(repository) is None
    os.mkfifo(tmp_path / "two/pack")
    assert (found(repository) or "").endswith("/two/pack")


def test_a_device_that_a_users_file_names_is_found(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text('[core]\n\texcludesFile = "/dev/zero"\n')
    assert found(repository, HOME=str(tmp_path)) == "/dev/zero"


def test_the_git_directory_of_a_linked_worktree_and_its_common_one_are_searched(
    repository: Repository, tmp_path: Path
) -> None:
    linked = tmp_path / "linked"
    repository.git("worktree", "add", "-q", str(linked))
    pipe = repository.top / ".git/info/attributes"
    os.mkfifo(pipe)
    at = blocking_file(str(linked), repository.environment, lambda: False)
    assert at is not None
    assert pipe.samefile(at)


def test_the_search_ends_with_the_call(repository: Repository) -> None:
    os.mkfifo(repository.top / "dir/.gitignore")
    assert blocking_file(str(repository.top), repository.environment, lambda: True) is None
