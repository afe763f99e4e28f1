"""Repositories below a checkout that name programs are found, named, and left out of commits."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from ralph.git.checkout import GitCheckout
from ralph.places.nested_repositories import look_for_repositories
from tests.git.repositories import Repository, cloned, committed
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

BARE = "mkdir -p evil/objects evil/refs; echo 'ref: refs/heads/x' >evil/HEAD; "
CLONE = "git clone -q . evil; "
# A command of an agent, and the names that are told of `evil`.
PLANTED = {
    "a setting": (f"{CLONE} git -C evil config core.fsmonitor ./x", ("core.fsmonitor",)),
    "a hook": (
        f"{CLONE} printf '#!/bin/sh' >evil/.git/hooks/post-checkout; chmod +x evil/.git/hooks/post-checkout",
        ("hooks/post-checkout",),
    ),
    "an included file": (f"{CLONE} git -C evil config include.path x", ("include.path",)),
    "a working tree elsewhere": (f"{CLONE} git -C evil config core.worktree /etc", ("core.worktree",)),
    "the configuration of a working tree": (
        f"{CLONE} git -C evil config extensions.worktreeConfig true; git -C evil config --worktree core.pager x",
        ("core.pager",),
    ),
    "a repository without a commit": (
        "git init -q evil; git -C evil config core.fsmonitor ./x; echo x >evil/f",
        ("core.fsmonitor",),
    ),
    "a bare repository": (f"{BARE} printf '[core]\\nfsmonitor = x' >evil/config", ("core.fsmonitor",)),
    "what a bare repository shares": (
        (
            "mkdir evil; echo 'ref: refs/heads/x' >evil/HEAD; git init -q --bare ignored; "
            "git -C ignored config core.pager x; echo ../ignored >evil/commondir"
        ),
        ("core.pager",),
    ),
    "a file that leads to one": (
        "git clone -q --separate-git-dir=ignored . evil; git -C evil config core.fsmonitor x",
        ("core.fsmonitor",),
    ),
    "a link that leads to one": (
        f"{CLONE} mv evil/.git ignored; ln -s ../ignored evil/.git; git -C evil config core.pager x",
        ("core.pager",),
    ),
    "a huge configuration": (
        f"{CLONE} yes '# x' | head -c 70000 >>evil/.git/config; printf '\\n[core]\\npager = x' >>evil/.git/config",
        ("a configuration too large to be read",),
    ),
}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return cloned(tmp_path / "work", tmp_path / "home")


def run(repository: Repository, script: str) -> None:
    subprocess.run(
        ["sh", "-ec", script], cwd=repository.top, env=repository.environment, check=True, capture_output=True
    )


@every_row(("script", "names"), list(PLANTED.values()))
def test_a_repository_that_names_a_program_is_named_and_left_out(tmp_path_factory, script, names) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = cloned(place / "work", place / "home")
    run(repository, script)
    look = look_for_repositories(str(repository.top))
    [found] = [one for one in look.found if one.path == "evil"]
    assert found.names == names
    said: list[str] = []
    checkout = GitCheckout(
        repository.top, repository.top, plan_file="P", seams=repository.seams(), warn=said.append
    )
    repository.write("work.txt")
    assert checkout.commit("x")
    assert repository.git("ls-tree", "-r", "--name-only", "HEAD").split() == [
        ".gitignore",
        "a.txt",
        "dir/b.txt",
        "work.txt",
    ]
    assert len(said) == 1
    assert "evil (" in said[0]
    assert said[0].endswith("commits leave such repositories out")
    assert not checkout.commit("x")
    assert len(said) == 1


def test_what_the_agent_has_staged_of_one_is_left_out_too(repository: Repository) -> None:
    run(
        repository,
        f"{CLONE} git add evil 2>/dev/null; mkdir bare; mv evil/.git bare/x; cp -r bare/x/* bare; rm -r bare/x evil;"
        " git config --file bare/config core.fsmonitor x; git add -f bare; git clone -q . evil; git -C evil config core.pager x",
    )
    assert "bare/config" in repository.git("diff", "--cached", "--name-only")
    repository.write("work.txt")
    assert repository.checkout().commit("x")
    assert repository.git("diff", "--name-only", "HEAD~1", "HEAD").split() == ["work.txt"]
    assert (repository.top / "bare/config").exists()


def test_the_work_of_the_outer_repository_is_committed_all_the_same(repository: Repository) -> None:
    """A command made a repository of a directory with tracked files."""
    run(repository, "git init -q dir; git -C dir config core.fsmonitor ./x; echo changed >dir/b.txt")
    assert repository.checkout().commit("x")
    assert repository.git("show", "HEAD:dir/b.txt") == "changed"


def test_ordinary_repositories_are_neither_named_nor_left_out(repository: Repository, tmp_path: Path) -> None:
    committed(tmp_path / "other", tmp_path / "home")
    run(
        repository,
        "git clone -q . plain; git clone -q --bare . bare; git -c protocol.file.allow=always submodule add -q ../other part",
    )
    repository.git("-C", "part", "config", "core.pager", "less")
    look = look_for_repositories(str(repository.top))
    assert (look.found, look.is_whole, look.sentence()) == ((), True, "")
    assert repository.checkout().commit("x")
    assert {"part", "bare/HEAD"} <= {*repository.git("ls-tree", "-r", "--name-only", "HEAD").split()}


def test_the_look_is_bounded(repository: Repository) -> None:
    for number in range(30):
        repository.write(f"d{number}/f")
    look = look_for_repositories(str(repository.top), most_entries=40)
    assert not look.is_whole
    assert "too large" in look.sentence()
    assert not look_for_repositories(str(repository.top), is_over=lambda: True).is_whole


def test_links_on_the_way_are_not_followed(repository: Repository, tmp_path: Path) -> None:
    other = committed(tmp_path / "other", tmp_path / "home")
    other.git("config", "core.pager", "x")
    (repository.top / "there").symlink_to(tmp_path)
    os.mkfifo(repository.top / "pipe")
    assert look_for_repositories(str(repository.top)).found == ()
