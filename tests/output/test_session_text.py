"""The story of a session in a terminal, and the whole session as a document."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from ralph.conversation.records import EventRecord
from ralph.sessions.story import KILLED, RUNNING
from ralph.sessions.story_text import SessionText, as_json, markdown, session_export
from ralph.values.events import ClockFired, ResponseDiscarded
from ralph.values.outcome import Outcome
from tests.fakes import call, text
from tests.rows import every_row
from tests.sessions.session_journals import SESSION_ID, JournalBuilder, completed, killed

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


def story(journal: JournalBuilder, outcome: str = "completed", *, has_color: bool = False) -> list[str]:
    lines = list(SessionText(has_color=has_color).lines(journal.look(outcome)))
    return lines[lines.index("") :]


def document(journal: JournalBuilder, outcome: str = "completed") -> str:
    return "\n".join(markdown(journal.look(outcome)))


def test_the_story_reads_in_the_order_of_what_happened() -> None:
    lines = story(completed())
    assert lines[1].startswith("[run 1] 2026-11-21 ")
    assert lines[2:] == [
        "> fix the failing test",
        "I look.",
        "[tool] Bash: pytest -q",
        "  failed:",
        "  | one",
        "  | two",
        "  | three",
        "  | … 2 lines more",
        "  | six",
        "  | Exit code 1",
        "[tool] Read: a.py",
        "  | 1\tx = 1",
        "[error] HTTP 529 overloaded_error: Overloaded (claude-sonnet-5-5, 0.5s)",
        "[retry] Attempt 1/4: 529 — waiting 2s",
        "[turn 2] claude-sonnet-5-5 answered in 1.2s: 1,000 tokens in, 50 out, $0.0025",
        "[retry] Recovered after 1 retries",
        "[turn 2] 2 attempts in 3.8s",
        "[notice] a notice",
        "All done.",
        "[ralph] completed [2 turns, 12s, $0.0030]",
    ]


def test_a_killed_run_says_where_it_was_killed_and_what_ran_then() -> None:
    assert story(killed(), KILLED)[-5:] == [
        "[tool] Bash: make c2",
        "  killed while it ran: its effects are unknown",
        "[tool] Bash: make c3",
        "  not run",
        "[killed] this run has no recorded end [0 turns, $0.0003 at least]",
    ]


def test_of_a_running_one_it_says_what_is_under_way() -> None:
    assert story(killed(), RUNNING)[-4:] == [
        "  under way",
        "[tool] Bash: make c3",
        "  not started yet",
        "[running] in process 4711 [0 turns, $0.0003 so far]",
    ]


def test_clocks_discarded_answers_and_failures_are_in_their_places() -> None:
    journal = JournalBuilder().run().prompt("go").event(ClockFired("first byte", 180.0))
    journal.event(ResponseDiscarded("msg")).ends(Outcome.API_UNAVAILABLE, "HTTP 529", turns=0)
    assert story(journal)[3:] == [
        "[clock] no byte of an answer within 3m (clocks.first_byte_s)",
        "[discarded] an answer does not count",
        "[ralph] api_unavailable (exit 75): HTTP 529 [0 turns, 12s, $0.0030]",
    ]


def test_an_event_of_a_later_ralph_is_passed_over() -> None:
    journal = JournalBuilder().run().prompt("go")
    journal.append(EventRecord(event={"subtype": "from_the_future"}))
    assert len(story(journal.ends())) == 4
    assert "from_the_future" in document(journal)


def test_nothing_that_was_said_moves_the_cursor() -> None:
    evil = "\x1b[2J\x9b1A\rgone\x00\x07"
    journal = (
        JournalBuilder()
        .run()
        .prompt(evil)
        .answers(text(evil), call("c1", "Bash", command=evil))
        .result("c1", evil)
    )
    journal.ends(Outcome.IO_ERROR, evil)
    for shown in ("\n".join(story(journal)), document(journal)):
        assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown) == []
    exported = as_json(session_export(journal.look("io_error")))
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", exported) == []
    assert evil in str(json.loads(exported)["messages"][1]["content"][0]["text"])


def test_a_long_prompt_is_shortened_in_the_story_and_whole_in_the_document() -> None:
    journal = JournalBuilder().run().prompt("\n".join(f"line {n}" for n in range(100))).ends()
    assert story(journal)[-2] == "> … 76 lines more"
    assert "> line 99" in document(journal)


@every_row("content", ["```\n# no heading\n````", "`````", "~~~", "> quoted\n## Run 9"])
def test_no_content_ends_its_own_block(content) -> None:
    journal = (
        JournalBuilder().run().prompt(content).answers(text(content), call("c1", "Bash", command=content))
    )
    written = document(journal.result("c1", content).ends())
    inside, outside = None, []
    for line in written.splitlines():
        if inside is None and (fence := re.match("`{3,}$", line)):
            inside = fence[0]
        elif line == inside:
            inside = None
        elif inside is None and not line.startswith(">"):
            outside.append(line)
    assert inside is None, "every fence is closed"
    headings = [line for line in outside if line.startswith("#")]
    assert headings == [f"# Session {SESSION_ID}", "## Run 1", "### Prompt", "### Model", "### Call: `Bash`"]


def test_the_json_object_holds_messages_runs_events_and_totals() -> None:
    exported = session_export(completed().look())
    assert {"version", "id", "cwd", "created_at", "runs", "messages", "events", "totals"} <= set(exported)
    assert exported["runs"][0]["request"]["system"][0]["text"] == "system"
    assert [event["subtype"] for event in exported["events"]] == [
        "attempt",
        "api_retry",
        "attempt",
        "retry_recovered",
        "turn_asked",
        "notice",
    ]
    assert exported["events"][0] | {"run": 1, "seq": 8, "kind": "overloaded"} == exported["events"][0]
    assert exported["totals"]["turns"] == 2
    assert exported["damage"] is None
