"""The record on disk must be complete and private, and an error must say what is wrong with it."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ralph.loop.record import FileRecord, RecordError
from ralph.loop.state import IterationRecord, LoopState, iteration_line, state_text
from ralph.loop.values import LoopPlan
from ralph.machine.launcher import PR_SET_DUMPABLE, prctl
from ralph.values.outcome import Outcome

STATE = LoopState(LoopPlan("/work", "/work", prompt="\u20ac \udc80"), "2026-11-21T12:00:00+00:00", 4711)


def test_what_was_saved_last_is_loaded(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(STATE)
    later = replace(STATE, elapsed_s=12.5)
    record.save(later)
    assert FileRecord(tmp_path / "0001").load() == later
    assert sorted(file.name for file in record.folder.iterdir()) == ["loop.json"]
    assert stat.S_IMODE(record.path.stat().st_mode) == 0o600


def iteration(number: int, **fields: Any) -> IterationRecord:
    done = IterationRecord(
        *(number, f"s{number}", Outcome.COMPLETED, 0, 1, 0.5, 2.0, 0, (), 0),
        made_progress=True,
        check=None,
    )
    return replace(done, **fields)


def after(count: int) -> LoopState:
    return replace(STATE, iterations=tuple(map(iteration, range(1, count + 1))))


@pytest.mark.skipif(sys.platform != "linux", reason="counts written bytes in /proc")
def test_an_iteration_writes_as_much_after_thousands_of_them_as_at_first(tmp_path) -> None:
    def written(count: int) -> int:
        record = FileRecord(tmp_path / f"{count:04d}")
        record.save(after(count))
        before, more = _written_bytes(), after(count + 1)
        for each in (replace(more, iterations=more.iterations[:-1]), more, more):
            record.save(each)
        return _written_bytes() - before

    assert written(4_000) < 1.1 * written(10)


def _written_bytes() -> int:
    prctl(PR_SET_DUMPABLE, 1)  # an ordinary user cannot ask about a process that is not
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def test_iterations_are_appended_by_each_process_and_the_last_may_change(tmp_path) -> None:
    FileRecord(tmp_path / "0001").save(after(2))
    begins = (tmp_path / "0001" / "iterations.jsonl").read_bytes()
    last = iteration(3, commits=1)
    FileRecord(tmp_path / "0001").save(after(3))
    changed_later = replace(STATE, iterations=(*after(2).iterations, last))
    FileRecord(tmp_path / "0001").save(changed_later)
    assert FileRecord(tmp_path / "0001").load() == changed_later
    lines = (tmp_path / "0001" / "iterations.jsonl").read_bytes()
    assert lines.startswith(begins)
    assert lines.endswith(iteration_line(iteration(3)) + iteration_line(last))
    assert stat.S_IMODE((tmp_path / "0001" / "iterations.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "left", [b"", iteration_line(iteration(3)), iteration_line(iteration(3))[:-9], b"\0\0"]
)
def test_a_line_that_a_killed_process_did_not_count_is_left_out_and_overwritten(tmp_path, left) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(after(2))
    with (record.folder / "iterations.jsonl").open("ab") as file:
        file.write(left)
    again = FileRecord(record.folder)
    assert again.load() == after(2)
    other = replace(STATE, iterations=(*after(2).iterations, iteration(3, reason="other")))
    again.save(other)
    assert FileRecord(record.folder).load() == other


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        pytest.param(lambda lines: lines[:-9], "iterations.jsonl is damaged: it has .* bytes, and", id="cut"),
        pytest.param(
            lambda lines: lines.replace(b"s1", b'"1'), "iterations.jsonl is damaged in line 1", id="text"
        ),
        pytest.param(
            lambda lines: lines.replace(b'"turns": 1', b'"turns": []'),
            "damaged in line 1: Expected `int`, got `array` - at `\\$.turns`",
            id="value",
        ),
    ],
)
def test_a_damaged_line_is_an_error_that_names_it(tmp_path, break_it, message) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(after(2))
    lines = record.folder / "iterations.jsonl"
    lines.write_bytes(break_it(lines.read_bytes()))
    with pytest.raises(RecordError, match=message) as caught:
        FileRecord(record.folder).load()
    assert caught.value.outcome is Outcome.IO_ERROR


def test_a_record_of_an_older_ralph_holds_its_iterations_and_is_saved_as_a_new_one(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.folder.mkdir()
    record.path.write_text(json.dumps({**json.loads(state_text(after(2))), "format": 1}))
    assert record.load() == after(2)
    FileRecord(record.folder).save(after(3))
    assert FileRecord(record.folder).load() == after(3)
    told = json.loads(record.path.read_text())
    assert (told["format"], told["iterations"]) == (2, []), "an older ralph would begin at iteration 1"


def test_iterations_whose_file_was_removed_are_written_anew(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(after(2))
    (record.folder / "iterations.jsonl").unlink()
    record.save(after(2))
    assert FileRecord(record.folder).load() == after(2)


def test_it_is_saved_anew_where_somebody_removed_the_folder(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(STATE)
    for file in record.folder.iterdir():
        file.unlink()
    record.folder.rmdir()
    record.save(STATE)
    assert record.load() == STATE


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path) -> None:
    (tmp_path / "0001").mkdir()
    left = tmp_path / "0001" / ".ralph-0123456789ab.tmp"
    left.write_text("half")
    FileRecord(tmp_path / "0001").save(STATE)
    assert not left.exists()


def test_a_link_or_a_pipe_in_its_place_is_replaced_and_not_written_through(tmp_path) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(STATE)
    other = tmp_path / "other"
    other.write_text("mine")
    record.path.unlink()
    record.path.symlink_to(other)
    record.save(STATE)
    assert other.read_text() == "mine"
    record.path.unlink()
    os.mkfifo(record.path)
    record.save(STATE)
    assert record.load() == STATE


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(state_text(STATE)), **fields})


@pytest.mark.parametrize(
    ("text", "outcome", "message"),
    [
        pytest.param("", Outcome.IO_ERROR, "is damaged", id="empty"),
        pytest.param(state_text(STATE)[:-9], Outcome.IO_ERROR, "is damaged", id="cut"),
        *(
            pytest.param(text, Outcome.IO_ERROR, "is damaged: ", id=text)
            for text in ("{", "[]", "null", '{"plan": {}}')
        ),
        pytest.param("[" * 100_000, Outcome.IO_ERROR, "is damaged", id="deep"),
        pytest.param(b"\xff", Outcome.IO_ERROR, "is damaged: it is not UTF-8", id="no text"),
        pytest.param(
            changed(pid="x"),
            Outcome.IO_ERROR,
            r"is damaged: Expected `int`, got `str` - at `\$.pid`",
            id="kind",
        ),
        pytest.param(changed(elapsed_s=math.nan), Outcome.IO_ERROR, "is damaged: NaN is not JSON", id="NaN"),
        pytest.param(
            changed(updated_at="2026-11-28T20:00:00"),
            Outcome.IO_ERROR,
            r"is damaged: Expected `str` matching regex .* - at `\$.updated_at`",
            id="no zone",
        ),
        pytest.param(
            changed(updated_at="2026-99-28T20:00:00Z"),
            Outcome.IO_ERROR,
            r"is damaged: month must be in 1\.\.12",
            id="no month",
        ),
        pytest.param(changed(format=3), Outcome.CONFIG, "has format 3: a newer ralph wrote it", id="newer"),
    ],
)
def test_one_that_cannot_be_read_is_an_error_that_says_why(tmp_path, text, outcome, message) -> None:
    record = FileRecord(tmp_path / "0001")
    if text is not None:
        record.save(STATE)
        record.path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecordError, match=message) as caught:
        record.load()
    assert caught.value.outcome is outcome
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pipe", "directory", "link"])
def test_what_is_no_file_is_not_waited_for_and_not_followed(tmp_path, kind) -> None:
    record = FileRecord(tmp_path / "0001")
    record.save(STATE)
    record.path.rename(tmp_path / "loop.json")
    match kind:
        case "pipe":
            os.mkfifo(record.path)
        case "directory":
            record.path.mkdir()
        case _:
            record.path.symlink_to(tmp_path / "loop.json")
    with pytest.raises(RecordError) as caught:
        record.load()
    assert caught.value.outcome is Outcome.IO_ERROR
