"""The record on disk must be complete and private, and an error must say what is wrong with it."""

from __future__ import annotations

import json
import os
import stat

import pytest
from msgspec.structs import replace

from ralph.loop.record import FileRecord, RecordError
from ralph.loop.state import LoopState, state_text
from ralph.loop.values import LoopPlan
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
        pytest.param("[]", Outcome.IO_ERROR, "is damaged", id="no object"),
        pytest.param("[" * 100_000, Outcome.IO_ERROR, "is damaged", id="deep"),
        pytest.param(b"\xff", Outcome.IO_ERROR, "is damaged: it is no UTF-8", id="no text"),
        pytest.param(
            changed(pid="x"),
            Outcome.IO_ERROR,
            r"is damaged: Expected `int`, got `str` - at `\$.pid`",
            id="kind",
        ),
        pytest.param(changed(format=2), Outcome.CONFIG, "has format 2: a newer ralph wrote it", id="newer"),
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
