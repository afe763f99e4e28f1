"""Tests that changes to protected files are found and undone, on real files and by real git."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import pytest

from ralph.machine.files.opened_file import replace_at
from ralph.places.git_config import fresh_part
from ralph.sandbox.protected_changes import Entry, UndoResult, is_fresh_configuration, left_note, undone_note
from ralph.sandbox.protected_files import CommandMark, ProtectedFiles, UnguardedError, entries_of
from ralph.sandbox.undoing import Undoing
from tests.patience import wait_until
from tests.rows import every_row

CONFIGURATION = '[core]\n\tbare = false\n[remote "origin"]\n\turl = ../x\n'


class Work:
    """A checkout with protected files. A command is a shell script that runs in it."""

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        self.kept_in = place / "state" / "undone"
        subprocess.run(["git", "init", "-q", str(self.root)], check=True)
        self.write(".git/config", CONFIGURATION)
        self.write(".git/hooks/pre-push", "#!/bin/sh\nexit 0\n").chmod(0o755)
        self.write("ralph.toml", "[model]\n")
        self.write(".claude/settings.json", "{}\n")
        self.write(".claude/notes", "not protected\n")
        self.files = self.guards()
        self.before = self.state()

    def guards(self, state: object = None) -> ProtectedFiles:
        """Those of another run with the same state directory, unless `state` is another one."""
        kept_in = str(state or self.kept_in.parent)
        return ProtectedFiles([str(self.root)], [f"{self.root}/.git"], kept_in)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def state(self) -> dict[str, tuple[int, bytes | str | None]]:
        return {str(path.relative_to(self.root)): state_of(path) for path in sorted(self.root.rglob("*"))}

    def run(self, script: str) -> dict[str, UndoResult]:
        """Runs a command. Returns what was undone, by the path in the checkout."""
        self.files.look()
        subprocess.run(["sh", "-c", script], cwd=self.root, check=False, capture_output=True)
        return {os.path.relpath(one.path, self.root): one for one in self.files.undo_changes()}


def state_of(path: Path) -> tuple[int, bytes | str | None]:
    status = path.lstat()
    if path.is_symlink():
        return 0, str(path.readlink())
    return status.st_mode, path.read_bytes() if path.is_file() else None


@pytest.fixture
def work(tmp_path):
    return Work(tmp_path)


@every_row(
    "script, paths",
    [
        ("echo x >> .git/config", {".git/config": "changed"}),
        ("git config core.fsmonitor ./x", {".git/config": "changed"}),
        ("rm .git/config", {".git/config": "removed"}),
        ("chmod 600 .git/config", {".git/config": "changed"}),
        ("mv .git/config x && ln -s ../x .git/config && rm x", {".git/config": "changed"}),
        ("rm .git/config && mkdir .git/config && touch .git/config/x", {".git/config": "changed"}),
        (
            "touch -r .git/config s; sed s,../x,../y, .git/config >t; cat t >.git/config; touch -r s .git/config; rm s t",
            {".git/config": "changed"},  # as many bytes, and the old time
        ),
        ("echo x > .git/config.worktree", {".git/config.worktree": "made"}),
        ("cp -r .git other && echo ../other > .git/commondir; rm -r other", {".git/commondir": "made"}),
        ("echo x > .git/hooks/post-commit", {".git/hooks/post-commit": "made"}),
        ("echo x > .git/hooks/pre-push", {".git/hooks/pre-push": "changed"}),
        ("mkdir -p .git/hooks/a/b && touch .git/hooks/a/b/c", {".git/hooks/a": "made"}),
        ("mkfifo .git/hooks/post-merge", {".git/hooks/post-merge": "made"}),
        ("mkdir -p .git/branches; echo ../x > .git/branches/one", {".git/branches/one": "made"}),
        ("mkdir .git/remotes; echo URL: ../x > .git/remotes/one", {".git/remotes": "made"}),
        ("chmod -x .git/hooks/pre-push", {".git/hooks/pre-push": "changed"}),
        ("chmod 700 .git/hooks", {".git/hooks": "changed"}),
        ("git config a.b c; chmod 000 .git", {".git": "changed", ".git/config": "changed"}),
        (
            "echo x > ralph.toml; chmod 0 .claude; chmod 0 .",
            {".": "changed", ".claude": "changed", "ralph.toml": "changed"},
        ),
        (
            "echo x > .git/commondir; chmod 0 .git .. .",
            {"..": "changed", ".": "changed", ".git": "changed", ".git/commondir": "made"},
        ),
        ("echo x > ralph.toml", {"ralph.toml": "changed"}),
        ("touch .mcp.json", {".mcp.json": "made"}),
        ("echo x > .claude/settings.json", {".claude/settings.json": "changed"}),
        ("echo x > .claude/settings.local.json", {".claude/settings.local.json": "made"}),
    ],
)
def test_a_change_to_a_protected_file_is_undone_and_told(tmp_path_factory, script, paths) -> None:
    work = Work(tmp_path_factory.mktemp("work"))
    undone = work.run(script)
    assert {path: one.how for path, one in undone.items()} == paths
    assert [one for one in undone.values() if one.why_not] == []
    left = work.state()
    left.pop("x", None)
    assert (left, work.run("true")) == (work.before, {})


@every_row(
    "script, path",
    [
        ("echo x >> .git/config", ".git/config"),
        ("rm .git/config", ".git/config"),
        ("echo x > .git/hooks/post-commit", ".git/hooks/post-commit"),
        ("rm -r .git/hooks", ".git/hooks"),
        ("mkdir .git/remotes; echo x > .git/remotes/one", ".git/remotes"),
        ("touch .mcp.json", ".mcp.json"),
        ("git worktree add -q tree 2>/dev/null; touch .git/hooks/x.sample a", ""),
    ],
)
def test_no_command_starts_while_one_of_another_run_has_changed_a_protected_file(
    tmp_path_factory, script, path
) -> None:
    """It would take the change for the file's own state, and make it again after the other run has undone it."""
    place = tmp_path_factory.mktemp("work")
    work, elsewhere = Work(place), Work(place / "elsewhere")
    beside, away = (one.guards(place / "state") for one in (work, elsewhere))
    work.files.look()
    subprocess.run(["sh", "-c", script], cwd=work.root, check=True)
    away.look()
    with pytest.raises(UnguardedError, match=rf"{path} has changed") if path else nullcontext():
        beside.look()
    work.files.undo_changes()
    beside.look()
    assert beside.undo_changes() == ()
    work.files.look()
    work.write("ralph.toml", "the user's")
    os.close(work.files._mark._descriptor or 0)  # that ralph was killed
    beside.look()


MANY = 600


def test_a_large_folder_of_hooks_is_compared_too(tmp_path) -> None:
    work = Work(tmp_path)
    for number in range(MANY):
        work.write(f".git/hooks/part/{number}", "x")
    before = work.state()
    undone = work.run(
        "cd .git/hooks; for one in pre-push post-commit part/7 part/new; do echo evil > $one; done; rm part/8"
    )
    assert {path.removeprefix(".git/hooks/"): one.how for path, one in undone.items()} == {
        "pre-push": "changed",
        "post-commit": "made",
        "part/7": "changed",
        "part/new": "made",
        "part/8": "removed",
    }
    assert work.state() == before
    work.files.look()
    work.write(".git/hooks/part/9", "evil")  # and ralph is killed
    later = work.guards()
    os.close(work.files._mark._descriptor or 0)
    assert later.changed_since_kill() == (f"{work.root}/.git/hooks/part/9",)


def test_a_folder_of_hooks_that_a_command_fills_is_put_away(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ralph.sandbox.protected_files._MOST_NAMES", MANY)
    work = Work(tmp_path)
    work.files.watch()
    undone = work.run(f"cd .git/hooks; echo evil > pre-push; seq {MANY} | xargs touch")
    assert (undone[".git/hooks"].how, [one for one in undone.values() if one.why_not]) == ("changed", [])
    assert (work.state(), work.run("true")) == (work.before, {})


@pytest.mark.parametrize(
    "script",
    [
        f"cd .git/hooks; seq {MANY} | xargs touch",
        pytest.param("mkdir .git/hooks/part; chmod 0311 .git/hooks/part", marks=pytest.mark.ordinary_user),
    ],
)
def test_no_command_starts_beside_a_folder_of_hooks_that_cannot_be_compared(
    tmp_path_factory, monkeypatch, script
) -> None:
    monkeypatch.setattr("ralph.sandbox.protected_files._MOST_NAMES", MANY)
    work = Work(tmp_path_factory.mktemp("work"))
    subprocess.run(["sh", "-c", script], cwd=work.root, check=True)
    for begin in (work.files.look, work.files.watch):
        with pytest.raises(
            UnguardedError, match=rf"{work.root}/.git/hooks holds .* no command starts; look at it"
        ):
            begin()


# What a command does in the git directory of a checkout with the submodules `part` and `a/b` and the linked worktree `linked`, and what is undone.
NESTED = [
    ("git -C ../a/b config core.fsmonitor ./x", "changed", "modules/a/b/config"),
    ("rm modules/part/config", "removed", "modules/part/config"),
    ("echo /x/.git >worktrees/linked/gitdir", "changed", "worktrees/linked/gitdir"),
    ("echo /x/.git >gitdir", "made", "gitdir"),
    ("cp -r modules/a $X; mv modules/a ../../y; ln -s ../../../x modules/a", "changed", "modules/a"),
    ("cd modules; cp -r part new; git config -f new/config core.pager x", "made", "modules/new/config"),
    ("cd modules; cp -r part new; git config -f new/config core.worktree /etc", "made", "modules/new/config"),
    ("cd worktrees; mkdir new; echo ../../../x >new/commondir", "made", "worktrees/new/commondir"),
    (
        "git -C .. worktree add -q ../new; git config -f worktrees/new/config.worktree core.pager x",
        *("made", "worktrees/new/config.worktree"),
    ),
]


@pytest.fixture(scope="module")
def with_nested(tmp_path_factory) -> Path:
    place: Path = tmp_path_factory.mktemp("nested")
    for path, name in ((place / "source", "s"), (place / "root", "r")):
        subprocess.run(["git", "init", "-q", "-b", name, str(path)], check=True)
        git_in(path, "commit", "-q", "--allow-empty", "-m", "x")
    git_in(place / "root", "submodule", "add", "-q", "../source", "part")
    git_in(place / "root", "submodule", "add", "-q", "../source", "a/b")
    git_in(place / "root", "worktree", "add", "-q", "../linked")
    return place


def git_in(place: Path, *words: str) -> None:
    told = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *told, *words], cwd=place, check=True, capture_output=True)


def undone_by(
    script: str, with_nested: Path, place: Path
) -> tuple[dict[str, UndoResult], Path, dict[Path, bytes]]:
    """Runs a command in a copy. Also returns the git directory, and its files as they were before."""
    shutil.copytree(with_nested, place, symlinks=True, dirs_exist_ok=True)
    root = place / "root"
    (place / "linked/.git").write_text(f"gitdir: {root}/.git/worktrees/linked\n")
    (root / ".git/worktrees/linked/gitdir").write_text(f"{place}/linked/.git\n")
    files = ProtectedFiles([str(root)], [f"{root}/.git"], str(place / "state"))
    files.look()
    before = {path: path.read_bytes() for path in (root / ".git").rglob("*") if path.is_file()}
    subprocess.run(["sh", "-ec", script], cwd=root, check=True, capture_output=True)
    undone = files.undo_changes()
    return {one.path.removeprefix(f"{root}/.git/"): one for one in undone}, root / ".git", before


@every_row(("script", "how", "path"), NESTED)
def test_the_git_directories_of_submodules_and_worktrees_are_protected(
    tmp_path_factory, with_nested, script, how, path
) -> None:
    script = f"X=../../x; cd .git; {script}"
    undone, git, before = undone_by(script, with_nested, tmp_path_factory.mktemp("place"))
    assert {one: undone[one].how for one in undone} == {path: how}
    there = git / path
    assert not there.is_symlink()
    assert there.is_dir() or (there.read_bytes() if there.exists() else None) == before.get(there)


@every_row(
    "script",
    [
        "git worktree add -q ../new && git worktree remove ../new",
        "git worktree remove ../linked",
        "git worktree add -q ../new && git -C ../new commit -q --allow-empty -m y --author='x <x@y>' || true",
        "git -C part checkout -q -b other && git -C part pack-refs --all",
        "git submodule -q deinit -f part || true; rm -rf .git/modules/part",
        (
            "git clone -q --bare ../source .git/modules/new; git config -f .git/modules/new/config core.worktree ../../../new"
            " && git config -f .git/modules/new/config core.bare false"
        ),
        "git sparse-checkout list || true; git rebase -q HEAD || true; git bisect start; git bisect reset",
    ],
)
def test_ordinary_work_with_submodules_and_worktrees_stays(tmp_path_factory, with_nested, script) -> None:
    undone, _, _ = undone_by(script, with_nested, tmp_path_factory.mktemp("place"))
    assert {path for path in undone if path != "config"} == set()


@every_row(
    "script",
    [
        "git add . && git -c user.name=x -c user.email=x@y commit -q -m x",
        "touch ralph.toml.new .git/hooks/new.sample; echo x > .claude/notes; mkdir -p below/.git",
        "cp .git/config x && cat x > .git/config && rm x",
        "true",
    ],
)
def test_ordinary_changes_stay(tmp_path_factory, script) -> None:
    assert Work(tmp_path_factory.mktemp("work")).run(script) == {}


@every_row(
    "script",
    [
        "mv .git/hooks ../old && mkdir evil && touch evil/post-commit && mv evil .. && ln -s ../../evil .git/hooks",
        "for i in $(seq 600); do : > .git/hooks/x$i; done; echo x > .git/hooks/post-commit",
    ],
)
def test_a_whole_directory_of_hooks_comes_back(tmp_path_factory, script) -> None:
    work = Work(tmp_path_factory.mktemp("work"))
    assert work.run(script)
    assert work.state() == work.before


def test_what_the_command_wrote_is_kept(work) -> None:
    undone = work.run(
        "echo mine > .git/config; mkdir .git/hooks/a; echo mine > .git/hooks/a/b; rm ralph.toml"
    )
    assert Path(undone[".git/config"].kept).read_text() == "mine\n"
    assert (Path(undone[".git/hooks/a"].kept, "b").read_text(), undone["ralph.toml"].kept) == ("mine\n", "")
    assert Path(undone[".git/config"].kept).is_relative_to(work.kept_in)
    assert Path(undone[".git/config"].kept).parent.stat().st_mode & 0o777 == 0o700


def test_what_cannot_be_kept_is_undone_all_the_same(work) -> None:
    work.kept_in.parent.mkdir(exist_ok=True)
    work.kept_in.write_text("no directory")
    undone = work.run("echo mine > .git/config; mkdir .git/hooks/a; touch .git/hooks/a/b")
    assert ({one.kept for one in undone.values()}, work.state()) == ({""}, work.before)


@pytest.mark.ordinary_user
def test_a_directory_without_permissions_is_undone_where_it_cannot_be_renamed(work) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert Path(elsewhere).stat().st_dev != work.root.stat().st_dev
        work.files = work.guards(elsewhere)
        undone = work.run(
            "rm -rf .git/hooks; mkdir -p .git/hooks/x; echo x > .git/hooks/x/y; echo x > .git/hooks/post-index-change;"
            " chmod 0 .git/hooks/x; mkdir -p .git/info/attributes/x; chmod 0 .git/info/attributes/x .git/info/attributes"
        )
        assert not any(one.why_not for one in undone.values())
    assert work.state() == work.before


@pytest.mark.ordinary_user
def test_what_is_out_of_sight_keeps_its_known_state_and_no_command_starts(work, monkeypatch) -> None:
    script = "echo evil > ralph.toml; chmod 0 ."
    with monkeypatch.context() as patch:
        patch.setattr(Undoing, "_restored", refused)
        undone = work.run(script)
        assert {*undone} == {".", ".git", ".claude", "ralph.toml"}
        assert all(one.why_not for one in undone.values())
        assert {one.path for one in work.files.left} == {one.path for one in undone.values()}
        with pytest.raises(UnguardedError, match=f"chmod u\\+rwx {work.root}"):
            work.files.look()
        assert "evil" not in left_note(work.files.left, "/x"), "only paths"
    work.root.chmod(0o755)
    assert ({*work.run("true")}, work.state(), work.files.left) == ({"ralph.toml"}, work.before, ())


@pytest.mark.ordinary_user
def test_a_run_that_could_not_undo_a_change_leaves_it_to_the_next_and_a_closed_directory_starts_no_command(
    work, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Undoing, "_restored", refused)
        work.run("echo evil > ralph.toml; chmod 0 .")
        work.files.close()
    later = work.guards()
    with pytest.raises(UnguardedError):
        later.look()
    assert f"{work.root}/ralph.toml" in (later.after_kill or ())


def refused(*_: object) -> NoReturn:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_an_old_file_is_written_where_only_the_place_of_the_new_one_is_left(work, monkeypatch) -> None:
    def replaced(directory: int, name: str, data: bytes, *_: object, **options: int) -> None:
        if os.path.exists(f"/proc/self/fd/{directory}/{name}"):  # noqa: PTH110 - of an open directory
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_at(directory, name, data, None, **options)

    monkeypatch.setattr("ralph.sandbox.undoing.replace_at", replaced)
    assert (work.run("echo evil > .git/config")[".git/config"].why_not, work.state()) == ("", work.before)


def test_while_a_server_runs_only_the_first_look_says_what_the_files_must_be(work, monkeypatch) -> None:
    """It may write between an undone change and the next look, in any moment."""
    work.files.watch()
    found = ProtectedFiles.found

    def with_a_server(files: ProtectedFiles) -> dict[str, Entry]:
        entries = found(files)
        (work.root / "ralph.toml").write_text(f"evil {os.urandom(4).hex()}\n")
        (work.root / ".mcp.json").write_text("evil\n")
        return entries

    with monkeypatch.context() as patch:
        patch.setattr(ProtectedFiles, "found", with_a_server)
        for _ in range(3):
            work.run("true")
    work.files.end_watch()
    assert work.state() == work.before


def test_what_a_server_writes_through_a_mapped_file_is_undone(work) -> None:
    """The kernel may give the file no new times."""
    config = work.root / ".git/config"
    with config.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:1] = mapped[:1]
        changed_s = config.stat().st_ctime
        wait_until(lambda: time.time() > changed_s + 0.2)
        work.files.watch()
        work.run("true")
        mapped[:5] = b"[evil"
    work.files.end_watch()
    assert (work.state(), [one.path for one in work.files.between]) == (work.before, [str(config)])


def test_links_on_the_way_are_not_followed(work, tmp_path) -> None:
    """A restored file must not land outside the checkout."""
    (tmp_path / "outside").mkdir()
    undone = work.run(f"rm -r .claude && ln -s {tmp_path}/outside .claude")
    assert (undone[".claude"].how, (work.root / ".claude/settings.json").read_text()) == ("changed", "{}\n")
    assert [*(tmp_path / "outside").iterdir()] == []
    work.run(f"mv .git ../moved && ln -s {tmp_path}/outside .git")
    assert [*(tmp_path / "outside").iterdir()] == []


def test_a_repository_that_was_away_is_compared_when_it_is_back(work) -> None:
    undone = work.run("mv .git old")
    assert undone[".git"].why_not == "a git directory that was removed is not made again"
    assert ({*undone}, work.run("true")) == ({".git"}, {})
    undone = work.run("git config -f old/config core.fsmonitor ./x && mv old .git")
    assert ({*undone}, work.state()) == ({".git/config"}, work.before)


def test_a_new_repository_keeps_its_plain_configuration_only(tmp_path) -> None:
    root, config = tmp_path / "root", tmp_path / "root/.git/config"
    root.mkdir()
    files = ProtectedFiles([str(root)], [], str(tmp_path / "state"))
    for script, undone in (
        ("git init -q", []),
        ("git remote add origin ../x", [(str(config), "changed")]),
        ("printf '[core]\\n\\tfsmonitor = ./x\\n' >.git/config", [(str(config), "changed")]),
    ):
        files.look()
        subprocess.run(["sh", "-ec", script], cwd=root, check=True)
        assert [(one.path, one.how) for one in files.undo_changes()] == undone
        assert is_fresh_configuration(config.read_bytes())


CLONED = """
git init -q . && git remote add origin https://example.org/a/b.git && git config branch.main.remote origin &&
git config branch.main.merge refs/heads/main && git config user.name 'Ada Lovelace' &&
"""
KEPT = {
    *("remote.origin.url=https://example.org/a/b.git", "user.name=Ada Lovelace", "branch.main.remote=origin"),
    *("remote.origin.fetch=+refs/heads/*:refs/remotes/origin/*", "branch.main.merge=refs/heads/main"),
    *("core.bare=false", "core.filemode=true"),
}


@pytest.mark.parametrize(
    ("more", "is_told"),
    [("true", False), ("git config core.hooksPath .husky && git config include.path ../x", True)],
)
def test_a_clone_keeps_its_remotes_whatever_else_it_names(tmp_path, more, is_told) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = ProtectedFiles([str(root)], [], str(tmp_path / "state"))
    files.look()
    subprocess.run(["sh", "-c", f"{CLONED} {more}"], cwd=root, check=True)
    told = files.undo_changes()
    assert [(one.how, one.why_not) for one in told] == ([("made", "")] if is_told else [])
    listing = ["git", "config", "--local", "--list"]
    listed = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout.split("\n")
    usual = ("core.repositoryformatversion", "core.logallrefupdates", "core.ignorecase")
    assert {one for one in listed if one and not one.startswith(usual)} == KEPT
    assert is_told == bool([*(tmp_path / "state").rglob("1-config")]), "the command's version is kept"
    files.look()
    assert files.undo_changes() == ()


REMOTE, BRANCH = '[remote "origin"]\n\t', '[branch "main"]\n\t'
URLS = """
file:///x /x ../x http://h/x git://h/x ssh://-oProxyCommand=x/y -x@h:y u@-h:y u@h:-y u@h::y "https://h" host:x
""".split()


@every_row(
    "text, is_fresh",
    [
        ("[core]\n\tbare = false\n\n[extensions]\n\tobjectformat = sha256\n", True),
        ("", True),
        ("[core]\n\tbare = false\n\tfsmonitor = true\n", False),
        (REMOTE, False),
        ("[include]\n\tpath = x\n", False),
        ("[core] fsmonitor = x\n", False),
        ("[core]\n\tbare = false \\\n", False),
        (f"{REMOTE}url = git@example.org:a/b.git\n[user]\n\temail = a@b\n", True),
        (f"{REMOTE}url = ssh://git@example.org:22/a.git\n\tfetch = +refs/heads/*:refs/remotes/o/*\n", True),
        *((f"{REMOTE}url = {url}\n", False) for url in (*URLS, "ext::sh -c x", "https://h/ x")),
        (f"{REMOTE}url = https://h/\\\n\tx\n", False),
        (f"{REMOTE}vcs = x\n", False),
        (f"{REMOTE}uploadpack = x\n", False),
        *((f"{BRANCH}remote = {remote}\n", False) for remote in ("../x", "evil", "https://h/x")),
        (f"{BRANCH}remote = .\n\tmerge = refs/heads/x\n", True),
        (f"{BRANCH}merge = refs/heads/main\n\trebase = true\n", False),
        ("[user]\n\tname = x\n\tsigningkey = y\n", False),
        ("[core]\n\tbare = false # x\n", False),
        ("[core]\n\tbare = false\n\x00[alias]\n\tx = !y\n", False),
    ],
)
def test_a_fresh_configuration_is_known_by_its_lines(text, is_fresh) -> None:
    assert is_fresh_configuration(text.encode()) is is_fresh
    assert is_fresh_configuration(fresh_part(text.encode()))


def test_the_file_of_a_linked_worktree_is_protected(work, tmp_path) -> None:
    linked = tmp_path / "linked"
    identity = ("-c", "user.name=x", "-c", "user.email=x@y")
    for words in (("commit", "-q", "--allow-empty", "-m", "x"), ("worktree", "add", "-q", str(linked))):
        subprocess.run(["git", *identity, *words], cwd=work.root, check=True)
    named = (linked / ".git").read_text()
    own = f"{work.root}/.git/worktrees/linked"
    files = ProtectedFiles([str(linked)], [own, f"{work.root}/.git"], str(work.kept_in.parent))
    for script, path in (
        ("echo gitdir: /x > .git", f"{linked}/.git"),
        ("rm .git && git init -q && git config core.fsmonitor x", f"{linked}/.git"),
        (f"echo x >> {work.root}/.git/config", f"{work.root}/.git/config"),
        (f"echo x >> {own}/config.worktree", f"{own}/config.worktree"),
    ):
        files.look()
        subprocess.run(["sh", "-c", script], cwd=linked, check=True)
        assert [one.path for one in files.undo_changes()] == [path]
        assert (linked / ".git").read_text() == named


def test_a_link_above_a_git_directory_is_not_followed(work, tmp_path) -> None:
    own = work.root / ".git" / "worktrees" / "x"
    own.mkdir(parents=True)
    (own / "config.worktree").write_text("[core]\n")
    files = ProtectedFiles([str(work.root)], [str(own)], str(work.kept_in.parent))
    files.look()
    (tmp_path / "outside" / "x").mkdir(parents=True)
    (tmp_path / "outside" / "x" / "config.worktree").write_text("outside\n")
    own.parent.rename(tmp_path / "old")
    own.parent.symlink_to(tmp_path / "outside")
    undone = {one.path: one.why_not for one in files.undo_changes()}
    assert undone == {str(own.parent): "", str(own): "a git directory that was removed is not made again"}
    assert not own.parent.is_symlink()
    assert (tmp_path / "outside" / "x" / "config.worktree").read_text() == "outside\n"


def test_a_file_that_changed_just_now_is_read_again(work, monkeypatch) -> None:
    """It could change once more within one tick of the clock that stamps it."""
    config = work.root / ".git" / "config"
    changed_ns = config.stat().st_ctime_ns
    for later_ns, is_settled in ((1_000_000, False), (1_000_000_000, True)):
        monkeypatch.setattr("time.time_ns", lambda now_ns=changed_ns + later_ns: now_ns)
        work.files.look()
        assert work.files._known[str(config)].is_settled is is_settled


def test_large_files_are_restored(work) -> None:
    large = [work.write(f".git/hooks/large-{number}", f"{number}" * 6_000_000) for number in range(3)]
    undone = work.run("for i in 0 1 2; do echo x >> .git/hooks/large-$i; done; rm .git/hooks/large-1")
    assert [one.why_not for one in undone.values()] == ["", "", ""]
    assert [path.read_text() for path in large] == [f"{number}" * 6_000_000 for number in range(3)]


def test_no_command_starts_beside_more_than_can_be_restored(work) -> None:
    large = work.write(".git/hooks/large", "")
    os.truncate(large, 64 * 1024 * 1024 + 1)
    with pytest.raises(
        UnguardedError, match=r"hooks/large could not be restored: .* no command starts; look at it"
    ):
        work.files.look()
    os.truncate(large, 1)
    undone = work.run("truncate -s 65M .git/hooks/large")
    assert (undone[".git/hooks/large"].why_not, large.stat().st_size, work.run("true")) == ("", 1, {})


def test_a_file_that_was_there_for_the_user_meanwhile_is_the_new_state(work) -> None:
    """A change between two commands was not made by a command."""
    assert work.run("true") == {}
    work.write(".git/config", "[core]\n")
    assert work.run("true") == {}
    work.run("echo x > .git/config")
    assert (work.root / ".git/config").read_text() == "[core]\n"


def test_the_note_is_one_line_with_what_was_undone() -> None:
    undone = [
        UndoResult("/w/.git/config", "changed", "/s/1/1-config"),
        UndoResult("/w/.git/hooks/x\n[forged]", "made"),
        UndoResult("/w/.git", "removed", why_not="it is gone"),
    ]
    note = undone_note(undone, "/w")
    assert "\n" not in note
    assert "undone: changes to .git/config, .git/hooks/x" in note
    assert ".git (it is gone)" in note
    assert "/s/1" in note
    assert undone_note([], "/w") == ""
    many = undone_note([UndoResult(f"/w/{n}", "made") for n in range(30)], "/w")
    assert "and 20 more" in many


def test_a_file_that_has_not_changed_for_a_while_is_read_once(work, monkeypatch) -> None:
    """A run of a thousand commands must not read it two thousand times."""

    def look_and_ask() -> bool:
        work.files.look()
        return all(entry.is_settled for entry in work.files._known.values() if entry.kind == "file")

    wait_until(look_and_ask)
    monkeypatch.setattr("ralph.sandbox.protected_files._content", forbidden)
    work.files.look()
    assert work.files.undo_changes() == ()


def forbidden(path: str, most_bytes: int) -> bytes:
    raise AssertionError(f"{most_bytes} bytes of {path} were read")


def test_what_commands_wrote_is_kept_for_the_newest_changes(work) -> None:
    for number in range(103):
        (work.kept_in / f"20200101-000000-{number:06x}").mkdir(parents=True)
    (work.kept_in / "notes").mkdir()
    assert work.run("echo x > .git/hooks/post-commit")[".git/hooks/post-commit"].kept
    names = sorted(path.name for path in work.kept_in.iterdir())
    assert (len(names), names[0], names[-1]) == (101, "20200101-000000-000004", "notes")


def test_what_only_the_killed_run_protected_is_compared_too(work, tmp_path) -> None:
    place, roots = str(work.kept_in / "running"), [str(work.root)]
    others = [tmp_path / "one", tmp_path / "two"]
    for file in others:
        file.write_text("x")
    mark = CommandMark(place, roots, roots)
    mark.begin(entries_of(map(str, others)))
    others[1].write_text("evil")
    os.close(mark._descriptor or -1)
    assert CommandMark(place, roots, roots).changed_since_kill({}, [], entries_of) == (str(others[1]),)


def test_only_what_a_killed_run_left_behind_is_told_and_only_changes_that_would_be_undone(work) -> None:
    place = str(work.kept_in / "running")
    roots = directories = [str(work.root)]

    def changed_after(script: str, *, is_killed: bool = True, during: bool = True) -> list[str]:
        work.files.look()
        mark = CommandMark(place, roots, directories)
        mark.begin(work.files._known)
        if not during:
            mark.end()
        subprocess.run(["sh", "-c", script], cwd=work.root, check=True)
        if is_killed:
            os.close(mark._descriptor or -1)
        work.files.look()
        assert CommandMark(place, roots, ["/other"]).changed_since_kill({}, [], entries_of) == ()
        assert CommandMark(place, ["/other"], directories).changed_since_kill({}, [], entries_of) == ()
        found = CommandMark(place, roots, directories).changed_since_kill(
            work.files._known, work.files.git_directories, entries_of
        )
        if not is_killed:
            mark.end()
            mark.close()
        assert list(Path(place).iterdir()) == []
        return [str(Path(path).relative_to(work.root)) for path in found]

    assert changed_after("echo x > .git/hooks/post-commit; rm ralph.toml; chmod 600 .git/config") == [
        ".git/config",
        ".git/hooks/post-commit",
        "ralph.toml",
    ]
    assert changed_after("echo x > .git/hooks/new.sample") == [], "git init makes such"
    assert changed_after("echo x > ralph.toml", is_killed=False) == [], "that run lives, and undoes it"
    assert changed_after("echo y > ralph.toml", during=False) == [], "no command was running"


def test_what_is_done_between_commands_is_undone_only_while_servers_are_watched_and_told_once(work) -> None:
    files = ProtectedFiles((str(work.root),), (), str(work.kept_in))

    def command(script: str, *, before: str = "true") -> tuple[str, str]:
        subprocess.run(["sh", "-c", before], cwd=work.root, check=True)
        files.look()
        subprocess.run(["sh", "-c", script], cwd=work.root, check=True)
        during, (between, files.between) = files.undo_changes(), (files.between, ())
        return undone_note(during, str(work.root)), undone_note(between, str(work.root), is_between=True)

    assert command("true", before="echo '#' >> ralph.toml") == ("", ""), "the user did that"
    files.watch()
    during, between = command("true", before="echo '#' >> ralph.toml")
    assert during == ""
    assert between.startswith(
        "[undone: changes to ralph.toml, made between two calls: by a command in the background, an MCP"
    )
    during, between = command("rm -rf .git")
    assert "could not be undone: .git" in during
    assert command("true") == ("", ""), "the command did that, and it was told"
    (work.root / "ralph.toml").unlink()
    files.end_watch()
    assert [one.path for one in files.between] == [f"{work.root}/ralph.toml"]
    assert (work.root / "ralph.toml").read_text() == "[model]\n#\n"
    files.end_watch()
    assert len(files.between) == 1
    files.close()


def test_a_run_that_ends_before_a_change_was_undone_leaves_its_description_for_the_next(work) -> None:
    first, second, third = (work.guards(work.kept_in) for _ in range(3))
    first.look()
    work.write("ralph.toml", "")
    first.close()
    for files, told in ((second, (f"{work.root}/ralph.toml",)), (third, ())):
        files.look()
        assert files.after_kill == told
        files.undo_changes()
        files.close()
    assert [*(work.kept_in / "running").iterdir()] == []
