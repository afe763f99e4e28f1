"""`ralph sessions` with journals that somebody has changed, that a newer ralph wrote, or that are empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.conversation.journal_lines import sealed
from ralph.conversation.records import FORMAT
from ralph.mock_api import MockApi, Scenario
from tests.program.conftest import ralph_in
from tests.program.kept_sessions import HELLO, LOOKS, listed, only_journal
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.program.conftest import Ralph


@pytest.fixture(scope="module")
def ralph(tmp_path_factory) -> Ralph:
    return ralph_in(tmp_path_factory.mktemp("looking"))


@pytest.fixture(scope="module")
def completed(ralph) -> tuple[Path, bytes]:
    """The path and the content of the journal of one session, which has a failed call."""
    with MockApi(Scenario([LOOKS, HELLO])) as server:
        assert ralph("look at it", "--base-url", server.base_url).code == 0
    return only_journal(ralph), only_journal(ralph).read_bytes()


@pytest.fixture
def session(completed) -> Path:
    """The path of that journal, with its original content."""
    path: Path = completed[0]
    path.write_bytes(completed[1])
    return path


def damage(path: Path, line: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b'"', b"'", 1)
    path.write_bytes(b"".join(lines))


def last_line_of(kind: str, path: Path) -> int:
    """The number of the last line with this kind of record, counted from 1."""
    lines = path.read_bytes().splitlines()
    return max(number for number, line in enumerate(lines, 1) if f'"kind":"{kind}"'.encode() in line)


def test_of_a_damaged_session_everything_up_to_the_damage_is_shown(ralph, session) -> None:
    line = last_line_of("assistant", session)
    damage(session, line)
    assert listed(ralph)[0]["outcome"] == "damaged"
    assert "look at it" in ralph("sessions", "ls").stdout
    shown = ralph("sessions", "show", code=74)
    assert "  | found" in shown.stdout
    assert shown.stdout.endswith(
        f"[damaged] line {line} does not match its checksum; what follows cannot be read\n"
    )
    for form in ("md", "json"):
        exported = ralph("sessions", "export", "--format", form, code=74)
        assert "I look." in exported.stdout
        assert f"line {line} does not match its checksum" in exported.stdout
        assert exported.stderr == (
            f"ralph: the journal {session} is damaged: line {line} does not match its checksum\n"
        )


@every_row("line", range(1, 14))
def test_damage_in_any_line_is_shown_without_a_traceback(ralph_here, completed, line) -> None:
    session, whole = completed
    session.write_bytes(whole)
    damage(session, line)
    for command in (["show"], ["export"], ["export", "--format", "json"]):
        ran = ralph_here("sessions", *command, code=74)
        assert f"line {line} does not match" in ran.stdout
        assert "Traceback" not in ran.stderr
    assert ralph_here("sessions", "ls").stdout.split()[3] == "damaged"


@pytest.mark.parametrize("name", ["user", "assistant", "tool_result", "event", "run", "ended", "session"])
def test_a_record_that_no_run_writes_is_damage_and_no_traceback(ralph_here, session, name) -> None:
    whole = session.read_bytes()
    session.write_bytes(whole + sealed({"seq": len(whole.splitlines()), "kind": name}))
    for command in (["show"], ["export"], ["export", "--format", "json"]):
        ran = ralph_here("sessions", *command)
        assert "Traceback" not in ran.stderr
        assert ran.code == 74
        assert f"line {len(whole.splitlines()) + 1} makes no sense: Object missing required field" in (
            ran.stdout + ran.stderr
        )
    assert ralph_here("sessions", "ls").code == 0


def test_a_session_of_a_newer_ralph_is_named_and_not_read(ralph, ralph_here, session) -> None:
    fields = {
        "format": FORMAT + 1,
        "ralph": "9.9",
        "id": session.stem,
        "cwd": str(ralph.cwd),
        "created_at": "",
    }
    session.write_bytes(sealed({"seq": 0, "kind": "session", **fields}) + b"something quite new\n")
    assert "newer format" in ralph_here("sessions", "ls").stdout
    for command in ("show", "export"):
        ran = ralph_here("sessions", command)
        assert (ran.code, ran.stdout) == (78, "")
        assert "it was made by ralph 9.9" in ran.stderr
        assert len(ran.stderr.splitlines()) == 1
