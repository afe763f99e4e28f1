"""Tests which files ralph's own commit contains, and when it is refused."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from tests.git.repositories import Repository, cloned
from tests.git.test_snapshot import change_in_every_way, conflict, nested
from tests.processes.scripts import script
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.git.checkout import GitCheckout


def files_of(repository: Repository) -> set[str]:
    return set(
        repository.git("-c", "core.quotePath=false", "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")
    ) - {""}


def test_all_that_is_uncommitted_is_taken(repository: Repository) -> None:
    change_in_every_way(repository, "--all")
    told: list[str] = []
    checkout = repository.checkout(warn=told.append)
    assert checkout.commit("Iteration 1\n\n# as it is")
    assert told == ["these are repositories of their own: inner; commits leave them out"]
    expected = "new|a\nb|--all|*|staged|intended|to|file/x|directory|.gitignore|a.txt|dir/b.txt"
    assert files_of(repository) == set(expected.split("|"))
    assert repository.git("log", "-1", "--format=%B") == "Iteration 1\n\n# as it is"
    assert not checkout.commit("again")
    assert repository.git("rev-list", "--count", "HEAD") == "3"


def test_what_is_not_ours_or_did_not_change_makes_no_commit(repository: Repository) -> None:
    os.utime(repository.top / "a.txt")
    repository.write("ignored")
    nested(repository)
    repository.write(".ralph/loop.json")
    assert not repository.checkout().commit("nothing")
    repository.git("add", "-f", ".ralph")
    assert not repository.checkout().commit("nothing")
    assert repository.git("rev-list", "--count", "HEAD") == "1"


def test_a_change_in_the_second_of_the_last_commit_is_committed_although_the_size_is_the_same(
    repository: Repository,
) -> None:
    """Git compares times in whole seconds. So it reads files that are not older than its index."""
    path, index = repository.top / "a.txt", repository.top / ".git/index"
    for number in range(3):
        path.write_text(f"{number}\n")
        os.utime(path, ns=(10**18, 10**18 + number))
        assert repository.checkout().commit(f"number {number}")
        assert repository.git("show", "HEAD:a.txt") == str(number)
        os.utime(index, ns=(10**18, 10**18))


def test_a_first_commit_is_made(tmp_path: Path) -> None:
    repository = Repository.empty(tmp_path / "work", tmp_path / "home")
    assert not repository.checkout().commit("nothing")
    assert (repository.checkout().push(), repository.checkout().unpushed()) == (0, None)
    repository.write("a")
    assert repository.checkout().commit("first")
    assert files_of(repository) == {"a"}


def test_the_whole_checkout_is_committed_from_a_part_of_it(repository: Repository) -> None:
    repository.write("new")
    repository.write("dir/.ralph/loop.json")
    assert repository.checkout("dir").commit("all")
    assert files_of(repository) == {".gitignore", "a.txt", "dir/b.txt", "new"}


def test_a_submodules_new_commit_is_committed_and_its_edits_are_not(repository: Repository) -> None:
    inner = nested(repository)
    inner.commit_all()
    repository.git("submodule", "--quiet", "add", "./inner", "inner")
    repository.commit_all()
    inner.write("f", "edit")
    assert not repository.checkout().commit("edit")
    head = inner.commit_all()
    assert repository.checkout().commit("moved on")
    assert head in repository.git("ls-tree", "HEAD", "inner")


UNFINISHED = [
    ("conflict", conflict, "a.txt has conflicts"),
    ("merge", lambda r: (conflict(r), r.git("add", "a.txt")), "a merge is in progress"),
    (
        "rebase",
        lambda r: r.git("rebase", "-q", "--exec", "false", "--root", fails=True),
        "a rebase",
    ),
    ("revert", lambda r: r.git("revert", "--no-commit", "HEAD"), "a revert is in progress"),
]


@pytest.mark.parametrize(
    ("act", "words"), [row[1:] for row in UNFINISHED], ids=[row[0] for row in UNFINISHED]
)
def test_nothing_is_committed_in_the_middle_of_something(repository: Repository, act, words: str) -> None:
    repository.write("c.txt")
    repository.commit_all()
    act(repository)
    repository.write("new")
    before = repository.git("status", "--porcelain")
    with pytest.raises(CheckoutError, match=words):
        repository.checkout().commit("no")
    assert repository.git("status", "--porcelain") == before


@pytest.mark.parametrize(
    "leave",
    [
        ("switch", "-q", "--detach"),
        ("symbolic-ref", "HEAD", "refs/tags/it"),
        ("symbolic-ref", "HEAD", "refs/it"),
    ],
)
def test_on_no_branch_nothing_is_committed_and_the_work_stays(
    repository: Repository, leave: tuple[str, ...]
) -> None:
    checkout = repository.checkout()
    assert checkout.snapshot().branch == "main"
    repository.git("tag", "it")
    repository.git("update-ref", "refs/it", "HEAD")
    repository.git(*leave)
    assert checkout.snapshot().branch is None
    repository.write("a.txt", "work")
    repository.write("new")
    before = repository.git("status", "--porcelain")
    with pytest.raises(CheckoutError, match=r"^HEAD is detached: .*git switch -c NAME"):
        checkout.commit("no")
    assert repository.git("status", "--porcelain") == before
    assert repository.git("rev-list", "--count", "--all", "HEAD") == "1"
    repository.git("switch", "-q", "-c", "work/it")
    assert checkout.snapshot().branch == "work/it"
    assert checkout.commit("on a branch again")


def hidden(repository: Repository, option: str) -> None:
    repository.git("update-index", option, "a.txt", ".gitignore")
    repository.write("a.txt", "hidden")


def with_edited_submodule(repository: Repository) -> None:
    nested(repository).commit_all()
    repository.git("add", "inner")
    repository.git("commit", "-q", "-m", "inner")
    repository.write("inner/more")


def odd_name(repository: Repository) -> None:
    for name in ('"q', "a\\b\nc"):
        repository.write(name)
        repository.git("add", "-A")
        repository.git("commit", "-q", "-m", "odd")
        repository.git("update-index", "--assume-unchanged", name)
    repository.write('"q', "changed")


def replaced(repository: Repository, make: Callable[[str], object] = os.mkfifo, option: str = "") -> None:
    if option:
        hidden(repository, option)
    (repository.top / "a.txt").unlink()
    with contextlib.chdir(repository.top):  # the name of a socket is short
        make("a.txt")


def make_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


def closed(repository: Repository, option: str = "") -> None:
    if option:
        hidden(repository, option)
    repository.write("a.txt", "changed").chmod(0)


def badly_encoded(repository: Repository, encoding: str = "UTF-16") -> None:
    repository.write(".git/info/attributes", f"*.t working-tree-encoding={encoding}\n")
    for name in ("a.t", "b.t"):
        repository.write(name, "abc")


UNSEEN = "git is told to see no change of these: a.txt"
UNREADABLE = "these cannot be read: a.txt"
LEFT_OUT = {
    "a name that git refuses": (lambda one: one.write("git~1"), "git does not take these: git~1"),
    "a file without the mark of its encoding": (badly_encoded, "git does not take these: a.t, b.t"),
    "an unknown encoding": (lambda one: badly_encoded(one, "bogus"), "git does not take these: a.t, b.t"),
    "assume-unchanged": (lambda one: hidden(one, "--assume-unchanged"), UNSEEN),
    "skip-worktree": (lambda one: hidden(one, "--skip-worktree"), UNSEEN),
    "a hidden odd name": (odd_name, 'git is told to see no change of these: "q'),
    "a hidden pipe": (lambda one: replaced(one, option="--assume-unchanged"), UNSEEN),
    "a pipe": (replaced, UNREADABLE),
    "a socket": (lambda one: replaced(one, make_socket), UNREADABLE),
    "an edited submodule": (with_edited_submodule, "these are repositories of their own: inner"),
}
CLOSED = {
    "a closed file": (closed, UNREADABLE),
    "a closed file that is hidden": (lambda one: closed(one, "--skip-worktree"), UNSEEN),
}


@pytest.mark.parametrize(
    "name", [*LEFT_OUT, *(pytest.param(name, marks=pytest.mark.ordinary_user) for name in CLOSED)]
)
def test_what_no_commit_takes_is_named_once_and_hinders_none(repository: Repository, name: str) -> None:
    act, told = (LEFT_OUT | CLOSED)[name]
    act(repository)
    repository.write("new")
    lines: list[str] = []
    checkout = repository.checkout(warn=lines.append)
    assert checkout.commit("without a look")
    repository.write("newer")
    assert checkout.commit("after a look", checkout.snapshot())
    assert lines == [f"{told}; commits leave them out"], "it is said once"
    assert repository.git("diff", "--name-only", "HEAD~2", "HEAD").split() == ["new", "newer"]


def plant_in_index(repository: Repository, *names: str) -> None:
    """Adds names to the index, as a command can: git does not look at them again."""
    blob = repository.git("hash-object", "-w", "a.txt")
    others = [name.replace(".", "_").replace("~", "_") for name in names]
    for name in others:
        repository.git("update-index", "--add", "--cacheinfo", f"100755,{blob},{name}")
    index = repository.top / ".git/index"
    content = index.read_bytes()
    for other, name in zip(others, names, strict=True):
        content = content.replace(b"%b\0" % other.encode(), b"%b\0" % name.encode())
    index.write_bytes(content)


def plant_in_cached_tree(repository: Repository, name: str) -> None:
    """Makes the index say that its entries below `dir` are a tree which has another one."""
    repository.git("write-tree")
    blob, mine = repository.git("hash-object", "-w", "a.txt"), repository.git("rev-parse", "HEAD:dir")
    repository.git("update-index", "--add", "--cacheinfo", f"100755,{blob},dir/{'x' * len(name)}")
    tree = repository.git("write-tree", "--prefix=dir")
    repository.git("rm", "-q", "--cached", f"dir/{'x' * len(name)}")
    made = subprocess.run(
        [*"git hash-object -t tree -w --stdin --literally".split()],
        input=subprocess.run(
            ["git", "cat-file", "tree", tree], cwd=repository.top, check=True, capture_output=True
        ).stdout.replace(b"x" * len(name), name.encode()),
        cwd=repository.top,
        check=True,
        capture_output=True,
    )
    repository.git("write-tree")
    index = repository.top / ".git/index"
    old, new = bytes.fromhex(mine), bytes.fromhex(made.stdout.decode().strip())
    assert old in index.read_bytes()
    index.write_bytes(index.read_bytes().replace(old, new))


PLANTED = {
    "elsewhere": ("../../profile", lambda one: plant_in_index(one, "../../profile")),
    "a hook": (".git/hooks/pre-commit", lambda one: plant_in_index(one, ".git/hooks/pre-commit")),
    "a short name": ("dir/git~1/config", lambda one: plant_in_index(one, "dir/git~1/config")),
    "several": (".git/x, dir/../../y", lambda one: plant_in_index(one, ".git/x", "dir/../../y")),
    "a tree of its own": ("dir/.git", lambda one: plant_in_cached_tree(one, ".git")),
}


@every_row(("names", "act"), list(PLANTED.values()))
def test_what_git_refuses_of_an_index_is_in_no_commit(tmp_path_factory, names, act) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = cloned(place / "work", place / "home")
    repository.git("update-index", "--skip-worktree", ".gitignore")
    for path in ("staged", "both", "unstaged"):
        repository.write(path, path)
    repository.git("add", "staged", "both")
    repository.write("a.txt", "kept\n")
    repository.write("both", "newer")
    act(repository)
    lines: list[str] = []
    checkout = repository.checkout(warn=lines.append)
    assert checkout.commit("all")
    assert files_of(repository) == {".gitignore", "a.txt", "dir/b.txt", "staged", "both", "unstaged"}
    assert [repository.git("show", f"HEAD:{path}") for path in ("a.txt", "staged", "both")] == [
        *("kept", "staged", "newer")
    ]
    assert lines == [f"git does not take these: {names}; commits leave them out"]
    assert repository.git("status", "--porcelain") == ""
    assert repository.git("ls-files", "-t", ".gitignore") == "S .gitignore"
    assert not checkout.commit("again")


def test_what_git_refuses_is_in_no_commit_after_one_of_a_command_that_has_it(repository: Repository) -> None:
    plant_in_index(repository, ".git/hooks/pre-commit", "../../profile")
    tree = repository.git("write-tree")
    repository.git("update-ref", "HEAD", repository.git("commit-tree", "-p", "HEAD", "-m", "x", tree))
    assert ".git/hooks/pre-commit" in files_of(repository)
    repository.write("work.txt")
    assert repository.checkout().commit("all")
    assert not {".git/hooks/pre-commit", "../../profile"} & {*files_of(repository)}
    assert "work.txt" in files_of(repository)


def test_what_git_refuses_of_an_index_is_not_in_the_first_commit(tmp_path: Path) -> None:
    repository = Repository.empty(tmp_path / "work", tmp_path / "home")
    repository.write("a.txt")
    repository.git("add", "a.txt")
    plant_in_index(repository, ".git/x")
    assert repository.checkout().commit("all")
    assert (files_of(repository), repository.git("status", "--porcelain")) == ({"a.txt"}, "")


@pytest.mark.parametrize("path", ["x", "dir/x"])
def test_no_filter_of_the_users_gets_what_a_link_in_the_place_of_a_hidden_file_leads_to(
    repository: Repository, tmp_path: Path, path: str
) -> None:
    """A filter such as that of git-lfs copies what it gets into the repository."""
    filtered(repository, f"tee -a {tmp_path}/seen")
    repository.write(path)
    repository.commit_all()
    repository.git("update-index", "--assume-unchanged", path)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/x").write_text("KEY")
    if path == "x":
        (repository.top / "x").unlink()
        (repository.top / "x").symlink_to(tmp_path / "keys/x")
    else:
        (repository.top / "dir").rename(tmp_path / "dir")
        (repository.top / "dir").symlink_to(tmp_path / "keys")
    repository.write("new")
    lines: list[str] = []
    assert repository.checkout(warn=lines.append).commit("all")
    assert lines == [f"git is told to see no change of these: {path}; commits leave them out"]
    assert "KEY" not in (tmp_path / "seen").read_text()


def test_a_link_takes_the_place_of_a_directory_in_a_commit(repository: Repository) -> None:
    (repository.top / "dir").rename(repository.top / "other")
    (repository.top / "dir").symlink_to("other")
    assert repository.checkout().commit("all")
    assert files_of(repository) == {".gitignore", "a.txt", "dir", "other/b.txt"}
    assert repository.git("status", "--porcelain") == ""


def test_a_message_for_the_next_commit_is_used_up_by_a_commit(repository: Repository) -> None:
    """`git merge --squash` and `git cherry-pick -n` leave one, which `git commit` would offer to the user."""
    messages = [repository.write(f".git/{name}") for name in ("MERGE_MSG", "SQUASH_MSG")]
    repository.write("new")
    assert repository.checkout().commit("all")
    assert not any(one.exists() for one in messages)


def test_a_lock_that_somebody_left_is_named_and_stays(repository: Repository) -> None:
    lock = repository.write(".git/index.lock")
    os.utime(lock, (0, 0))
    repository.write("new")
    with pytest.raises(CheckoutError, match=r"index\.lock exists: another git command is running"):
        repository.checkout().commit("no")
    assert lock.exists()


def filtered(repository: Repository, script: str) -> None:
    """Lets git read files named `x` through a script of the user's, which repeats its input at its end."""
    program = Path(repository.environment["HOME"], "filter.sh")
    program.write_text(f"{script}\ncat\n")
    repository.git("config", "--global", "filter.own.clean", f"sh {program}")
    repository.filters = ("own",)
    repository.write(".gitattributes", "x filter=own\n")
    repository.commit_all()


def test_nothing_long_runs_while_the_index_is_locked_because_a_kill_would_leave_the_lock(
    repository: Repository,
) -> None:
    found = repository.top.parent / "found"
    filtered(
        repository,
        f"test -e {repository.top}/.git/index.lock && touch {found}; test -p /dev/stderr || exit 1",
    )
    repository.git("config", "--global", "filter.own.required", "true")  # what it prints may have no end
    file = repository.write("x")
    os.utime(file, (2**31, 2**31))  # newer than the index, so git reads it whenever it looks at it
    assert repository.checkout().commit("all")
    assert repository.git("show", "HEAD:x") == "text"
    assert not found.exists()


def test_what_another_git_adds_meanwhile_stays_and_is_committed(repository: Repository) -> None:
    filtered(
        repository,
        f"cd {repository.top}; test -e other || (touch other; env -u GIT_INDEX_FILE git add other)",
    )
    repository.write("x")
    assert repository.checkout().commit("all")
    assert files_of(repository) >= {"x", "other"}
    assert repository.git("status", "--porcelain") == ""


def test_a_full_disk_is_told_as_a_commit_that_failed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    repository.write("new")
    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(CheckoutError, match=r"index could not be copied: No space left"):
        repository.checkout().commit("no")
    monkeypatch.undo()
    assert repository.checkout().commit("yes")


def test_a_damaged_configuration_is_told_in_gits_words(repository: Repository) -> None:
    checkout = repository.checkout()
    repository.write(".git/config", "[core\n")
    with pytest.raises(CheckoutError, match="bad config line 1"):
        checkout.snapshot()


def test_a_damaged_repository_is_not_taken_for_one_further_above(repository: Repository) -> None:
    inner = nested(repository)
    checkout = inner.checkout()
    (inner.top / ".git/HEAD").unlink()
    with pytest.raises(CheckoutError, match="not a git repository"):
        checkout.commit("no")


def test_after_a_snapshot_what_it_saw_is_committed_and_later_files_by_the_next_commit(
    repository: Repository,
) -> None:
    checkout = repository.checkout()
    repository.write("seen")
    repository.write("gone")
    seen = checkout.snapshot()
    repository.write("later")
    (repository.top / "gone").unlink()
    assert checkout.commit("first", seen)
    assert files_of(repository) == {".gitignore", "a.txt", "dir/b.txt", "seen"}
    assert checkout.commit("second", seen), "a look is used once"
    assert "later" in files_of(repository)


@pytest.mark.parametrize("place", ["bin", ".venv/bin"])
def test_a_named_filter_that_only_the_work_has_is_refused_and_not_left_out(
    repository: Repository, place: str
) -> None:
    script(repository.top / place / "hide", "sed s/SECRET/xxx/")
    repository.environment["PATH"] = f"{repository.top}/{place}:{repository.environment['PATH']}"
    repository.git("config", "--global", "filter.hide.clean", "hide")
    repository.write(".gitattributes", "*.t filter=hide\n")
    repository.write("a.t", "SECRET\n")
    repository.filters = ("hide",)
    with pytest.raises(CheckoutError, match="goes through the filter 'hide'"):
        repository.checkout().commit("x")


# --- Commits beside the branch


def aside(
    checkout: GitCheckout,
    *,
    earlier: str | None = None,
    has_work: bool = True,
    pushes: bool = False,
    limit_s: float = math.inf,
) -> str | None:
    return checkout.commit_aside(
        "Red\n\nbody", earlier=earlier, has_work=has_work, pushes=pushes, limit_s=limit_s
    )


def place(repository: Repository) -> tuple[str, ...]:
    """All that a commit aside must leave as it is."""
    return (
        repository.git("rev-parse", "HEAD"),
        repository.git("symbolic-ref", "HEAD"),
        repository.git("ls-files", "--stage"),
        repository.git("status", "--porcelain"),
        *sorted(path.name for path in (repository.top / ".git").iterdir() if "COMMIT" not in path.name),
    )


@pytest.mark.parametrize("settings", [(), ("core.splitIndex", "true"), ("core.untrackedCache", "true")])
def test_it_has_the_tree_that_a_commit_would_have_and_head_index_and_files_stay(
    repository: Repository, settings: tuple[str, ...]
) -> None:
    if settings:
        repository.git("config", *settings)
        repository.git("update-index", "--refresh")
    change_in_every_way(repository, "ignored", "sub/.mcp.json")
    repository.write("a.txt", "changed\n")
    before = place(repository)
    checkout = repository.checkout()
    assert (aside(checkout), place(repository)) == ("ralph/red-1", before)
    red = repository.git("log", "-1", "--format=%T %P %B", "ralph/red-1")
    assert checkout.commit("Green")
    tree, parent = repository.git("log", "-1", "--format=%T %P").split()
    assert red == f"{tree} {parent} Red\n\nbody"


def test_there_is_no_branch_without_work_and_none_twice_for_the_same(repository: Repository) -> None:
    checkout = repository.checkout()
    assert aside(checkout) is None
    repository.write("ignored")
    assert aside(checkout) is None
    repository.write("new")
    assert aside(checkout, has_work=False) is None
    assert (aside(checkout), aside(checkout, earlier="ralph/red-1")) == ("ralph/red-1", "ralph/red-1")
    assert aside(checkout) == "ralph/red-2"
    repository.write("newer")
    assert aside(checkout, earlier="ralph/red-1") == "ralph/red-3"
    assert aside(checkout, earlier="gone") == "ralph/red-4"
    repository.git("branch", "-D", "ralph/red-2")
    repository.git("branch", "ralph/red-2/below")
    assert aside(checkout) == "ralph/red-5", "git makes none above another"
    repository.git("branch", "-D", "ralph/red-2/below")
    assert aside(checkout) == "ralph/red-2", "the lowest that is free"


@pytest.mark.parametrize("is_here", [True, False])
def test_beside_a_branch_named_ralph_it_has_another_name(tmp_path: Path, is_here: bool) -> None:
    """Git has no branch `ralph/red-1` beside a branch `ralph`."""
    mine = cloned(tmp_path / "work", tmp_path / "home")
    mine.git("branch", "ralph") if is_here else mine.git("push", "-q", "origin", "HEAD:refs/heads/ralph")
    mine.write("work")
    checkout = mine.checkout()
    assert aside(checkout, pushes=not is_here) == "ralph-red-1"
    assert (aside(checkout, pushes=not is_here), checkout.push("ralph-red-1")) == ("ralph-red-2", 1)


def test_before_the_first_commit_and_with_a_detached_head_it_is_made_all_the_same(tmp_path: Path) -> None:
    empty = Repository.empty(tmp_path / "work", tmp_path / "home")
    empty.write("a")
    assert aside(empty.checkout()) == "ralph/red-1"
    assert empty.git("ls-tree", "--name-only", "ralph/red-1") == "a"
    empty.commit_all()
    empty.git("checkout", "-q", "--detach")
    empty.write("b")
    assert aside(empty.checkout()) == "ralph/red-2"
    assert empty.git("rev-parse", "ralph/red-2^") == empty.git("rev-parse", "HEAD")


def test_names_of_the_remote_are_taken_too_and_it_is_pushed_there(tmp_path: Path) -> None:
    mine = cloned(tmp_path / "work", tmp_path / "home")
    checkout = mine.checkout()
    assert aside(checkout, pushes=True) is None, "the remote has all"
    mine.git("push", "-q", "origin", "HEAD:refs/heads/ralph/red-1", "HEAD:refs/heads/ralph/red-2")
    mine.git("update-ref", "-d", "refs/remotes/origin/ralph/red-1")
    mine.git("update-ref", "-d", "refs/remotes/origin/ralph/red-2")
    mine.write("work")
    assert (aside(checkout, pushes=True), checkout.push("ralph/red-3")) == ("ralph/red-3", 1)
    heads = mine.git("ls-remote", "--heads", "origin")
    assert f"{mine.git('rev-parse', 'ralph/red-3')}\trefs/heads/ralph/red-3" in heads
    assert f"{mine.git('rev-parse', 'HEAD')}\trefs/heads/main" in heads
    mine.git("add", "work")
    mine.git("commit", "-qm", "by the agent")
    assert aside(checkout, pushes=True, has_work=False) == "ralph/red-4", "commits that the remote lacks"
    assert mine.git("rev-parse", "ralph/red-4") == mine.git("rev-parse", "HEAD")
    assert checkout.push("ralph/red-4") == 1


def test_what_takes_too_long_or_cannot_be_read_makes_no_branch(repository: Repository) -> None:
    repository.write("new")
    with pytest.raises(CheckoutError):
        aside(repository.checkout(), limit_s=0)
    (repository.top / ".git/MERGE_HEAD").write_text(repository.git("rev-parse", "HEAD"))
    with pytest.raises(CheckoutError, match="a merge is in progress"):
        aside(repository.checkout())
    (repository.top / ".git/MERGE_HEAD").unlink()
    assert repository.git("for-each-ref", "--format=%(refname)", "refs/heads/ralph/") == ""


def test_a_commit_writes_into_no_second_name_of_its_logs(repository: Repository) -> None:
    configuration, log = repository.top / ".git/config", repository.top / ".git/logs/HEAD"
    before = configuration.read_bytes()
    log.unlink()
    os.link(configuration, log)
    repository.write("new")
    assert repository.checkout().commit("x")
    assert configuration.read_bytes() == before
    assert log.stat().st_size > len(before)
