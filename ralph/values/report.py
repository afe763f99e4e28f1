"""Decides which texts and calls of a model are a valid final report. If the model gives no report, makes a synthetic
one. No I/O happens here. A `Validator`, which the caller passes in, checks a report against the user's schema.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.values.answer import MalformedCall, ToolCall, ToolDefinition, ToolOutput
from ralph.values.screen_text import counted
from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Validator = Callable[[Mapping[str, Any]], Sequence[str]]
    """A function that takes the arguments of a report and returns the faults in them. Each fault is a short line with
    the path of the wrong value and the expected value."""

STATUSES = ("success", "failure")

_STATUS_NAMES = '"success" or "failure"'
_LONGEST_SHOWN_VALUE = 60
NO_CALL = "the answer was plain text and no call of final_report"
"""The fault of an answer that should have been a call of the report tool."""
NO_SUMMARY = "The answer was the result itself, without a summary."
"""The summary of a report if the model wrote only the payload, and no report around it."""
_LONGEST_ERROR = 500
LONGEST_TEXT = 1_000_000
"""The maximum length of a text that is searched for a report, in characters. A longer one is not searched at all,
because a part of a JSON value could be taken for the whole."""


class Report(Struct, frozen=True):
    status: str
    summary: str
    payload: Any
    """The report's payload. None if no schema for a payload is set, or if a report of failure contains no payload."""
    source: str
    """"tool_call" for a call of the report tool, "text" if the model wrote the report as text, "synthetic" if ralph
    made it."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Details of a synthetic report: `reason`, `turns_completed`, `final_report_attempts`, `last_stop_reason` and
    `last_error`."""

    def as_object(self) -> dict[str, object]:
        """The report as it is in the result object, without the payload, for which that object has a field of its
        own.
        """
        return {"source": self.source, "status": self.status, "summary": self.summary, **self.details}


def plain_problems(arguments: Mapping[str, Any]) -> list[str]:
    """The faults in the status and the summary of a report. It is the `Validator` of a run without a schema for the
    payload.
    """
    text = "a text that is not empty"
    status, summary = arguments.get("status"), arguments.get("summary")
    problems = []
    if status not in STATUSES:
        problems.append(_problem(arguments, "status", _STATUS_NAMES))
    if not isinstance(summary, str) or not summary.strip():
        problems.append(_problem(arguments, "summary", text))
    return problems


def problems_without_payload(arguments: Mapping[str, Any]) -> list[str]:
    """The faults of a report that may contain a payload. This function does not check the payload."""
    problems = plain_problems(arguments)
    if "payload" not in arguments and arguments.get("status") != "failure":
        problems.append('payload: required with status "success"')
    return problems


def _problem(arguments: Mapping[str, Any], key: str, expected: str) -> str:
    if key not in arguments:
        return f"{key}: required ({expected})"
    return f"{key}: expected {expected}, got {shown(arguments[key])}"


def shown(value: object) -> str:
    """A short text for a value in an error message. For a list or an object, the text is only the type."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    # Python refuses to convert very long integers to text.
    if isinstance(value, int) and value.bit_length() > 64:
        return "a very large integer"
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN_VALUE:
        return f"{shown(value[:_LONGEST_SHOWN_VALUE])}... ({len(value)} characters)"
    # Half a surrogate pair cannot be sent.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


class ReportForm(Struct, frozen=True):
    """The form that a final report must have: the tool that the model calls, and the validator of its arguments."""

    tool: ToolDefinition
    validator: Validator
    has_payload: bool

    def receiver(self) -> ReportReceiver:
        """Makes a new `ReportReceiver`. Each task needs its own."""
        return ReportReceiver(self.validator, self.has_payload)


class ReportReceiver:
    """Checks the model's reports in one task, and stores the first valid report."""

    def __init__(self, validator: Validator, has_payload: bool) -> None:
        self.validator = validator
        self.has_payload = has_payload
        self.attempts = 0
        """How often the model tried to report. Each call of the report tool counts, and each answer of plain text
        in place of a call."""
        self.accepted: Report | None = None
        self.cached: Report | None = None
        """A report that was found in the text of an answer, or None. It is accepted only by `accept_cached`. A
        later text without a report, or a call of the report tool, discards it."""
        self.last_problem: str | None = None
        """The fault of the model's last report. None if the last report was valid, or if there was no report."""

    def receive(self, call: ToolCall | MalformedCall) -> ToolOutput:
        """Checks a call of the report tool, and returns the result of the call for the model.

        After one report has been accepted, all later reports are refused, because the accepted report may already
        have been published. Every call discards a report that was found in an earlier text.
        """
        self.attempts += 1
        self.cached = None
        if self.accepted is not None:
            return ToolOutput(
                "A report was accepted before; it stays as it is, and this one is not used.", is_error=True
            )
        if isinstance(call, MalformedCall):
            self.last_problem = call.reason
            why = f"This report was not accepted: {call.reason}. Send it again, whole and as valid JSON."
            return ToolOutput(why, is_error=True)
        problems = self.validator(call.arguments)
        if problems:
            self.last_problem = "; ".join(problems)
            lines = "\n".join(f"- {problem}" for problem in problems)
            why = f"This report was not accepted:\n{lines}\nPut this right and send the whole report again."
            return ToolOutput(why, is_error=True)
        self.last_problem = None
        self.accepted = self._report(call.arguments, "tool_call")
        return ToolOutput("The report was accepted.")

    def restored(self, arguments: Mapping[str, Any]) -> Report:
        """Restores a report that an earlier process accepted, and returns it. The report is not checked again."""
        self.attempts += 1
        self.accepted = self._report(arguments, "tool_call")
        return self.accepted

    def forget_text(self) -> None:
        """Discards a report that was found in a text. Must be called after the model was told that this text is no
        report.
        """
        self.cached = None

    def take_text(self, text: str) -> bool:
        """Looks for a report in an answer that consists only of text, and caches a valid one. Returns whether there
        is one. Unless the text is empty, `attempts` is increased.
        """
        is_report = self.look_at_text(text)
        if text.strip():
            self.attempts += 1
            self.last_problem = None if is_report else NO_CALL
        return is_report

    def look_at_text(self, text: str) -> bool:
        """Looks for a valid report or payload in an answer's text, and caches it as a report. Returns whether there
        was one. Unless the text is empty, a report from an earlier text is discarded.
        """
        if text.strip():
            self.cached = None
        for found in found_in(text):
            try:
                value = strict_json(found.body)
            except (ValueError, RecursionError):
                continue
            arguments = self._as_arguments(value, found)
            if arguments is not None:
                self.cached = self._report(arguments, "text")
                return True
        return False

    def accept_cached(self) -> Report | None:
        """Accepts the cached report, unless another one was accepted before. Returns the accepted report, or None
        if there is none.
        """
        self.accepted = self.accepted or self.cached
        return self.accepted

    def _as_arguments(self, value: Any, found: JsonPart) -> dict[str, Any] | None:
        """The arguments of a report, made from a JSON value in a text. None if the value is not a report.

        A value that is only a payload becomes a report of success, but only without other text, which could
        contradict it.
        """
        if isinstance(value, dict) and not self.validator(value):
            return value
        if not self.has_payload or found.around or _is_meant_as_report(value):
            return None
        arguments = {"status": "success", "summary": NO_SUMMARY, "payload": value}
        return None if self.validator(arguments) else arguments

    def _report(self, arguments: Mapping[str, Any], source: str) -> Report:
        payload = arguments.get("payload") if self.has_payload else None
        return Report(arguments["status"], arguments["summary"], payload, source)


def _is_meant_as_report(value: object) -> bool:
    """Whether the model meant a value as a report, even if it is faulty. Without this check, a lenient schema could
    take a faulty report of failure for a payload, which would become a success.
    """
    if not isinstance(value, dict) or value.get("status") not in STATUSES:
        return False
    return "payload" in value or value["status"] == "failure"


_WHAT_HAPPENED = {
    "max_turns": "the turn limit (--max-turns) ended the run",
    "max_budget_usd": "the budget (--max-budget-usd) ended the run",
    "max_time": "the time limit (--max-time) ended the run",
    "context": "the context was full",
    "no_progress": "the run made no progress",
    "no_report": "no valid final report was sent",
}


_LIMITS = frozenset({"max_turns", "max_budget_usd", "max_time", "context"})


def synthetic_report(
    *,
    reason: str,
    turns: int,
    turns_completed: int,
    attempts: int,
    last_stop_reason: str | None,
    last_error: str | None,
) -> Report:
    """The report that ralph writes if the model gave no valid report. Its status is "failure".

    `reason` is a key of `_WHAT_HAPPENED`, or another name. The summary contains such a name with spaces in place of
    underscores. `turns` is the number of turns that the result shows, and the summary contains it. `attempts` is the number of the model's reports, none of which was accepted.
    """
    what = _WHAT_HAPPENED.get(reason, reason.replace("_", " "))
    sentences = [f"No final answer: {what} after {counted(turns, 'turn')}."]
    if attempts:
        were = "was" if attempts == 1 else "were"
        sentences.append(f"{counted(attempts, 'attempt')} at a final report {were} not accepted.")
    if last_stop_reason is not None:
        sentences.append(f"The last answer ended with {last_stop_reason}.")
    # If a limit is the reason, the error only repeats it.
    if last_error is not None and (attempts or reason not in _LIMITS):
        sentences.append(f"Last error: {_cut(last_error, _LONGEST_ERROR).rstrip('.')}.")
    details = {
        "reason": reason,
        "turns_completed": turns_completed,
        "final_report_attempts": attempts,
        "last_stop_reason": last_stop_reason,
        "last_error": last_error,
    }
    return Report("failure", " ".join(sentences), None, "synthetic", details)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


class JsonPart(Struct, frozen=True):
    """A part of a text that may be JSON."""

    body: str
    around: str
    """The rest of the text, outside `body`. It may be empty."""


def found_in(text: str) -> Iterator[JsonPart]:
    """The parts of a text that may be JSON: the whole text, and its last Markdown block between lines of three
    backticks, whose language is `json` or missing. JSON within sentences is ignored, because it may be an example.

    Nothing is parsed: the caller checks whether a part is valid. The search takes linear time.
    """
    if len(text) > LONGEST_TEXT:
        return
    yield JsonPart(text.strip(), "")
    yield from _last_fenced(text)


def _last_fenced(text: str) -> Iterator[JsonPart]:
    opened: tuple[str, int, int] | None = None
    last: tuple[int, int, int, int] | None = None
    at = 0
    for line in text.split("\n"):
        mark, after = line.strip(), min(at + len(line) + 1, len(text))
        if mark.startswith("```"):
            language = mark.lstrip("`").strip().lower()
            if opened is None or language:
                opened = (language, at, after)
            else:
                if opened[0] in ("", "json"):
                    last = (opened[1], opened[2], at, after)
                opened = None
        at = after
    if last is not None:
        begin, body, end, rest = last
        around = filter(None, (text[:begin].strip(), text[rest:].strip()))
        yield JsonPart(text[body:end].strip(), "\n".join(around))
