"""No diff of git's decides which credentials are found before a commit or a push: attributes, NUL bytes and merges hide none."""

from __future__ import annotations

import hashlib
import signal
from typing import TYPE_CHECKING

import pytest

from ralph.git import credentials
from ralph.git.answer import CheckoutError
from ralph.git.commit_diffs import FOR_ALL, look_through
from ralph.git.runner import CheckoutGit
from ralph.values.ports import Interrupted
from ralph.values.redaction import LookedCommit, Redactor
from tests.git.repositories import Repository, cloned

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "MY-known-QWERTY-77"
REDACTOR = Redactor([SECRET])


@pytest.fixture
def made(tmp_path: Path) -> Repository:
    return cloned(tmp_path / "work", tmp_path / "home")


def attribute(made: Repository) -> str:
    made.write(".gitattributes", "*.txt -diff\n")
    made.write("x.txt", f"{SECRET}\n")
    return "x.txt"


def nul_byte(made: Repository) -> str:
    made.write("x", f"\0{SECRET}")
    return "x"


def wide_characters(made: Repository) -> str:
    (made.top / "x").write_bytes(f"key={SECRET}".encode("utf-16"))
    return "x"


def second_piece(made: Repository) -> str:
    made.write("x", "." * 2_000 + SECRET)
    return "x"


def across_many_pieces(made: Repository) -> str:
    made.write("x", "." * 1_990 + SECRET[:8] + "\0" * 9_000 + SECRET[8:] + "." * 2_000)
    return "x"


def large_file(made: Repository) -> str:
    content = f"much {SECRET}".encode()
    identifier = hashlib.sha256(content).hexdigest()
    place = f".git/lfs/objects/{identifier[:2]}/{identifier[2:4]}/{identifier}"
    made.write(place, content.decode())
    made.write(
        "x", f"version https://git-lfs.github.com/spec/v1\noid sha256:{identifier}\nsize {len(content)}\n"
    )
    return "x"


def no_large_file(made: Repository) -> str:
    """A pointer of git-lfs whose object is a directory keeps the search from nothing."""
    (made.top / ".git/lfs/objects/ab/ab" / ("ab" * 32)).mkdir(parents=True)
    made.write("pointer", f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 1\n")
    made.write("x", SECRET)
    return "x"


def linked(made: Repository) -> str:
    (made.top / "x").symlink_to(SECRET)
    return "x"


FILES = (
    attribute,
    nul_byte,
    wide_characters,
    second_piece,
    across_many_pieces,
    large_file,
    no_large_file,
    linked,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch) -> None:
    monkeypatch.setattr(credentials, "_PIECE_BYTES", 2_008)  # `second_piece` begins in the first one
    monkeypatch.setattr(credentials, "_OVERLAP_BYTES", 20)


@pytest.mark.parametrize("planted", FILES)
def test_a_commit_leaves_the_file_out(made: Repository, planted) -> None:
    name = planted(made)
    made.write("work")
    lines: list[str] = []
    assert made.checkout(warn=lines.append, redactor=REDACTOR).commit("one")
    assert name not in made.git("ls-files").split("\n")
    assert f"these hold a credential that ralph knows: {name}; commits leave them out" in lines


@pytest.mark.parametrize("planted", FILES)
def test_a_commit_with_the_file_is_not_pushed_and_its_diff_not_shown(made: Repository, planted) -> None:
    start = made.git("rev-parse", "HEAD")
    name = planted(made)
    commit = made.commit_all("mine")
    made.write(".gitattributes", "")
    last = made.commit_all("no attributes")
    git = CheckoutGit(made.top, made.seams(), FOR_ALL)
    looked = look_through(git, ["HEAD", f"^{start}"], REDACTOR)
    in_git = () if planted is large_file else (name,)
    assert looked == (LookedCommit(commit, in_git), LookedCommit(last))
    with pytest.raises(CheckoutError, match=rf"commit {commit[:12]} holds a credential .*\({name}\)"):
        made.checkout(redactor=REDACTOR).push()
    assert made.git("-C", "../remote.git", "rev-parse", "main") == start


def test_what_a_merge_brings_by_itself_is_not_pushed(made: Repository) -> None:
    made.git("switch", "-q", "-c", "side")
    made.write("side")
    made.commit_all("side")
    made.git("switch", "-q", "main")
    made.write("main")
    made.commit_all("main")
    made.git("merge", "-q", "--no-commit", "side")
    made.write("evil", SECRET)
    merge = made.commit_all("merge")
    with pytest.raises(CheckoutError, match=rf"commit {merge[:12]} holds a credential .*\(evil\)"):
        made.checkout(redactor=REDACTOR).push()


def test_a_merge_of_what_the_remote_has_is_pushed(made: Repository) -> None:
    made.git("switch", "-q", "-c", "side")
    made.write("published", SECRET)
    made.commit_all("side")
    made.git("push", "-q", "origin", "side")
    made.git("switch", "-q", "main")
    made.write("main")
    made.commit_all("main")
    made.git("merge", "-q", "side")
    assert made.checkout(redactor=REDACTOR).push() == 3


@pytest.mark.parametrize("parent", ["an earlier commit", "one with the same files"])
def test_a_graft_hides_no_commit(made: Repository, parent: str) -> None:
    start = made.git("rev-parse", "HEAD")
    made.write("evil", SECRET)
    last = made.commit_all("evil")
    other = made.git("commit-tree", "-m", "x", "HEAD^{tree}")
    if parent == "an earlier commit":
        made.git("rm", "-q", "evil")
        last, other = made.commit_all("gone"), start
    made.write(".git/info/grafts", f"{last} {other}\n")
    with pytest.raises(CheckoutError, match=r"holds a credential .*\(evil\)"):
        made.checkout(redactor=REDACTOR).push()


def test_a_credential_is_found_in_the_names_of_several_folders(made: Repository) -> None:
    made.write("MY-known/QWERTY-77/x")
    made.commit_all("x")
    with pytest.raises(CheckoutError, match=r"holds a credential .*\(\[redacted\]/x\)"):
        made.checkout(redactor=Redactor(["MY-known/QWERTY-77"])).push()


def test_the_oldest_of_many_commits_is_looked_through(made: Repository) -> None:
    start = made.git("rev-parse", "HEAD")
    lines = ["blob", "mark :1", f"data {len(SECRET)}", SECRET]
    for number in range(310):
        parent = f":{number + 1}" if number else start
        file = "M 100644 :1 evil" if not number else "D evil"
        lines += ["commit refs/heads/main", f"mark :{number + 2}", "committer x <x@y> 1 +0000", "data 1", "m"]
        lines += [f"from {parent}", file, ""]
    made.write(".git/stream", "\n".join(lines))
    made.git("-c", "alias.fill=!git fast-import --quiet <.git/stream", "fill")
    made.git("reset", "-q", "--hard")
    with pytest.raises(CheckoutError, match=r"holds a credential .*\(evil\)"):
        made.checkout(redactor=REDACTOR).push()


def test_the_author_and_the_branch_are_not_pushed_with_a_credential(made: Repository) -> None:
    made.git("switch", "-q", "-c", f"of-{SECRET}")
    made.write("x")
    made.commit_all("x")
    with pytest.raises(CheckoutError, match="the name of the branch holds a credential"):
        made.checkout(redactor=REDACTOR).push()
    made.git("branch", "-q", "-m", "plain")
    made.git("commit", "-q", "--amend", "--no-edit", f"--author={SECRET} <x@example.com>")
    with pytest.raises(CheckoutError, match=r"holds a credential .*\(its message\)"):
        made.checkout(redactor=REDACTOR).push()


def test_a_submodule_is_no_object_of_the_repository(made: Repository) -> None:
    made.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    made.git("commit", "-q", "-m", "x")
    assert made.checkout(redactor=REDACTOR).push() == 1


def test_nothing_is_pushed_that_could_not_be_looked_through(made: Repository, monkeypatch) -> None:
    made.write("x")
    made.commit_all("x")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(credentials, "_contents", full)
    with pytest.raises(CheckoutError, match=r"could not be looked through for credentials .* No space left"):
        made.checkout(redactor=REDACTOR).push()


def test_nothing_is_pushed_or_committed_of_which_the_list_is_cut_off(made: Repository, monkeypatch) -> None:
    made.write("x")
    made.commit_all("x")
    made.write("y")
    monkeypatch.setattr(credentials, "MOST_OUTPUT_BYTES", 20)
    for act in (made.checkout(redactor=REDACTOR).push, lambda: made.checkout(redactor=REDACTOR).commit("y")):
        with pytest.raises(CheckoutError, match="lists more than can be searched for credentials"):
            act()


def test_a_signal_ends_the_search_and_behind_its_time_nothing_is_searched(
    made: Repository, monkeypatch
) -> None:
    """A command can make an object of any size."""
    monkeypatch.setattr(credentials, "_PIECE_BYTES", 1_000)
    made.write("x", "." * 3_000)
    made.commit_all("x")
    git = CheckoutGit(made.top, made.seams(), FOR_ALL)
    searched = []

    class Heard(Redactor):
        def secrets_in(self, text: str) -> frozenset[str]:
            searched.append(text)
            made.waiter.inbox.note_signal(signal.SIGTERM)
            return super().secrets_in(text)

    with pytest.raises(Interrupted):
        look_through(git, ["HEAD"], Heard([SECRET]))
    assert len(searched) == 1
    made.waiter.inbox.note_signal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        look_through(git, ["HEAD"], REDACTOR)
    assert made.waiter.stop_left_s() <= 0
    with pytest.raises(CheckoutError, match="no time left"):
        look_through(git, ["HEAD"], REDACTOR)
