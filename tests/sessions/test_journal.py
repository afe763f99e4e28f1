"""A journal on a real disk: records are synced before they are announced, and no write leaves a part of a line."""

from __future__ import annotations

import os
import resource
import time
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import pytest

from ralph.conversation.journal_lines import line_of, record_of, written_at
from ralph.conversation.records import EventRecord
from ralph.sessions import journal as journal_module
from ralph.sessions.journal import FileJournal
from ralph.values.ports import JournalError

if TYPE_CHECKING:
    from collections.abc import Iterator

ONE = EventRecord(event={"subtype": "notice", "text": "one"})
LONG = EventRecord(event={"subtype": "notice", "text": "x" * 20_000})


@pytest.fixture
def synced(monkeypatch) -> list[tuple[int, int]]:
    """The inode and the size of every file and directory that is synced, in order."""
    seen: list[tuple[int, int]] = []

    def sync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        seen.append((status.st_ino, status.st_size))

    monkeypatch.setattr(journal_module, "_sync", sync)
    monkeypatch.setattr(os, "fsync", sync)
    return seen


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limits the size of files. The kernel writes only what fits, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_p1_a_new_journal_is_in_its_directory_before_it_is_written_to(tmp_path, synced) -> None:
    FileJournal.create(tmp_path / "new.jsonl").close()
    assert [inode for inode, _ in synced] == [tmp_path.stat().st_ino]


def test_p1_records_are_on_the_disk_when_append_returns(tmp_path, synced) -> None:
    journal = FileJournal.create(tmp_path / "new.jsonl")
    inode = (tmp_path / "new.jsonl").stat().st_ino
    synced.clear()
    journal.append(ONE, LONG)
    size = (tmp_path / "new.jsonl").stat().st_size
    assert synced == [(inode, size)], "once for all of them, and all of their bytes"
    journal.append(ONE, sync=False)
    assert synced == [(inode, size)], "what need not last costs no sync"
    journal.append(ONE)
    assert synced[1:] == [(inode, (tmp_path / "new.jsonl").stat().st_size)], "with what was put off"
    journal.close()


def test_p4_a_write_that_was_cut_short_is_taken_back_and_the_journal_says_so_for_ever(tmp_path) -> None:
    path = tmp_path / "new.jsonl"
    journal = FileJournal.create(path)
    journal.append(ONE)
    whole = path.read_bytes()
    with room_for(len(whole) + 5_000), pytest.raises(JournalError, match="No space left"):
        journal.append(ONE, LONG)
    assert path.read_bytes() == whole, "no half of a line, and no record of those that came together"
    with pytest.raises(JournalError, match="No space left"):
        journal.append(ONE)
    journal.close()
    lines: list[tuple[int, bytes]] = []
    again = FileJournal.open(path, lines.extend)
    records = [record_of(line, number) for number, line in lines]
    written = map(written_at, whole.splitlines(keepends=True))
    assert b"".join(map(line_of, count(), records, written)) == whole
    again.close()


def test_each_line_has_the_time_of_its_writing(tmp_path) -> None:
    before_s = time.time()
    journal = FileJournal.create(tmp_path / "new.jsonl")
    journal.append(ONE, LONG)
    journal.close()
    times_s = [written_at(line) for line in (tmp_path / "new.jsonl").read_bytes().splitlines()]
    assert all(at is not None and before_s - 0.001 <= at <= time.time() + 0.001 for at in times_s)
