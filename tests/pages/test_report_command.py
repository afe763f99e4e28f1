"""`ralph report`: which loop or session it shows, where it writes the page, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.loop.record import LoopStore
from ralph.loop.state import LoopState
from ralph.loop.values import LoopEnd, LoopPlan
from ralph.pages.command import MARK_OF_PAGE, place_of_page, write_report
from ralph.sessions.store import SessionStore
from ralph.values.outcome import Outcome, UsageError
from tests.processes.scripts import script
from tests.rows import every_row
from tests.sessions.session_journals import SESSION_ID, JournalBuilder, completed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.loop.record import FileRecord


@pytest.fixture
def section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, which is the working directory, and a state directory beside it."""
    made = tmp_path / "work"
    made.mkdir()
    monkeypatch.setenv("RALPH_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def report(section: Path) -> Callable[..., int]:
    def run(what: str | None = None, **fields: object) -> int:
        return write_report(what, section, **fields)  # type: ignore[arg-type]

    return run


def kept(section: Path, data: bytes, session_id: str = SESSION_ID) -> Path:
    store = SessionStore.for_user(os.environ)
    path = store.place_of(section) / f"{session_id}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def loop_kept(section: Path, reason: str) -> FileRecord:
    record = LoopStore.for_user(os.environ, section).begin()
    plan = LoopPlan(str(section), str(section), prompt="Do it all.")
    end = LoopEnd(Outcome.COMPLETED, 0, reason)
    moment = "2026-11-21T12:00:00+00:00"
    record.save(LoopState(plan, moment, 4711, updated_at=moment, ended=end))
    return record


def test_the_newest_loop_is_shown_else_the_newest_session(section, report, capfd) -> None:
    kept(section, completed().data)
    assert report() == 0
    assert f"session {SESSION_ID[:8]}: completed" in capfd.readouterr().out
    loop_kept(section, "the first end")
    loop_kept(section, "the second end")
    assert report() == 0
    assert "loop 2: completed: the second end" in capfd.readouterr().out
    for named in ("1", "0001"):
        assert report(named) == 0
        assert "loop 1: completed: the first end" in capfd.readouterr().out
    assert (report(SESSION_ID[:6]), report(".")) == (0, 0)
    assert capfd.readouterr().out.count(": completed") == 1 + 3


def test_what_is_not_there_is_a_usage_error_that_names_what_is(section, report) -> None:
    with pytest.raises(UsageError, match="no loop and no session"):
        report()
    loop_kept(section, "done")
    with pytest.raises(UsageError, match=r"no loop 7 .* loops of this directory: 1"):
        report("7")
    with pytest.raises(UsageError, match="no session has an id that begins with 'beef'"):
        report("beef")
    (section / "below").mkdir()
    with pytest.raises(UsageError, match=r"no loop and no session of .*/below"):
        report("below")
    with pytest.raises(UsageError, match="no directory"):
        report("./nowhere")


def test_a_page_is_replaced_and_no_other_file_unless_it_is_named(section, report) -> None:
    kept(section, completed().data)
    page = section / "ralph-report.html"
    page.write_text("my own notes")
    with pytest.raises(UsageError, match="`ralph report` did not write it"):
        report()
    assert page.read_text() == "my own notes"
    page.unlink()
    assert report() == 0
    page.write_bytes(page.read_bytes() + b"<!-- before -->")
    assert report() == 0
    assert MARK_OF_PAGE in page.read_bytes()[:2048]
    assert b"<!-- before -->" not in page.read_bytes()
    other = section / "notes.html"
    other.write_text("mine")
    assert report(output=str(other)) == 0
    assert MARK_OF_PAGE in other.read_bytes()


def test_no_page_is_written_through_a_planted_link_or_into_a_git_directory(section, report, tmp_path) -> None:
    kept(section, completed().data)
    (section / ".git").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "page.html").write_text("kept")
    (section / "away").symlink_to(outside)
    (section / "ralph-report.html").symlink_to(outside / "page.html")
    with pytest.raises(UsageError, match="did not write it"):
        report()
    with pytest.raises(UsageError, match="leads out of its repository"):
        report(output=str(section / "away" / "page.html"))
    with pytest.raises(UsageError, match="git's own"):
        report(output=str(section / ".git" / "page.html"))
    (section / "inner").symlink_to(section / ".git")
    with pytest.raises(UsageError, match="git's own"):
        report(output=str(section / "inner" / "page.html"))
    assert (outside / "page.html").read_text() == "kept"
    assert report(output=str(section / "ralph-report.html")) == 0  # the link itself is replaced
    assert (outside / "page.html").read_text() == "kept"


@every_row(
    "place",
    [
        ".git",
        ".mcp.json",
        "sub/.MCP.json",
        ".claude/settings.json",
        ".claude/settings.local.json",
        "sub/ralph.toml",
        "inner/settings.json",
        "../home/.ssh/config",
        "../home/.config/ralph/config.toml",
        "../state/page.html",
    ],
)
def test_a_page_is_no_protected_file(section, report, tmp_path, monkeypatch, place) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    kept(section, completed().data)
    if not (section / "inner").exists():
        for directory in ("work/.claude", "work/sub", "home/.ssh", "home/.config/ralph"):
            (tmp_path / directory).mkdir(parents=True)
        (section / "inner").symlink_to(section / ".claude")
    with pytest.raises(UsageError, match="is protected"):
        report(output=os.path.normpath(section / place))
    with pytest.raises(UsageError, match="is protected"):
        place_of_page(os.path.normpath(section / place), (section,))


def test_with_a_dash_the_page_is_standard_output_and_the_headline_is_not_in_it(
    section, report, capfdbinary
) -> None:
    kept(section, completed().data)
    assert report(output="-") == 0
    out, err = capfdbinary.readouterr()
    assert MARK_OF_PAGE in out
    assert out.rstrip().endswith(b"</html>")
    assert err.startswith(b"ralph: session")
    assert not list(section.iterdir())


def test_a_damaged_journal_is_shown_up_to_the_damage_with_exit_74(section, report, capfd) -> None:
    path = kept(section, completed().data)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b"delivered", b"delivared")]))
    assert report(output="-") == 74
    told = capfd.readouterr()
    assert "does not match its checksum" in told.err
    assert "fix the failing test" in told.out
    assert "$?" in told.out, "what comes after the damage may have cost something"


@pytest.mark.parametrize("place", ["in the work", "elsewhere"])
def test_the_page_is_shown_by_the_users_own_program(section, report, tmp_path, monkeypatch, place) -> None:
    """Also if the user is elsewhere, and in PATH is a directory that commands of the work could write."""
    added = tmp_path / "added"
    added.mkdir()
    told = JournalBuilder().run(writable=(str(added),)).prompt("look")
    kept(section, told.data)
    if place == "elsewhere":
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
    opens = f'echo "$1" > {tmp_path}/opened; env > {tmp_path}/given; basename x'
    programs = script(tmp_path / "bin/xdg-open", opens).parent
    for name in ("xdg-open", "basename"):
        for planted in (section, added):
            script(planted / name, f"touch {tmp_path}/planted-ran")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-of-the-user")
    monkeypatch.setenv("BASH_ENV", str(section / "xdg-open"))
    monkeypatch.setenv("PATH", f"{section}:{added}:{programs}:{os.environ['PATH']}")
    assert report(is_opened=True) == 0
    assert (tmp_path / "opened").read_text().strip() == (Path.cwd() / "ralph-report.html").as_uri()
    given = (tmp_path / "given").read_text()
    assert "DISPLAY=:0" in given
    assert "sk-ant-of-the-user" not in given
    assert "BASH_ENV" not in given
    assert not (tmp_path / "planted-ran").exists()
