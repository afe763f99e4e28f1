"""Builds journals record by record, as runs write them."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.conversation.journal_lines import line_of
from ralph.conversation.messages import RequestShape, user_message
from ralph.conversation.records import (
    EventRecord,
    assistant_record,
    delivery_record,
    ended_record,
    intent_record,
    result_record,
    run_record,
    session_record,
    user_record,
)
from ralph.output.stream_json import journal_fields
from ralph.sessions.looking import SessionLook
from ralph.values.answer import ToolCall, ToolOutput, ToolResult
from ralph.values.events import AttemptEnded, Notice, RetryRecovered, RetryScheduled, RunEnded, TurnAsked
from ralph.values.outcome import Delivery, Outcome
from ralph.values.redaction import Redactor
from ralph.values.servers import facts_of
from ralph.values.usage import RunUsage, TokenUsage
from tests.fakes import FakeJournal, answer, call, text
from tests.journals.reading import story_of

if TYPE_CHECKING:
    from ralph.sessions.story import SessionStory
    from ralph.values.answer import Answer
    from ralph.values.events import Event

MODEL = "claude-sonnet-5-5"
SESSION_ID = "3f2a9c1e-0000-4000-8000-000000000001"


class JournalBuilder(FakeJournal):
    """A journal. Each method adds the records that a run writes at that point."""

    def __init__(
        self, session_id: str = SESSION_ID, forked_from: str | None = None, cwd: str = "/work"
    ) -> None:
        super().__init__()
        opening = session_record(session_id, cwd, "2026-11-21T12:00:00+00:00", "0.1.0")
        self.append(replace(opening, forked_from=forked_from))

    def run(
        self,
        started_at: str = "2026-11-21T12:00:01+00:00",
        model: str = MODEL,
        writable: tuple[str, ...] = (),
        pid: int = 4711,
    ) -> JournalBuilder:
        self.append(run_record(RequestShape(model, "system", ()), started_at, pid, writable=writable))
        return self

    def prompt(self, words: str) -> JournalBuilder:
        self.append(user_record(user_message(words), task=1))
        return self

    def answers(self, *content: dict[str, Any]) -> JournalBuilder:
        whole: Answer = answer(*content)
        self.append(assistant_record(whole))
        return self

    def starts(self, call_id: str, name: str = "Bash") -> JournalBuilder:
        self.append(intent_record(ToolCall(call_id, name, {}), None))
        return self

    def result(self, call_id: str, output: str, *, is_error: bool = False) -> JournalBuilder:
        self.append(result_record(ToolResult(call_id, ToolOutput(output, is_error))))
        return self

    def event(self, event: Event) -> JournalBuilder:
        fields = journal_fields(event)
        assert fields is not None
        self.append(EventRecord(event=fields))
        return self

    def ends(
        self,
        outcome: Outcome = Outcome.COMPLETED,
        *errors: str,
        turns: int = 2,
        delivery: Delivery | None = Delivery.DELIVERED,
    ) -> JournalBuilder:
        """Ends the run. `delivery` says whether the result was delivered. None means that the journal does not record
        it.
        """
        usage = RunUsage().plus(MODEL, TokenUsage(1000, 100), facts_of(MODEL))
        ended = RunEnded(outcome, outcome.exit_code(), None, errors, None, turns, 12.34, 9.0, usage)
        self.append(ended_record(ended))
        if delivery is not None:
            failed = replace(ended, exit_code=Outcome.IO_ERROR.exit_code(), errors=(*errors, "no room"))
            self.append(delivery_record(delivery, failed))
        return self

    @property
    def story(self) -> SessionStory:
        return story_of(self.records)

    def look(self, outcome: str = "completed", written_at_s: float = 0.0) -> SessionLook:
        return SessionLook(
            Path(f"{SESSION_ID}.jsonl"), written_at_s, outcome, self.story, tuple(self.records)
        )

    @property
    def data(self) -> bytes:
        return b"".join(map(line_of, count(), self.records))

    def marking(self, *secrets: str) -> bytes:
        """The data of a run that knows these secrets."""
        spans_of = Redactor(secrets).spans
        return b"".join(line_of(seq, record, None, spans_of) for seq, record in enumerate(self.records))


OVERLOADED = "HTTP 529 overloaded_error: Overloaded"
FAILED = AttemptEnded(2, 1, MODEL, MODEL, 0.5, TokenUsage(), None, 529, "overloaded", OVERLOADED, wait_s=2.0)
RETRY = RetryScheduled(1, 4, 2.0, 529, "HttpError", "overloaded", OVERLOADED, turn=2, target=MODEL)
ANSWERED = AttemptEnded(2, 2, MODEL, MODEL, 1.25, TokenUsage(1000, 50), facts_of(MODEL))


def completed() -> JournalBuilder:
    """The journal of a run that contains every kind of event."""
    return (
        JournalBuilder()
        .run()
        .prompt("fix the failing test")
        .answers(
            text("I look."), call("c1", "Bash", command="pytest -q"), call("c2", "Read", file_path="a.py")
        )
        .starts("c1")
        .result("c1", "one\ntwo\nthree\nfour\nfive\nsix\nExit code 1", is_error=True)
        .starts("c2", "Read")
        .result("c2", "1\tx = 1")
        .event(FAILED)
        .event(RETRY)
        .event(ANSWERED)
        .event(RetryRecovered(1, 2.0, 2, 2))
        .event(TurnAsked(2, 2, 3.75))
        .event(Notice("a notice"))
        .answers(text("All done."))
        .ends()
    )


def killed() -> JournalBuilder:
    """The journal of a killed run with three calls: one has its result, one was running, and one had not
    started.
    """
    calls = [call(name, "Bash", command=f"make {name}") for name in ("c1", "c2", "c3")]
    return (
        JournalBuilder().run().prompt("build it").answers(*calls).starts("c1").result("c1", "ok").starts("c2")
    )
