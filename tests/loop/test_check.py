"""The check as a real command: its result, its output and its end."""

from __future__ import annotations

import os
import signal
import stat
import sys
from threading import Timer
from typing import TYPE_CHECKING

import pytest

from ralph.loop.check import TAIL_BYTES, CheckLog, LoopCommands, ShellCheck
from ralph.machine.own_programs import ProgramSearch
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.sandbox import disk_work
from ralph.values.ports import SignalReceived
from ralph.values.redaction import Redactor
from tests.fakes.box import FakeBox, no_box, note_of
from tests.processes.children import is_gone
from tests.processes.one_supervisor import SUPERVISOR
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.sandbox.command_box import CommandBox

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prctl")

SECRET = "hunter2-is-the-secret"
REDACTOR = Redactor([SECRET])


def folder_of(directory: Path) -> Path:
    """The loop's own folder, which is not the directory where it works."""
    return directory.with_name(f"{directory.name}-folder")


def check(
    directory: Path,
    command: str,
    *,
    waiter: InboxWaiter | None = None,
    box: CommandBox | None = None,
    tell: Callable[[str], None] = print,
) -> ShellCheck:
    clock = SystemClock()
    return ShellCheck(
        *("check", command, folder_of(directory), {"PATH": os.environ["PATH"]}, REDACTOR),
        commands=LoopCommands(
            *(SUPERVISOR, box or no_box(), directory, waiter or InboxWaiter(clock), clock, tell)
        ),
        search=ProgramSearch(os.environ["PATH"]),
        grace_s=0.1,
    )


def logged(directory: Path, *chunks: bytes, most_bytes: int = 1000) -> CheckLog:
    log = CheckLog(
        folder_of(directory),
        redactor=REDACTOR,
        most_bytes=most_bytes,
    )
    for chunk in chunks:
        assert log.feed(chunk)
    log.close()
    return log


def kept(directory: Path) -> bytes:
    return (folder_of(directory) / "check.log").read_bytes()


@pytest.mark.parametrize(
    ("command", "exit_code", "words"),
    [
        ("true", 0, "passed"),
        ("exit 1", 1, "failed (exit 1)"),
        ("no-such-program", 127, "failed (exit 127: no such command)"),
        ("kill -9 $$", 137, "failed (exit 137)"),
        ("false | true; exit ${PIPESTATUS[0]}", 1, "failed (exit 1)"),
    ],
)
def test_the_verdict_is_the_exit_code(tmp_path, command, exit_code, words) -> None:
    result = check(tmp_path, command).run(20)
    assert (result.exit_code, result.words, result.problem) == (exit_code, words, None)
    assert result.duration_s > 0


def test_both_outputs_are_kept_and_end_the_result_and_nobody_is_asked(tmp_path) -> None:
    result = check(tmp_path, "pwd; cat; echo $GIT_TERMINAL_PROMPT >&2; printf '\\033[31mred\\033[0m\\n'").run(
        20
    )
    assert result.tail == f"{tmp_path}\n0\nred"
    assert kept(tmp_path) == f"{tmp_path}\n0\n\033[31mred\033[0m\n".encode()
    assert stat.S_IMODE((folder_of(tmp_path) / "check.log").stat().st_mode) == 0o600
    check(tmp_path, "echo again").run(20)
    assert kept(tmp_path) == b"again\n"


@linux_only
def test_at_its_time_limit_it_and_all_it_started_is_ended(tmp_path) -> None:
    command = "echo begun; setsid sh -c 'trap \"\" TERM; echo $$ >pid; sleep 99; sleep 99' & sleep 99"
    result = check(tmp_path, command).run(0.3)
    assert (result.exit_code, result.problem, result.tail) == (None, "timed out after 0.3 s", "begun")
    assert not result.passed
    assert is_gone(int((tmp_path / "pid").read_text()))


@linux_only
def test_one_that_ends_its_supervisor_has_no_verdict(tmp_path) -> None:
    result = check(tmp_path, "kill -9 $PPID; sleep 99").run(20)
    assert result.exit_code is None
    assert (
        result.problem
        == "failed: how it ended is unknown, as the process that supervised it is gone; all it had started was stopped"
    )


def test_a_signal_is_raised_once_it_is_gone(tmp_path) -> None:
    waiter = InboxWaiter(SystemClock())
    Timer(0.3, waiter.inbox.note_signal, [signal.SIGINT]).start()
    with pytest.raises(SignalReceived, match="SIGINT"):
        check(tmp_path, "echo $$ >pid; exec sleep 99", waiter=waiter).run(20)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_a_check_tells_people_and_the_next_prompt_what_was_undone(tmp_path) -> None:
    told: list[str] = []
    result = check(tmp_path, "exit 1", box=FakeBox("x"), tell=told.append).run(20)
    assert told == [f"check: {note_of('x')}"]
    assert note_of("x") in result.tail


def test_a_stopped_check_tells_what_was_undone(tmp_path) -> None:
    waiter, told = InboxWaiter(SystemClock()), list[str]()
    Timer(0.3, waiter.inbox.note_signal, [signal.SIGINT]).start()
    box = FakeBox("x")
    with pytest.raises(SignalReceived):
        check(tmp_path, "exec sleep 99", waiter=waiter, box=box, tell=told.append).run(20)
    assert told == [f"check: {note_of('x')}"]


def test_one_whose_disk_does_not_answer_is_not_started(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(disk_work, "_ANSWERS_WITHIN_S", 0.05)
    result = check(tmp_path, "touch ran", box=FakeBox(silent="look")).run(20)
    assert result.exit_code is None
    assert (result.problem or "").startswith(
        "could not be started: a file system that the sandbox must look at"
    )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("true \0", "could not be started: it holds what no command line can"),
        (f": {'x' * 200_000}", "could not be started: Argument list too long"),
    ],
)
def test_one_that_cannot_be_started_says_why(tmp_path, command, problem) -> None:
    result = check(tmp_path, command).run(20)
    assert (result.exit_code, result.problem) == (None, problem)


def test_without_its_directory_it_says_so(tmp_path) -> None:
    result = check(tmp_path / "gone", "true").run(20)
    assert (result.exit_code, result.problem) == (
        None,
        f"could not be started: the directory {tmp_path / 'gone'} is gone",
    )


@linux_only
@pytest.mark.parametrize("place", ["link to a full disk", "file"])
def test_a_log_that_cannot_be_kept_does_not_change_the_verdict(tmp_path, place) -> None:
    if place == "file":
        (folder_of(tmp_path)).write_text("")
    else:
        (folder_of(tmp_path)).mkdir()
        (folder_of(tmp_path) / "check.log").symlink_to("/dev/full")
    result = check(tmp_path, "seq 100000; exit 3").run(20)
    assert result.exit_code == 3
    assert result.tail.endswith("\n99999\n100000")


def test_a_write_that_fails_ends_the_log_and_nothing_else(tmp_path) -> None:
    log = CheckLog(folder_of(tmp_path), redactor=Redactor())
    assert log._descriptor is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._descriptor)
    os.close(full)
    assert log.feed(b"one\n")
    assert log.feed(b"two\n")
    log.close()
    assert log.tail() == "one\ntwo"


@pytest.mark.parametrize(
    ("chunks", "content"),
    [
        ([b"x" * 10], b"x" * 10),
        ([b"x" * 11], b"x" * 10 + b"\n[ralph: the output continues; only its first 10 bytes are kept]\n"),
        (
            [b"x" * 10, b"y"],
            b"x" * 10 + b"\n[ralph: the output continues; only its first 10 bytes are kept]\n",
        ),
        (
            [b"x" * 9, b"yz", b"z"],
            b"x" * 9 + b"y\n[ralph: the output continues; only its first 10 bytes are kept]\n",
        ),
    ],
)
def test_the_log_is_bounded_and_says_so_and_the_end_is_known_all_the_same(tmp_path, chunks, content) -> None:
    log = CheckLog(folder_of(tmp_path), redactor=Redactor(), most_bytes=10)
    for chunk in chunks:
        assert log.feed(chunk)
    log.close()
    assert kept(tmp_path) == content
    assert log.tail() == b"".join(chunks).decode()


@every_row("cut", range(1, len(SECRET)))
def test_a_credential_in_two_pieces_is_in_neither_place(tmp_path, cut) -> None:
    raw, directory = SECRET.encode(), tmp_path / str(cut)
    log = logged(directory, b"key: " + raw[:cut], raw[cut:] + b" end\n")
    assert log.tail() == "key: [redacted] end"
    assert kept(directory) == b"key: [redacted] end\n"


def test_a_credential_that_a_colour_divides_is_not_in_the_tail(tmp_path) -> None:
    log = logged(tmp_path, f"\033[31m{SECRET[:5]}\033[0m{SECRET[5:]}\n".encode())
    assert log.tail() == "[redacted]"


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        pytest.param("x" * TAIL_BYTES, "x" * TAIL_BYTES, id="at the bound"),
        pytest.param("y" + "x" * TAIL_BYTES, "x" * TAIL_BYTES, id="one long line"),
        pytest.param("yy\n" + "x" * TAIL_BYTES, "x" * TAIL_BYTES, id="at the border of a line"),
        pytest.param(
            f"{'y' * 50}\n{'x' * 4000}\n{'z' * 90}", f"{'x' * 4000}\n{'z' * 90}", id="a cut line goes"
        ),
        pytest.param(
            f"{'y' * 3000}\n{'z' * 1500}", f"{'y' * 2595}\n{'z' * 1500}", id="no long cut line is lost"
        ),
        pytest.param("\u20ac" * 1366, "\u20ac" * 1365, id="a cut character goes"),
        pytest.param("a\n" * 200_000 + "end\n\n", "a\n" * 2046 + "end", id="much"),
    ],
)
def test_the_tail_has_at_most_4_kb_and_begins_where_text_does(tmp_path, text, tail) -> None:
    log = logged(tmp_path, text.encode())
    assert log.tail() == tail
    assert len(tail.encode()) <= TAIL_BYTES


def test_a_note_ends_the_tail_within_its_bound(tmp_path) -> None:
    assert logged(tmp_path, b"x" * 9999).tail("\n[note]") == "x" * (TAIL_BYTES - 7) + "\n[note]"
