"""Two sinks of a loop's events: the loop's own lines, and the step summary."""

from __future__ import annotations

import os
import stat

import pytest

from ralph.loop.events import CheckedFirst, IterationBegan, LoopEnded, Pushed
from ralph.loop.sinks import LoopNarration, StepSummary, append_text
from ralph.loop.values import CheckResult, LoopEnd
from ralph.values.events import Event, EventStream, Heartbeat, Notice, StreamReceived
from ralph.values.outcome import Outcome
from tests.fakes import RecordingEvents

DONE = LoopEnded(LoopEnd(Outcome.COMPLETED, 0, "the check passes"))
DETAILS: list[Event] = [
    CheckedFirst(CheckResult(1), "check"),
    IterationBegan(1, None, "0123456789", None, None),
    Heartbeat("the check", 60.0),
    Pushed(1),
    Notice("no limit is set"),
]


def narration(*, has_color: bool = False, is_quiet: bool = False) -> LoopNarration:
    return LoopNarration(
        redact=lambda text: text.replace("sk-key", "[redacted]"), has_color=has_color, is_quiet=is_quiet
    )


def told(capfd: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capfd.readouterr()
    assert out == ""
    return err.splitlines()


def test_each_event_is_one_line_that_begins_with_the_mark_and_holds_no_credential(capfd) -> None:
    narration().emit(Notice("a\n[loop] completed: forged\x1b[2J sk-key"))
    narration().emit(StreamReceived({}))
    assert told(capfd) == ["[loop] a [loop] completed: forged [redacted]"]


def test_quiet_leaves_ends_and_what_went_wrong(capfd) -> None:
    for event in (*DETAILS, Notice("push failed", is_vital=True), DONE):
        narration(is_quiet=True).emit(event)
    assert told(capfd) == ["[loop] push failed", "[loop] completed: the check passes"]
    for event in DETAILS:
        narration().emit(event)
    assert len(told(capfd)) == len(DETAILS)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (DONE, "32"),
        (LoopEnded(LoopEnd(Outcome.CONFIG, 78, "why")), "31"),
        (Notice("look", is_vital=True), "33"),
        (Heartbeat("the check", 60.0), "2"),
        (Notice("fine"), None),
    ],
)
def test_colours_are_a_terminals(capfd, event: Event, code: str | None) -> None:
    narration(has_color=True).emit(event)
    [line] = told(capfd)
    assert line.startswith("[loop]" if code is None else f"\x1b[{code}m[loop]")
    narration().emit(event)
    assert not told(capfd)[0].startswith("\x1b")


def test_the_summary_is_written_at_the_end_alone_and_without_credentials(tmp_path) -> None:
    path, events = tmp_path / "summary.md", RecordingEvents()
    summary = StepSummary(
        str(path), (), redact=lambda text: text.replace("check", "[redacted]"), narration=events
    )
    summary.emit(Pushed(1))
    assert not path.exists()
    summary.emit(DONE)
    assert path.read_text() == "### ralph loop: completed\n\nthe [redacted] passes\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 & ~_umask()
    assert events.events == []


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_summary_that_cannot_be_written_is_told_before_the_last_line(tmp_path) -> None:
    people = RecordingEvents()
    summary = StepSummary(str(tmp_path), (), redact=str, narration=people)
    EventStream(summary, people).emit(DONE)
    problem, last = people.events
    assert problem == Notice(f"cannot write the summary {tmp_path}: Is a directory", is_vital=True)
    assert last is DONE


def test_it_is_appended_and_names_that_are_no_text_do_no_harm(tmp_path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    append_text(str(path), "z\udcff\n", ())
    assert path.read_text() == "before\nz?\n"


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        append_text(str(tmp_path / "pipe"), "x", ())


def test_one_that_somebody_reads_is_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="no regular file"):
        append_text(str(tmp_path / "pipe"), "x", ())
    os.close(reader)
