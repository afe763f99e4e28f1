"""Two sinks of a loop's events: the loop's own lines, and the step summary."""

from __future__ import annotations

import os

import pytest

from ralph.loop.events import LoopEnded
from ralph.loop.sinks import LoopNarration, append_text
from ralph.loop.values import LoopEnd
from ralph.values.events import Event, Heartbeat, Notice, StreamReceived
from ralph.values.outcome import Outcome

DONE = LoopEnded(LoopEnd(Outcome.COMPLETED, 0, "the check passes"))


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
    with pytest.raises(OSError, match="not a regular file"):
        append_text(str(tmp_path / "pipe"), "x", ())
    os.close(reader)
