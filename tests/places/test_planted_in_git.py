"""Links and entries of indexes that commands leave for the user's own git, with real repositories."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ralph.places import git_places, nested_repositories, planted_in_git
from ralph.places.nested_repositories import last_look
from ralph.places.planted_in_git import names_in_index
from tests.git.repositories import Repository, cloned
from tests.patience import PATIENCE_S
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def test_the_git_directories_are_looked_for_once_and_again_only_without_a_removed_link(
    repository, monkeypatch
) -> None:
    asked = []
    claimed = git_places._claimed

    def counted(root: str, roots: Sequence[str]) -> Iterator[tuple[str, str | None]]:
        asked.append(root)
        return claimed(root, roots)

    monkeypatch.setattr(git_places, "_claimed", counted)
    assert told_after(repository, lambda _git: None) == ""
    assert len(asked) == 1
    told = told_after(repository, lambda git: (git / "commondir").symlink_to("/etc/hostname"))
    assert (len(asked), "commondir" in told) == (3, True)


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


@pytest.mark.parametrize("version", ["2", "4"])
def test_an_index_in_blocks_is_as_git_writes_it_or_told(repository, version) -> None:
    repository.write("work.txt")
    blob = git(repository, "hash-object", "-w", "work.txt").strip()
    listing = "".join(f"100644 {blob}\tmany/{number:05}\n" for number in range(25_000))
    options = ("-c", "index.threads=2", "update-index")

    def fill(_) -> None:
        command = ["git", *options, f"--index-version={version}", "--index-info"]
        subprocess.run(
            command, cwd=repository.top, env=repository.environment, input=listing.encode(), check=True
        )

    assert told_after(repository, fill) == ""
    index = repository.top / ".git/index"
    content = index.read_bytes()
    at = content.rindex(b"IEOT") + 12
    for changed in (
        content[:at] + b"\0\0\0\x10" + content[at + 4 :],
        content.replace(b"IEOT", b"ZZZZ"),
        content[: content.rindex(b"EOIE") + 8] + bytes(4) + content[content.rindex(b"EOIE") + 12 :],
    ):
        assert "(it is damaged)" in told_after(
            repository, lambda _, changed=changed: index.write_bytes(changed)
        )


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


def test_a_split_index_is_as_git_writes_it(repository) -> None:
    def split(_) -> None:
        git(repository, "update-index", "--split-index")
        repository.write("work.txt", "other")
        git(repository, "add", "-A")

    assert told_after(repository, split) == ""


def test_an_old_index_and_links_that_were_there_are_left_alone(repository) -> None:
    (repository.top / ".git/MERGE_MSG").symlink_to("../x")
    assert told_after(repository, lambda _: None) == ""
    assert (repository.top / ".git/MERGE_MSG").is_symlink()


@pytest.mark.parametrize("layout", ["bare", ".bare"])
def test_links_of_a_working_tree_in_a_bare_repository_are_left_alone(repository, layout) -> None:
    top = repository.top.parent / "top"
    bare = top if layout == "bare" else top / ".bare"
    git(repository, "clone", "-q", "--bare", ".", str(bare))
    if layout == ".bare":
        (top / ".git").write_text("gitdir: ./.bare\n")
    time.sleep(0.05)
    since_s = time.time()
    git(repository, "-C", str(top), "worktree", "add", "-q", "-b", "topic", "tree")
    (top / "tree/link").symlink_to("work.txt")
    planted = bare / "worktrees/tree/logs/HEAD"
    planted.unlink()
    planted.symlink_to(repository.top / "x")
    told = last_look([str(top)], since_s, repository.environment)
    assert (top / "tree/link").is_symlink()
    assert not planted.is_symlink()
    assert f"{planted} (to " in told
    assert "tree/link" not in told


def test_an_old_link_in_a_folder_that_was_moved_there_is_removed(repository) -> None:
    kept, folder = repository.top.parent / "x", repository.top / "build/logs"
    folder.mkdir(parents=True)
    (folder / "HEAD").symlink_to(kept)

    def plant(directory) -> None:
        shutil.rmtree(directory / "logs")
        folder.rename(directory / "logs")

    assert f"logs/HEAD (to {kept})" in told_after(repository, plant)
    assert not (repository.top / ".git/logs/HEAD").is_symlink()


def test_a_head_that_is_a_link_to_no_branch_hides_no_other(repository) -> None:
    directory, kept = repository.top / ".git", repository.top.parent / "x"

    def plant(_) -> None:
        (directory / "HEAD").unlink()
        (directory / "HEAD").symlink_to("refs/heads/new")
        (directory / "MERGE_MSG").symlink_to(kept)

    assert f"MERGE_MSG (to {kept})" in told_after(repository, plant)
    assert (directory / "HEAD").is_symlink()


@pytest.mark.parametrize(
    "name",
    [
        ".git/MERGE_MSG",
        ".git/logs/HEAD",
        ".git/logs/refs/heads",
        ".git/refs/x",
        ".git/info/sparse-checkout",
        ".git/modules/a/index",
        ".git/addp-hunk-edit.diff",
        ".git/objects/pack/x",
        ".git/lost-found/other/0123456789",
        ".git/NOTES_MERGE_WORKTREE/x",
        "sub/.git/COMMIT_EDITMSG",
        "sub/.git/logs/HEAD",
        "sub/bare/logs/HEAD",
        "sub/.git/modules/a/index",
    ],
)
def test_a_link_that_was_made_is_removed_and_told(repository, name) -> None:
    home = repository.top.parent / "home/.bashrc"
    home.write_text("mine")
    link = repository.top / name
    git(repository, "init", "-q", "sub")
    git(repository, "init", "-q", "--bare", "sub/bare")

    def plant(_) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        (repository.top / ".git/lost-found").mkdir(exist_ok=True)
        (repository.top / ".git/lost-found/.git").touch()
        if "modules" in name:
            (link.parent / "HEAD").touch()
        if link.exists():
            link.rename(repository.top / "away")
        link.symlink_to(home)

    told = told_after(repository, plant)
    assert f"{link} (to {home})" in told
    assert not link.is_symlink()
    assert home.read_text() == "mine"


@pytest.mark.parametrize("name", ["COMMIT_EDITMSG", "MERGE_MSG", "logs/HEAD", "rebase-merge/message"])
@pytest.mark.parametrize("place", [".git", "sub/.git", ".git/modules/a"])
@pytest.mark.parametrize("target", ["config", "hooks/pre-commit", "../ralph.toml"])
def test_a_second_name_of_a_file_is_made_a_copy(repository, place, name, target) -> None:
    """Git writes into COMMIT_EDITMSG, and so into the configuration."""
    directory = repository.top / place
    git(repository, "init", "-q", str(repository.top / "new"))
    if place != ".git":
        shutil.copytree(repository.top / "new/.git", directory, dirs_exist_ok=True)
    for file in (directory / "hooks/pre-commit", directory.parent / "ralph.toml"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("# mine\n")
    link, guarded = directory / name, directory / target

    def plant(_) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        os.link(guarded, link)

    before = guarded.read_bytes()
    assert f"further names, through which git writes elsewhere, and are copies now: {link}" in told_after(
        repository, plant
    )
    assert not link.samefile(guarded)
    assert link.read_bytes() == guarded.read_bytes() == before


def test_a_copy_of_a_repository_by_links_keeps_both_whole(repository, tmp_path) -> None:
    """As `cp -al` and `git clone --local` make it."""
    git(repository, "gc", "-q")

    def copy(_) -> None:
        shutil.copytree(repository.top, tmp_path / "copy", copy_function=os.link)

    told_after(repository, copy)
    for top in (repository.top, tmp_path / "copy"):
        assert git(repository, "-C", str(top), "fsck", "--strict") == ""
        assert git(repository, "-C", str(top), "status", "--porcelain") == ""
    pack = next((repository.top / ".git/objects/pack").glob("*.pack"))
    assert pack.stat().st_nlink == 2


def test_links_between_repositories_below_the_work_are_left_alone_where_their_names_agree(repository) -> None:
    """As `repo` and git-new-workdir make them."""
    (repository.top / "ralph.toml").touch()

    def link(directory) -> None:
        for name in ("sub", "copy"):
            git(repository, "init", "-q", name)
        for name, target in (("packed-refs", "sub/.git/packed-refs"), ("shallow", ".git/shallow")):
            (repository.top / "copy/.git" / name).symlink_to(repository.top / target)
        for name, target in (("MERGE_MSG", "ralph.toml"), ("ORIG_HEAD", ".git/config")):
            (repository.top / "copy/.git" / name).symlink_to(repository.top / target)

    told = told_after(repository, link)
    left = sorted(one.name for one in (repository.top / "copy/.git").iterdir() if one.is_symlink())
    assert left == ["packed-refs", "shallow"]
    assert "MERGE_MSG" in told
    assert "ORIG_HEAD" in told


def test_an_index_below_the_work_with_an_entry_that_git_would_write_elsewhere_is_told(repository) -> None:
    def plant(_) -> None:
        git(repository, "init", "-q", "sub")
        (repository.top / "sub/.git/index").write_bytes(index_of(b"../../.bashrc"))

    assert "sub/.git/index (../../.bashrc)" in told_after(repository, plant)


def test_a_link_of_git_itself_is_left_alone(repository) -> None:
    def switch(_) -> None:
        git(repository, "config", "core.preferSymlinkRefs", "true")
        git(repository, "symbolic-ref", "HEAD", "refs/heads/other")

    told = told_after(repository, switch)
    assert "links made" not in told
    assert (repository.top / ".git/HEAD").is_symlink()


@pytest.mark.ordinary_user
def test_hooks_in_a_folder_that_cannot_be_listed_are_told(repository) -> None:
    hooks = repository.top / "sub/.git/hooks"

    def plant(_) -> None:
        git(repository, "init", "-q", "sub")
        (hooks / "post-index-change").touch(mode=0o755)
        hooks.chmod(0o311)

    assert "repositories below the work name: sub (hooks)" in told_after(repository, plant)
    hooks.chmod(0o755)


@pytest.mark.ordinary_user
def test_a_folder_of_git_that_cannot_be_listed_is_told(repository) -> None:
    folder = repository.top / ".git/logs/x"
    told = told_after(repository, lambda _: folder.mkdir(mode=0o300))
    folder.chmod(0o700)
    assert f"could not be looked through: {folder}" in told


def test_a_look_that_takes_too_long_says_so(repository, monkeypatch) -> None:
    monkeypatch.setattr(nested_repositories, "_MOST_S", 0.0)
    started = threading.Event()
    monkeypatch.setattr(nested_repositories, "planted_in_git", lambda *_: started.wait(PATIENCE_S) and "")
    told = told_after(repository, lambda _: None)
    started.set()
    assert "git's own directories could not all be looked through for links" in told
    assert "the tree is too large" in told


def test_many_objects_keep_the_look_from_no_link(repository) -> None:
    def plant(directory) -> None:
        (directory / "objects/x/y").mkdir(parents=True)
        (directory / "objects/x/y/z").symlink_to("/nowhere")

    assert told_after(repository, plant) == ""


def test_many_empty_lines_in_a_configuration_take_no_time(repository) -> None:
    """An expression that tries each of them to their end would take an hour, and hear no signal."""

    def plant(_) -> None:
        git(repository, "init", "-q", "sub")
        repository.write("sub/file")
        git(repository, "-C", str(repository.top / "sub"), "add", "file")
        with (repository.top / "sub/.git/config").open("a") as file:
            file.write("\n" * 1_000_000)

    assert "sub (a configuration too large to be read)" not in told_after(repository, plant)


def test_a_file_that_is_too_large_to_be_copied_keeps_no_link_there(repository, monkeypatch) -> None:
    monkeypatch.setattr(planted_in_git, "_MOST_INDEX_BYTES", 1_000)
    names = ("MERGE_MSG", "SQUASH_MSG", "TAG_EDITMSG", "logs/refs/x")

    def plant(directory) -> None:
        (directory / "large").write_bytes(bytes(2_000))
        for number in range(3):
            os.link(directory / "large", directory / f"large{number}")
        for name in names:
            (directory / name).symlink_to("/nowhere")

    told = told_after(repository, plant)
    assert not [name for name in names if (repository.top / ".git" / name).is_symlink()]
    assert "could not be looked through: " in told
    assert (repository.top / ".git/large1").stat().st_size == 2_000
