"""The guard must judge the file that was opened, not the path that was asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.machine.files.opened_file import opened_path
from ralph.machine.files.paths import planted_link, untrusted_places
from ralph.places.gather import gather_places
from ralph.places.git_places import git_places
from ralph.tools.path_guard import PathGuard
from ralph.values.answer import ToolCall, ToolError
from ralph.values.redaction import Redactor
from tests.fakes import FakeClock
from tests.rows import every_row
from tests.tools.conftest import SECRET, Tools

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id").write_text("key")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/innocent").write_text("plain")
    return tmp_path / "home"


@pytest.fixture
def work(home: Path) -> Path:
    return home.parent / "work"


@pytest.fixture
def guard(home: Path, work: Path) -> PathGuard:
    return PathGuard(lambda: gather_places([str(work)], {"HOME": str(home)}), own_files=lambda: None)


def test_an_open_secret_is_refused_whatever_name_it_was_opened_by(guard, home, work) -> None:
    """Somebody exchanges the file between the check and the open. The file may also have lost its name since."""
    judged = guard.refuse_read(work / "innocent", "innocent")
    descriptor = os.open(home / ".ssh/id", os.O_RDONLY)
    for remove in (lambda: None, (home / ".ssh/id").unlink):
        remove()
        with pytest.raises(ToolError, match="holds SSH keys"):
            guard.refuse_opened(descriptor, work / "innocent", "innocent", judged)
    os.close(descriptor)


def test_a_write_is_judged_by_the_directory_that_it_opened(make_tools, work) -> None:
    """Between the plan and the write, a directory in the path becomes a link to `.git/hooks`."""
    (work / ".git/hooks").mkdir(parents=True)
    (work / "dir").mkdir()
    tools = make_tools(cwd=work)
    call = ToolCall("1", "Write", {"file_path": "dir/pre-commit", "content": "x"})
    tools.box.plan(call)
    (work / "dir").rmdir()
    (work / "dir").symlink_to(".git/hooks")
    [(output, _)] = tools.box.run([call])
    assert output.is_error
    assert "git's own" in output.content
    assert list((work / ".git/hooks").iterdir()) == []


def test_the_name_of_an_open_file_is_what_the_kernel_says(work) -> None:
    (work / "link").symlink_to("innocent")
    (work / "a (deleted)").write_text("its name ends like that of a deleted file")
    for name, real in (("link", "innocent"), ("innocent", "innocent"), ("a (deleted)", "a (deleted)")):
        descriptor = os.open(work / name, os.O_RDONLY)
        assert opened_path(descriptor, str(work / name)) == str(work / real)
        os.close(descriptor)
    reading, writing = os.pipe()
    assert opened_path(reading, f"/dev/fd/{reading}") is None
    os.close(reading)
    os.close(writing)


def test_a_place_that_is_itself_a_link_is_protected_where_it_leads_to(home, work) -> None:
    (home.parent / "elsewhere/aws").mkdir(parents=True)
    (home / ".aws").symlink_to(home.parent / "elsewhere/aws")
    table = gather_places([str(work)], {"HOME": str(home)})
    assert table.why_not_read(str(home.parent / "elsewhere/aws/credentials")) is not None
    assert table.why_not_read(str(home.parent / "elsewhere/other")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_bind_mount_is_no_way_around(guard, make_tools, home, work) -> None:
    mounted = work / "mounted"
    mounted.mkdir()
    if subprocess.run(["mount", "--bind", home, mounted], check=False, capture_output=True).returncode:
        pytest.skip("mounts are not allowed here")
    try:
        with pytest.raises(ToolError, match="holds SSH keys"):
            guard.refuse_read(mounted / ".ssh/id", "mounted/.ssh/id")
        assert ".ssh" in guard.hidden_beneath(str(mounted)).paths
        assert guard.hidden_beneath(str(work)).hides("mounted/.ssh/id")
        assert not guard.hidden_beneath(str(work)).hides("innocent")
        tools = make_tools(cwd=work, user_environment={"HOME": str(home)})
        assert tools.ok("Glob", pattern="**/*") == "innocent"
        assert tools.ok("Grep", pattern="key|plain") == "innocent"
    finally:
        subprocess.run(["umount", mounted], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_reads_of_other_users_what_an_ordinary_user_could(make_tools, work, tmp_path_factory) -> None:
    """Commands of root have no capabilities, and so cannot read more either."""
    theirs = tmp_path_factory.mktemp("theirs")
    for name in ("closed/plain", "open/closed", "open/plain", "open/own"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_text(f"word of {name}")
        os.chown(theirs / name, 0 if name == "open/own" else 1234, 1234)
    os.chown(theirs / "closed", 1234, 1234)
    (theirs / "closed").chmod(0o700)
    (theirs / "open/closed").chmod(0o640)
    (theirs / "open/own").chmod(0o600)
    tools = make_tools(cwd=work)
    for name, is_read in (
        ("closed/plain", False),
        ("open/closed", False),
        ("open/plain", True),
        ("open/own", True),
    ):
        output = tools.call("Read", {"file_path": str(theirs / name)})
        assert output.is_error is not is_read
        assert is_read or "belongs to another user alone" in output.content
    found = tools.ok("Grep", pattern="word", path=str(theirs))
    assert {line.rpartition("/")[2] for line in found.splitlines()} >= {"own"}
    assert "closed" not in found
    roots = make_tools(cwd=theirs)
    assert "word of closed/plain" in roots.ok("Read", file_path=str(theirs / "closed/plain"))


def test_git_directories_are_found_without_git(work) -> None:
    (work / "sub").mkdir()
    (work / ".git").write_text("gitdir: ../main/.git/worktrees/work\n")
    own = work.parent / "main/.git/worktrees/work"
    own.mkdir(parents=True)
    (own / "commondir").write_text("../..\n")
    found = git_places([str(work / "sub")], {}, os.getuid()).claimed
    assert found == (str(own), str(work.parent / "main/.git"))
    assert git_places([str(work.parent)], {"GIT_DIR": "odd"}, os.getuid()).claimed == (
        str(work.parent / "odd"),
    )


@every_row(
    ("content", "name"),
    [
        (b"s \n", "s "),
        (b" s\r\n\n", " s"),
        ("s\u00a0\n".encode(), "s\u00a0"),
        (b"\ns\n", "\ns"),
        (b"s\nt\n", "s\nt"),
        (b"s\0t\n", "s"),
        (b"s\n\0", "s\n"),
        (b"./" * 4500 + b"s\n", "s"),
        (b" ", " "),
    ],
)
def test_the_shared_git_directory_is_the_one_that_git_uses(work, content, name) -> None:
    shutil.rmtree(work / ".git", ignore_errors=True)
    fresh = work.parent / "fresh"
    if not fresh.exists():  # one for all rows, without the example hooks that git puts into each
        subprocess.run(["git", "init", "-q", "--template=", work], check=True)
        (work / ".git").rename(fresh)
    shutil.copytree(fresh, work / ".git")
    shutil.copytree(fresh, work / ".git" / name)
    (work / ".git/commondir").write_bytes(content)
    ask = ["git", "-C", str(work), "rev-parse", "--path-format=absolute", "--git-path", "hooks"]
    used = subprocess.run(ask, capture_output=True, check=True).stdout.decode().removesuffix("\n")
    assert git_places([str(work)], {}, os.getuid()).claimed == (str(work / ".git"), str(work / ".git" / name))
    assert used == str(work / ".git" / name / "hooks")


def test_a_link_is_planted_where_it_lies_in_the_repository_and_nowhere_else(home, work) -> None:
    (work / ".git").mkdir()
    (work / "sub").mkdir()
    (work / "sub/out").symlink_to(home)
    (work / "loop").symlink_to("loop")
    (home / "into").symlink_to(work)
    tops = untrusted_places([work / "sub", work])
    assert tops[0] == str(work)
    assert len(tops) < 4, "and what all commands may write"
    assert planted_link(str(work / "sub/out/.ssh/id"), tops) == str(work / "sub/out")
    assert planted_link(str(home / "into/sub/out/.ssh/id"), tops) == str(work / "sub/out")
    assert planted_link(str(work / "loop"), tops) == str(work / "loop")
    assert planted_link(str(home / "into/innocent"), tops) is None
    assert planted_link("/dev/stdin", ("/",)) is None


def test_a_known_secret_is_found_wherever_Read_can_read(tmp_path) -> None:  # noqa: N802 - the tool's name
    (tmp_path / "work").mkdir()
    with (tmp_path / "long.txt").open("w") as file:
        for _ in range(65):
            file.write(("p" * 1023 + "\n") * 1024)
        file.write(f"{SECRET}\n")
    tools = Tools(tmp_path / "work", user_environment={})
    try:
        assert "holds a credential of this run" in tools.error("Read", file_path="../long.txt", offset=66_560)
    finally:
        tools.box.close()


def test_a_search_for_secrets_ends_in_time_and_looks_through_a_file_once(tmp_path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "f0").write_bytes(b"a" * (5 << 20))
    for number in range(1, 5):
        (tmp_path / f"f{number}").hardlink_to(tmp_path / "f0")
    looked_at: list[str] = []

    class Looking(Redactor):
        def redact(self, text: str) -> str:
            looked_at.append(text)
            return text

    work = str(tmp_path / "work")
    guard = PathGuard(
        lambda: gather_places([work], {"HOME": "/nowhere"}), lambda: None, redactor=Looking(["a-secret9"])
    )
    hidden = guard.hidden_beneath(str(tmp_path))
    assert hidden.holds_secret("f0", lambda: len(looked_at) == 3), "what is not known is not shown"
    assert len(looked_at) == 3
    looked_at.clear()
    hidden = guard.hidden_beneath(str(tmp_path))
    assert not any(hidden.holds_secret(f"f{number}", lambda: False) for number in range(5))
    assert len(looked_at) == 5
    (tmp_path / "work/inside").hardlink_to(tmp_path / "f0")
    hidden = guard.hidden_beneath(str(tmp_path))
    assert not hidden.holds_secret("work/inside", lambda: True), "what is in a root is shown as it is"
    assert hidden.holds_secret("f0", lambda: True)


def test_a_search_says_that_its_time_ended_while_it_looked_for_secrets(tmp_path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/f").write_bytes(b"a\n" * (1 << 20))
    tools = Tools(tmp_path / "work", user_environment={}, search_timeout_s=60.0)
    clock = FakeClock()

    class Slow(Redactor):
        def redact(self, text: str) -> str:
            clock.seconds = 61.0
            return text

    tools.box.context = replace(tools.box.context, clock=clock, redactor=Slow([SECRET]))
    try:
        assert "[stopped after 60 s" in tools.error("Grep", pattern="a", path="../other")
    finally:
        tools.box.close()


@every_row("encoding", ["utf-8", "utf-16", "latin-1"])
def test_a_file_outside_the_roots_that_holds_a_known_secret_is_refused(encoding, tmp_path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    for place in (work, other):
        place.mkdir(exist_ok=True)
        (place / "a.txt").write_text("plain\n" * 200_000 + f"key = {SECRET}\nplain é\n", encoding)
        (place / "b.txt").write_text("plain\nkey\n")
    tools = Tools(work, user_environment={})
    try:
        for name, arguments in (
            ("Read", {"file_path": "../other/a.txt"}),
            ("Grep", {"pattern": "plain", "path": "../other/a.txt"}),
        ):
            assert "holds a credential of this run" in tools.error(name, **arguments)
        assert "plain" in tools.ok("Read", file_path="../other/b.txt", limit=1)
        found = tools.ok("Grep", pattern="key", path="../other", output_mode="content")
        assert "b.txt" in found
        assert "a.txt" not in found
        for mode in ("content", "count", "files_with_matches"):
            said = {
                tools.ok("Grep", pattern=one, path="../other", output_mode=mode)
                for one in (SECRET[:6], "nowhere")
            }
            assert len(said) == 1, "a search does not tell what the secret is"
        assert "a.txt" in tools.ok("Glob", pattern="*", path="../other"), "its name is no secret"
        assert SECRET in tools.ok("Read", file_path="a.txt", offset=200_001), (
            "what is in a root is shown as it is"
        )
    finally:
        tools.box.close()
