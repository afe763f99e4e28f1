"""Turns the records of a journal into the steps of a timeline and the entries of a transcript, record by record. Long
texts are cut at once, so that the memory needed does not depend on the size of the journal. No I/O happens here.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct, ValidationError
from msgspec.structs import replace

from ralph.conversation.records import (
    AssistantRecord,
    CompactedRecord,
    DeliveryRecord,
    EndedRecord,
    EventRecord,
    IntentRecord,
    ResultRecord,
    RunRecord,
    SessionRecord,
    TargetRecord,
    UserRecord,
)
from ralph.output.narration import Narration, describe_call
from ralph.output.system_events import event_of
from ralph.pages.night import EntryKind, MarkKind, TranscriptEntry
from ralph.pages.timeline import JournalStep, What
from ralph.sessions.history import calls_of, is_copied_run, prompt_text
from ralph.sessions.story_text import result_text
from ralph.sessions.words import attempts_line, ending
from ralph.values.models import facts_of
from ralph.values.outcome import Delivery
from ralph.values.tool_calls import ToolCall
from ralph.values.usage import RunUsage, tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.conversation.records import Record
    from ralph.pages.excerpts import Excerpt, Excerpts
    from ralph.values.redaction import LookedCommit

_MARKS = {
    "api_retry": MarkKind.RETRY,
    "synthetic_retry": MarkKind.RETRY,
    "model_fallback": MarkKind.FALLBACK,
    "guard": MarkKind.GUARD,
    "malformed_call": MarkKind.GUARD,
    "compact_boundary": MarkKind.COMPACTION,
    "final_turn": MarkKind.NOTICE,
    "notice": MarkKind.NOTICE,
}
_COUNTED = {
    "api_retry": "retries",
    "synthetic_retry": "useless answers",
    "model_fallback": "fallbacks to another target",
    "guard": "calls refused by a guard",
    "malformed_call": "malformed calls",
    "compact_boundary": "compactions",
}
_UNTOLD = frozenset({"turn_asked", "retry_recovered"})
"""Events that only sum up what other entries show."""
_MOST_DETAILS = 20
_SHARE_OF_FIRST = 3
"""Where there are too many entries, one third is taken from the beginning and the rest from the end."""


class Incidents:
    """Counts what a person may ask about, by name, and keeps the first lines about each."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.details: dict[str, list[str]] = {}

    def add(self, name: str, detail: str) -> None:
        self.numbers[name] = self.numbers.get(name, 0) + 1
        lines = self.details.setdefault(name, [])
        if len(lines) < _MOST_DETAILS:
            lines.append(detail)


class EntryDraft:
    """An entry of the transcript that may still get its result."""

    def __init__(self, entry: TranscriptEntry) -> None:
        self.entry = entry

    def finish(self, result: Excerpt, *, is_error: bool, shown_by: str) -> None:
        cut_chars = self.entry.cut_chars + result.cut_chars
        self.entry = replace(
            self.entry,
            result=result.text,
            is_error=is_error,
            cut_chars=cut_chars,
            shown_by=shown_by if cut_chars else None,
        )


class RunStory:
    """The steps of one run, and what it came to."""

    def __init__(
        self, opening: RunRecord, step: JournalStep, *, is_copied: bool = False, first_entry: int = 1
    ) -> None:
        """`is_copied` is True if another session made this run, and a fork copied it. `first_entry` is the number of the
        run's first entry.
        """
        self.opening = opening
        self.steps = [step]
        self.is_copied = is_copied
        self.first_entry = first_entry
        self.ended: EndedRecord | None = None
        self.delivery: DeliveryRecord | None = None
        self.looked: tuple[LookedCommit, ...] = ()
        """Where secrets are in the commits in the time of the run."""
        self.answers = 0
        self.attempts = 0
        self.answers_usage = RunUsage()
        """The usage of the answers. Counted only until the first attempt: journals of format 1 do not record attempts."""
        self.attempts_usd: float | None = 0.0
        """The cost of all attempts so far, or None if the cost of one of them is unknown."""
        self.open_calls: set[str] = set()
        """The ids of the calls of the last answer that have no result yet."""
        self.has_message = False

    @property
    def turns(self) -> int:
        if self.ended is not None:
            return self.ended.num_turns
        # The next run counts the turn of an answer whose calls have no results yet.
        return self.answers - bool(self.open_calls)

    @property
    def cost_usd(self) -> float | None:
        if self.ended is not None:
            return self.ended.cost_usd
        return self.attempts_usd if self.attempts else self.answers_usage.cost_usd

    def count_attempt(self, cost_usd: float | None) -> None:
        self.attempts += 1
        is_known = cost_usd is not None and self.attempts_usd is not None
        self.attempts_usd = self.attempts_usd + cost_usd if is_known else None  # type: ignore[operator]  # `is_known` says that neither is None


class PassedAttempt(Struct, frozen=True):
    """The fields of an attempt that the timeline needs."""

    turn: int
    target: str
    kind: str | None = None
    error: str | None = None
    latency_s: float = 0.0
    wait_s: float = 0.0
    cost_usd: float | None = None


class StoryOptions(Struct, frozen=True):
    prefix: str
    """The beginning of the ids of all entries."""
    most_chars: int
    """The length to which texts are cut."""
    most_entries: int
    shown_by: str
    """The command that shows the whole session."""


class SessionStory:
    """Collects the runs of one session. `take` gets each record in order. In place of `take`, the four methods
    `pass_...` get records whose text is not shown.
    """

    def __init__(self, options: StoryOptions, excerpts: Excerpts, incidents: Incidents) -> None:
        self._options = options
        self._excerpts = excerpts
        self._incidents = incidents
        self._narration = Narration(is_quiet=False, has_color=False)
        self.opening: SessionRecord | None = None
        self.runs: list[RunStory] = []
        self.models: dict[str, None] = {}
        """The names of the models, in the order of their first use."""
        self.task = ""
        """The first prompt."""
        self.title: str | None = None
        """The last title that the user gave to the session, or None."""
        self.last_at_s: float | None = None
        self._number = 0
        """The number of entries so far."""
        self._first: list[EntryDraft] = []
        self._last: deque[EntryDraft] = deque(
            maxlen=max(options.most_entries - options.most_entries // _SHARE_OF_FIRST, 1)
        )
        self._calls: dict[str, EntryDraft] = {}
        """The entries of calls that have no result yet, by the ids of the calls."""
        self._names: dict[str, str] = {}
        """The lines with names so far, by the name."""
        self._results: dict[str, int] = {}
        """The index of the step of each result in the current run."""
        self._has_answer = False
        self._attempt: int | None = None
        """The index of the step of an attempt whose answer has not come yet."""

    def entries(self) -> list[TranscriptEntry]:
        """The entries. If there were too many, one says how many were left out."""
        first, last = ([draft.entry for draft in drafts] for drafts in (self._first, self._last))
        left_out = self._number - len(first) - len(last)
        if not left_out:
            return [*first, *last]
        title = f"{left_out:,} entries are left out here"
        gap = TranscriptEntry(
            f"{self._options.prefix}-gap", EntryKind.EVENT, None, title, "", shown_by=self._options.shown_by
        )
        return [*first, gap, *last]

    def pass_attempt(self, event: PassedAttempt, at_s: float | None) -> None:
        if not self.runs:
            return
        asked = f"turn {event.turn}, {self._name(event.target)}"
        asked = asked if event.error is None else f"{asked}: {self._name(event.kind or 'failed')}"
        self.runs[-1].count_attempt(event.cost_usd)
        self._attempt = None
        self._step(
            What.ATTEMPT,
            at_s,
            asked,
            took_s=_seconds(event.latency_s),
            wait_s=_seconds(event.wait_s),
            cost_usd=event.cost_usd,
        )

    def pass_answer(self, usage: Mapping[str, Any], at_s: float | None) -> None:
        if not self.runs:
            return
        self._number += 1
        self.runs[-1].answers += 1
        self.runs[-1].open_calls.clear()
        self._has_answer = True
        tokens = tokens_of(usage)
        self._step(What.OTHER, at_s, context_tokens=tokens.prompt + tokens.output or None)

    def pass_intent(self, call_id: str, name: str, at_s: float | None) -> None:
        if self.runs:
            draft = self._calls.get(call_id)
            title, entry = (self._name(name), None) if draft is None else (draft.entry.title, draft.entry.id)
            self._step(What.INTENT, at_s, title, entry=entry, call_id=call_id)

    def pass_result(self, call_id: str, at_s: float | None, *, is_error: bool) -> None:
        if not self.runs:
            return
        self._number += 1
        self.runs[-1].open_calls.discard(call_id)
        draft = self._calls.pop(call_id, None)
        if is_error:
            self._incidents.add("calls with an error", "" if draft is None else draft.entry.title)
        self._results[call_id] = len(self.runs[-1].steps)
        self._step(What.RESULT, at_s, call_id=call_id)

    def take(self, record: Record, at_s: float | None, number: int) -> None:
        """Adds a record. `number` is the index of its line in the journal."""
        if at_s is not None:
            self.last_at_s = at_s
        match record:
            case SessionRecord():
                self.opening = record
            case RunRecord():
                self._begin_run(record, at_s, number)
            case TargetRecord() if record.model is not None:
                self.models[record.model] = None
            case _ if self.runs:
                self._take_in_run(record, at_s)

    def _begin_run(self, record: RunRecord, at_s: float | None, number: int) -> None:
        started_s = at_s
        if started_s is None:
            with suppress(ValueError):
                started_s = datetime.fromisoformat(record.started_at).timestamp()
        self.models[record.model] = None
        self.title = record.title or self.title
        is_copied = self.opening is not None and is_copied_run(self.opening, record, number)
        step = JournalStep(What.RUN, started_s, f"run {len(self.runs) + 1}")
        self.runs.append(RunStory(record, step, is_copied=is_copied, first_entry=self._number + 1))
        self._results.clear()
        self._has_answer = False
        self._attempt = None

    def _take_in_run(self, record: Record, at_s: float | None) -> None:
        match record:
            case UserRecord():
                is_automatic = self._has_answer if record.task is None else not record.task
                kind = EntryKind.RALPH if is_automatic else EntryKind.PROMPT
                text = prompt_text(record)
                self.task = self.task or text
                self.runs[-1].has_message = True
                self.runs[-1].open_calls.clear()
                self._step(What.OTHER, at_s, entry=self._entry(kind, at_s, text, text))
            case AssistantRecord():
                self._answer(record, at_s)
            case IntentRecord():
                self.pass_intent(record.id, record.name, at_s)
            case ResultRecord():
                self._result(record, at_s)
            case CompactedRecord():
                text = prompt_text(UserRecord(content=record.content, task=0))
                entry = self._entry(EntryKind.RALPH, at_s, "the context after a compaction", text)
                self._step(What.OTHER, at_s, entry=entry, context_tokens=record.post_tokens)
            case EventRecord():
                self._event(record.event, at_s)
            case EndedRecord() if self.runs[-1].ended is None:
                self._end(record, at_s)
            case DeliveryRecord():
                self._deliver(record, at_s)
            case _:
                self._step(What.OTHER, at_s)

    def _deliver(self, record: DeliveryRecord, at_s: float | None) -> None:
        self.runs[-1].delivery = record
        self.runs[-1].looked += record.looked
        if record.state is Delivery.FAILED:
            why = f"the result was not delivered: {'; '.join(record.errors)}"
            entry = self._entry(EntryKind.EVENT, at_s, why, "")
            self._step(What.OTHER, at_s, self._line(why), entry=entry, mark=MarkKind.NOTICE)

    def _answer(self, record: AssistantRecord, at_s: float | None) -> None:
        self._has_answer = True
        self.runs[-1].answers += 1
        self.runs[-1].open_calls = set(record.calls)
        first = None
        calls = {block["id"]: block for block in calls_of(record)}
        for block in record.blocks:
            kind = block.get("type")
            if kind == "text":
                entry = self._entry(EntryKind.TEXT, at_s, block["text"], block["text"])
            elif kind == "thinking" and isinstance(block.get("thinking"), str):
                entry = self._entry(EntryKind.THINKING, at_s, block["thinking"], block["thinking"])
            elif kind == "tool_use" and block.get("id") in calls:
                entry = self._call(record, block, at_s)
            else:
                text = json.dumps(block, ensure_ascii=False)
                entry = self._entry(EntryKind.THINKING, at_s, f"a block of type {kind}", text)
            first = first or entry
        if self._attempt is not None:
            steps = self.runs[-1].steps
            steps[self._attempt] = replace(steps[self._attempt], entry=first)
            self._attempt = None
        tokens = tokens_of(record.message["usage"])
        run = self.runs[-1]
        if not run.attempts:
            model = run.opening.model
            run.answers_usage = run.answers_usage.plus(model, tokens, facts_of(model))
        size = tokens.prompt + tokens.output
        self._step(What.OTHER, at_s, entry=first, context_tokens=size or None)

    def _call(self, record: AssistantRecord, block: Mapping[str, Any], at_s: float | None) -> str:
        raw = record.malformed.get(block["id"])
        call = ToolCall(block["id"], block["name"], {"INVALID_JSON": raw[0]} if raw else block["input"])
        return self._entry(EntryKind.CALL, at_s, describe_call(call), _arguments_text(call), call_id=call.id)

    def _result(self, record: ResultRecord, at_s: float | None) -> None:
        self.runs[-1].open_calls.discard(record.tool_use_id)
        draft = self._calls.pop(record.tool_use_id, None)
        entry, title = None, ""
        if draft is not None:
            text = self._excerpts.of_record(result_text(record.result), self._options.most_chars)
            draft.finish(text, is_error=record.is_error, shown_by=self._options.shown_by)
            entry, title = draft.entry.id, draft.entry.title
        if record.is_error:
            self._incidents.add("calls with an error", title)
        self._results[record.tool_use_id] = len(self.runs[-1].steps)
        self._step(What.RESULT, at_s, title, entry=entry, call_id=record.tool_use_id)

    def _event(self, fields: Mapping[str, Any], at_s: float | None) -> None:
        subtype = fields.get("subtype")
        has_failed = subtype == "attempt" and fields.get("error") is not None
        entry = label = None
        if subtype not in _UNTOLD and (subtype != "attempt" or has_failed):
            text = self._told(fields)
            label = self._line(text)
            entry = self._entry(EntryKind.EVENT, at_s, text, text, is_error=has_failed)
        if subtype == "attempt":
            self.runs[-1].count_attempt(fields.get("cost_usd"))
            self._attempt = None if has_failed else len(self.runs[-1].steps)
            asked = f"turn {fields['turn']}, {fields['target']}"
            if has_failed:
                asked = f"{asked}: {fields.get('kind') or 'failed'}"
            self._step(
                What.ATTEMPT,
                at_s,
                self._line(asked),
                entry=entry,
                took_s=_seconds(fields.get("latency_s")),
                wait_s=_seconds(fields.get("wait_s")),
                cost_usd=fields.get("cost_usd"),
            )
            return
        if subtype == "api_retry" and "turn" not in fields:  # journals of format 1 do not record attempts
            waited_s = _seconds(fields.get("retry_delay_ms")) / 1000
            self._step(What.ATTEMPT, at_s, "a failed attempt", entry=entry, wait_s=waited_s)
        mark = _MARKS.get(str(subtype))
        name = _COUNTED.get(str(subtype))
        if name is not None:
            self._incidents.add(name, label or "")
        self._step(What.OTHER, at_s, label or "", entry=entry, mark=mark)

    def _told(self, fields: Mapping[str, Any]) -> str:
        """The event in the words in which a run tells it. An event of a newer ralph is shown as JSON."""
        with suppress(ValidationError, KeyError, TypeError, ValueError):
            event = event_of(fields)
            lines = [] if event is None else list(self._narration.lines(event))
            about_attempt = attempts_line(fields)
            if about_attempt is not None:
                lines.insert(0, about_attempt)
            if lines:
                return "\n".join(lines)
        return json.dumps(dict(fields), ensure_ascii=False)

    def _end(self, record: EndedRecord, at_s: float | None) -> None:
        run = self.runs[-1]
        run.ended = record
        for call_id in record.denied:
            if call_id in self._results:
                at = self._results[call_id]
                step = run.steps[at]
                run.steps[at] = replace(step, mark=MarkKind.DENIAL, label=f"denied: {step.label}")
                self._incidents.add("denied calls", step.label)
        text = ending(record)
        entry = self._entry(EntryKind.EVENT, at_s, text, "")
        line = self._line(text)
        self._step(What.ENDED, at_s, line, entry=entry, took_s=record.duration_s, mark=MarkKind.ENDED)

    def _step(
        self,
        what: What,
        at_s: float | None,
        label: str = "",
        *,
        entry: str | None = None,
        took_s: float = 0.0,
        wait_s: float = 0.0,
        call_id: str = "",
        mark: MarkKind | None = None,
        cost_usd: float | None = None,
        context_tokens: int | None = None,
    ) -> None:
        self.runs[-1].steps.append(
            JournalStep(what, at_s, label, entry, took_s, wait_s, call_id, mark, cost_usd, context_tokens)
        )

    def _entry(
        self,
        kind: EntryKind,
        at_s: float | None,
        title: str,
        text: str,
        *,
        is_error: bool = False,
        call_id: str = "",
    ) -> str:
        """Adds an entry and returns its id."""
        excerpt = self._excerpts.of_record(text, self._options.most_chars)
        self._number += 1
        identifier = f"{self._options.prefix}-{self._number}"
        draft = EntryDraft(
            TranscriptEntry(
                identifier,
                kind,
                at_s,
                self._line(title),
                excerpt.text,
                is_error=is_error,
                cut_chars=excerpt.cut_chars,
                shown_by=self._options.shown_by if excerpt.cut_chars else None,
            )
        )
        if len(self._first) < self._options.most_entries // _SHARE_OF_FIRST:
            self._first.append(draft)
        else:
            self._last.append(draft)
        if call_id:
            self._calls[call_id] = draft
        return identifier

    def _line(self, text: str) -> str:
        return self._excerpts.line(text)

    def _name(self, name: str) -> str:
        """The line with the name of a tool or a target. A journal has few names, and each of them often."""
        line = self._names.get(name)
        if line is None:
            line = self._names[name] = self._line(name)
        return line


def _arguments_text(call: ToolCall) -> str:
    arguments = call.arguments
    if len(arguments) == 1 and isinstance(only := next(iter(arguments.values())), str):
        return only
    lines = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
