"""A run that was killed around a compaction must continue as if it had not been killed, with requests that are equal
to the byte.
"""

from __future__ import annotations

from ralph.conversation.messages import user_message
from ralph.conversation.records import Record, compacted_record
from ralph.conversation.session import replay
from ralph.sessions.story import Prompt
from ralph.values.events import ContextCompacted
from ralph.values.outcome import Outcome
from tests.agent.small_windows import SUMMARY, SmallServer, World, works
from tests.fakes import FakeJournal, answer, call, text
from tests.fakes.played import DONE
from tests.journals.corpus import JOURNALS
from tests.journals.reading import read_lines, story_of
from tests.rows import every_row
from tests.sessions.session_journals import JournalBuilder

TURNS = [works(number) for number in range(1, 8)]
SCRIPT = [*TURNS, DONE]
TASK = "Fix the parser,\n\n  and keep `a  b`. \u2028"
WHOLE = World(SmallServer(SCRIPT), prompt=TASK)
RECORDS = WHOLE.journal.records
BEGUN = WHOLE.journal.kinds.index("user") + 1


def cut(records: list[Record], length: int) -> FakeJournal:
    return FakeJournal.of(records[:length])


def resumed(length: int) -> World:
    journal = cut(RECORDS, length)
    answered = journal.kinds.count("assistant")
    return World(SmallServer(SCRIPT[answered:]), journal=journal, prompt=None)


def test_the_run_that_is_killed_here_is_compacted_three_times() -> None:
    assert WHOLE.journal.kinds.count("compacted") == 3
    assert WHOLE.ended.outcome is Outcome.COMPLETED


def lengths_that_differ() -> list[int]:
    """The places to cut the journal, without those that follow and precede the same kinds of records as an earlier one
    in another context: a run is resumed in the same way there.
    """
    kinds = WHOLE.journal.kinds
    places = {
        tuple(kinds[length - 4 : length + 3]): length for length in range(len(RECORDS) - 1, BEGUN - 1, -1)
    }
    return sorted(places.values())


@every_row("length", lengths_that_differ())
def test_p1_a_run_killed_after_any_record_sends_what_it_would_have_sent(length) -> None:
    again = resumed(length)
    assert (again.ended.outcome, again.ended.result) == (Outcome.COMPLETED, "All done.")
    own = again.server.bodies
    assert own == WHOLE.server.bodies[len(WHOLE.server.bodies) - len(own) :]
    assert again.run.conversation.messages == WHOLE.run.conversation.messages
    done = replay(again.journal.records)
    assert ([*done.tasks], [*done.changed_files], done.summary) == (
        [(text(TASK),)],
        [f"/work/write_{number} größe" for number in range(1, 8)],
        SUMMARY,
    )


def test_the_journal_keeps_everything_and_the_story_tells_all_of_it() -> None:
    assert [record.kind for record in RECORDS].count("assistant") == len(SCRIPT)
    steps = [step for run in story_of(RECORDS).runs for step in run.steps]
    assert all(f"Step {number}." in str(steps) for number in range(1, 8))
    assert "compact_boundary" not in str(steps), "events are the recorder's to write"
    assert replay(RECORDS).conversation.messages == WHOLE.run.conversation.messages
    assert [step for step in steps if isinstance(step, Prompt)] == [Prompt(TASK)]


def test_a_resumed_answer_finds_no_more_room_than_its_results_have_left() -> None:
    calls = [call("a", text="1"), call("t", "Touch"), call("b", text="2")]
    whole = World(SmallServer([answer(*calls), DONE]), result_bytes=200_000)
    after_first = whole.journal.kinds.index("tool_result") + 1
    journal = cut(whole.journal.records, after_first)
    again = World(SmallServer([DONE]), journal=journal, prompt=None, result_bytes=200_000)
    assert result_sizes(again) == result_sizes(whole)


def result_sizes(world: World) -> list[int]:
    records = [record for record in world.journal.records if record.kind == "tool_result"]
    return [len(record.content) for record in records]


@every_row(
    ("name", "tasks"),
    [
        ("amended", ["Say hello.", "Loudly.", "Again."]),
        ("out-of-time", ["Go on until told."]),
        ("another-model", ["Say hello.", "Again."]),
        ("several-tasks", ["Say hello.", "Again.", "And again."]),
        ("compacted", ["Look around,\n\n  then change `something`.", "Go on until told."]),
    ],
)
def test_p14_a_recorded_journal_of_any_format_tells_its_tasks(name, tasks) -> None:
    session = replay(read_lines((JOURNALS / f"{name}.jsonl").read_bytes()).records)
    assert [[block["text"] for block in task] for task in session.tasks] == [[task] for task in tasks]


def test_a_record_of_a_compaction_takes_the_place_of_all_messages_before_it() -> None:
    journal = JournalBuilder().run()
    journal.prompt("Fix it.")
    journal.answers(text("I look."), call("a"))
    fresh = user_message([text("fresh")])
    journal.append(compacted_record(fresh, "All is well.", ContextCompacted("overflow", "model", 9, 3)))
    session = replay(journal.records)
    assert session.conversation.messages == (fresh,)
    assert (session.answer, session.results, session.summary) == (None, {}, "All is well.")
    assert set(session.call_ids) == {"a"}, "ids stay known"


def test_a_call_id_of_the_old_context_is_not_given_again_in_the_new_one() -> None:
    script = [works(1), works(2), answer(call("read_1")), DONE]
    world = World(SmallServer(script))
    assert world.compactions
    assert "read_1_2" in str(world.run.conversation.messages[-2].tool_result_ids)
