"""A session as it is shown to people: its runs, costs and outcome. No I/O happens here.

A history can be made from the records of any session, even if the session is still running, was killed, or has a
damaged journal. `conversation/session.py` accepts only complete and valid records, because ralph resumes sessions
from its results.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.reading import NonsenseError, OpenAnswer, Reading, open_answer
from ralph.conversation.records import (
    AssistantRecord,
    DeliveryRecord,
    EndedRecord,
    EventRecord,
    IntentRecord,
    MovedRecord,
    Record,
    RunRecord,
    SessionRecord,
    UserRecord,
)
from ralph.conversation.session import counted, replay
from ralph.sessions.naming import title_from
from ralph.values.models import facts_of
from ralph.values.outcome import Delivery, Outcome
from ralph.values.usage import RunUsage, tokens_of, total_usd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ralph.values.tool_calls import Block

RUNNING = "running"
KILLED = "killed"
NOT_DELIVERED = "not delivered"
DAMAGED = "damaged"
EMPTY = "empty"
NEWER_FORMAT = "newer format"
UNREADABLE = "unreadable"


class RunHistory(Struct, frozen=True, dict=True):
    """One run of a session: a `run` record and all records after it, up to the next `run` record."""

    number: int
    """The number of the run, counted from 1."""
    opening: RunRecord
    lines: tuple[tuple[int, Record], ...]
    """The records of the run with their line numbers. The `run` record itself is not included."""
    is_copied: bool = False
    """True if the run was made in another session, and was copied when this session was forked from that session. The
    cost of a copied run is not part of this session's cost."""
    told: DeliveryRecord | None = None
    """The record that says whether this run's result was delivered. None if there is no such record."""

    @cached_property
    def records(self) -> tuple[Record, ...]:
        return tuple(record for _, record in self.lines)

    @cached_property
    def ended(self) -> EndedRecord | None:
        """The record of the run's end. None if the run was killed or is still in progress."""
        return next((record for record in self.records if isinstance(record, EndedRecord)), None)

    @cached_property
    def delivery(self) -> Delivery | None:
        """The state of the delivery of the run's result. None if the state is unknown or there is no result yet."""
        if self.ended is None:
            return None
        if self.ended.delivered:
            return Delivery.DELIVERED
        return None if self.told is None else self.told.state

    @property
    def undelivered(self) -> str | None:
        """A sentence that says why the result was not delivered, or that its delivery is unknown. None if the result
        was delivered, or if there is no result yet.
        """
        if self.ended is None or self.delivery not in {None, Delivery.FAILED}:
            return None
        if self.told is None:
            return "whether the result was delivered is not known"
        why = self.told.errors[-1] if self.told.errors else "nobody knows why"
        return f"the result was not delivered (exit {self.told.exit_code}): {why}"

    @property
    def is_retelling(self) -> bool:
        """True if the run did no work, and only delivered the previous run's result once more."""
        return self.ended is not None and not any(
            isinstance(one, UserRecord | AssistantRecord) for one in self.records
        )

    @cached_property
    def turns(self) -> int:
        """The number of turns. If the run has no record of its end, this is the number of its answers. The answer in
        `pending` is left out, because the next run counts its turn.
        """
        if self.ended is not None:
            return self.ended.num_turns
        answers = sum(isinstance(record, AssistantRecord) for record in self.records)
        return answers if self.pending is None else answers - 1

    @cached_property
    def cost_usd(self) -> float | None:
        """The cost of the run in US dollars, or None if unknown. If the run has no record of its end, this is the sum
        of the costs of all its attempts, including failed attempts.
        """
        if self.ended is not None:
            return self.ended.cost_usd
        attempts = [
            record.event["cost_usd"]
            for record in self.records
            if isinstance(record, EventRecord) and record.is_attempt
        ]
        return total_usd(attempts) if attempts else self._cost_of_answers()

    def _cost_of_answers(self) -> float | None:
        """The cost of the complete answers. Used for journals of format 1, which have no records of attempts."""
        usage = RunUsage()
        for record in self.records:
            if isinstance(record, AssistantRecord):
                model = self.opening.model
                usage = usage.plus(model, tokens_of(record.message["usage"]), facts_of(model))
        return usage.cost_usd

    @cached_property
    def pending(self) -> OpenAnswer | None:
        """The last answer of the run, with those results of its tool calls that exist. None if there is no answer, if
        a message follows the answer, or if all tool calls have results.
        """
        answers = (at for at, record in enumerate(self.records) if isinstance(record, AssistantRecord))
        pending: OpenAnswer | None = None
        with suppress(NonsenseError):
            for record in self.records[max(answers, default=len(self.records)) :]:
                pending = open_answer(pending, record)
        return None if pending is None or pending.is_over else pending

    @property
    def open_calls(self) -> Sequence[Block]:
        """Those tool calls of the last answer that have no result in this run."""
        return () if self.pending is None else self.pending.open_calls

    @property
    def announced(self) -> frozenset[str]:
        """The ids of the tool calls that ralph recorded in the journal just before it ran them."""
        return frozenset(record.id for record in self.records if isinstance(record, IntentRecord))


class SessionHistory(Struct, frozen=True):
    opening: SessionRecord | None = None
    """The first record of the session, updated with the session's latest directory. None if the record cannot be
    read."""
    runs: tuple[RunHistory, ...] = ()

    @property
    def own_runs(self) -> tuple[RunHistory, ...]:
        return tuple(run for run in self.runs if not run.is_copied)

    @property
    def turns(self) -> int:
        """The number of turns in the session's own runs. A run that only delivers the previous run's result again
        also repeats the number of turns in its record. These repeated turns are not counted. A killed run has no
        record of its turns, so nothing is repeated after it.
        """
        own = self.own_runs
        retold = (run.turns for before, run in pairwise(own) if run.is_retelling and before.ended is not None)
        return sum(run.turns for run in own) - sum(retold)

    @property
    def cost_usd(self) -> float | None:
        """The cost of the session's own runs in US dollars, or None if the cost of a run is unknown."""
        return total_usd(run.cost_usd for run in self.own_runs)

    @property
    def has_message(self) -> bool:
        return next(self._user_records(), None) is not None

    @property
    def task(self) -> str:
        """The first prompt, or "" if there is none."""
        first = next(self._user_records(), None)
        return "" if first is None else prompt_text(first)

    @property
    def given_title(self) -> str | None:
        """The latest title that is recorded, or None."""
        titles = [run.opening.title for run in self.runs if run.opening.title is not None]
        return titles[-1] if titles else None

    @property
    def title(self) -> str | None:
        """The latest title that is recorded. If there is none, a title from the first prompt. None if there is no
        prompt either.
        """
        return self.given_title or title_from(self.task) or None

    def _user_records(self) -> Iterator[UserRecord]:
        return (record for run in self.runs for record in run.records if isinstance(record, UserRecord))

    @property
    def end(self) -> str | None:
        """The outcome of the last run. `NOT_DELIVERED` if the run's result was not delivered or its delivery is
        unknown. None if the last run has no record of its end.
        """
        last = self.runs[-1] if self.runs else None
        if last is None or last.ended is None:
            return None
        return last.ended.outcome if last.undelivered is None else NOT_DELIVERED

    @property
    def is_completed(self) -> bool:
        return self.end == Outcome.COMPLETED.value


def history_of(records: Sequence[Record]) -> SessionHistory:
    return history_of_numbered(enumerate(records))


def history_of_numbered(numbered: Iterable[tuple[int, Record]]) -> SessionHistory:
    """Makes the history from pairs of a line index in the journal, counted from 0, and the record in that line."""
    opening: SessionRecord | None = None
    runs: list[tuple[int, RunRecord, list[tuple[int, Record]]]] = []
    for line, record in counted(numbered):
        match record:
            case SessionRecord():
                opening = record
            case MovedRecord() if opening is not None:
                opening = replace(opening, cwd=record.cwd, cwd_bytes=record.cwd_bytes)
            case RunRecord():
                runs.append((line, record, []))
            case _ if runs:
                runs[-1][-1].append((line, record))
    histories = [
        RunHistory(
            number, run, tuple(lines), is_copied=opening is not None and is_copied_run(opening, run, line)
        )
        for number, (line, run, lines) in enumerate(runs, start=1)
    ]
    return SessionHistory(opening, tuple(_told(histories)))


def is_copied_run(opening: SessionRecord, run: RunRecord, line: int) -> bool:
    """Whether the run was copied when the session was forked. The first record of a fork contains the number of
    copied records.

    Older versions of ralph did not record this number. In their forks, the copied runs are those that began before
    the fork was made. The times can be compared as text, because they have the same format and clock.
    """
    if opening.copied is not None:
        return line - 1 <= opening.copied
    return opening.forked_from is not None and run.started_at < opening.created_at


def _told(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """Adds to each run the record that says whether its result was delivered. A process that works on several tasks
    writes such a record only for the last result. If the last result was delivered, this record applies to the
    earlier results too. If not, the delivery of the earlier results is unknown.
    """
    told: list[RunHistory] = []
    later: RunHistory | None = None
    for run in reversed(runs):
        own = next((record for record in run.records if isinstance(record, DeliveryRecord)), None)
        if own is None and later is not None and later.opening.pid == run.opening.pid:
            known = later.told
            own = None if known is None or known.state is Delivery.FAILED else known
        later = replace(run, told=own)
        told.append(later)
    return told[::-1]


def prompt_text(record: UserRecord) -> str:
    """The text of a user record. If the record adds text to the previous message, returns only the added text."""
    task = 1 if record.task is None else record.task
    told = record.content[-max(task, 1) :] if record.amends else record.content
    return "\n".join(block["text"] for block in told if block.get("type") == "text")


def calls_of(record: AssistantRecord) -> list[Block]:
    return [block for block in record.blocks if block.get("type") == "tool_use"]


def messages_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The messages in the form in which the API gets them. Empty if the session has no message. Raises SessionError
    if the records do not form a conversation.
    """
    if not any(isinstance(record, UserRecord) for record in records):
        return []
    session = replay(records)
    return [json.loads(message.body) for message in Reading(session.shape).of(session.conversation).messages]
