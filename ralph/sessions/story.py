"""The story of a session: its runs, what happened in them, and their turns and costs. It is folded from the records of
any session, even if the session is still running, was killed, or has a damaged journal. No I/O happens here.

Lists, texts, exports and report pages are made from it. `conversation/session.py` accepts only complete and valid
records, because ralph resumes sessions from its results.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.journal_lines import JournalDamage
from ralph.conversation.records import (
    AssistantRecord,
    CompactedRecord,
    DeliveryRecord,
    EndedRecord,
    EventRecord,
    IntentRecord,
    MovedRecord,
    Record,
    ResultRecord,
    RunRecord,
    SessionRecord,
    UserRecord,
)
from ralph.sessions.places import title_from
from ralph.values.answer import Block, ToolCall, ToolResult
from ralph.values.outcome import Delivery, Outcome
from ralph.values.servers import facts_of
from ralph.values.usage import RunUsage, tokens_of, total_usd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.values.redaction import LookedCommit

RUNNING = "running"
KILLED = "killed"
NOT_DELIVERED = "not delivered"
DAMAGED = "damaged"
EMPTY = "empty"
NEWER_FORMAT = "newer format"
UNREADABLE = "unreadable"


class Prompt(Struct, frozen=True):
    text: str
    is_automatic: bool = False
    """True if ralph itself wrote the message during a run."""


class ModelText(Struct, frozen=True):
    text: str


class OtherBlock(Struct, frozen=True):
    """A block of an answer that is neither text nor a tool call. Thinking is an example."""

    block: Block


class CallRequest(Struct, frozen=True):
    """A call in an answer, as the model wrote it. Malformed calls are included."""

    call: ToolCall


class CallOutcome(Struct, frozen=True):
    call: ToolCall
    result: ToolResult | None = None
    """None if the call has no result in its run."""
    was_started: bool = True


class EventStep(Struct, frozen=True):
    """An event that is not part of the conversation."""

    fields: Mapping[str, Any]
    seq: int
    """The index of its line in the journal, counted from 0."""


Step = Prompt | ModelText | OtherBlock | CallRequest | CallOutcome | EventStep


class _OpenAnswer(Struct, frozen=True):
    """The last answer, while no message follows it."""

    calls: Mapping[str, ToolCall]
    with_result: set[str]
    """The ids of its calls that have a result."""


class RunStory:
    """One run of a session: a `run` record and all records after it, up to the next `run` record."""

    def __init__(self, number: int, opening: RunRecord, *, is_copied: bool = False) -> None:
        self.number = number
        """The number of the run, counted from 1."""
        self.opening = opening
        self.is_copied = is_copied
        """True if the run was made in another session, of which this session is a fork. Its cost is not part of
        this session's cost."""
        self.steps: list[Step] = []
        """The steps in order. A call comes at the position of its result. Empty if the steps are not kept."""
        self.ended: EndedRecord | None = None
        """The record of the run's end. None if the run was killed or is still in progress."""
        self.delivery: DeliveryRecord | None = None
        """The record that says whether the result was delivered. None if there is no such record."""
        self.looked: tuple[LookedCommit, ...] = ()
        """Where secrets are in the commits in the time of the run."""
        self.answers = 0
        self.has_message = False
        self.open_answer: _OpenAnswer | None = None
        self.announced: set[str] = set()
        """The ids of the calls that ralph recorded just before it ran them."""
        self._attempts = 0
        self._attempts_usd: float | None = 0.0
        self._usage = RunUsage()
        """The usage of the answers before the first attempt: journals of format 1 do not record attempts."""

    @property
    def turns(self) -> int:
        """The number of turns. If the run has no record of its end, this is the number of its answers without an
        open one, whose turn the next run counts.
        """
        if self.ended is not None:
            return self.ended.num_turns
        return self.answers - (self.open_answer is not None)

    @property
    def cost_usd(self) -> float | None:
        """The cost in US dollars, or None if unknown. Failed attempts are included."""
        if self.ended is not None:
            return self.ended.cost_usd
        return self._attempts_usd if self._attempts else self._usage.cost_usd

    @property
    def undelivered(self) -> str | None:
        """A sentence that says why the result was not delivered, or that its delivery is unknown. None if it was
        delivered, or if there is no result yet.
        """
        if self.ended is None or self.ended.delivered:
            return None
        if self.delivery is None:
            return "it is unknown whether the result was delivered"
        if self.delivery.state is not Delivery.FAILED:
            return None
        why = self.delivery.errors[-1] if self.delivery.errors else "nobody knows why"
        return f"the result was not delivered (exit {self.delivery.exit_code}): {why}"

    @property
    def only_delivers(self) -> bool:
        """Whether the run did no work, and only delivered the previous run's result once more."""
        return self.ended is not None and not self.answers and not self.has_message

    def open_calls(self) -> Iterator[CallOutcome]:
        """The calls of the last answer that have no result in this run."""
        if self.open_answer is None:
            return
        for call in self.open_answer.calls.values():
            if call.id not in self.open_answer.with_result:
                yield CallOutcome(call, None, call.id in self.announced)

    def count_answer(self, usage: Mapping[str, Any]) -> None:
        self.answers += 1
        if not self._attempts:
            model = self.opening.model
            self._usage = self._usage.plus(model, tokens_of(usage), facts_of(model))

    def count_attempt(self, cost_usd: float | None) -> None:
        self._attempts += 1
        self._attempts_usd = total_usd((self._attempts_usd, cost_usd))


class SessionStory:
    """Collects the runs of one session. `take` gets each record in order."""

    def __init__(self, *, keeps_steps: bool = False) -> None:
        self._keeps_steps = keeps_steps
        self.opening: SessionRecord | None = None
        """The first record of the session, updated with the session's latest directory. None if it was not read."""
        self.runs: list[RunStory] = []
        self.has_message = False
        self.task = ""
        """The first prompt, or "" if there is none."""
        self.given_title: str | None = None
        """The latest title that is recorded, or None."""
        self._open: _OpenAnswer | None = None
        """The open answer. The next run may write the results of its calls."""

    def take(self, record: Record, number: int) -> list[Step]:
        """Adds a record and returns what happened. `number` is the index of its line, counted from 0. Raises
        JournalDamage if the record is impossible at its position.
        """
        match record:
            case SessionRecord():
                self.opening = record
            case MovedRecord() if self.opening is not None and number > self.opening.without_moves:
                self.opening = replace(self.opening, cwd=record.cwd, cwd_bytes=record.cwd_bytes)
            case RunRecord():
                is_copied = self.opening is not None and _is_copied(self.opening, record, number)
                self.runs.append(RunStory(len(self.runs) + 1, record, is_copied=is_copied))
                self.given_title = self.given_title if record.title is None else record.title
                if (before := self._open) is not None:  # results that come now are none of the run before
                    self._open = replace(before, with_result={*before.with_result})
            case _ if self.runs:
                return self._take_in_run(self.runs[-1], record, number)
        return []

    def _take_in_run(self, run: RunStory, record: Record, number: int) -> list[Step]:
        steps: list[Step] = []
        match record:
            case UserRecord():
                text = prompt_text(record)
                self.task = self.task if self.has_message else text
                self.has_message = run.has_message = True
                self._open = run.open_answer = None
                steps.append(Prompt(text, run.answers > 0 if record.task is None else not record.task))
            case CompactedRecord():
                self._open = run.open_answer = None
            case AssistantRecord():
                run.count_answer(record.message["usage"])
                steps += _steps_of(record)
                calls = {step.call.id: step.call for step in steps if isinstance(step, CallRequest)}
                self._open = run.open_answer = _OpenAnswer(calls, set())
            case IntentRecord():
                run.announced.add(record.id)
            case ResultRecord():
                steps.append(CallOutcome(self._call_of(record, number), record.result))
            case EventRecord():
                if record.is_attempt:
                    run.count_attempt(record.event["cost_usd"])
                steps.append(EventStep(record.event, number))
            case EndedRecord():
                run.ended = run.ended or record
            case DeliveryRecord():
                run.looked += record.looked
                self._deliver(record)
        if self._keeps_steps:
            run.steps += (step for step in steps if not isinstance(step, CallRequest))
        return steps

    def _call_of(self, record: ResultRecord, number: int) -> ToolCall:
        answer = self._open
        if answer is None or record.tool_use_id not in answer.calls:
            raise JournalDamage(number + 1, "makes no sense: the result of no call")
        answer.with_result.add(record.tool_use_id)
        if len(answer.with_result) == len(answer.calls):
            self._open = None
            if self.runs[-1].open_answer is answer:
                self.runs[-1].open_answer = None
        return answer.calls[record.tool_use_id]

    def _deliver(self, record: DeliveryRecord) -> None:
        """Adds the record to the last run. A process that works on several tasks writes such a record only for the
        last result. If that was delivered, so were the results before it.
        """
        *before, last = self.runs
        if last.delivery is not None:
            return
        last.delivery = record
        for run in reversed(before if record.state is not Delivery.FAILED else ()):
            if run.opening.pid != last.opening.pid or run.delivery is not None:
                break
            run.delivery = record

    @property
    def own_runs(self) -> list[RunStory]:
        return [run for run in self.runs if not run.is_copied]

    @property
    def turns(self) -> int:
        """The number of turns in the session's own runs. A run that only delivers the previous run's result again
        also repeats its number of turns. These are not counted. A killed run has no record of its turns, so nothing
        is repeated after it.
        """
        own = self.own_runs
        repeated = (
            run.turns for before, run in pairwise(own) if run.only_delivers and before.ended is not None
        )
        return sum(run.turns for run in own) - sum(repeated)

    @property
    def cost_usd(self) -> float | None:
        """The cost of the session's own runs in US dollars, or None if the cost of a run is unknown."""
        return total_usd(run.cost_usd for run in self.own_runs)

    @property
    def title(self) -> str | None:
        """The latest title that is recorded. If there is none, a title from the first prompt. None if there is no
        prompt either.
        """
        return self.given_title or title_from(self.task) or None

    @property
    def end(self) -> str | None:
        """The outcome of the last run. `NOT_DELIVERED` if its result was not delivered or its delivery is unknown.
        None if the run has no record of its end.
        """
        last = self.runs[-1] if self.runs else None
        if last is None or last.ended is None:
            return None
        return last.ended.outcome if last.undelivered is None else NOT_DELIVERED

    @property
    def is_completed(self) -> bool:
        return self.end == Outcome.COMPLETED.value


def _is_copied(opening: SessionRecord, run: RunRecord, number: int) -> bool:
    """Whether the run was copied when the session was forked. The first record of a fork contains the number of
    copied records.

    Older versions of ralph did not record it. In their forks, the copied runs are those that began before the fork
    was made. The times can be compared as text, because they have the same format and clock.
    """
    if opening.copied is not None:
        return number <= opening.copied
    return opening.forked_from is not None and run.started_at < opening.created_at


def prompt_text(record: UserRecord) -> str:
    """The text of a user record. If the record adds text to the previous message, returns only the added text."""
    task = 1 if record.task is None else record.task
    added = record.content[-max(task, 1) :] if record.amends else record.content
    return "\n".join(block["text"] for block in added if block.get("type") == "text")


def _steps_of(record: AssistantRecord) -> Iterator[Step]:
    for block in record.blocks:
        match block.get("type"):
            case "text":
                yield ModelText(block["text"])
            case "tool_use":
                raw = record.malformed.get(block["id"])
                arguments = {"INVALID_JSON": raw[0]} if raw else block["input"]
                yield CallRequest(ToolCall(block["id"], block["name"], arguments))
            case _:
                yield OtherBlock(block)
