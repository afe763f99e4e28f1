"""A session as people look at it: its runs, their costs, how far it got. Pure: records in, values out.

It accepts every journal: of a session that is running, killed or damaged it shows what there is.
`conversation/session.py` is stricter, because runs are resumed from it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.open_answer import NonsenseError, OpenAnswer, open_answer
from ralph.conversation.reading import Reading
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
from ralph.values.models import facts_of
from ralph.values.outcome import Delivery, Outcome
from ralph.values.usage import RunUsage, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.values.tool_calls import Block

RUNNING = "running"
KILLED = "killed"
NOT_DELIVERED = "not delivered"
DAMAGED = "damaged"
EMPTY = "empty"
NEWER_FORMAT = "newer format"
UNREADABLE = "unreadable"


class RunHistory(Struct, frozen=True, dict=True):
    """One run of a session: the records from one `run` record to the next."""

    number: int
    """1-based."""
    opening: RunRecord
    lines: tuple[tuple[int, Record], ...]
    """The run's records except the `run` record, each with its line number."""
    is_copied: bool = False
    """The run belongs to the session that this one was forked from, and so does its cost."""
    told: DeliveryRecord | None = None
    """The delivery of the run's result; None: not recorded."""

    @cached_property
    def records(self) -> tuple[Record, ...]:
        return tuple(record for _, record in self.lines)

    @cached_property
    def ended(self) -> EndedRecord | None:
        """The record of the run's end; None: it was killed, or is still running."""
        return next((record for record in self.records if isinstance(record, EndedRecord)), None)

    @cached_property
    def delivery(self) -> Delivery | None:
        """The delivery of the run's result; None: unknown, or there is no result yet."""
        if self.ended is None:
            return None
        if self.ended.delivered:
            return Delivery.DELIVERED
        return None if self.told is None else self.told.state

    @property
    def undelivered(self) -> str | None:
        """Why the result was not delivered, or may not have been; None: the result was delivered, or there is no
        result yet.
        """
        if self.ended is None or self.delivery not in {None, Delivery.FAILED}:
            return None
        if self.told is None:
            return "whether the result was delivered is not known"
        why = self.told.errors[-1] if self.told.errors else "nobody knows why"
        return f"the result was not delivered (exit {self.told.exit_code}): {why}"

    @property
    def is_retelling(self) -> bool:
        """Whether the run only delivered the previous run's result again, without work of its own."""
        return self.ended is not None and not any(
            isinstance(one, UserRecord | AssistantRecord) for one in self.records
        )

    @cached_property
    def turns(self) -> int:
        """The number of turns.

        If the run has no end record, its answers are counted. A last answer that nothing follows is left out, because
        the next run counts it.
        """
        if self.ended is not None:
            return self.ended.num_turns
        answers = sum(isinstance(record, AssistantRecord) for record in self.records)
        return answers if self.pending is None else answers - 1

    @cached_property
    def cost_usd(self) -> float | None:
        """The cost of the run; None: unknown.

        If the run has no end record, the costs of all its attempts are added, failed attempts included.
        """
        if self.ended is not None:
            return self.ended.cost_usd
        attempts = [
            record.event["cost_usd"]
            for record in self.records
            if isinstance(record, EventRecord) and record.is_attempt
        ]
        return _sum_of_known(attempts) if attempts else self._cost_of_answers()

    def _cost_of_answers(self) -> float | None:
        """The cost of the whole answers. It is needed for format 1, which has no records of attempts."""
        usage = RunUsage()
        for record in self.records:
            if isinstance(record, AssistantRecord):
                model = self.opening.model
                usage = usage.plus(model, tokens_of(record.message["usage"]), facts_of(model))
        return usage.cost_usd

    @cached_property
    def pending(self) -> OpenAnswer | None:
        """The last answer and the results of its calls so far; None: something follows that answer."""
        answers = (at for at, record in enumerate(self.records) if isinstance(record, AssistantRecord))
        pending: OpenAnswer | None = None
        with suppress(NonsenseError):
            for record in self.records[max(answers, default=len(self.records)) :]:
                pending = open_answer(pending, record)
        return None if pending is None or pending.is_over else pending

    @property
    def open_calls(self) -> Sequence[Block]:
        """The last answer's calls that have no result in this run."""
        return () if self.pending is None else self.pending.open_calls

    @property
    def announced(self) -> frozenset[str]:
        """The ids of calls that were about to run."""
        return frozenset(record.id for record in self.records if isinstance(record, IntentRecord))


class SessionHistory(Struct, frozen=True):
    opening: SessionRecord | None = None
    """The session's first record, with the directory to which the session last moved; None: that record cannot be
    read."""
    runs: tuple[RunHistory, ...] = ()

    @property
    def own_runs(self) -> tuple[RunHistory, ...]:
        return tuple(run for run in self.runs if not run.is_copied)

    @property
    def turns(self) -> int:
        """The turns of the session's own runs.

        A run that only delivered a result again repeats the number of turns of the run before it. That number counts
        once, unless the run before was killed and so recorded no number.
        """
        own = self.own_runs
        retold = (run.turns for before, run in pairwise(own) if run.is_retelling and before.ended is not None)
        return sum(run.turns for run in own) - sum(retold)

    @property
    def cost_usd(self) -> float | None:
        """The cost of the session's own runs; None: the cost of one of them is unknown."""
        return _sum_of_known([run.cost_usd for run in self.own_runs])

    @property
    def has_message(self) -> bool:
        return next(self._user_records(), None) is not None

    @property
    def task(self) -> str:
        """The first prompt; empty: there is none."""
        first = next(self._user_records(), None)
        return "" if first is None else prompt_text(first)

    def _user_records(self) -> Iterator[UserRecord]:
        return (record for run in self.runs for record in run.records if isinstance(record, UserRecord))

    @property
    def end(self) -> str | None:
        """The last run's outcome, or `NOT_DELIVERED`; None: the run has no end record."""
        last = self.runs[-1] if self.runs else None
        if last is None or last.ended is None:
            return None
        return last.ended.outcome if last.undelivered is None else NOT_DELIVERED

    @property
    def is_completed(self) -> bool:
        return self.end == Outcome.COMPLETED.value


def history_of(records: Sequence[Record]) -> SessionHistory:
    opening: SessionRecord | None = None
    runs: list[tuple[int, RunRecord, list[tuple[int, Record]]]] = []
    for line, record in counted(records):
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
            number, run, tuple(lines), is_copied=opening is not None and _is_copied(opening, run, line)
        )
        for number, (line, run, lines) in enumerate(runs, start=1)
    ]
    return SessionHistory(opening, tuple(_told(histories)))


def _is_copied(opening: SessionRecord, run: RunRecord, line: int) -> bool:
    """Whether the run was copied into a fork. The fork's first record has the number of copied records.

    Older forks lack that number. There, a copied run began before the fork was made. Both times are compared as text,
    because they have one clock and one format.
    """
    if opening.copied is not None:
        return line - 1 <= opening.copied
    return opening.forked_from is not None and run.started_at < opening.created_at


def _told(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """Adds to each run the delivery of its result.

    A process that worked on several tasks records only the delivery of the last result. If that result was delivered,
    the earlier results were delivered too. If its delivery failed, nothing is known of the earlier results.
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
    """The text of a user record. If the record replaces the previous message, only the text that it adds."""
    task = 1 if record.task is None else record.task
    told = record.content[-max(task, 1) :] if record.amends else record.content
    return "\n".join(block["text"] for block in told if block.get("type") == "text")


def calls_of(record: AssistantRecord) -> list[Block]:
    return [block for block in record.blocks if block.get("type") == "tool_use"]


def messages_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The messages as the API gets them; empty before the first message.

    Raises SessionError like `replay`.
    """
    if not any(isinstance(record, UserRecord) for record in records):
        return []
    session = replay(records)
    return [json.loads(message.body) for message in Reading(session.shape).of(session.conversation).messages]


def _sum_of_known(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
