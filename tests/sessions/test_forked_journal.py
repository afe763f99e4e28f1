"""The file of a fork: a first record of its own, followed by the unchanged lines of the old session."""

from __future__ import annotations

import pytest

from ralph.conversation.journal_lines import sealed
from ralph.conversation.records import MovedRecord, session_record
from ralph.sessions.journal import FileJournal
from tests.journals.reading import forked_record, read_lines
from tests.sessions.session_journals import killed

NEWER = sealed({"seq": 7, "kind": "moved", "cwd": "/work", "of_tomorrow": [1, {"b": 1, "a": 2}]})
"""A line with a field that this version of ralph does not know."""


@pytest.mark.parametrize("end", [b"", b'{"seq":9,"kin'])
@pytest.mark.parametrize("lacks_break", [False, True])
def test_a_fork_copies_lines_with_what_only_a_newer_ralph_knows(tmp_path, end, lacks_break) -> None:
    whole = killed().data + NEWER
    (tmp_path / "old").write_bytes(whole[:-1] if lacks_break else whole + end)
    old = FileJournal.open(tmp_path / "old", is_for_reading=True)
    fork = FileJournal.create(tmp_path / "new")
    opening = forked_record(
        session_record("s2", "/work", "now", "0"), read_lines((tmp_path / "old").read_bytes()).records
    )
    fork.begin_as_fork(opening, old.lines_behind_first())
    fork.append(MovedRecord(cwd="/there"))
    first, _, rest = (tmp_path / "new").read_bytes().partition(b"\n")
    assert rest.startswith(whole.partition(b"\n")[2])
    assert read_lines(first + b"\n").records == (opening,)
    assert read_lines(first + b"\n" + rest).records[-1] == MovedRecord(cwd="/there")
