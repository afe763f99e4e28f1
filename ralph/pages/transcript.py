"""Turns the records of a journal into the timelines of its runs and the entries of a transcript, record by record. Long
texts are cut at once, so that the memory needed does not depend on the size of the journal. No I/O happens here.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.conversation.records import (
    AssistantRecord,
    CompactedRecord,
    DeliveryRecord,
    EndedRecord,
    EventRecord,
    IntentRecord,
    Record,
    ResultRecord,
    RunRecord,
    TargetRecord,
    UserRecord,
)
from ralph.output.narration import Narration, describe_call
from ralph.pages.content import EntryKind, Mark, MarkKind, Point, Stretch, StretchKind, TranscriptEntry
from ralph.sessions.story import (
    CallOutcome,
    CallRequest,
    EventStep,
    ModelText,
    OtherBlock,
    Prompt,
    SessionStory,
    Step,
    prompt_text,
)
from ralph.sessions.story_text import ending, event_lines, result_text
from ralph.values.outcome import Delivery
from ralph.values.usage import tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.pages.content import Excerpts
    from ralph.values.answer import ToolCall

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
_SUMS = frozenset({"turn_asked", "retry_recovered"})
"""Events that only sum up what other entries show."""
MOST_DETAILS = 20
SHARE_OF_FIRST = 3
"""Where there are too many entries, one third is taken from the beginning and the rest from the end."""


class Incidents:
    """Counts what a person may ask about, by name, and keeps the first lines about each."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.details: dict[str, list[str]] = {}

    def add(self, name: str, *details: str, number: int = 1) -> None:
        self.numbers[name] = self.numbers.get(name, 0) + number
        lines = self.details.setdefault(name, [])
        lines += details[: MOST_DETAILS - len(lines)]


class _EntryDraft:
    """An entry of the transcript that may still get its result."""

    def __init__(self, entry: TranscriptEntry, run: int) -> None:
        self.entry = entry
        self.run = run
        """The index of its run."""


class PageTranscript:
    """Collects the story of one session, the timelines of its runs, and the entries. `take` gets each record in order."""

    def __init__(
        self, prefix: str, most_chars: int, most_entries: int, shown_by: str, excerpts: Excerpts
    ) -> None:
        """`prefix` begins the ids of all entries, and texts are cut to `most_chars`. The command `shown_by` shows the whole
        session.
        """
        self._prefix, self._shown_by = prefix, shown_by
        self._most_chars, self._excerpts = most_chars, excerpts
        self._most_first = most_entries // SHARE_OF_FIRST
        self._narration = Narration(is_quiet=False, has_color=False)
        self.story = SessionStory()
        self.runs: list[RunTimeline] = []
        self.lacks_times = False
        """True if an older ralph wrote lines without their times. They have the time of the line before."""
        self._now_s = 0.0
        self.incidents = Incidents()
        self.models: dict[str, None] = {}
        """The names of the models, in the order of their first use."""
        self._number = 0
        """The number of entries so far."""
        self._first: list[_EntryDraft] = []
        self._last: deque[_EntryDraft] = deque(maxlen=max(most_entries - self._most_first, 1))
        self._calls: dict[str, _EntryDraft] = {}
        """The entries of calls that have no result yet, by the ids of the calls."""
        self._names: dict[str, str] = {}
        """The lines with names so far, by the name."""
        self._results: dict[str, Mark] = {}
        """A mark at the result of each call in the current run, in case the call was denied."""
        self._attempt: int | None = None
        """The place of the stretch of an attempt whose answer has not come yet."""

    def entries(self) -> list[list[TranscriptEntry]]:
        """The entries of each run. If there were too many, one says how many were left out."""
        of_runs: list[list[TranscriptEntry]] = [[] for _ in self.runs]
        for draft in self._first:
            of_runs[draft.run].append(draft.entry)
        if left_out := self._number - len(self._first) - len(self._last):
            title = f"{left_out:,} entries are left out here"
            identifier, shown_by = f"{self._prefix}-gap", self._shown_by
            gap = TranscriptEntry(identifier, EntryKind.EVENT, None, title, "", shown_by=shown_by)
            of_runs[self._first[-1].run if self._first else 0].append(gap)
        for draft in self._last:
            of_runs[draft.run].append(draft.entry)
        return of_runs

    def take(self, record: Record, at_s: float | None, number: int, *, has_texts: bool = True) -> None:
        """Adds a record. `number` is the index of its line in the journal. If `has_texts` is False, the record was
        decoded without its texts, and gets no entry. Raises JournalDamage as `SessionStory.take` does.
        """
        happened = self.story.take(record, number)
        match record:
            case RunRecord():
                self._begin_run(record, at_s)
            case TargetRecord() if record.model is not None:
                self.models[record.model] = None
            case _ if self.story.runs:
                self._take_in_run(record, happened, at_s, has_texts=has_texts)

    def _begin_run(self, record: RunRecord, at_s: float | None) -> None:
        if at_s is None:
            with suppress(ValueError):
                at_s = datetime.fromisoformat(record.started_at).timestamp()
        self.models[record.model] = None
        self._pass_to(at_s)
        self.runs.append(RunTimeline(self._now_s))
        self._results.clear()
        self._attempt = None

    def _take_in_run(
        self, record: Record, happened: Sequence[Step], at_s: float | None, *, has_texts: bool
    ) -> None:
        self._pass_to(at_s)
        run = self.runs[-1]
        run.now_s = self._now_s
        match record:
            case AssistantRecord():
                self._answer(record, happened, at_s, has_texts=has_texts)
            case IntentRecord():
                draft = self._calls.get(record.id)
                title, entry = (
                    (self._name(record.name), None) if draft is None else (draft.entry.title, draft.entry.id)
                )
                run.call(record.id, title, entry)
            case ResultRecord():
                self._result(record, has_texts=has_texts)
            case CompactedRecord():
                text = prompt_text(UserRecord(content=record.content, task=0))
                self._entry(EntryKind.RALPH, at_s, "the context after a compaction", text)
                self._tell_context(record.post_tokens)
            case EventRecord(event={"subtype": "attempt"}):
                self._end_attempt(record.event, at_s, has_texts=has_texts)
            case EventRecord():
                self._event(record.event, at_s)
            case EndedRecord() if self.story.runs[-1].ended is record:
                self._end(record, at_s)
            case DeliveryRecord(state=Delivery.FAILED):
                why = f"the result was not delivered: {'; '.join(record.errors)}"
                entry = self._entry(EntryKind.EVENT, at_s, why, "")
                run.mark(MarkKind.NOTICE, self._line(why), entry)
            case _:
                for step in happened:
                    self._entry_of(step, at_s)

    def _answer(
        self, record: AssistantRecord, happened: Sequence[Step], at_s: float | None, *, has_texts: bool
    ) -> None:
        entries = [self._entry_of(step, at_s) for step in happened if has_texts]
        first = next(iter(entries), None)
        self._number += not has_texts
        if self._attempt is not None:
            self.runs[-1].name(self._attempt, first)
            self._attempt = None
        tokens = tokens_of(record.message["usage"])
        self._tell_context(tokens.prompt + tokens.output or None)

    def _result(self, record: ResultRecord, *, has_texts: bool) -> None:
        draft = self._calls.pop(record.tool_use_id, None)
        entry, title = None, ""
        if draft is not None:
            entry, title = draft.entry.id, draft.entry.title
            if has_texts:
                result = self._excerpts.of_record(result_text(record.result), self._most_chars)
                cut_chars = draft.entry.cut_chars + result.cut_chars
                draft.entry = replace(
                    draft.entry,
                    result=result.text,
                    is_error=record.is_error,
                    cut_chars=cut_chars,
                    shown_by=self._shown_by if cut_chars else None,
                )
        self._number += not has_texts
        if record.is_error:
            self.incidents.add("calls with an error", title)
        self._results[record.tool_use_id] = Mark(MarkKind.DENIAL, self._now_s, title, entry)
        self.runs[-1].result(record.tool_use_id)

    def _end_attempt(self, fields: Mapping[str, Any], at_s: float | None, *, has_texts: bool) -> None:
        has_failed = fields.get("error") is not None
        entry = None
        if has_failed and has_texts:
            text = self._event_text(fields)
            entry = self._entry(EntryKind.EVENT, at_s, text, text, is_error=True)
        asked = f"turn {fields['turn']}, {self._name(fields['target'])}"
        if has_failed:
            asked = f"{asked}: {self._name(fields.get('kind') or 'failed')}"
        run, cost_usd = self.runs[-1], fields.get("cost_usd")
        took_s, wait_s = _seconds(fields.get("latency_s")), _seconds(fields.get("wait_s"))
        place = run.attempt(asked, took_s=took_s, wait_s=wait_s, entry=entry)
        self._attempt = None if has_failed or not has_texts else place
        if cost_usd is not None:
            run.costs.append(Point(self._now_s, cost_usd))

    def _event(self, fields: Mapping[str, Any], at_s: float | None) -> None:
        subtype = str(fields.get("subtype"))
        entry, label = None, ""
        if subtype not in _SUMS:
            text = self._event_text(fields)
            label = self._line(text)
            entry = self._entry(EntryKind.EVENT, at_s, text, text)
        if subtype == "api_retry" and "turn" not in fields:  # journals of format 1 do not record attempts
            waited_s = _seconds(fields.get("retry_delay_ms")) / 1000
            self.runs[-1].attempt("a failed attempt", wait_s=waited_s, entry=entry)
        if subtype in _COUNTED:
            self.incidents.add(_COUNTED[subtype], label)
        if subtype in _MARKS:
            self.runs[-1].mark(_MARKS[subtype], label, entry)

    def _event_text(self, fields: Mapping[str, Any]) -> str:
        """The event in the words in which a run tells it. An event of a newer ralph is shown as JSON."""
        lines = event_lines(fields, self._narration)
        return "\n".join(lines) or json.dumps(dict(fields), ensure_ascii=False)

    def _end(self, record: EndedRecord, at_s: float | None) -> None:
        run = self.runs[-1]
        for result in [self._results[one] for one in record.denied if one in self._results]:
            self.incidents.add("denied calls", result.label)
            run.marks.append(replace(result, label=f"denied: {result.label}"))
        text = ending(record)
        run.mark(MarkKind.ENDED, self._line(text), self._entry(EntryKind.EVENT, at_s, text, ""))

    def _pass_to(self, at_s: float | None) -> None:
        self.lacks_times = self.lacks_times or at_s is None
        self._now_s = max(self._now_s, at_s or 0.0)

    def _tell_context(self, tokens: int | None) -> None:
        if tokens is not None:
            self.runs[-1].contexts.append(Point(self._now_s, float(tokens)))

    def _entry_of(self, step: Step, at_s: float | None) -> str | None:
        """Adds the entry of a prompt or of a part of an answer, and returns its id. None for other steps."""
        match step:
            case Prompt(text=text, is_automatic=is_automatic):
                kind = EntryKind.RALPH if is_automatic else EntryKind.PROMPT
                return self._entry(kind, at_s, text, text)
            case ModelText(text=text):
                return self._entry(EntryKind.TEXT, at_s, text, text)
            case OtherBlock(block={"type": "thinking", "thinking": str(text)}):
                return self._entry(EntryKind.THINKING, at_s, text, text)
            case OtherBlock(block=block):
                title, text = f"a block of type {block.get('type')}", json.dumps(block, ensure_ascii=False)
                return self._entry(EntryKind.THINKING, at_s, title, text)
            case CallRequest(call=call):
                text = _arguments_text(call)
                return self._entry(EntryKind.CALL, at_s, describe_call(call), text, call_id=call.id)
            case CallOutcome() | EventStep():
                return None

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
        excerpt = self._excerpts.of_record(text, self._most_chars)
        self._number += 1
        identifier = f"{self._prefix}-{self._number}"
        entry = TranscriptEntry(
            identifier,
            kind,
            at_s,
            self._line(title),
            excerpt.text,
            is_error=is_error,
            cut_chars=excerpt.cut_chars,
            shown_by=self._shown_by if excerpt.cut_chars else None,
        )
        draft = _EntryDraft(entry, len(self.runs) - 1)
        is_first = len(self._first) < self._most_first
        (self._first if is_first else self._last).append(draft)
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


# The use of time in a session's runs: stretches of time and marks. The journal records moments. An attempt is recorded at its end with its duration, a call when it begins and when it
# ends.

IDLE_FROM_S = 5.0
"""A shorter gap between two records is ralph's own work and is not shown."""


class RunTimeline:
    """The time of one run, as its records tell it. The reader sets `now_s` to the time of each record, which never runs
    backwards.
    """

    def __init__(self, now_s: float) -> None:
        self.began_s = self.now_s = now_s
        self.marks: list[Mark] = []
        self.costs: list[Point] = []
        """The cost of each attempt in US dollars, if it is known."""
        self.contexts: list[Point] = []
        """The size of the context in tokens, as often as the journal tells it."""
        self._told = [Stretch(StretchKind.IDLE, now_s, now_s, "")]
        self._calls: dict[str, Stretch] = {}
        """The calls without a result, by their ids."""

    def attempt(
        self, label: str, *, took_s: float = 0.0, wait_s: float = 0.0, entry: str | None = None
    ) -> int:
        """Adds a request that took `took_s` seconds and has ended now, and the wait of `wait_s` seconds after it.
        Returns the index of its stretch, which `name` takes.
        """
        self._told.append(Stretch(StretchKind.MODEL, self.now_s - took_s, self.now_s, label, entry))
        self._told.append(
            Stretch(StretchKind.WAITING, self.now_s, self.now_s + wait_s, "waiting before a retry")
        )
        return len(self._told) - 2

    def name(self, place: int, entry: str | None) -> None:
        """Links an attempt's stretch to its entry in the transcript, which is known only later."""
        self._told[place] = replace(self._told[place], entry=entry)

    def call(self, identifier: str, label: str, entry: str | None) -> None:
        self._calls[identifier] = Stretch(StretchKind.TOOL, self.now_s, self.now_s, label, entry)

    def result(self, identifier: str) -> None:
        if identifier in self._calls:
            self._told.append(replace(self._calls.pop(identifier), ended_s=self.now_s))

    def mark(self, kind: MarkKind, label: str, entry: str | None) -> None:
        self.marks.append(Mark(kind, self.now_s, label, entry))

    def told(self, until_s: float | None) -> list[Stretch]:
        """The stretches in the order of their ends, which may overlap. `until_s` is the end of calls without a result, or None
        if such calls have no known end.
        """
        ended_s = self.now_s if until_s is None else until_s
        return [*self._told, *(replace(one, ended_s=ended_s) for one in self._calls.values())]


def stretches_of(runs: Sequence[RunTimeline], until_s: float | None = None) -> list[Stretch]:
    """The stretches of the runs, in order and without overlap. Calls of one answer may run at the same time; each of their
    stretches then begins where the one before ends. `until_s` is as in `RunTimeline.told`, for the last run.
    """
    made = _Stretches()
    for run in runs:
        for one in run.told(until_s if run is runs[-1] else None):
            match one.kind:
                case StretchKind.IDLE:
                    made.reach(one.began_s)
                case StretchKind.WAITING:
                    made.waits_until_s = one.ended_s
                case _:
                    made.add(one)
    return made.done


class _Stretches:
    """Collects stretches in order of time, and fills the gaps between them."""

    def __init__(self) -> None:
        self.done: list[Stretch] = []
        self.waits_until_s = 0.0
        """The end of the wait that the last attempt announced."""
        self._end_s: float | None = None

    def add(self, one: Stretch) -> None:
        began_s = one.began_s if self._end_s is None else max(one.began_s, self._end_s)
        if one.ended_s > began_s:
            self.reach(began_s)
            self.done.append(replace(one, began_s=began_s))
            self._end_s = one.ended_s

    def reach(self, at_s: float) -> None:
        """Fills the gap up to `at_s`."""
        begin_s = at_s if self._end_s is None else self._end_s
        waited_s = min(self.waits_until_s, at_s)
        if waited_s > begin_s:
            self.done.append(Stretch(StretchKind.WAITING, begin_s, waited_s, "waiting before a retry"))
            begin_s = waited_s
        if at_s - begin_s >= IDLE_FROM_S:
            self.done.append(Stretch(StretchKind.IDLE, begin_s, at_s, "nothing is recorded"))
            begin_s = at_s
        self._end_s = max(begin_s, self._end_s or begin_s)


def with_known(stretches: Sequence[Stretch], known: Iterable[Stretch]) -> list[Stretch]:
    """The stretches together with stretches that another record tells, such as a loop's waits. A known stretch takes
    the place of idle time and of gaps. Elsewhere the journal is believed.
    """
    made = sorted(stretches, key=lambda one: one.began_s)
    for one in known:
        free = [one]
        kept: list[Stretch] = []
        for stretch in made:
            if stretch.ended_s <= one.began_s or stretch.began_s >= one.ended_s:
                kept.append(stretch)
            elif stretch.kind is StretchKind.IDLE:
                kept += _without(stretch, one)
            else:
                kept.append(stretch)
                free = [piece for rest in free for piece in _without(rest, stretch)]
        made = sorted([*kept, *free], key=lambda piece: piece.began_s)
    return made


def _without(whole: Stretch, taken: Stretch) -> Iterator[Stretch]:
    """Yields the parts of `whole` that `taken` does not cover."""
    if whole.began_s < taken.began_s:
        yield replace(whole, ended_s=min(whole.ended_s, taken.began_s))
    if whole.ended_s > taken.ended_s:
        yield replace(whole, began_s=max(whole.began_s, taken.ended_s))
