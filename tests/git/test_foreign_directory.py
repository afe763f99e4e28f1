"""ralph's git writes no repository but the checkout's own, and the sandbox gives the same answer."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.git.answer import CheckoutError
from ralph.git.checkout import GitCheckout
from ralph.loop.checkout import check_checkout
from ralph.machine.files.trees import remove_tree
from ralph.places.git_places import git_places
from ralph.values.outcome import Outcome
from tests.git.repositories import Repository, cloned, committed
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A program of the shell that runs in the checkout. `../other` is another repository of the user.
CLAIMS = {
    "a file": "rm -r .git && echo gitdir: ../other/.git >.git",
    "a link": "rm -r .git && ln -s ../other/.git .git",
    "a common directory": "echo ../../other/.git >.git/commondir",
    "a forged linked worktree": "mv .git own && mkdir -p own/worktrees/x && echo gitdir: own/worktrees/x >.git && "
    "cp own/HEAD own/index own/worktrees/x && echo $PWD/.git >own/worktrees/x/gitdir && "
    "echo ../../../../other/.git >own/worktrees/x/commondir",
    "the worktree of another checkout": "git -C ../other worktree add -q ../third && rm -r .git && cp ../third/.git .git",
    "a submodule of another checkout": "git -C ../other submodule add -q ../remote.git part && rm -r .git && "
    "echo gitdir: ../other/.git/modules/part >.git",
}
LINKS = {
    "its branches": "rm -r .git/refs/heads && ln -s ../../../other/.git/refs/heads .git/refs/heads",
    "one branch": "ln -sf ../../../../other/.git/refs/heads/main .git/refs/heads/main",
    "its objects": "mv .git/objects ../moved && ln -s ../../moved .git/objects",
    "some of its objects": "mkdir -p ../moved/d && rm -rf .git/objects/0a && ln -s ../../../moved/d .git/objects/0a",
    "an object": "mkdir -p .git/objects/00 && touch ../moved && ln -sf ../../../../moved .git/objects/00/"
    + "1" * 38,
    "packed objects": "touch ../moved && ln -sf ../../../../moved .git/objects/pack/pack-1.pack",
    "the names of other objects": "touch ../moved && ln -sf ../../../../moved .git/objects/info/alternates",
    "its index": "mv .git/index ../moved && ln -s ../../moved .git/index",
    "the words of a commit": "touch ../moved && ln -sf ../../moved .git/COMMIT_EDITMSG",
    "the words of a commit in its configuration": "ln -sf config .git/COMMIT_EDITMSG",
    "its log": "mkdir -p .git/logs && touch ../moved && ln -sf ../../../moved .git/logs/HEAD",
    "the log of a branch in a hook": "rm -rf .git/logs/refs/heads && ln -s ../../hooks .git/logs/refs/heads",
    "its branches in tables": "mkdir ../moved && ln -s ../../moved .git/reftable",
    "its conflicts": "ln -sf ../../moved .git/MERGE_RR",
    "the resolution of a conflict": "mkdir -p .git/rr-cache/" + "1" * 40 + " && touch ../moved && "
    "ln -s ../../../../moved .git/rr-cache/" + "1" * 40 + "/preimage",
    "its large files": "mkdir ../moved && ln -s ../../moved .git/lfs",
    "its HEAD": "cp .git/HEAD ../moved && ln -sf ../../moved .git/HEAD",
    "the branch of its HEAD": "echo ref: refs/heads/../../../moved >.git/HEAD",
    "the branch of its HEAD in another repository": "echo ref:refs/../../other/.git/refs/heads/new >.git/HEAD",
    "the branch of a branch": "echo ref: refs/../../other/.git/refs/heads/new >.git/refs/heads/main",
    "a path for its HEAD": "echo ref: /tmp/x >.git/HEAD",
    "a pipe for the words of a commit": "rm -f .git/COMMIT_EDITMSG && mkfifo .git/COMMIT_EDITMSG",
    "its packed branches": "touch ../moved && ln -sf ../../moved .git/packed-refs",
}
OTHER = {
    "a plain repository": ":",
    "a linked worktree": "git worktree add -q --detach ../linked",
    "a submodule": "git submodule add -q ../remote.git inner",
    "a submodule with sparse files": "git submodule add -q ../remote.git inner && git -C inner sparse-checkout set dir",
    "links that git only reads": "mv .git/hooks ../hooks && ln -s ../../hooks .git/hooks && "
    "mv .git/config ../config && ln -s ../../config .git/config",
    "a link for its HEAD": 'ln -sf "$(git symbolic-ref HEAD)" .git/HEAD',
    "a worktree of a bare repository": "git clone -q --bare . ../bare && git -C ../bare worktree add -q --detach ../linked",
}


def made(place: Path, script: str) -> Repository:
    repository = cloned(place / "work", place / "home")
    committed(place / "other", place / "home")
    environment = repository.environment | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "protocol.file.allow",
        "GIT_CONFIG_VALUE_0": "always",
    }
    subprocess.run(
        ["sh", "-ec", script], cwd=repository.top, check=True, env=environment, capture_output=True
    )
    return repository


def state_of(place: Path) -> dict[str, bytes]:
    """Everything beside the checkout."""
    return {
        str(path): path.read_bytes()
        for top in ("other", "remote.git", "moved", "third")
        for path in (place / top, *(place / top).rglob("*"))
        if path.is_file()
    }


def attempts(checkout: GitCheckout) -> dict[str, Callable[[], object]]:
    return {
        "begin with --commit": lambda: check_checkout(checkout, commits=True, pushes=False),
        "begin with --push": lambda: check_checkout(checkout, commits=False, pushes=True),
        "commit": lambda: checkout.commit("x"),
        "push": checkout.push,
    }


@every_row(("name", "script"), [*CLAIMS.items(), *LINKS.items()])
def test_a_directory_that_is_not_its_own_is_not_written(tmp_path_factory, name: str, script: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = made(place, script)
    repository.write("new")
    before = state_of(place)
    for attempt, act in attempts(repository.checkout()).items():
        with pytest.raises(CheckoutError, match="not this checkout's own") as raised:
            act()
        assert raised.value.outcome is Outcome.CONFIG, attempt
        said, is_link = str(raised.value), " is a link)" in str(raised.value)
        assert ("remove it if you did not make it; if it is yours" in said) is is_link, attempt
    assert state_of(place) == before
    refused = git_places([str(repository.top)], {}, os.getuid()).refused
    assert bool(refused) == (name in CLAIMS), "the sandbox and git give one answer"


DAMAGED = {
    "without its HEAD": "rm .git/HEAD",
    "with another HEAD": "echo x >.git/HEAD",
    "without its objects": "rm -r .git/objects",
    "with a link for the HEAD of the other": "rm .git/HEAD && ln -sf refs/heads/none HEAD",
}


@every_row(("name", "damage"), DAMAGED.items())
def test_no_repository_at_the_top_takes_the_place_of_a_damaged_one(
    tmp_path_factory, name: str, damage: str
) -> None:
    """Git looks at the top itself if `.git` is no repository, and its configuration says where a push goes."""
    place = tmp_path_factory.mktemp("place")
    repository = made(
        place, f"cp -r .git/* . && git --git-dir=. config remote.origin.url ../other && {damage}"
    )
    repository.write("new")
    before = state_of(place), repository.git("--git-dir=.", "for-each-ref")
    for act in attempts(repository.checkout()).values():
        with pytest.raises(CheckoutError, match="not a git repository"):
            act()
    assert (state_of(place), repository.git("--git-dir=.", "for-each-ref")) == before


BORROWED = {
    "an absolute path": "echo {0}/other/.git/objects >.git/objects/info/alternates",
    "a relative path": "printf '# x\\n\\n../../../other/.git/objects' >.git/objects/info/alternates",
    "a path in quotes": "printf '\"{0}/\\\\157ther/.git/objects\"\\n' >.git/objects/info/alternates",
    "a link": "ln -s ../other/.git/objects way; echo {0}/work/way >.git/objects/info/alternates",
    "one that another names": "git clone -q --shared ../other ../third; "
    "echo {0}/third/.git/objects >.git/objects/info/alternates",
    "a common directory": "git clone -q --bare . ../work/own; echo {0}/other/.git/objects >own/objects/info/alternates; "
    "echo ../own >.git/commondir",
}


CANNOT_BE_JUDGED = {
    "a path after many comments": "{{ head -c 1000001 /dev/zero | tr '\\0' '#'; printf '\\n{0}/other/.git/objects\\n'; }} "
    ">.git/objects/info/alternates",
    "a second path after the quotes": "echo '\"/nowhere\"x{0}/other/.git/objects' >.git/objects/info/alternates",
    "a comment after the quotes": "echo '\"/nowhere\"#{0}/other/.git/objects' >.git/objects/info/alternates",
}


def test_objects_in_folders_that_are_deeper_than_pythons_stack_are_looked_through(tmp_path: Path) -> None:
    repository = made(tmp_path, "cd .git/objects; for _ in $(seq 1200); do mkdir a; cd a; done; : >end")
    try:
        repository.write("new")
        assert repository.checkout().commit("deep")
    finally:
        remove_tree(repository.top / ".git" / "objects" / "a")


@every_row("script", [*CANNOT_BE_JUDGED.values()])
def test_nothing_is_published_where_it_cannot_be_judged_which_objects_git_would_read(
    tmp_path_factory, script: str
) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = made(place, f"mkdir -p .git/objects/info; {script.format(place)}")
    with pytest.raises(CheckoutError, match=r"objects that commands may not read: [^ ]*/alternates: "):
        repository.checkout().push()


@every_row("script", [*BORROWED.values()])
def test_objects_that_commands_may_not_read_are_not_published(tmp_path_factory, script: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = made(place, f"mkdir -p .git/objects/info; {script.format(place)}")
    repository.write("new")
    checkout = GitCheckout(
        *(repository.top, repository.top),
        plan_file="P",
        seams=replace(repository.seams(), may_read=lambda path: not path.startswith(f"{place}/other")),
    )
    for attempt, act in attempts(checkout).items():
        with pytest.raises(
            CheckoutError, match=r"other/\.git/objects, which commands may not read"
        ) as raised:
            act()
        assert raised.value.outcome is Outcome.CONFIG, attempt


_NO_COMMIT = f"echo {'1' * 40} >.git/refs/heads/main"
SHOWN = {
    "its shallow commits": "ln -s ../../secret .git/shallow",
    "its packed branches": "ln -sf ../../secret .git/packed-refs",
    "its index": "ln -sf ../../secret .git/index",
    "other objects": f"mkdir -p .git/objects/info; ln -sf ../../../../secret .git/objects/info/alternates; {_NO_COMMIT}",
    "its history": f"mkdir .git/objects/info/commit-graphs; {_NO_COMMIT}; "
    "ln -s ../../../../../secret .git/objects/info/commit-graphs/commit-graph-chain",
    "its attributes": f"ln -s ../../../secret .git/info/attributes; {_NO_COMMIT}",
    "attributes that its configuration names": f"git config core.attributesFile ../secret; {_NO_COMMIT}",
}
"""Ways to a file of which git shows a line in its errors."""


@every_row("script", [*SHOWN.values()])
def test_what_git_shows_of_a_file_is_not_told(tmp_path_factory, script: str) -> None:
    place = tmp_path_factory.mktemp("place")
    # Four letters that are a signature, and an attribute that is no name.
    (place / "secret").write_text("FAKE FAKE^\n" * 9)
    repository = made(place, f"mkdir -p .git/objects/info; {script}")
    with pytest.raises(CheckoutError, match=r"git status: .*\.\.\.") as raised:
        repository.checkout().snapshot()
    assert "FAKE" not in str(raised.value)
    assert "454b4146" not in str(raised.value)


@every_row("script", [one for one in SHOWN.values() if "ln -s" in one])
def test_git_is_not_run_where_it_would_read_what_commands_may_not_read(tmp_path_factory, script: str) -> None:
    place = tmp_path_factory.mktemp("place")
    (place / "secret").write_text("FAKE\n")
    repository = made(place, f"mkdir -p .git/objects/info; {script}")
    seams = replace(repository.seams(), may_read=lambda path: path != str(place / "secret"))
    checkout = GitCheckout(repository.top, repository.top, plan_file="P", seams=seams)
    for act in (checkout.snapshot, lambda: check_checkout(checkout, commits=False, pushes=False)):
        with pytest.raises(CheckoutError, match=r"git would read [^ ]*/secret, which commands may not read"):
            act()


def test_the_user_may_link_hooks_and_excluded_names_to_files_that_commands_may_not_read(
    tmp_path: Path,
) -> None:
    script = "rm -r .git/hooks; mkdir -p ../secret/a; ln -s ../../secret/a .git/hooks; ln -s ../../../secret/b .git/info/exclude"
    repository = made(tmp_path, script)
    seams = replace(repository.seams(), may_read=lambda path: "secret" not in path)
    GitCheckout(repository.top, repository.top, plan_file="P", seams=seams).snapshot()


@every_row("name", ["objects", "objects/info"])
def test_a_link_for_a_directory_of_objects_is_not_read_through(tmp_path_factory, name: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = made(
        place, f"mkdir -p .git/objects/info; mv .git/{name} ../moved; ln -s {place}/moved .git/{name}"
    )
    seams = replace(repository.seams(), may_read=lambda path: not path.startswith(f"{place}/moved"))
    with pytest.raises(CheckoutError, match="git would read"):
        GitCheckout(repository.top, repository.top, plan_file="P", seams=seams).snapshot()


def test_a_git_directory_that_commands_may_not_read_is_not_read(tmp_path: Path) -> None:
    repository = made(tmp_path, "echo ../../other/.git >.git/commondir")
    other = str(tmp_path / "other/.git")
    seams = replace(repository.seams(), may_read=lambda path: path != other)
    checkout = GitCheckout(repository.top, repository.top, plan_file="P", seams=seams)
    with pytest.raises(CheckoutError, match="git would read"):
        checkout.snapshot()


def test_a_clone_with_a_reference_that_commands_may_read_is_pushed(tmp_path: Path) -> None:
    repository = made(tmp_path, "git clone -q --reference ../other ../remote.git ../third")
    third = Repository(tmp_path / "third", tmp_path / "home")
    assert (third.top / ".git/objects/info/alternates").exists()
    for name in ("name", "email"):
        third.git("config", f"user.{name}", "x")
    third.write("new")
    checkout = third.checkout()
    assert checkout.commit("x")
    assert checkout.push() == 1
    assert repository.git("--git-dir", "../remote.git", "rev-parse", "main") == third.git("rev-parse", "HEAD")


@pytest.mark.ordinary_user
@every_row("closed", ["logs", "logs/refs/heads", "objects", "refs", "refs/heads", "."])
def test_what_cannot_be_looked_through_is_not_written(tmp_path_factory, closed: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = made(place, "touch ../moved && ln -sf ../../../moved .git/logs/HEAD")
    repository.write("new")
    directory = repository.top / ".git" / closed
    directory.chmod(0o311)
    try:
        with pytest.raises(CheckoutError):
            repository.checkout().commit("x")
    finally:
        directory.chmod(0o755)
    assert (place / "moved").read_text() == ""


@every_row("name", ["a file", "a link", "a common directory", "its objects"])
def test_the_user_can_give_it_by_its_name(tmp_path_factory, name: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = made(place, (CLAIMS | LINKS)[name])
    repository.write("new")
    given = place / ("moved" if name == "its objects" else "other/.git")
    checkout = repository.checkout(writable=(given,))
    assert check_checkout(checkout, commits=True, pushes=False) is not None
    if name != "a common directory":  # its HEAD is of a branch that the other repository has elsewhere
        assert checkout.commit("x")


# `../given` is a directory that the user has named, in which commands may write.
ONWARD = {
    "a file that a link in it is": "rm -rf .git/logs && mkdir -p ../given/logs && ln -s ../../given/logs .git/logs && "
    "touch ../moved && ln -s ../../moved ../given/logs/HEAD",
    "a branch of another repository": "mkdir -p ../given/h && rm -r .git/refs/heads && ln -s ../../../given/h .git/refs/heads && "
    "ln -s ../../other/.git/refs/heads/main ../given/h/main",
    "a name in a branch there": "mkdir -p ../given/h && rm -r .git/refs/heads && ln -s ../../../given/h .git/refs/heads && "
    "echo ref: ../../../moved >../given/h/main",
    "a name in a file there": "mkdir ../given && rm .git/refs/heads/main && ln -s ../../../../given/main .git/refs/heads/main && "
    "echo ref: ../../../moved >../given/main",
    "a large file": "mkdir -p ../given/lfs/objects/ab/ab && ln -s ../../given/lfs .git/lfs && touch ../moved && "
    "ln -s ../../../../../moved ../given/lfs/objects/ab/ab/" + "ab" * 32,
    "a link to the next link": "mkdir -p ../given/1 ../given/2 ../other && ln -s ../../given/1 .git/lfs && "
    "ln -s ../2 ../given/1/objects && ln -s ../../other ../given/2/00",
}


@every_row(("name", "script"), ONWARD.items())
def test_a_link_into_a_given_directory_leads_no_further(tmp_path_factory, name: str, script: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = made(place, script)
    repository.write("new")
    before = state_of(place)
    for act in attempts(repository.checkout(writable=(place / "given",))).values():
        with pytest.raises(CheckoutError, match="not this checkout's own"):
            act()
    assert state_of(place) == before


def test_a_directory_that_the_user_has_given_leads_no_further(tmp_path: Path) -> None:
    lead = "mv ../other/.git/refs ../moved && ln -s ../../moved ../other/.git/refs"
    repository = made(tmp_path, f"{CLAIMS['a file']} && {lead}")
    given = [tmp_path / "other/.git"]
    for writable in (given, [*given, tmp_path / "moved"]):
        checkout = repository.checkout(writable=tuple(writable))
        if writable == given:
            with pytest.raises(CheckoutError, match=r"/moved, which .*/other/.git/refs is a link"):
                check_checkout(checkout, commits=True, pushes=False)
        else:
            check_checkout(checkout, commits=True, pushes=False)


def test_a_commit_resolves_no_conflicts(tmp_path: Path) -> None:
    repository = made(tmp_path, ":")
    conflict = repository.top / ".git/rr-cache" / ("1" * 40)
    conflict.mkdir(parents=True)
    (conflict / "preimage").write_text("what a command wrote")
    repository.write("new", "ours\n<<<<<<< a\n1\n=======\n2\n>>>>>>> b\n")
    (repository.top / ".git/MERGE_RR").write_text(f"{conflict.name}\tnew\0")
    assert repository.checkout().commit("x")
    assert [path.name for path in conflict.iterdir()] == ["preimage"]
    assert (conflict / "preimage").read_text() == "what a command wrote"


def test_a_loop_that_neither_commits_nor_pushes_begins(tmp_path: Path) -> None:
    repository = made(tmp_path, "git init -q --separate-git-dir=../separate")
    check_checkout(repository.checkout(), commits=False, pushes=False)
    repository.checkout().snapshot()


@every_row(("name", "script"), list(OTHER.items()))
def test_what_git_itself_makes_is_the_checkouts_own(tmp_path_factory, name: str, script: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = made(place, script)
    top = next(one for one in (place / "linked", repository.top / "inner", repository.top) if one.exists())
    inner = Repository(top, place / "home")
    inner.git("-c", "user.name=x", "-c", "user.email=x@y", "switch", "-q", "-C", "mine")
    inner.git("config", "user.name", "x")
    inner.git("config", "user.email", "x@y")
    inner.write("new")
    check_checkout(inner.checkout(), commits=True, pushes=False)
    assert inner.checkout().commit("x"), name


# The remote, and what a command of the agent makes of it.
REMOTES = {
    "a file": (
        "../mine",
        "git clone -q . ../mine && rm -r ../mine/.git && echo gitdir: ../other/.git >../mine/.git",
    ),
    "a link": ("../mine", "git clone -q . ../mine && rm -r ../mine/.git && ln -s ../other/.git ../mine/.git"),
    "a bare one with a common directory": (
        "../mine",
        "git init -q --bare ../mine && echo ../other/.git >../mine/commondir",
    ),
    "a bare one with branches elsewhere": (
        "../mine",
        "git init -q --bare ../mine && rm -r ../mine/refs/heads && ln -s ../../other/.git/refs/heads ../mine/refs/heads",
    ),
    "a file of another name": ("../mine", "echo gitdir: other/.git >../mine.git"),
    "a link in a directory of another name": (
        "../mine",
        "mkdir ../mine.git && ln -s ../other/.git ../mine.git/.git",
    ),
}


@every_row(("name", "url", "script"), [(name, *row) for name, row in REMOTES.items()])
def test_a_remote_on_this_machine_leads_to_itself(tmp_path_factory, name: str, url: str, script: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = made(place, script)
    repository.git("config", "remote.origin.url", url)
    repository.git("-C", "../other", "config", "receive.denyCurrentBranch", "ignore")
    repository.write("new")
    repository.commit_all()
    before = state_of(place)
    with pytest.raises(CheckoutError, match=r"the remote .*/mine (leads to|is a file)") as raised:
        repository.checkout().push()
    assert raised.value.outcome is Outcome.CONFIG, name
    assert state_of(place) == before


@every_row("name", ["a file", "a link"])
def test_the_user_can_give_where_a_remote_leads(tmp_path_factory, name: str) -> None:
    place = tmp_path_factory.mktemp("place")
    url, script = REMOTES[name]
    repository = made(place, script)
    repository.git("config", "remote.origin.url", url)
    repository.git("-C", "../other", "config", "receive.denyCurrentBranch", "ignore")
    repository.write("new")
    repository.commit_all()
    given = (place / "other/.git",)
    checkout = repository.checkout(writable=given)
    checkout.restore_pins(checkout.pins_text())  # what was there when a loop began
    repository.git("switch", "-qc", "topic")
    assert checkout.push() >= 1, name
    assert repository.git("-C", "../other", "rev-parse", "topic") == repository.git("rev-parse", "HEAD")
