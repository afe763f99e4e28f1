"""Tests which results of `ralph run` the loop accepts, and what a session's journal says about an iteration whose
end the loop did not see.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.loop.processes import NoResultError, outcome_of, result_written, session_seen
from ralph.values.outcome import Outcome
from tests.rows import every_row
from tests.sessions.session_journals import ANSWERED, SESSION_ID, JournalBuilder, completed, killed

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = {
    "exit_code": 3,
    "subtype": "error_max_turns",
    "result": "Half of it.",
    "errors": ["the turns are used up", "and so am I"],
    "session_num_turns": 12,
    "session_cost_usd": 0.25,
    "retry_after_s": 30,
}


def read(tmp_path: Path, text: str, exit_code: int):
    path = tmp_path / "result.json"
    path.write_text(text)
    return result_written(path, exit_code)


def test_a_result_adds_words_and_numbers_to_the_exit_code(tmp_path) -> None:
    result = read(tmp_path, json.dumps(WHOLE), 3)
    assert (result.exit_code, result.outcome, result.limit) == (3, Outcome.LIMIT_REACHED, "max_turns")
    assert (result.turns, result.cost_usd, result.retry_after_s) == (12, 0.25, 30)
    assert (result.last_words, result.reason) == ("Half of it.", "the turns are used up; and so am I")


@every_row("outcome", [each for each in Outcome if each is not Outcome.INTERRUPTED])
def test_every_outcome_is_known_by_its_code(outcome) -> None:
    assert outcome_of(outcome.exit_code()) is outcome


@every_row(
    ("exit_code", "outcome"),
    [(128, None), (129, Outcome.INTERRUPTED), (192, Outcome.INTERRUPTED), (193, None), (5, None)],
)
def test_128_and_a_signal_is_an_interruption(exit_code, outcome) -> None:
    assert outcome_of(exit_code) is outcome


@pytest.mark.parametrize(
    ("name", "value", "field", "read_as"),
    [
        ("session_cost_usd", None, "cost_usd", None),
        ("session_cost_usd", 0, "cost_usd", 0),
        ("result", None, "last_words", ""),
        ("errors", ["", "two"], "reason", "two"),
        ("subtype", "error_during_execution", "limit", None),
        ("final_report", {"status": "success", "summary": "Fine."}, "last_words", "Half of it."),
        ("unknown", [7], "turns", 12),
    ],
)
def test_what_a_field_is_read_as(tmp_path, name, value, field, read_as) -> None:
    assert getattr(read(tmp_path, json.dumps({**WHOLE, name: value}), 3), field) == read_as


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"exit_code": 0}', "says exit code 0, which ralph does not believe"),
        ('{"exit_code": "3"}', r"is damaged: Expected `int`, got `str` - at `\$.exit_code`"),
        ("{}", "is damaged: Object missing required field `exit_code`"),
        ("[3]", "is damaged: Expected `object`"),
        ('{"exit_code": 3, "session_num_turns": -1}', r"at `\$.session_num_turns`"),
        ('{"exit_code": 3, "session_cost_usd": -0.1}', r"at `\$.session_cost_usd`"),
        ('{"exit_code": 3, "final_report": "fine"}', r"at `\$.final_report`"),
        ("", "is damaged"),
        ('{"exit_code": 3', "is damaged"),
        ('{"exit_code": 3, "session_cost_usd": NaN}', "is damaged: NaN is not JSON"),
        pytest.param("[" * 100_000, "is damaged", id="deep"),
    ],
)
def test_what_does_not_speak_of_this_end_is_refused_whole(tmp_path, text, problem) -> None:
    with pytest.raises(NoResultError, match=problem):
        read(tmp_path, text, 3)


def test_neither_a_pipe_is_waited_for_nor_a_link_followed(tmp_path) -> None:
    path = tmp_path / "result.json"
    with pytest.raises(NoResultError, match="left no result"):
        result_written(path, 3)
    os.mkfifo(path)
    with pytest.raises(NoResultError, match="not a regular file"):
        result_written(path, 3)
    path.unlink()
    (tmp_path / "other.json").write_text(json.dumps(WHOLE))
    path.symlink_to(tmp_path / "other.json")
    with pytest.raises(NoResultError, match="cannot be read"):
        result_written(path, 3)


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


def test_a_journal_where_commands_may_write_says_nothing_about_an_iteration(tmp_path) -> None:
    data = completed().data
    assert seen_of(tmp_path, data) is not None
    for roots, is_seen in (((str(tmp_path),), False), ((str(tmp_path / "work-x"),), True), (("/",), True)):
        assert (session_seen(SESSION_ID, {}, str(tmp_path), roots) is not None) is is_seen


def test_a_secret_that_only_the_run_knew_is_not_in_its_end(tmp_path) -> None:
    told = (
        JournalBuilder()
        .run()
        .prompt("go")
        .ends(Outcome.API_UNAVAILABLE, "no answer for corp-key-of-yesterday")
    )
    seen = seen_of(tmp_path, told.marking("corp-key-of-yesterday"))
    assert seen.ended.reason == "no answer for [redacted]"


def test_what_a_killed_run_cost_counts_as_far_as_it_is_known(tmp_path) -> None:
    seen = seen_of(tmp_path, killed().data)
    assert seen.ended is None
    assert seen.cost_usd > 0
    after_an_end = seen_of(tmp_path, completed().run().prompt("more").event(ANSWERED).data)
    assert after_an_end.ended is None
    assert after_an_end.cost_usd > seen_of(tmp_path, completed().data).cost_usd


@pytest.mark.parametrize(
    "data",
    [b"", JournalBuilder().data, JournalBuilder().run().data, JournalBuilder().run().data + b'{"seq":2,"ki'],
    ids=range(4),
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
    assert not seen.can_resume
    assert seen_of(tmp_path, b"what?\n" + completed().data) is not None


def test_one_that_a_kill_cut_off_can_be_resumed_and_one_that_a_power_cut_filled_up_cannot(tmp_path) -> None:
    assert seen_of(tmp_path, killed().data).can_resume
    assert seen_of(tmp_path, killed().data + b'{"seq":').can_resume
    filled = seen_of(tmp_path, killed().data + bytes(4096))
    assert not filled.can_resume
    assert filled.cost_usd == seen_of(tmp_path, killed().data).cost_usd


def test_of_an_end_that_only_a_newer_ralph_knows_nothing_is_known(tmp_path) -> None:
    told = JournalBuilder().run().prompt("go").ends()
    end = told.kinds.index("ended")
    told.records[end] = replace(told.records[end], outcome="splendid")
    seen = seen_of(tmp_path, told.data)
    assert (seen.turns, seen.cost_usd, seen.ended) == (0, None, None)
