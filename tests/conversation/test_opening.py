"""In which directory a session works, as its journal tells it."""

from __future__ import annotations

import pytest

from ralph.conversation.journal_lines import Record
from ralph.conversation.opening import copied_entries, directory_of, moved_entry, opening_entry
from ralph.conversation.session import SessionError
from tests.fakes import FakeJournal
from tests.rows import every_row
from tests.session_journals import Told


@every_row("name", ["/work", "/ä/世", "/caf\udce9", "/100%", "/a?b", "/\udcff\udcfe/ä"])
def test_a_directory_of_any_name_is_found_again(name) -> None:
    journal = FakeJournal()
    journal.append(opening_entry("s1", name, "now", "0"))
    assert directory_of(journal.records) == name


def test_older_journals_name_it_as_text_alone() -> None:
    assert directory_of(Told().records) == "/work"


@every_row("wrong", [{"cwd_bytes": 5}, {"copied": "many"}, {"copied": None}])
def test_a_directory_that_makes_no_sense_is_an_error_of_the_session(wrong) -> None:
    with pytest.raises(SessionError, match="its directory makes no sense"):
        directory_of([Record(0, "session", {"cwd": "/work"} | wrong)])


def test_the_last_move_counts_and_a_fork_begins_in_a_directory_of_its_own() -> None:
    journal = FakeJournal()
    journal.append(opening_entry("s1", "/caf\udce9", "now", "0"), moved_entry("/b"), moved_entry("/c"))
    assert directory_of(journal.records) == "/c"
    fork = FakeJournal()
    fork.append(*copied_entries(journal.records, "s2", "/d", "now", "0"))
    assert directory_of(fork.records) == "/d"
    fork.append(moved_entry("/e\udce9"))
    assert directory_of(fork.records) == "/e\udce9"
