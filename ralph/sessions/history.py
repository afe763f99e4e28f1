"""A session as people look at it: its runs, what each cost, how far it got. Pure: records in, values out.

It refuses nothing but a newer format: of a session that is running, killed or damaged it tells what is there.
`conversation/session.py` is stricter, because runs are resumed from it.
"""

from __future__ import annotations

import json
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.conversation.opening import MOVED
from ralph.conversation.reading import Reading
from ralph.conversation.session import SessionError, refuse_newer, replay
from ralph.values.models import facts_of
from ralph.values.outcome import Delivery, Outcome
from ralph.values.usage import RunUsage, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ralph.conversation.journal_lines import Record
    from ralph.values.tool_calls import Block

RUNNING = "running"
KILLED = "killed"
NOT_DELIVERED = "not delivered"
DAMAGED = "damaged"
EMPTY = "empty"
NEWER_FORMAT = "newer format"
UNREADABLE = "unreadable"


class RunHistory(Struct, frozen=True, dict=True):
    """One process of a session."""

    number: int
    """Counts from 1."""
    fields: Mapping[str, Any]
    """The fields of its `run` record."""
    records: tuple[Record, ...]
    """The records that it wrote, except its `run` record."""
    is_copied: bool = False
    """It belongs to the session that this one was forked from, and so does its cost."""
    told: Mapping[str, Any] | None = None
    """The fields of the record of what became of its result; None: there is none."""

    @property
    def started_at(self) -> str:
        return str(self.fields["started_at"])

    @property
    def model(self) -> str:
        return str(self.fields["model"])

    @cached_property
    def ended(self) -> Mapping[str, Any] | None:
        """The fields of its last record; None: it was killed, or is at it."""
        return next((record.fields for record in self.records if record.kind == "ended"), None)

    @cached_property
    def delivery(self) -> Delivery | None:
        """The delivery of its result; None: nobody knows. Older journals do not record it, and those results
        count as delivered.
        """
        if self.ended is None:
            return None
        if self.ended.get("delivered", True):
            return Delivery.DELIVERED
        return None if self.told is None else Delivery(self.told["state"])

    @property
    def undelivered(self) -> str | None:
        """Why its result has not reached anybody, as far as is known; None: it has, or there is none yet."""
        if self.ended is None or self.delivery not in {None, Delivery.FAILED}:
            return None
        if self.delivery is None:
            return "whether the result was delivered is not known"
        failed: Mapping[str, Any] = self.told or {}
        return f"the result was not delivered (exit {failed['exit_code']}): {failed['errors'][-1]}"

    @property
    def is_retelling(self) -> bool:
        """It did no work: it told once more what the run before it had come to."""
        return self.ended is not None and not any(one.kind in {"user", "assistant"} for one in self.records)

    @cached_property
    def turns(self) -> int:
        """The turns of the run. Without an end: the answers that something has followed, as the next run
        counts the last one.
        """
        if self.ended is not None:
            return int(self.ended["num_turns"])
        answers = sum(record.kind == "assistant" for record in self.records)
        return answers - 1 if self.open_calls is not None else answers

    @cached_property
    def cost_usd(self) -> float | None:
        """The cost of the run; None: not known. Without an end: the cost of its attempts, whatever became of
        them.
        """
        if self.ended is not None:
            cost: float | None = self.ended["cost_usd"]
            return cost
        attempts = [
            record.fields["event"]["cost_usd"]
            for record in self.records
            if record.kind == "event" and record.fields["event"].get("subtype") == "attempt"
        ]
        return _sum_of_known(attempts) if attempts else self._cost_of_answers()

    def _cost_of_answers(self) -> float | None:
        """Format 1 has no records of attempts; answers that broke off are not counted there."""
        usage = RunUsage()
        for record in self.records:
            if record.kind == "assistant":
                tokens = tokens_of(record.fields["message"]["usage"])
                usage = usage.plus(self.model, tokens, facts_of(self.model))
        return usage.cost_usd

    @cached_property
    def open_calls(self) -> Sequence[Block] | None:
        """The calls of the last answer that have no result here; None: something followed that answer."""
        calls: dict[str, Block] | None = None
        for record in self.records:
            match record.kind:
                case "assistant":
                    calls = {block["id"]: block for block in calls_of(record)}
                case "tool_result" if calls is not None:
                    calls.pop(record.fields["tool_use_id"], None)
                    calls = calls or None
                case "user" | "compacted":
                    calls = None
        return None if calls is None else tuple(calls.values())

    @property
    def announced(self) -> frozenset[str]:
        """The calls that were about to run."""
        return frozenset(record.fields["id"] for record in self.records if record.kind == "tool_intent")


class SessionHistory(Struct, frozen=True):
    opening: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the `session` record, `cwd` after the last move; empty: not even that can be read."""
    runs: tuple[RunHistory, ...] = ()

    @property
    def own_runs(self) -> tuple[RunHistory, ...]:
        return tuple(run for run in self.runs if not run.is_copied)

    @property
    def turns(self) -> int:
        """Each once: what was told again was counted before, unless that run was killed and counted none of it."""
        own = self.own_runs
        retold = (run.turns for before, run in pairwise(own) if run.is_retelling and before.ended is not None)
        return sum(run.turns for run in own) - sum(retold)

    @property
    def cost_usd(self) -> float | None:
        """None as soon as one run's is not known."""
        return _sum_of_known([run.cost_usd for run in self.own_runs])

    @property
    def task(self) -> str:
        """The first prompt."""
        for run in self.runs:
            for record in run.records:
                if record.kind == "user":
                    return said_by_user(record)
        return ""

    @property
    def end(self) -> str | None:
        """The last run's outcome, or that its result was not delivered; None: it has none."""
        last = self.runs[-1] if self.runs else None
        if last is None or last.ended is None:
            return None
        return str(last.ended["outcome"]) if last.undelivered is None else NOT_DELIVERED

    @property
    def is_completed(self) -> bool:
        return self.end == Outcome.COMPLETED.value


def history_of(records: Iterable[Record]) -> SessionHistory:
    """Raises NewerFormatError; and SessionError for records that no run writes."""
    opening: Mapping[str, Any] = {}
    runs: list[tuple[Record, list[Record]]] = []
    try:
        for record in records:
            if record.kind == "session":
                opening = record.fields
                refuse_newer(opening)
            elif record.kind == MOVED and record.seq > opening.get("copied", 0):
                opening = {**opening, "cwd": record.fields["cwd"]}
            elif record.kind == "run":
                runs.append((record, []))
            elif runs:
                runs[-1][1].append(record)
        told = _told(runs)
        return SessionHistory(
            opening,
            tuple(
                RunHistory(number, run.fields, tuple(written), _is_copied(opening, run), told[number - 1])
                for number, (run, written) in enumerate(runs, start=1)
            ),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise SessionError(f"a record of it makes no sense ({type(error).__name__}: {error})") from error


def _told(runs: Sequence[tuple[Record, Sequence[Record]]]) -> list[Mapping[str, Any] | None]:
    """For each run what became of its result. A process that worked on several tasks tells it once, of the last one:
    what went out before that was delivered too. Where the last one failed, nothing is known of the others.
    """
    told: list[Mapping[str, Any] | None] = []
    later: Mapping[str, Any] | None = None
    process_id = None
    for run, written in reversed(runs):
        own = next((record.fields for record in written if record.kind == "delivery"), None)
        is_same = process_id == run.fields["pid"] and later is not None
        is_known = is_same and later is not None and later["state"] != Delivery.FAILED.value
        told.append(own if own is not None or not is_known else later)
        later, process_id = told[-1], run.fields["pid"]
    return told[::-1]


def said_by_user(record: Record) -> str:
    """The text of a `user` record; of one that takes another's place, what it adds."""
    blocks = record.fields["content"]
    task = record.fields.get("task", 1)
    told = blocks[-max(task, 1) :] if record.fields.get("amends") else blocks
    return "\n".join(block["text"] for block in told if block.get("type") == "text")


def calls_of(record: Record) -> list[Block]:
    """The `tool_use` blocks of an `assistant` record."""
    content: list[Block] = record.fields["message"]["content"]
    return [block for block in content if block.get("type") == "tool_use"]


def messages_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The conversation as the API gets it, none before the first message. Raises SessionError like `replay`."""
    if not any(record.kind == "user" for record in records):
        return []
    session = replay(records)
    return [json.loads(message.body) for message in Reading(session.shape).of(session.conversation).messages]


def _sum_of_known(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _is_copied(opening: Mapping[str, Any], run: Record) -> bool:
    """By the number that the fork's first record tells.

    Older forks tell none. Each was made before its own first run; times of one clock in one form compare as texts.
    """
    if "copied" in opening:
        return run.seq <= int(opening["copied"])
    return "forked_from" in opening and run.fields["started_at"] < opening["created_at"]
