"""The directory of a session must be the one that its journal names, and the files that it changed are told in it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ralph.conversation.messages import GrowingMapping
from ralph.conversation.records import intent_record, moved_record, session_record
from ralph.conversation.session import Session, apply, folded
from ralph.values.answer import FileChange, ToolCall
from tests.fakes import FakeJournal, call
from tests.journals.reading import forked_record, story_of
from tests.rows import every_row
from tests.sessions.session_journals import JournalBuilder


def directory_of(records: list[Any]) -> str:
    """The directory of a session for a run that resumes it, and for people. Both must be equal."""
    session = folded(records)
    opening = story_of(records).opening
    assert opening is not None
    assert opening.directory == session.cwd
    return session.cwd


@every_row("name", ["/work", "/ä/世", "/caf\udce9", "/100%", "/a?b", "/\udcff\udcfe/ä"])
def test_a_directory_of_any_name_is_found_again(name) -> None:
    journal = FakeJournal()
    journal.append(session_record("s1", name, "now", "0"))
    assert directory_of(journal.records) == name


def test_older_journals_name_it_as_text_alone() -> None:
    assert directory_of(JournalBuilder().records) == "/work"


def fork_in(cwd: str, old: list[Any]) -> list[Any]:
    """The records of a fork in this directory. The last `moved` record is left out if the fork need not move."""
    opening = forked_record(session_record("s2", cwd, "now", "0"), old)
    moves = [moved_record(cwd)] if directory_of(old) != cwd else []
    return [opening, *old[1:], *moves]


def test_the_last_move_counts_also_in_a_fork_and_in_a_fork_of_a_fork() -> None:
    journal = FakeJournal()
    journal.append(session_record("s1", "/caf\udce9", "now", "0"), moved_record("/b"), moved_record("/c"))
    assert directory_of(journal.records) == "/c"
    for cwd in ("/caf\udce9", "/c", "/d"):
        fork = fork_in(cwd, journal.records)
        assert (directory_of(fork), directory_of(fork_in("/e\udce9", fork))) == (cwd, "/e\udce9")
        assert directory_of([*fork, moved_record("/f")]) == "/f"


def test_moves_that_an_older_ralph_copied_into_a_fork_have_no_effect() -> None:
    old = [session_record("s1", "/a", "now", "0"), moved_record("/b")]
    fork = [replace(session_record("s2", "/d", "now", "0"), forked_from="s1", copied=1), old[1]]
    assert (directory_of(fork), directory_of([*fork, moved_record("/e")])) == ("/d", "/e")
    assert (directory_of(fork_in("/d", fork)), directory_of(fork_in("/f", fork))) == ("/d", "/f")


def test_what_is_known_of_files_moves_with_the_directory() -> None:
    session = Session(
        cwd="/old",
        seen=GrowingMapping({"/old/a": "1", "/older/b": "2"}),
        writable=("/old/c", "/d"),
        changed_files=GrowingMapping({"/old/a": None}),
    )
    session = apply(session, moved_record("/new"))
    assert session.seen == {"/new/a": "1", "/older/b": "2"}
    assert (session.writable, [*session.changed_files]) == (("/new/c", "/d"), ["/new/a"])
    assert apply(session, moved_record("/newest")).moved_from == "/old", "no answer has come since"
    assert apply(session, moved_record("/old")).moved_from is None


@every_row(("before", "is_error", "changed"), [("1", False, ["/work/a"]), ("1", True, []), ("2", False, [])])
def test_a_file_is_changed_by_an_edit_that_succeeds_and_leaves_another_content(
    before, is_error, changed
) -> None:
    journal = JournalBuilder().run().prompt("Go on.").answers(call("e", "Edit"))
    journal.append(intent_record(ToolCall("e", "Edit", {}), FileChange("/work/a", before, "2")))
    journal.result("e", "", is_error=is_error)
    assert [*folded(journal.records).changed_files] == changed
