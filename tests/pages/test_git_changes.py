"""Commits and changed files as git tells them for a page, also where a repository wants to run programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.git import commit_diffs
from ralph.git.commit_diffs import FOR_ALL, look_through
from ralph.git.runner import CheckoutGit
from ralph.machine.waiter import InboxWaiter
from ralph.pages.content import Excerpts
from ralph.pages.git_changes import CommitRange, GitQuestion, GitReader
from ralph.values.redaction import LookedCommit, Redactor
from tests.git.repositories import committed
from tests.git.test_runner import Leap
from tests.processes.scripts import before_git

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ralph.pages.sections import GitFacts
    from tests.git.repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return committed(tmp_path / "work", tmp_path / "home")


def told(repository: Repository, *ranges: CommitRange, **more: object) -> GitFacts:
    reader = GitReader(repository.seams(), Excerpts(Redactor()))
    return reader.facts(asked(repository, *ranges, **more))


def asked(repository: Repository, *ranges: CommitRange, **more: object) -> GitQuestion:
    """A question about a work that has looked through all commits, and knows no secret."""
    if "looked" not in more:
        more["looked"] = looked(repository, "--all", "--reflog")
    return GitQuestion(repository.top, ranges, **more)  # type: ignore[arg-type]


def looked(repository: Repository, *revisions: str, secrets: Sequence[str] = ()) -> tuple[LookedCommit, ...]:
    git = CheckoutGit(repository.top, repository.seams(), FOR_ALL)
    return look_through(git, revisions, Redactor(secrets))


HOSTILE = 'a\n<script>alert(1)</script>\ndiff --git a/x b/x"'


def test_hostile_names_and_messages_arrive_as_they_are_and_with_their_own_diffs(repository) -> None:
    before = repository.git("rev-parse", "HEAD")
    repository.git("switch", "-qc", "-x" if False else "b/<b>")
    repository.write(HOSTILE, "one\ndiff --git a/fake b/fake\n" + "0" * 40 + "\n")
    repository.write("zz", "last\n")
    after = repository.commit_all("subject <img src=x>\n\nbody\n" + "f" * 40)
    facts = told(repository, CommitRange(1, before, after))
    (commit,) = facts.commits
    assert ((commit.id, commit.iteration), commit.subject) == ((after, 1), "subject <img src=x>")
    assert commit.body.startswith("body\nffff")
    assert [file.path for file in commit.files] == [HOSTILE, "zz"]
    assert commit.files[0].diff.splitlines()[1:] == ["+one", "+diff --git a/fake b/fake", "+" + "0" * 40]
    assert commit.files[1].diff.splitlines()[1:] == ["+last"]
    assert [(file.path, file.added) for file in facts.files] == [(HOSTILE, 3), ("zz", 1)]


def test_git_runs_no_program_that_the_repository_names(repository, tmp_path) -> None:
    before = repository.git("rev-parse", "HEAD")
    after = (repository.write("a.txt", "changed\n"), repository.commit_all())[1]
    repository.write("a.txt", "uncommitted\n")
    ran = tmp_path / "ran"
    program = repository.write(".git/run", f"#!/bin/sh\ntouch {ran}; cat\n")
    program.chmod(0o755)
    for name in (
        "diff.external",
        "diff.evil.command",
        "diff.evil.textconv",
        "filter.evil.clean",
        "filter.evil.process",
        "core.pager",
        "core.fsmonitor",
        "gpg.program",
        "interactive.diffFilter",
    ):
        repository.git("config", name, str(program))
    repository.git("config", "log.showSignature", "true")
    repository.git("config", "color.ui", "always")
    repository.write(".gitattributes", "* diff=evil filter=evil\n")
    repository.write(".git/hooks/post-index-change", f"#!/bin/sh\ntouch {ran}\n").chmod(0o755)
    facts = told(repository, CommitRange(1, before, after), has_uncommitted=True)
    assert not ran.exists()
    assert (facts.notes, facts.commits[0].files[0].diff) == ((), "@@ -1 +1 @@\n-text\n+changed")
    assert ("a.txt", False) in {(file.path, file.is_committed) for file in facts.files}


@pytest.mark.parametrize("way", ["alternates", "links"])
def test_a_page_shows_no_objects_of_another_repository_that_must_not_be_read(
    repository, tmp_path, way
) -> None:
    private = committed(tmp_path / "home/private", tmp_path / "home")
    private.write("plan.txt", "the plan\n")
    other, objects = private.commit_all(), repository.top / ".git/objects"
    if way == "alternates":
        (objects / "info").mkdir(exist_ok=True)
        (objects / "info/alternates").write_text(f"{private.top}/.git/objects\n")
    else:
        for file in (private.top / ".git/objects").glob("??/*"):
            (objects / file.parent.name).mkdir(exist_ok=True)
            if not (objects / file.parent.name / file.name).exists():
                (objects / file.parent.name / file.name).symlink_to(file)
    before = repository.git("rev-parse", "HEAD")
    repository.git("update-ref", "refs/heads/main", other)
    may_be_shown, why = {"alternates": (True, "must not be read"), "links": (False, "a symbolic link")}[way]
    for environment, is_shown in (
        (repository.environment, False),
        ({"HOME": str(tmp_path / "x")}, may_be_shown),
    ):
        reader = GitReader(repository.seams(), Excerpts(Redactor()), environment=environment)
        facts = reader.facts(asked(repository, CommitRange(1, before, other)))
        assert ("the plan" in str(facts)) is is_shown
        assert any(why in note for note in facts.notes) is not is_shown


def test_the_number_of_git_calls_does_not_depend_on_the_number_of_iterations(repository) -> None:
    """Also where an iteration went back, a branch was merged, or a person rewrote history between two iterations."""
    start = repository.git("rev-parse", "HEAD")

    def commit(name: str) -> str:
        repository.write(name)
        return str(repository.commit_all(name))

    one, back = commit("one"), commit("two")
    repository.git("reset", "-q", "--hard", one)
    repository.git("switch", "-qc", "side", start)
    side = commit("side")
    repository.git("merge", "-q", "-m", "merge", one)
    merge = repository.git("rev-parse", "HEAD")
    repository.git("commit", "-q", "--amend", "-m", "rewritten")
    rewritten = repository.git("rev-parse", "HEAD")
    last = commit("last")
    ranges = (
        CommitRange(1, start, back),
        CommitRange(None, back, one),
        CommitRange(2, one, merge),
        CommitRange(3, merge, "f" * 40),
        CommitRange(4, rewritten, last),
        CommitRange(5, last, None),
    )
    starts: list[object] = []

    class Counted:
        def start(self, *arguments: object, **more: object) -> object:
            starts.append(arguments)
            return repository.seams().supervisor.start(*arguments, **more)

    seams = replace(repository.seams(), supervisor=Counted())
    reader = GitReader(seams, Excerpts(Redactor()))
    facts = reader.facts(asked(repository, *ranges))
    calls = len(starts)
    found = [(each.id, each.iteration) for each in facts.commits]
    assert found == [(one, 1), (back, 1), (side, 2), (merge, 2), (last, 4)]
    assert facts.notes == ("the commits of iteration 3 are no longer in the repository",)
    reader.facts(asked(repository, *ranges * 10))
    assert len(starts) == 2 * calls


def test_what_has_no_room_on_the_page_is_counted_all_the_same(repository) -> None:
    before = repository.git("rev-parse", "HEAD")
    for number in range(130):
        repository.write(f"dir/{number}", "one\ntwo\n")
    (repository.top / "huge").write_bytes(b"a line of text\n" * 1_200_000)
    after = repository.commit_all()
    reader = GitReader(repository.seams(), Excerpts(Redactor()), sections=100)
    facts = reader.facts(asked(repository, CommitRange(1, before, after)))
    (commit,) = facts.commits
    assert (len(commit.files), commit.more_files, commit.more_added) == (100, 31, 60)
    assert len(facts.files) + facts.more_files == 131
    (huge,) = [file for file in told(repository, CommitRange(1, before, after)).files if file.path == "huge"]
    assert huge.added is None


def test_where_git_cannot_tell_the_uncommitted_files_the_commits_are_shown(repository) -> None:
    before = (repository.write("dir/b.txt", "its own text\n"), repository.commit_all())[1]
    after = (repository.write("a.txt", "changed\n"), repository.commit_all())[1]
    lost = repository.git("rev-parse", "HEAD:dir/b.txt")
    (repository.top / ".git" / "objects" / lost[:2] / lost[2:]).unlink()
    repository.write("dir/b.txt", "uncommitted\n")
    ours = looked(repository, after, f"^{before}")
    facts = told(repository, CommitRange(1, before, after), has_uncommitted=True, looked=ours)
    assert ([one.id for one in facts.commits], [file.path for file in facts.files]) == ([after], ["a.txt"])
    assert "git did not list all changed files: git diff" in facts.notes[0]


def test_a_commit_that_nobody_has_looked_through_is_shown_by_its_names_alone(repository) -> None:
    before = repository.git("rev-parse", "HEAD")
    after = (repository.write("a.txt", "changed\n"), repository.commit_all("its subject"))[1]
    (commit,), notes = (
        (facts := told(repository, CommitRange(1, before, after), looked=())).commits,
        facts.notes,
    )
    assert (commit.subject, commit.files[0].path, commit.files[0].diff) == (
        "(the message is left out)",
        "a.txt",
        "",
    )
    assert "of 1 commits are left out" in notes[0]
    old = told(repository, CommitRange(1, before, after), looked=(), is_unmarked=True)
    assert (old.commits[0].subject, old.commits[0].files[0].diff[-8:]) == ("its subject", "+changed")
    assert "only keys of known forms" in old.notes[0]


def test_secrets_are_found_over_several_lines_and_only_in_what_was_read_to_its_end(
    repository, monkeypatch
) -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----"
    start = repository.git("rev-parse", "HEAD")
    repository.write("key.pem", f"{key}\n")
    repository.write("other.txt", "words\n")
    one = repository.commit_all("one")
    repository.write("sub-secret-7777/x")
    two = repository.commit_all("two")
    repository.write("long.txt", "x\n" * 5_000)
    three = repository.commit_all("three secret-7777")
    given = (repository, "HEAD", f"^{start}")
    found = looked(*given, secrets=[key, "secret-7777"])
    assert found == (
        LookedCommit(one, ("key.pem",)),
        LookedCommit(two, are_names_secret=True),
        LookedCommit(three, is_message_secret=True),
    )
    monkeypatch.setattr("ralph.git.commit_diffs._MOST_SEARCHED_BYTES", 4_000)
    assert looked(*given, secrets=[key, "secret-7777"]) == found[:2]
    monkeypatch.undo()
    for most in (100, 300, 500):  # git's lists are cut off within a commit
        monkeypatch.setitem(commit_diffs._LIMITS, "most_bytes", most)
        some = looked(*given, secrets=[key, "secret-7777"])
        assert some == found[: len(some)]
        assert len(some) < len(found)


def test_a_commit_is_shown_as_it_is_pushed_whatever_is_in_its_place(repository) -> None:
    before = repository.git("rev-parse", "HEAD")
    nice = (repository.write("a.txt", "nice\n"), repository.commit_all("nice"))[1]
    repository.git("reset", "-q", "--hard", before)
    evil = (repository.write("a.txt", "evil\n"), repository.commit_all("evil"))[1]
    repository.git("replace", evil, nice)
    (commit,) = told(repository, CommitRange(1, before, evil)).commits
    assert (commit.subject, commit.files[0].diff.splitlines()[-1]) == ("evil", "+evil")


def test_a_file_that_becomes_a_link_has_its_own_diff_and_so_have_all_after_it(repository) -> None:
    """Git shows it as two diffs, but counts it in one line. The file in KUBECONFIG must not be read."""
    names = ('"quoted"', "kubeconfig", "two b/ words", "z\tä\n")
    before = repository.git("rev-parse", "HEAD")
    (repository.top / "a.txt").unlink()
    (repository.top / "a.txt").symlink_to("dir/b.txt")
    for name in names:
        repository.write(name, f"words of {name!r}\n")
    after = repository.commit_all()
    environment = {
        "HOME": repository.environment["HOME"],
        "KUBECONFIG": str(repository.top / "kubeconfig"),
    }
    reader = GitReader(repository.seams(), Excerpts(Redactor()), environment=environment)
    (commit,) = reader.facts(asked(repository, CommitRange(1, before, after))).commits
    lines = {file.path: [line for line in file.diff.splitlines() if line[0] in "+-"] for file in commit.files}
    shown = {name: [f"+words of {name!r}"] if name != "kubeconfig" else [] for name in names}
    assert lines == {"a.txt": ["-text", "+dir/b.txt"], **shown}


def test_a_page_does_not_wait_for_minutes_for_the_recorded_commits(repository, tmp_path) -> None:
    before = repository.git("rev-parse", "HEAD")
    after = (repository.write("new"), repository.commit_all())[1]
    question = asked(repository, CommitRange(1, before, after))
    slow = f'case "$*" in *batch-check*) : > {tmp_path}/began; sleep 5;; esac'
    before_git(repository.environment, tmp_path / "bin", slow)
    clock = Leap(tmp_path, 25, ends=False)
    seams = replace(repository.seams(), clock=clock, waiter=InboxWaiter(clock, on_look=clock.look))  # type: ignore[arg-type]
    facts = GitReader(seams, Excerpts(Redactor())).facts(question)
    assert facts.notes == (
        "git could not list the commits: git cat-file took longer than 20 s and was stopped",
    )


PARENTS = {
    "a shallow fetch": "git -c protocol.file.allow=always fetch -q --depth=1 file://$PWD main",
    "a shallow commit": "git rev-parse HEAD > .git/shallow",
    "a graft": "echo $(git rev-parse HEAD) $(git rev-list HEAD | tail -1) > .git/info/grafts",
    "attributes": "echo 'leaked.txt -diff' > .gitattributes",
}


@pytest.mark.parametrize("script", PARENTS.values(), ids=[*PARENTS])
def test_a_page_compares_a_commit_with_the_parents_that_were_searched(repository, script: str) -> None:
    before = repository.git("rev-parse", "HEAD")
    repository.write("leaked.txt", "of old: MY-known-QWERTY-77\n")
    repository.commit_all("one")
    repository.write("y")
    after = repository.commit_all("two")
    marks = looked(repository, "HEAD", f"^{before}", secrets=["MY-known-QWERTY-77"])
    repository.git("-c", f"alias.plant=!{script}", "plant")
    facts = told(repository, CommitRange(1, before, after), looked=marks)
    assert facts.commits
    assert "QWERTY" not in str(facts)
    assert [file.path for file in facts.commits[-1].files] == ["y"]
