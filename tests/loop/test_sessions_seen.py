"""What a session tells of an iteration that nobody followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.loop.process.sessions_seen import session_seen
from ralph.values.outcome import Outcome
from tests.session_journals import ANSWERED, SESSION_ID, Told, completed, killed

if TYPE_CHECKING:
    from pathlib import Path


def seen_of(tmp_path: Path, data: bytes):
    directory = tmp_path / "work-0123"
    directory.mkdir(exist_ok=True)
    (directory / f"{SESSION_ID}.jsonl").write_bytes(data)
    return session_seen(SESSION_ID, {}, str(tmp_path))


def test_how_its_last_run_ended_is_told_as_of_the_whole_session(tmp_path) -> None:
    told = completed().run().prompt("more").ends(Outcome.API_UNAVAILABLE, "HTTP 529", "gave up", turns=3)
    seen = seen_of(tmp_path, told.data)
    assert seen.turns == 5
    assert seen.cost_usd is not None
    assert seen.ended is not None
    assert (seen.ended.exit_code, seen.ended.outcome) == (75, Outcome.API_UNAVAILABLE)
    assert (seen.ended.turns, seen.ended.cost_usd) == (5, seen.cost_usd)
    assert (seen.ended.reason, seen.ended.duration_s) == ("HTTP 529; gave up", 12.34)


def test_what_a_killed_run_cost_counts_as_far_as_it_is_known(tmp_path) -> None:
    seen = seen_of(tmp_path, killed().data)
    assert seen.ended is None
    assert seen.cost_usd > 0
    after_an_end = seen_of(tmp_path, completed().run().prompt("more").event(ANSWERED).data)
    assert after_an_end.ended is None
    assert after_an_end.cost_usd > seen_of(tmp_path, completed().data).cost_usd


@pytest.mark.parametrize(
    "data", [b"", Told().data, Told().run().data, Told().run().data + b'{"seq":2,"ki'], ids=range(4)
)
def test_without_a_message_it_was_never_begun(tmp_path, data) -> None:
    assert seen_of(tmp_path, data) is None


def test_without_a_journal_it_was_never_begun_and_nothing_is_made(tmp_path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert session_seen(SESSION_ID, {"HOME": str(home)}, None) is None
    assert list(home.iterdir()) == []


def test_of_a_damaged_one_what_can_be_read_counts(tmp_path) -> None:
    seen = seen_of(tmp_path, killed().data + b"what?\n" + completed().data)
    assert seen is not None
    assert seen.ended is None
    assert seen_of(tmp_path, b"what?\n" + completed().data) is not None


def test_of_an_end_that_only_a_newer_ralph_knows_nothing_is_known(tmp_path) -> None:
    told = Told().run().prompt("go").ends()
    end = told.kinds.index("ended")
    told.records[end] = replace(told.records[end], outcome="splendid")
    seen = seen_of(tmp_path, told.data)
    assert (seen.turns, seen.cost_usd, seen.ended) == (0, None, None)
