"""No git call of ralph may run a program that an agent put into `.git`. Programs of the user's own configuration
run.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.git.answer import CheckoutError
from ralph.git.runner import CheckoutGit
from ralph.loop.checkout import check_checkout
from tests.git.repositories import Repository, cloned
from tests.processes.scripts import first_on_path

if TYPE_CHECKING:
    from pathlib import Path

# All hooks of githooks(5).
HOOKS = (
    "applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg "
    "commit-msg post-commit pre-rebase post-checkout post-merge pre-push pre-receive update proc-receive "
    "post-receive post-update reference-transaction push-to-checkout pre-auto-gc post-rewrite "
    "sendemail-validate fsmonitor-watchman p4-changelist post-index-change "
).split()
PROGRAMS = (
    "core.fsmonitor core.pager pager.status core.editor sequence.editor core.askPass core.sshCommand "
    "core.gitProxy core.alternateRefsCommand gpg.program gpg.ssh.program gpg.ssh.defaultKeyCommand "
    "diff.external diff.evil.command diff.evil.textconv merge.evil.driver interactive.diffFilter "
    "hook.evil.command trailer.sign.command remote.origin.receivepack remote.origin.uploadpack "
    "gc.recentObjectsHook uploadpack.packObjectsHook filter.evil.clean filter.evil.smudge "
    "filter.evil.process "
).split()
SHELL = "credential.helper credential.https://127.0.0.1.helper alias.status alias.commit".split()
SETTINGS = [
    *((name, "{program}") for name in PROGRAMS),
    *((name, "!{program}") for name in SHELL),
    ("core.hooksPath", "{hooks}"),
    ("gpg.format", "ssh"),
    ("commit.gpgSign", "true"),
    ("push.gpgSign", "true"),
    ("log.showSignature", "true"),
    ("hook.evil.event", "pre-commit"),
    ("protocol.ext.allow", "always"),
    ("protocol.allow", "always"),
    ("push.negotiate", "true"),
    ("push.recurseSubmodules", "on-demand"),
    ("submodule.recurse", "true"),
    ("status.submoduleSummary", "true"),
    ("commit.verbose", "true"),
    ("gc.auto", "1"),
    ("maintenance.auto", "true"),
    ("trace2.normalTarget", "{marks}/trace2"),
    ("trace2.eventTarget", "{marks}/trace2"),
    ("filter.evil.required", "true"),
]


def program(path: Path, marks: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n: > '{marks}/{path.name}'\nexec cat\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def plant_everything(repository: Repository, marks: Path, *, leaving_out: str = "") -> None:
    git = repository.top / repository.git("rev-parse", "--git-dir")
    for name in HOOKS:
        program(git / "hooks" / name, marks)
    lines = []
    for name, value in SETTINGS:
        if leaving_out and name.startswith(leaving_out):
            continue
        section, _, key = name.rpartition(".")
        first, _, second = section.partition(".")
        header = f'[{first} "{second}"]' if second else f"[{first}]"
        planted = program(git / "planted" / name.replace("/", "-"), marks)
        text = value.format(program=planted, hooks=git / "hooks", marks=marks)
        lines.append(f'{header}\n\t{key} = "{text}"\n')
    # The setting is in another file. Settings of included files count as the repository's own.
    (git / "more").write_text("".join(lines))
    repository.git("config", "include.path", "more")


def test_nothing_that_was_planted_runs(tmp_path: Path, marks: Path) -> None:
    repository = cloned(tmp_path / "work", tmp_path / "home")
    inner = Repository.empty(repository.top / "inner", tmp_path / "home")
    inner.write("f")
    inner.commit_all()
    repository.write(".gitattributes", "*.txt diff=evil merge=evil\n*.bin filter=evil\n")
    repository.git("submodule", "--quiet", "add", "./inner", "inner")
    repository.write("secret.bin")
    repository.commit_all()
    inner.write(".gitattributes", "* filter=evil diff=evil\n")
    plant_everything(inner, marks)
    plant_everything(repository, marks)
    told: list[str] = []
    checkout = repository.checkout(warn=told.append)
    before = checkout.snapshot()
    repository.write("a.txt", "x")
    repository.write("secret.bin", "TEXT\n")
    inner.write("f", "TEXT\n")
    check_checkout(checkout, commits=True, pushes=True)
    after = checkout.snapshot()
    assert set(checkout.changes(before, after).files) == {"a.txt", "secret.bin", "inner/f"}
    assert checkout.commit("Iteration 1")
    [one] = [line for line in told if "secret.bin goes through the filter 'evil'" in line]
    assert one.endswith("; commits leave such files out")
    assert repository.git("show", "--format=", "--name-only", "HEAD") == "a.txt"
    assert (checkout.unpushed(), checkout.push()) == (2, 2)
    assert checkout.changes(after, checkout.snapshot()).commits == 1
    assert [path.name for path in marks.iterdir()] == []


@pytest.mark.parametrize(
    "url",
    [
        "ssh://nobody@127.0.0.1:1/x",
        "git://127.0.0.1:1/x",
        "ext::PROGRAM",
        "http://127.0.0.1:1/x",
    ],
)
def test_a_remote_elsewhere_runs_nothing_either(tmp_path: Path, marks: Path, url: str) -> None:
    repository = cloned(tmp_path / "work", tmp_path / "home")
    plant_everything(repository, marks)
    repository.git(
        "remote", "set-url", "origin", url.replace("PROGRAM", str(program(tmp_path / "bin/ext", marks)))
    )
    with pytest.raises(CheckoutError):
        repository.checkout().push()
    assert [path.name for path in marks.iterdir()] == []


def test_what_is_planted_is_found_by_git_itself(tmp_path: Path, marks: Path) -> None:
    """Without this test, the tests above could pass because nothing was planted."""
    repository = cloned(tmp_path / "work", tmp_path / "home")
    plant_everything(repository, marks, leaving_out="push.gpgSign")
    repository.git("config", "commit.gpgSign", "false")
    repository.write(".gitattributes", "* filter=evil\n")
    repository.git("add", "-A", fails=True)
    repository.write(".gitattributes", "a.txt diff=evil\n")
    repository.write("a.txt", "x")
    repository.git("diff")
    repository.git("add", "a.txt")
    repository.git("commit", "-q", "-m", "x")
    ran = {path.name for path in marks.iterdir()}
    assert {
        "core.fsmonitor",
        "filter.evil.process",
        "diff.evil.command",
        "pre-commit",
        "post-index-change",
    } <= ran


def test_a_planted_working_tree_elsewhere_is_not_taken(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("secret")
    repository.git("config", "core.worktree", str(tmp_path / "private"))
    repository.write("new")
    assert repository.checkout().commit("x")
    assert "key" not in repository.git("ls-tree", "-r", "--name-only", "HEAD").split()


def test_a_filter_of_the_users_own_runs_if_the_settings_name_it(repository: Repository) -> None:
    repository.git("config", "--global", "filter.upper.clean", "tr a-z A-Z")
    repository.git("config", "filter.upper.clean", "sed s/e/PLANTED/")
    repository.write(".gitattributes", "*.up filter=upper\n")
    repository.write("x.up", "hello\n")
    told: list[str] = []
    assert repository.checkout(warn=told.append).commit("without the file")
    assert "x.up goes through your filter 'upper', " in told[0]
    assert 'git_filters = ["upper"]' in told[0]
    assert repository.git("ls-files", "x.up") == ""
    repository.filters = ("upper",)
    assert repository.checkout().commit("x")
    assert repository.git("show", "HEAD:x.up") == "HELLO"


def test_a_filter_without_a_name_is_a_filter(repository: Repository, marks: Path) -> None:
    planted = program(repository.top / ".git/planted", marks)
    with (repository.top / ".git/config").open("a") as file:
        file.write(f'[filter ""]\n\tclean = "{planted}"\n')
    repository.write(".gitattributes", "*.bin filter=\n")
    repository.write("x.bin")
    told: list[str] = []
    checkout = repository.checkout(warn=told.append)
    checkout.snapshot()
    assert checkout.commit("without the file")
    assert any("x.bin goes through the filter ''" in line for line in told)
    assert list(marks.iterdir()) == []
    repository.git("add", "-A")
    assert list(marks.iterdir()) != [], "and git itself runs it"


def test_git_lfs_may_be_set_up_in_the_repository(repository: Repository, tmp_path: Path) -> None:
    cleans = "[ $1 = clean ] || exit 1; cat > /dev/null; echo pointer"
    first_on_path(repository.environment, tmp_path / "bin/git-lfs", cleans)
    repository.git("config", "filter.lfs.clean", "git-lfs clean -- %f")
    repository.git("config", "filter.lfs.required", "true")
    repository.write(".gitattributes", "*.big filter=lfs\n")
    repository.write("x.big", "content")
    assert repository.checkout().commit("x")
    assert repository.git("show", "HEAD:x.big") == "pointer"


def test_git_loads_no_library_that_commands_can_replace(repository: Repository, tmp_path: Path) -> None:
    given = {
        "LD_LIBRARY_PATH": f":{repository.top}/lib:{tmp_path}/lib:{tmp_path}/added",
        "GIT_EXEC_PATH": str(repository.top),
    }
    seams = replace(repository.seams(**given), writable=(tmp_path / "added",))
    (tmp_path / "lib").mkdir()
    environment = CheckoutGit(repository.top, seams).environment
    assert environment["LD_LIBRARY_PATH"] == f"{tmp_path}/lib"
    assert "GIT_EXEC_PATH" not in environment
