"""The log of a loop and the live file: whole lines, bounded files, no credentials, and no failure that harms a run."""

from __future__ import annotations

import errno
import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

from ralph.output.iteration_log import IterationLog, LiveFile, LiveIteration, LogFiles, read_live
from ralph.output.status_line import LiveRun
from ralph.values import events as ev
from ralph.values.answer import ToolCall
from tests.fakes import FakeClock
from tests.rows import every_row

AT = datetime(2026, 11, 23, 2, 0, tzinfo=UTC)
BASH = ToolCall("call_1", "Bash", {"command": "echo sk-key"})


def without_key(text: str) -> str:
    return text.replace("sk-key", "[redacted]")


def files(folder: Path, told: list[str] | None = None, most_bytes: int = 4000) -> LogFiles:
    return LogFiles(folder, without_key, (told if told is not None else []).append, most_bytes)


def test_the_log_is_bounded_and_every_line_is_whole_and_private(tmp_path: Path) -> None:
    first, second = files(tmp_path), files(tmp_path)  # of the loop and of an iteration
    for number in range(200):
        (first, second)[number % 2].append(AT, [{"number": number, "text": "x" * 50}], [f"line {number}"])
    for name in ("log.jsonl", "log.txt"):
        both = [tmp_path / f"{name}.1", tmp_path / name]
        assert {stat.S_IMODE(path.stat().st_mode) for path in both} == {0o600}
        assert all(path.stat().st_size <= 4000 for path in both)
    lines = [
        line for name in ("log.jsonl.1", "log.jsonl") for line in (tmp_path / name).read_text().splitlines()
    ]
    numbers = [json.loads(line)["number"] for line in lines]
    assert numbers == list(range(200 - len(numbers), 200))
    assert len(numbers) > 40


def test_a_log_that_cannot_be_written_is_one_notice_and_is_tried_again(tmp_path: Path) -> None:
    told: list[str] = []
    log = files(tmp_path, told)
    (tmp_path / "log.txt").mkdir()
    log.append(AT, [], ["one"])
    log.append(AT, [], ["two"])
    (tmp_path / "log.txt").rmdir()
    log.append(AT, [], ["three"])
    assert told == [f"the loop's log in {tmp_path} is incomplete, the work continues: Is a directory"]
    assert (tmp_path / "log.txt").read_text().endswith(" three\n")


def test_a_line_that_fits_only_partly_on_the_disk_is_taken_back(tmp_path: Path, monkeypatch) -> None:
    told: list[str] = []
    log = files(tmp_path, told)
    log.append(AT, [], ["one"])
    before = (tmp_path / "log.txt").read_bytes()
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        log.append(AT, [], ["two"])
    assert (tmp_path / "log.txt").read_bytes() == before
    assert told[0].endswith(os.strerror(errno.ENOSPC))


def test_a_full_log_whose_successor_cannot_be_opened_is_closed_once(tmp_path: Path, monkeypatch) -> None:
    """A second close would hit whatever another thread has opened under the same number meanwhile."""
    told: list[str] = []
    log = files(tmp_path, told, most_bytes=10)
    log.append(AT, [], ["one"])
    move = os.replace

    def move_and_block(old: str, new: str) -> None:
        move(old, new)
        Path(old).mkdir()

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", move_and_block)
        log.append(AT, [], ["two"])
    assert told[0].endswith(os.strerror(errno.EISDIR))  # and not EBADF


def test_an_iteration_logs_events_and_lines_without_deltas_and_credentials(tmp_path: Path) -> None:
    log = IterationLog(files(tmp_path, most_bytes=9**9), FakeClock(), 3, "s-new", ralph_version="1")
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hello"}}
    message = {
        "id": "m",
        "content": [{"type": "text", "text": "Hello.\nsk-key\n[loop] forged" + "y" * 70_000}],
    }
    for event in (
        ev.SessionOpened("s-1"),
        ev.TurnStarted(1),
        ev.StreamReceived(delta),
        ev.AnswerAccepted(message),
        ev.ToolStarted(BASH),
    ):
        log.emit(event)
    objects = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {(one["iteration"], one["session_id"]) for one in objects} == {(3, "s-1")}
    assert [one.get("subtype", one["type"]) for one in objects] == [
        *("session_opened", "turn_started", "assistant", "tool_started")
    ]
    (block,) = objects[2]["message"]["content"]
    assert block["text"].startswith("Hello.\n[redacted]\n")
    assert block["text"].endswith(" more characters]")
    lines = [line[20:] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert lines[:2] == ["Hello.", "[redacted]"]
    assert lines[2].startswith("| [loop] forged")
    assert lines[3:] == ["[tool] Bash: echo [redacted]"]


def live_file(folder: Path, clock: FakeClock) -> LiveFile:
    first = LiveIteration(os.getpid(), 3, "s-new", 1.0, LiveRun(1.0), max_turns=9)
    return LiveFile(str(folder), first, clock, without_key)


def test_the_live_file_is_current_within_a_quarter_of_a_second(tmp_path: Path) -> None:
    clock = FakeClock()
    live = live_file(tmp_path, clock)
    first = read_live(tmp_path)
    assert first is not None
    assert (first.number, first.max_turns, first.run.turn) == (3, 9, 0)
    live.emit(ev.TurnStarted(1))
    live.emit(ev.ToolStarted(BASH))
    assert read_live(tmp_path) == first
    clock.seconds += 0.25
    live.look()
    now = read_live(tmp_path)
    assert now is not None
    assert [tool.text for tool in now.run.tools] == ["Bash: echo [redacted]"]
    assert stat.S_IMODE((tmp_path / "live.json").stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"live.json"}


def test_a_live_file_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    live = live_file(tmp_path / "gone", FakeClock())
    live.emit(ev.TurnStarted(1))
    assert read_live(tmp_path / "gone") is None


@every_row("text", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff", b"[" * 100_000])
def test_a_live_file_that_makes_no_sense_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "live.json").write_bytes(text)
    assert read_live(tmp_path) is None
