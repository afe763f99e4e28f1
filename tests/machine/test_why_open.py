"""A file of the user counts as the user's own only where no command, and nobody who wrote the checkout, decides what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ralph.machine import own_programs
from ralph.machine.own_programs import search_around, search_outside

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    for name in ("proj/.git", "proj/sub", "mine", "tmp/ralph-tmp-0", "tmp/x"):
        (home / name).mkdir(parents=True)
    (home / "proj/.git/HEAD").write_text("ref: refs/heads/main\n")
    (home / "mine/c").write_text("")
    return home


# The working directory, what else commands may write, the file, and what makes it open.
ROWS = {
    "elsewhere": ("proj", (), "mine/c", ""),
    "in the checkout above the work": ("proj/sub", (), "proj/c", "proj"),
    "in the checkout above an added directory": ("mine", ("=proj/sub",), "proj/c", "proj"),
    "beside the work, on a way through it": ("proj", (), "proj/../mine/c", ""),
    "on a way through a directory in the work": ("proj", (), "proj/sub/../../mine/c", "proj"),
    "in another place": ("proj", ("mine",), "mine/c", "mine"),
    "the place itself": ("proj", ("mine/c",), "mine/c", "mine/c"),
    "not there yet": ("proj", ("new",), "new/c", "new"),
    "in a session's directory": ("proj", (), "tmp/ralph-tmp-0/c", "tmp/ralph-tmp-0"),
    "in the user's directory for temporary files": ("proj", (), "tmp/x/c", ""),
    "a cache of a time before the variable": ("proj", (), ".cache/ralph/packages/c", ".cache/ralph/packages"),
}


@pytest.mark.parametrize(("work", "more", "file", "place"), ROWS.values(), ids=ROWS.keys())
def test_the_reason_names_the_place(home, work, more, file, place) -> None:
    environment = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "XDG_CACHE_HOME": str(home / "cache")}
    added = [home / one.removeprefix("=") for one in more if one.startswith("=")]
    search = search_around(
        environment, [home / work, *added], [home / one for one in more if not one.startswith("=")]
    )
    why = search.why_open(str(home / file))
    assert why == (
        f"an agent or a repository's author may write {home / place}, through which it is found"
        if place
        else None
    )


def test_a_checkout_of_the_home_itself_is_the_users_own(home) -> None:
    (home / ".git").mkdir()
    (home / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (home / "other").mkdir()
    search = search_around({"HOME": str(home)}, [home / "other"])
    assert search.why_open(str(home / "mine/c")) is None
    assert search.why_open(str(home / "other/c"))


def test_a_repository_in_the_project_takes_nothing_out_of_it(home) -> None:
    for directory in ("proj", "proj/sub"):
        (home / directory / ".git").mkdir(parents=True, exist_ok=True)
    why = search_around({"HOME": str(home)}, [home / "proj/sub"]).why_open(str(home / "proj/c"))
    assert why is not None
    assert str(home / "proj") in why


@pytest.mark.parametrize(
    ("work", "state", "place"),
    [
        ("tree", "main/.git/state", "main/.git"),
        ("main/sub", "main/.git/modules/sub/state", "main"),
        ("named", "mine/c", ""),
    ],
)
def test_a_git_directory_elsewhere_may_be_written(home, work, state, place) -> None:
    for directory in ("main", "part"):
        git("init", "-q", "-b", "main", str(home / directory))
        git("-C", str(home / directory), "commit", "-q", "--allow-empty", "-m", "x")
    git("-C", str(home / "main"), "worktree", "add", "-q", str(home / "tree"))
    git("-C", str(home / "main"), "submodule", "--quiet", "add", str(home / "part"), "sub")
    (home / "named").mkdir()
    (home / "named/.git").write_text(f"gitdir: {home}/mine\n")  # no repository, so git does not take it
    search = search_around({"HOME": str(home)}, [home / work])
    why = search.why_open(str(home / state))
    assert (why or "").partition(" may write ")[2].partition(",")[0] == (str(home / place) if place else "")
    given = search_around({"HOME": str(home), "GIT_DIR": str(home / "part/.git")}, [home / "named"])
    assert given.why_open(str(home / "part/.git/state"))


def git(*words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_file_with_a_second_name_may_be_written_by_that(home, is_linked) -> None:
    if is_linked:
        os.link(home / "mine/c", home / "proj/c")
    why = search_outside({}, [home / "proj"]).why_open(str(home / "mine/c"))
    assert why == (f"it has a second name (a hard link) in {home}/proj" if is_linked else None)


# What hides a second name from a listing, and where this name is.
HIDDEN = {
    "entered but not listed": ("chmod 0311 d", "proj/d/c"),
    "listed but not entered": ("chmod 0444 d", "proj/d/c"),
    "closed": ("chmod 0 d", "proj/d/c"),
    "closed above": ("mkdir e && mv d e/d && chmod 0 e", "proj/d/c"),
    "closed beside": ("chmod 0 d", "mine/d"),
    # The data of a container in the work, as of a database. Commands cannot enter it either.
    "somebody else's": ("chmod 0700 d && chown 65534 d", "mine/d"),
}
LOOK = """
import sys
sys.path[:0] = sys.argv[2:]
from ralph.machine.own_programs import search_outside
print(search_outside({}, [sys.argv[1] + "/proj"]).why_open(sys.argv[1] + "/mine/c"))
"""


@pytest.mark.parametrize("name", HIDDEN)
def test_a_second_name_may_be_in_a_folder_that_ralph_cannot_list(home, name) -> None:
    script, second = HIDDEN[name]
    is_root, is_foreign = os.geteuid() == 0, "chown" in script
    if is_foreign and not is_root:
        pytest.skip("only root may give a folder away")
    (home / "proj/d").mkdir()
    os.link(home / "mine/c", home / second)
    subprocess.run(["sh", "-c", script], cwd=home / "proj", check=True)
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if is_root else []
    looking = [*drop, sys.executable, "-c", LOOK, str(home), *sys.path]
    why = subprocess.run(looking, capture_output=True, text=True, check=True).stdout.rstrip()
    for folder in (home / "proj").glob("[de]"):
        folder.chmod(0o700)
    assert why == (str(None) if is_foreign else f"it has a second name (a hard link) in {home}/proj")


def test_a_place_that_is_mounted_twice_may_be_written_by_each_path(home, monkeypatch) -> None:
    device = (
        f"22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 254:0 {home}/mine {home}/other rw - ext4 /dev/vda rw\n"
    )
    monkeypatch.setattr(own_programs, "mounts", lambda: device)
    own_programs._with_other_paths.cache_clear()
    search = search_outside({"HOME": str(home)}, [home / "mine"])
    own_programs._with_other_paths.cache_clear()
    assert f"may write {home}/other, through which" in str(search.why_open(str(home / "other/c")))
    assert not search.is_safe(str(home / "other/git"))
    assert search.may_be_changed(str(home / "other/c"))
