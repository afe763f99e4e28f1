"""Repositories below a checkout that name programs, and protected files there, are found, named, and left out of commits."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

from ralph.machine.own_process import PACKAGE_CACHES
from ralph.places import gather
from ralph.places.nested_repositories import Look, last_look, look_below
from ralph.places.table import names_below_tops
from tests.git.repositories import Repository, cloned, committed
from tests.places.test_named_by_git import run
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

BARE = "mkdir -p evil/objects evil/refs; echo 'ref: refs/heads/x' >evil/HEAD; "
CLONE = "git clone -q . evil; "
# A command of an agent, and the name that is told of `evil`.
PAGER = "git -C evil config core.pager x"
MONITOR = "git -C evil config core.fsmonitor x"
OF_BARE = "printf '[core]\\nfsmonitor = x' >evil/config"
HIDDEN = (
    "git init -q --bare .git/objects/e.git; printf '#!/bin/sh' >.git/objects/e.git/hooks/pre-receive; "
    "chmod +x .git/objects/e.git/hooks/pre-receive;"
)
PLANTED = {
    "a setting": (f"{CLONE} {MONITOR}", "core.fsmonitor"),
    "a hook": (
        f"{CLONE} printf '#!/bin/sh' >evil/.git/hooks/post-checkout; chmod +x evil/.git/hooks/post-checkout",
        "hooks/post-checkout",
    ),
    "an included file": (f"{CLONE} git -C evil config include.path x", "include.path"),
    "a working tree elsewhere": (f"{CLONE} git -C evil config core.worktree /etc", "core.worktree"),
    "the configuration of a working tree": (
        f"{CLONE} git -C evil config extensions.worktreeConfig true; git -C evil config --worktree core.pager x",
        "core.pager",
    ),
    "a repository without a commit": (f"git init -q evil; {MONITOR}; echo x >evil/f", "core.fsmonitor"),
    "a bare repository": (f"{BARE} {OF_BARE}", "core.fsmonitor"),
    "what a bare repository shares": (
        (
            "mkdir evil; echo 'ref: refs/heads/x' >evil/HEAD; git init -q --bare ignored; "
            "git -C ignored config core.pager x; echo ../ignored >evil/commondir"
        ),
        "core.pager",
    ),
    "a file that leads to one": (
        f"git clone -q --separate-git-dir=ignored . evil; {MONITOR}",
        "core.fsmonitor",
    ),
    "a link that leads to one": (
        f"{CLONE} mv evil/.git ignored; ln -s ../ignored evil/.git; {PAGER}",
        "core.pager",
    ),
    "one that a decoy hides": (f"{BARE} mkdir evil/.GIT; {OF_BARE}", "core.fsmonitor"),
    "a bare one that an empty .git hides": (f"{BARE} mkdir evil/.git; {OF_BARE}", "core.fsmonitor"),
    "a file that leads into the outer git directory": (
        f"{CLONE} mv evil/.git .git/evil; echo gitdir: ../.git/evil >evil/.git; {MONITOR}",
        "core.fsmonitor",
    ),
    "a file that leads among its objects": (
        f"{CLONE} mv evil/.git .git/objects/x; echo gitdir: ../.git/objects/../objects/x >evil/.git; {MONITOR}",
        "core.fsmonitor",
    ),
    "a file that leads into a submodule's": (
        (
            f"mkdir -p .git/modules; git init -q --bare .git/modules/a; {CLONE} mv evil/.git .git/modules/a/x; "
            f"echo gitdir: ../.git/modules/a/x >evil/.git; {MONITOR}"
        ),
        "core.fsmonitor",
    ),
    "a file that leads to a submodule of another folder": (
        (
            "git clone -q . ignored; git -c protocol.file.allow=always submodule --quiet add -f $PWD/ignored ignored-part; "
            "git reset -q; mkdir evil; echo gitdir: ../.git/modules/ignored-part >evil/.git; rm -rf .gitmodules ignored*"
        ),
        "core.worktree",
    ),
    "what a nested one shares": (
        f"{CLONE} cp -r evil/.git .git/evil; git config -f .git/evil/config core.pager x; echo ../../.git/evil >evil/.git/commondir",
        "core.pager",
    ),
    "one whose name has a character that some file systems ignore": (
        f"{BARE} mv evil/HEAD \"$(printf 'evil/HE\\342\\200\\214AD')\"; {OF_BARE}",
        "core.fsmonitor",
    ),
    "a remote in the outer git directory": (
        f"{CLONE} {HIDDEN} git -C evil config remote.origin.pushurl $PWD/.git/objects/e.git",
        "remote.origin.pushurl: hooks/pre-receive",
    ),
    "a rewritten address": (
        f"{CLONE} {HIDDEN} git -C evil config url.../.git/objects/e.git.insteadOf https://h/",
        "url.../.git/objects/e.git.insteadof: hooks/pre-receive",
    ),
    "a branch's remote": (
        f"{CLONE} {HIDDEN} git -C evil config branch.main.pushRemote file://$PWD/.git/objects/e",
        "branch.main.pushremote: hooks/pre-receive",
    ),
    "a huge configuration": (
        f"{CLONE} yes '# x' | head -c 1100000 >>evil/.git/config; printf '\\n[core]\\npager = x' >>evil/.git/config",
        "a configuration too large to be read",
    ),
}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return cloned(tmp_path / "work", tmp_path / "home")


@every_row(("script", "name"), list(PLANTED.values()))
def test_a_repository_that_names_a_program_is_named_and_left_out(tmp_path_factory, script, name) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = cloned(place / "work", place / "home")
    run(repository, script)
    look = look_below(str(repository.top))
    [found] = [one for one in look.found if one.path == "evil"]
    assert found.names == (name,)
    said: list[str] = []
    checkout = repository.checkout(warn=said.append)
    repository.write("work.txt")
    assert checkout.commit("x")
    there = repository.git("ls-tree", "-r", "--name-only", "HEAD").split()
    assert (there, len(said)) == ([".gitignore", "a.txt", "dir/b.txt", "work.txt"], 1)
    assert "evil (" in said[0]
    assert said[0].endswith("commits leave them out")
    assert not checkout.commit("x")
    assert len(said) == 1


def test_what_the_agent_has_staged_of_one_is_left_out_too(repository) -> None:
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


def test_the_work_of_the_outer_repository_is_committed_all_the_same(repository) -> None:
    """A command made a repository of a directory with tracked files."""
    run(repository, "git init -q dir; git -C dir config core.fsmonitor ./x; echo changed >dir/b.txt")
    assert repository.checkout().commit("x")
    assert repository.git("show", "HEAD:dir/b.txt") == "changed"


def test_ordinary_repositories_are_neither_named_nor_left_out(repository, tmp_path) -> None:
    committed(tmp_path / "other", tmp_path / "home")
    run(
        repository,
        "git clone -q . plain; git clone -q --bare . bare; git -c protocol.file.allow=always submodule add -q ../other part",
    )
    repository.git("-C", "part", "config", "core.pager", "less")
    look = look_below(str(repository.top))
    assert (look.found, look.is_cut, look.sentence()) == ((), False, "")
    assert repository.checkout().commit("x")
    assert {"part", "bare/HEAD"} <= {*repository.git("ls-tree", "-r", "--name-only", "HEAD").split()}


# What a command does, and the protected files that are named. `sub/.mcp.json` and `sub/.claude/settings.json` are committed.
PLANTED_FILES = {
    "servers": ("mkdir x; echo x >x/.mcp.json", ["x/.mcp.json"]),
    "settings of an agent": (
        "mkdir -p x/.claude; echo x >x/.claude/settings.local.json",
        ["x/.claude/settings.local.json"],
    ),
    "a deep one": ("mkdir -p x/y/z; echo x >x/y/z/ralph.toml", ["x/y/z/ralph.toml"]),
    "in other capitals": ("mkdir -p x/.Claude; echo x >x/.Claude/Settings.json", ["x/.Claude/Settings.json"]),
    "a changed one": ("echo x >sub/.mcp.json", ["sub/.mcp.json"]),
    "one with the old times": (
        "touch -r sub/.mcp.json t; echo x >sub/.mcp.json; touch -r t sub/.mcp.json; rm t",
        ["sub/.mcp.json"],
    ),
    "an older file, renamed": ("mkdir x; cp a.txt x/t; mv x/t x/.mcp.json", ["x/.mcp.json"]),
    "an older folder, renamed": ("mv other sub2; mkdir x; mv sub2 x/.claude", ["x/.claude/settings.json"]),
    "a link": ("mkdir x; ln -s ../a.txt x/.mcp.json", ["x/.mcp.json"]),
    "a link in the place of a folder": ("mkdir x; ln -s ../other x/.claude", ["x/.claude"]),
    "what is staged": ("mkdir x; echo x >x/.mcp.json; git add x", ["x/.mcp.json"]),
    "several": ("mkdir x; echo x | tee x/.mcp.json >x/ralph.toml", ["x/.mcp.json", "x/ralph.toml"]),
}


def with_older_files(place: Path) -> tuple[Repository, float]:
    """A repository with protected files, and a time after these were made."""
    repository = cloned(place / "work", place / "home")
    for name in "sub/.mcp.json sub/.claude/settings.json other/settings.json .mcp.json ralph.toml".split():
        repository.write(name, "mine")
    repository.commit_all()
    time.sleep(0.05)
    return repository, time.time()


@every_row(("script", "names"), list(PLANTED_FILES.values()))
def test_a_new_protected_file_below_the_top_is_named_and_left_out(tmp_path_factory, script, names) -> None:
    repository, since_s = with_older_files(tmp_path_factory.mktemp("place"))
    said: list[str] = []
    checkout = repository.checkout(warn=said.append)
    run(repository, script)
    look = look_below(str(repository.top), since_s=since_s)
    assert list(look.changed) == names
    assert ", ".join(names) in look.sentence()
    repository.write("work.txt")
    assert checkout.commit("x")
    committed_now = repository.git("diff", "--no-renames", "--name-only", "HEAD~1", "HEAD").split()
    assert "work.txt" in committed_now
    assert not {*names}.intersection(committed_now)
    assert len(said) == 1
    assert all(name in said[0] for name in names)
    assert not checkout.commit("x")
    assert len(said) == 1


# What is neither named nor left out, where the agent may write in the working directory and in `given`.
ORDINARY = {
    "nothing": ":",
    "files with similar names": "mkdir -p x/claude; echo x | tee x/mcp.json x/claude/settings.json x/.claude.json >x/settings.json",
    "other files beside them": "echo x >sub/other.txt",
    "a folder with such a name": "mkdir -p x/.mcp.json; echo x >x/y",
    "at the top, where changes are undone": "echo x >.mcp.json; echo x >ralph.toml; mkdir .claude; echo x >.claude/settings.json",
    "at the top of another root": "mkdir given; echo x >given/.mcp.json",
}


@every_row("script", list(ORDINARY.values()))
def test_other_files_are_neither_named_nor_left_out(tmp_path_factory, script) -> None:
    repository, since_s = with_older_files(tmp_path_factory.mktemp("place"))
    run(repository, script)
    roots = (str(repository.top), f"{repository.top}/given")
    assert look_below(str(repository.top), roots=roots, since_s=since_s).changed == ()
    assert look_below(str(repository.top), roots=roots, since_s=since_s).sentence() == ""
    repository.write("work.txt")
    assert repository.checkout(writable=(repository.top / "given",)).commit("x")
    assert repository.git("status", "--porcelain") == ""


def test_a_removed_protected_file_stays_in_the_commits(tmp_path) -> None:
    repository, _ = with_older_files(tmp_path)
    run(repository, "rm -r sub")
    repository.write("work.txt")
    said: list[str] = []
    checkout = repository.checkout(warn=said.append)
    assert checkout.commit("x")
    assert repository.git("diff", "--name-only", "HEAD~1", "HEAD").split() == ["work.txt"]
    assert "sub/.claude/settings.json, sub/.mcp.json" in said[0]


def test_a_directory_with_a_protected_file_is_recognised_by_whole_names() -> None:
    """A `*` there would match no name, and the file would be found by nobody."""
    assert not any("*" in (name.rpartition("/")[0] or name) for name in names_below_tops())


def test_the_look_is_bounded(repository) -> None:
    for number in range(30):
        repository.write(f"d{number}/f")
    look = look_below(str(repository.top), most_entries=40)
    assert look.is_cut
    assert "too large" in look.sentence()
    assert look_below(str(repository.top), is_over=lambda: True).is_cut


# What is in `d`, which cannot be listed, and what is found there. All is staged.
CLOSED = {
    "a repository that names a program": (
        "git clone -q . d/s; git -C d/s config core.fsmonitor x; git add d/s 2>/dev/null",
        ["d/s"],
    ),
    "a repository": ("git clone -q . d/s; git add d/s 2>/dev/null", []),
    "itself a repository": (
        "git clone -q . d; git -C d config core.fsmonitor x; git add d 2>/dev/null",
        ["d"],
    ),
    "itself a bare one": (f"{BARE} mv evil/* d; printf '[core]\\nfsmonitor = x' >d/config", ["d"]),
}


@every_row(("script", "names"), list(CLOSED.values()))
def test_a_directory_that_cannot_be_listed_is_named(tmp_path_factory, script, names) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = cloned(place / "work", place / "home")
    run(repository, f"mkdir -p d; {script}; chmod 311 d; echo >work.txt")
    closed = str(repository.top / "d")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scandir_without(closed))
        said: list[str] = []
        checkout = repository.checkout(warn=said.append)
        assert checkout.commit("x")
        look = look_below(str(repository.top), gitlinks=["d/s"])
    assert ([one.path for one in look.found], look.closed) == (names, ("d",))
    assert "these could not be looked into for such repositories and files: d" in look.sentence()
    assert said == [f"{look.sentence()}; commits leave them out"]
    assert "160000" not in repository.git("ls-tree", "-r", "HEAD")


def scandir_without(closed: str):
    """`os.scandir` as for an ordinary user who may not read a directory. Root may read all."""
    listing = os.scandir

    def scandir(path):
        if path == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listing(path)

    return scandir


def test_a_directory_of_somebody_else_is_not_named(repository, monkeypatch) -> None:
    """A database in a container often has one."""
    closed = repository.top / "d"
    closed.mkdir()
    monkeypatch.setattr(os, "scandir", scandir_without(str(closed)))
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert look_below(str(repository.top)).closed == ()


def test_a_path_that_is_too_long_is_named(tmp_path) -> None:
    """Git uses shorter paths, relative to the top, and goes in."""
    place = tmp_path
    held = os.open(place, os.O_RDONLY)
    try:
        for _ in range(20):
            os.mkdir("x" * 250, dir_fd=held)
            inner = os.open("x" * 250, os.O_RDONLY, dir_fd=held)
            os.close(held)
            held = inner
    finally:
        os.close(held)
    assert len(look_below(str(place)).closed) == 1


def test_what_the_index_names_is_looked_at_although_the_tree_is_too_large(repository) -> None:
    run(repository, f"{CLONE} mkdir z; mv evil z; git -C z/evil config core.fsmonitor x")
    look = look_below(str(repository.top), gitlinks=["z/evil"], most_entries=2)
    assert [one.path for one in look.found] == ["z/evil"]
    assert look_below(str(repository.top), gitlinks=["z/evil"]).found == look.found


@pytest.mark.parametrize("others", [(), (".git",)])
def test_a_bare_repository_at_the_top_is_named(tmp_path, others) -> None:
    """Where the working directory was none, nothing was guarded when a command made it one."""
    (tmp_path / "work").mkdir()
    work = tmp_path / "work"
    for name in ("objects", "refs", *others):
        (work / name).mkdir()
    (work / "HEAD").write_text("ref: refs/heads/x\n")
    (work / "config").write_text("[core]\nworktree = .\nfsmonitor = x\n")
    assert "name: . (core.worktree, core.fsmonitor)" in look_below(str(work)).sentence()
    (work / "config").write_text('[remote "origin"]\nurl = elsewhere\n')
    assert bool(look_below(str(work)).found) == bool(others), "git may take it for .git"
    began_s = (work / "HEAD").stat().st_ctime
    assert "name: . (HEAD)" in look_below(str(work), since_s=began_s).sentence(), (
        "git may take it for one above"
    )
    assert bool(look_below(str(work), since_s=began_s + 10).found) == bool(others)


def test_submodules_of_submodules_and_worktrees_are_neither_named_nor_left_out(tmp_path) -> None:
    repository = nested_submodules(tmp_path)
    look = look_below(str(repository.top))
    assert (look.found, look.sentence()) == ((), "")
    inner = repository.top / "part/inner"
    (inner / ".git").write_text("gitdir: ../../.git/modules/part/modules/../x\n")
    (repository.top / ".git/modules/part/modules/inner").rename(repository.top / ".git/modules/part/x")
    assert [one.path for one in look_below(str(repository.top)).found] == ["part/inner"]


def nested_submodules(place: Path) -> Repository:
    """A repository with a submodule that has one too, and with a linked worktree in its tree that has one."""
    repository = cloned(place / "work", place / "home")
    committed(place / "inner", place / "home")
    source = committed(place / "source", place / "home")
    source.git("submodule", "add", "-q", "../inner", "inner")
    source.commit_all()
    repository.git("submodule", "add", "-q", "../source", "part")
    repository.git("submodule", "update", "-q", "--init", "--recursive")
    repository.commit_all()
    repository.git("worktree", "add", "-q", "linked")
    repository.git("-C", "linked", "submodule", "update", "-q", "--init", "--recursive")
    return repository


def test_too_many_folders_to_be_guarded_are_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gather, "_MOST_NESTED", 20)
    repository = nested_submodules(tmp_path)
    for number in range(30):
        (repository.top / f".git/modules/a{number}").mkdir()
        (repository.top / f".git/modules/a{number}/HEAD").touch()
    assert (
        f"{repository.top}/.git/modules holds more folders than ralph guards"
        in look_below(str(repository.top)).sentence()
    )


def test_a_link_of_the_users_own_to_another_repository_is_not_named(repository, tmp_path) -> None:
    """Nor is one that leads in a circle."""
    other = committed(tmp_path / "other", tmp_path / "home")
    other.git("config", "core.pager", "x")
    other.write("dir/.mcp.json")
    for name, target in (("there", other.top / "dir"), ("circle", "circle"), ("round", "."), ("git", ".git")):
        (repository.top / name).symlink_to(target)
    os.mkfifo(repository.top / "pipe")
    for since_s in (None, time.time() + 10):
        assert look_below(str(repository.top), since_s=since_s).sentence() == ""
    made = look_below(str(repository.top), since_s=0.0)
    assert [(one.path, one.names) for one in made.found] == [("there", ("core.pager",))]
    assert made.changed == ("there/.mcp.json",)
    # Nor what the user changes there, or has around a place that commands may write.
    time.sleep(0.05)
    since_s = time.time()
    other.write("dir/ralph.toml")
    assert look_below(str(repository.top), since_s=since_s).sentence() == ""
    there = look_below(str(repository.top), since_s=since_s, writable=[str(other.top / "dir")])
    assert (there.found, there.changed) == ((), ("there/ralph.toml",))


def test_what_is_in_the_tree_is_named_once(repository, tmp_path) -> None:
    run(repository, f"{EVIL.format('sub')} ln -s .. link")
    look = look_below(str(repository.top), since_s=0.0, writable=[str(tmp_path)])
    assert [one.path for one in look.found] == ["sub"]


EVIL = "git init -q {0}; mkdir {0}/docs; git -C {0} config core.fsmonitor x; "
OBEYED = "mkdir -p {0}/docs/.claude {0}/.claude; touch {0}/docs/.claude/settings.json {0}/docs/.mcp.json {0}/ralph.toml; "
# What a command makes beside a link `link` to it, where it may write in `work` and in `cache`, and the names that are told.
BEHIND_LINKS = {
    "in the git directory of a repository below": (
        f"git init -q sub; {EVIL.format('sub/.git/evil')} ln -s sub/.git/evil/docs link",
        ["link"],
        [],
    ),
    "in that of the checkout": (f"{EVIL.format('.git/evil')} ln -s .git/evil/docs link", ["link"], []),
    "in a cache": (f"{EVIL.format('../cache/evil')} ln -s $PWD/../cache/evil/docs link", ["link"], []),
    "by two links": (
        f"{EVIL.format('../cache/evil')} ln -s ../cache ../cache/again; ln -s ../cache/again/evil/docs link",
        ["link"],
        [],
    ),
    "several links": (
        f"{EVIL.format('../cache/evil')} ln -s ../cache/evil link; ln -s ../cache/evil/docs z",
        ["link", "z"],
        [],
    ),
    "behind what is no repository": (
        f"{EVIL.format('.git/evil')} mkdir .git/evil/docs/.git; touch .git/evil/docs/.git/HEAD; ln -s .git/evil/docs link",
        ["link"],
        [],
    ),
    "below the target": (f"mkdir .git/x; {EVIL.format('.git/x/evil')} ln -s .git/x link", ["link/evil"], []),
    "a bare one": (f"{BARE} {OF_BARE}; mv evil ../cache; ln -s ../cache/evil link", ["link"], []),
    "files that agents obey": (
        f"mkdir -p .git/x/docs; {OBEYED.format('.git/x')} ln -s .git/x/docs link",
        [],
        ["link/../ralph.toml", "link/.claude/settings.json", "link/.mcp.json"],
    ),
    "none in the tree, where the walk comes": (
        f"{EVIL.format('sub')} ln -s sub/docs link; ln -s ../sub/docs dir/link",
        ["sub"],
        [],
    ),
    "none by a link from a cache to the user's": (
        "git init -q ../mine; git -C ../mine config core.pager x; ln -s ../mine ../cache/x; ln -s ../cache link",
        [],
        [],
    ),
    "none elsewhere": ("mkdir -p ../cache/x/y; ln -s ../cache/x link; ln -s ../cache/x/y z", [], []),
}


@every_row(("script", "names", "changed"), list(BEHIND_LINKS.values()))
def test_what_a_link_leads_to_where_commands_may_write_is_named_by_it(
    tmp_path_factory, script, names, changed
) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = cloned(place / "work", place / "home")
    (place / "cache").mkdir()
    time.sleep(0.05)
    began_s, writable = time.time(), [str(place / "cache")]
    run(repository, script)
    look = look_below(str(repository.top), since_s=began_s, writable=writable)
    assert (sorted({one.path for one in look.found}), sorted(look.changed)) == (names, changed)
    assert not look.is_cut
    later = look_below(str(repository.top), since_s=began_s + 10, writable=writable)
    assert (sorted({one.path for one in later.found}), later.changed) == (names, ())


@pytest.mark.parametrize("target", ["/dev/shm", "cache"])
def test_a_link_to_where_all_commands_may_write_is_named_at_the_end(repository, tmp_path, target) -> None:
    if target == "cache":
        target = str(tmp_path / "home/.cache" / PACKAGE_CACHES / "x")
        (tmp_path / "home/.cache" / PACKAGE_CACHES / "x").mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=target) as place:
        run(repository, f"{EVIL.format(place + '/evil')} ln -s {place}/evil/docs link")
        told = last_look([str(repository.top)], time.time() + 10, repository.environment)
    assert "name: link (core.fsmonitor)" in told


def test_a_link_that_is_named_is_in_no_commit(repository) -> None:
    run(repository, f"{EVIL.format('.git/evil')} rm -r dir; ln -s .git/evil/docs dir; echo x >a.txt")
    said: list[str] = []
    assert repository.checkout(warn=said.append).commit("x")
    assert "120000" not in repository.git("ls-tree", "-r", "HEAD")
    assert "name: dir (core.fsmonitor); commits leave them out" in said[0]


def test_the_look_at_links_is_bounded(repository) -> None:
    run(
        repository,
        "mkdir .git/x; for each in 1 2 3 4 5 6 7 8 9; do ln -s .git/x $each; ln -s dir l$each; done",
    )
    assert look_below(str(repository.top), most_entries=100).is_cut
    assert not look_below(str(repository.top), most_entries=250).is_cut


def test_a_link_in_the_place_of_a_submodule_is_looked_at_as_one(repository) -> None:
    run(repository, f"{EVIL.format('x')} mkdir y; ln -s ../x y/link")
    found = look_below(str(repository.top), gitlinks=["y/link"]).found
    assert sorted(one.path for one in found) == ["x", "y/link"]


def test_a_closed_working_directory_has_a_name() -> None:
    assert Look((), closed=("",)).sentence().endswith(" and files: .")
