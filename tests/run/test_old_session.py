"""A run that opens an old session begins with the state that a later process reads from the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.conversation.messages import RequestShape
from ralph.conversation.next_step import LIMIT_LIFTED
from ralph.conversation.records import moved_record, result_record, run_record, target_record
from ralph.conversation.session import NO_SHAPE, Reading, replay
from ralph.conversation.target import Target
from ralph.machine.waiter import InboxWaiter
from ralph.run.old_session import open_old_session
from ralph.run.opening import prompt_of_resumed
from ralph.run.options import RunOptions, SessionOptions
from ralph.run.parts import RunContext
from ralph.run.session_run import changed_sandbox_note
from ralph.sessions.journal import FileJournal
from ralph.sessions.store import SessionStore
from ralph.settings.tables import Settings
from ralph.values.answer import ToolOutput, ToolResult
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor
from tests.fakes import FakeClock, RecordingEvents, call
from tests.journals.reading import read_lines
from tests.sessions.session_journals import JournalBuilder

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.conversation.session import Session

TARGET = Target("a", "claude-sonnet-5-5", "http://127.0.0.1:1")
ID = "0000000a-0000-4000-8000-00000000000a"
FORK_ID = "0000000b-0000-4000-8000-00000000000b"
SECOND_FORK_ID = "0000000c-0000-4000-8000-00000000000c"


def shape(model: str, cwd: Path) -> RequestShape:
    return RequestShape(model, f"You are ralph.\nWorking directory: {cwd}\nWork.", ())


def killed_in(cwd: Path, *moves: Path) -> JournalBuilder:
    """A session that two targets have answered and that has seen a file, and then moved, always without an answer."""
    told = JournalBuilder(ID, cwd=str(cwd))
    told.append(run_record(shape("claude-sonnet-5-5", cwd), "now", 1, target="a", writable=(str(cwd / "w"),)))
    told.prompt("go").answers(call("c1", "Read", file_path="f"))
    told.append(
        result_record(ToolResult("c1", ToolOutput("text", seen={str(cwd / "f"): "sha256:1"}))),
        target_record("b", shape("claude-opus-5-5", cwd), {}, "a"),
    )
    told.append(*(moved_record(str(where)) for where in moves))
    return told


def opened(folder: Path, cwd: Path, resume: str, fork: str | None = None) -> tuple[Session, Path]:
    """The state with which a run goes to work, and its journal. The run is killed before it records anything."""
    options = SessionOptions(resume=resume, forks=fork is not None, has_moved=True, directory=folder)
    clock, settings = FakeClock(), Settings(targets=(TARGET,))
    context = RunContext(
        *(settings, {}, cwd, InboxWaiter(clock), clock, RecordingEvents(), Redactor()),
        RunOptions(session=options),
    )
    session = open_old_session(context, fork or FORK_ID)
    assert session.old is not None
    assert isinstance(session.journal, FileJournal)
    session.journal.close()
    return session.old, session.journal.path


def read_again(path: Path) -> Session:
    return replay(read_lines(path.read_bytes()).records)


NOTHING_READ = Reading(NO_SHAPE)


def without_name(session: Session) -> Session:
    """The session without what a fork has of its own. What a target can read follows from the rest."""
    return replace(session, id="", created_at="", reading=NOTHING_READ)


@pytest.mark.parametrize("has_moved_before", [False, True])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_killed_run_leaves_what_it_began_with(tmp_path, has_moved_before, is_elsewhere) -> None:
    old, between, new = (tmp_path / name for name in ("old", "between", "new"))
    told = killed_in(old, *([between] if has_moved_before else []))
    here = new if is_elsewhere else between if has_moved_before else old
    folder = tmp_path / "sessions"
    store = SessionStore.for_user({}, folder)
    journal = store.create(ID, old)
    journal.append(*told.records)
    journal.close()
    began = replay(told.records)

    state, fork = opened(folder, here, ID, FORK_ID)
    assert without_name(read_again(fork)) == without_name(state)
    again, _ = opened(folder, here, FORK_ID)
    assert without_name(again) == without_name(state)
    for where in (here, old, tmp_path / "last"):
        of_fork, path = opened(folder, where, FORK_ID, SECOND_FORK_ID)
        assert without_name(read_again(path)) == without_name(of_fork)
        path.unlink()

    state, path = opened(folder, here, ID)
    assert without_name(read_again(path)) == without_name(state)
    assert (state.cwd, dict(state.seen), state.writable) == (
        str(here),
        {str(here / "f"): "sha256:1"},
        (str(here / "w"),),
    )
    assert state.moved_from == (str(old) if here != old else None)
    assert len(state.shapes) == 2
    for each in (state.shape, *state.shapes.values()):
        assert f"Working directory: {here}\\n".encode() in each.head().body
    assert (began.cwd == state.cwd) is (not is_elsewhere)


def test_the_model_is_told_once_that_a_limit_is_lifted() -> None:
    told = JournalBuilder(ID).run().prompt("go").answers(call("c1")).result("c1", "x")
    told.ends(Outcome.LIMIT_REACHED)
    assert prompt_of_resumed(replay(told.records), None, lambda _: None) == LIMIT_LIFTED
    told.run().prompt(LIMIT_LIFTED).ends(Outcome.LIMIT_REACHED)
    assert prompt_of_resumed(replay(told.records), None, lambda _: None) is None


def test_a_report_that_is_only_delivered_needs_no_word_about_the_sandbox() -> None:
    report = call("c1", "final_report", status="success", summary="s")
    told = JournalBuilder(ID).run().prompt("go").answers(report)
    assert changed_sandbox_note(replay(told.records), "Boxed.", "", has_prompt=False) is not None
    told.result("c1", "The report was accepted.")
    assert changed_sandbox_note(replay(told.records), "Boxed.", "", has_prompt=False) is None
    assert changed_sandbox_note(replay(told.records), "Boxed.", "", has_prompt=True) is not None
