"""The final report of a run: the tool that asks for it, what counts as one, and what stands in where none came.

Pure. A user's schema is embedded here and checked elsewhere: whoever holds a schema library injects a `Validator`.
"""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from ralph.core.answer import MalformedCall
from ralph.core.strict_json import strict_json
from ralph.core.tool_calls import ToolDefinition, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ralph.core.tool_calls import ToolCall

    Validator = Callable[[Mapping[str, Any]], Sequence[str]]
    """From a report's arguments to what is wrong with them: a few short lines, each with path and expectation."""

FINAL_REPORT = "final_report"
STATUSES = ("success", "failure")
SOURCES = ("tool_call", "text", "synthetic")
DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_STATUS_NAMES = '"success" or "failure"'
_LONGEST_SHOWN_VALUE = 60
_LONGEST_SUMMARY = 2000  # of text that was not written as a summary
_LONGEST_ERROR = 500


# -- The tool. ---------------------------------------------------------------------------------------------------


def report_tool(payload_schema: dict[str, Any] | None) -> ToolDefinition:
    """With a schema, `payload` is no required argument: a task that could not be done has nothing true to put there.

    The schema's draft is kept as `$schema` of the whole where it is not the default: the tool as it was sent is all
    that a resumed session needs for checking.
    """
    once = "Call this exactly once, as your very last action, when the task is done or cannot be done."
    properties: dict[str, Any] = {
        "status": {"type": "string", "enum": list(STATUSES)},
        "summary": {
            "type": "string",
            "minLength": 1,
            "description": "what was done, or why it could not be done",
        },
    }
    draft: dict[str, str] = {}
    how = 'Use status "failure" when the task could not be done.'
    if payload_schema is not None:
        properties["payload"] = _embedded(payload_schema)
        how = (
            'Use status "success" with the payload, or "failure", for which the payload may be left out, when the '
            "task could not be done."
        )
        named = payload_schema.get("$schema", DEFAULT_DRAFT)
        draft = {} if named.rstrip("#") == DEFAULT_DRAFT else {"$schema": named}
    schema = {**draft, "type": "object", "properties": properties, "required": ["status", "summary"]}
    return ToolDefinition(FINAL_REPORT, f"{once} {how}", schema)


# By what stands under them: schemas by name; a schema or a list of schemas. (All drafts since 4 together.)
_NAMED_SCHEMAS = {
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
}
_SCHEMAS = (
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contentSchema", "propertyNames"}
    | {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"}
    | {"additionalProperties", "unevaluatedProperties"}
)


def schemas_within(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Each object that serves as a schema, with its JSON pointer: by its keyword, or because a `$ref` leads there."""
    found: list[tuple[str, dict[str, Any]]] = []
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        pointer, one = waiting.pop()
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.add(id(one))
        found.append((pointer, one))
        waiting.extend(reversed(list(direct_subschemas(pointer, one))))
        fragment = own_fragment(schema, one.get("$ref"))
        if fragment is not None:
            waiting.append((f"#{fragment}", leads_to(schema, fragment)))
    return found


def direct_subschemas(pointer: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in _NAMED_SCHEMAS and isinstance(value, dict):
            for name, inner in value.items():
                yield f"{pointer}/{key}/{name.replace('~', '~0').replace('/', '~1')}", inner
        elif key in _SCHEMAS and isinstance(value, list):
            yield from ((f"{pointer}/{key}/{index}", inner) for index, inner in enumerate(value))
        elif key in _SCHEMAS:
            yield f"{pointer}/{key}", value


def own_fragment(schema: Mapping[str, Any], ref: object) -> str | None:
    """What follows the `#` of a reference into the schema itself; None for any other."""
    if not isinstance(ref, str):
        return None
    document, _, fragment = ref.partition("#")
    return fragment if document in ("", root_id(schema)) else None


def root_id(schema: Mapping[str, Any]) -> str:
    named = schema.get("id" if is_draft_4(schema) else "$id", "")
    return named.rstrip("#") if isinstance(named, str) else ""


def is_draft_4(schema: Mapping[str, Any]) -> bool:
    return str(schema.get("$schema")).startswith("http://json-schema.org/draft-04/")


def leads_to(schema: Mapping[str, Any], fragment: str) -> Any:
    """What the JSON pointer of a `$ref` names; None: nothing (or an anchor)."""
    here: Any = schema
    if fragment and not fragment.startswith("/"):
        return None
    for escaped in unquote(fragment).split("/")[1:]:
        part = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and part in here:
            here = here[part]
        elif isinstance(here, list) and re.fullmatch("[0-9]{1,9}", part) and int(part) < len(here):
            here = here[int(part)]
        else:
            return None
    return here


def _embedded(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as it stands under `properties.payload`, its references into itself still right."""
    inside: dict[str, Any] = json.loads(json.dumps(schema))
    # All of them first: a pointer is followed through the schema as it was.
    for _, one in schemas_within(inside):
        fragment = own_fragment(schema, one.get("$ref"))
        if fragment is not None:
            one["$ref"] = f"#/properties/payload{fragment}"
    named = {"$schema", "id" if is_draft_4(schema) else "$id"}
    return {key: value for key, value in inside.items() if key not in named}


# -- What counts as a report. ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    status: str
    summary: str
    payload: Any
    """None: there is no schema for it, or a failure came without."""
    source: str
    details: Mapping[str, object] = field(default_factory=dict)
    """Of a synthetic one: `reason`, `turns_completed`, `final_report_attempts`, `last_stop_reason`, `last_error`."""


def plain_problems(arguments: Mapping[str, Any]) -> list[str]:
    """The `Validator` of a report without a payload."""
    text = "a text that is not empty"
    status, summary = arguments.get("status"), arguments.get("summary")
    problems = []
    if status not in STATUSES:
        problems.append(_problem(arguments, "status", _STATUS_NAMES))
    if not isinstance(summary, str) or not summary.strip():
        problems.append(_problem(arguments, "summary", text))
    return problems


def payload_is_missing(arguments: Mapping[str, Any]) -> bool:
    """Where there is a schema for it."""
    return "payload" not in arguments and arguments.get("status") != "failure"


def _problem(arguments: Mapping[str, Any], key: str, expected: str) -> str:
    if key not in arguments:
        return f"{key}: required ({expected})"
    return f"{key}: expected {expected}, got {shown(arguments[key])}"


def shown(value: object) -> str:
    """Never long: what is inside a list or an object has problems of its own."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    # Python refuses to write out the longest integers.
    if isinstance(value, int) and value.bit_length() > 64:
        return "a very large integer"
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN_VALUE:
        return f"{shown(value[:_LONGEST_SHOWN_VALUE])}... ({len(value)} characters)"
    # Half a surrogate pair cannot be sent.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class ReportForm:
    """What a final report must be."""

    tool: ToolDefinition
    validator: Validator
    has_payload: bool

    def desk(self) -> ReportDesk:
        """For one task."""
        return ReportDesk(self.validator, self.has_payload)


def has_payload(tool: ToolDefinition) -> bool:
    return "payload" in tool.input_schema["properties"]


@dataclass
class ReportDesk:
    """Takes a run's reports: checks each, keeps the first that is right."""

    validator: Validator
    has_payload: bool
    attempts: int = 0
    """Reports that the model sent as calls, whatever became of them."""
    accepted: Report | None = None
    cached: Report | None = None
    """The newest that stood in an answer's text; it counts for nothing until `accept_cached`."""
    last_problem: str | None = None
    """Why the last call was not accepted; None: it was, or there was none."""

    def receive(self, call: ToolCall | MalformedCall) -> ToolOutput:
        """What the model is told. A report after an accepted one changes nothing: its result may be out already."""
        self.attempts += 1
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

    def look_at_text(self, text: str) -> bool:
        """Whether an answer's text holds a report or a payload; if so, it is cached. Time grows with the length."""
        for found in _found_in(text):
            try:
                value = strict_json(found.body)
            except (ValueError, RecursionError):
                continue
            arguments = self._as_arguments(value, found, text)
            if arguments is not None:
                self.cached = self._report(arguments, "text")
                return True
        return False

    def accept_cached(self) -> Report | None:
        """The report that counts from now on; None: there is none."""
        self.accepted = self.accepted or self.cached
        return self.accepted

    def _as_arguments(self, value: Any, found: _Found, text: str) -> dict[str, Any] | None:
        if isinstance(value, dict) and not self.validator(value):
            return value
        if not self.has_payload or _is_meant_as_report(value):
            return None
        arguments = {"status": "success", "summary": _text_around(found, text), "payload": value}
        return None if self.validator(arguments) else arguments

    def _report(self, arguments: Mapping[str, Any], source: str) -> Report:
        payload = arguments.get("payload") if self.has_payload else None
        return Report(arguments["status"], arguments["summary"], payload, source)


def _is_meant_as_report(value: object) -> bool:
    """A report with a mistake must not pass for a payload: a lenient schema would make a success of a failure."""
    if not isinstance(value, dict) or value.get("status") not in STATUSES:
        return False
    return "payload" in value or value["status"] == "failure"


# -- JSON in an answer's text. -----------------------------------------------------------------------------------

LONGEST_TEXT = 1_000_000
"""Characters. A part of a longer one might show a fragment as if it were the whole."""

# Each costs a parse and a check, and what is meant stands at the end.
_MOST_TRIED = 20

_OPENING = re.compile(r"[\[{]")
# A string that is not closed on its line ends there. (Never tried again from its middle: that would be quadratic.)
_INSIDE = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|[\[\]{}]')
_DEPTH = {"[": 1, "{": 1, "]": -1, "}": -1}


class _Found(NamedTuple):
    start: int
    end: int
    """Of all that belongs to it in the text, a fence's lines included."""
    body: str


def _found_in(text: str) -> Iterator[_Found]:
    """The text itself, then fenced blocks, then what stands in brackets: the newest first."""
    if len(text) > LONGEST_TEXT:
        return
    yield _Found(0, len(text), text.strip())
    yield from reversed(deque(_fenced(text), _MOST_TRIED))
    yield from reversed(deque(_bracketed(text), _MOST_TRIED))


def _fenced(text: str) -> Iterator[_Found]:
    opened: tuple[str, int, int] | None = None
    at = 0
    for line in text.split("\n"):
        mark, after = line.strip(), min(at + len(line) + 1, len(text))
        if mark.startswith("```"):
            language = mark.lstrip("`").strip().lower()
            if opened is None or language:
                opened = (language, at, after)
            else:
                if opened[0] in ("", "json"):
                    yield _Found(opened[1], after, text[opened[2] : at].strip())
                opened = None
        at = after


def _bracketed(text: str) -> Iterator[_Found]:
    """Balanced and outermost: a part of something unfinished is none. Strings count inside brackets only."""
    at = 0
    while opening := _OPENING.search(text, at):
        at, depth = opening.end(), 1
        while depth and (token := _INSIDE.search(text, at)):
            at = token.end()
            depth += _DEPTH.get(token.group(), 0)
        if depth:
            return
        yield _Found(opening.start(), at, text[opening.start() : at])


def _text_around(found: _Found, text: str) -> str:
    around = "\n".join(filter(None, (text[: found.start].strip(), text[found.end :].strip())))
    return _cut(around, _LONGEST_SUMMARY) or "The answer was the result itself, without a summary."


# -- Where none came. --------------------------------------------------------------------------------------------

_WHAT_HAPPENED = {
    "max_turns": "the turn limit was reached",
    "max_budget": "the budget was used up",
    "max_budget_usd": "the budget was used up",
    "max_time": "the time limit was reached",
    "context": "the context was full",
    "no_progress": "the run made no progress",
    "no_report": "no valid final report was sent",
}


def synthetic_report(
    *,
    reason: str,
    turns_completed: int,
    attempts: int,
    last_stop_reason: str | None,
    last_error: str | None,
) -> Report:
    """Its summary can stand as the run's only output. A reason that is not known is said in its own words."""
    what = _WHAT_HAPPENED.get(reason, reason.replace("_", " "))
    sentences = [f"No final answer: {what} after {_counted(turns_completed, 'turn')}."]
    if attempts:
        sentences.append(
            f"{_counted(attempts, 'final report')} {'was' if attempts == 1 else 'were'} refused."
        )
    if last_stop_reason is not None:
        sentences.append(f"The last answer ended with {last_stop_reason}.")
    if last_error is not None:
        sentences.append(f"Last error: {_cut(last_error, _LONGEST_ERROR).rstrip('.')}.")
    details = {
        "reason": reason,
        "turns_completed": turns_completed,
        "final_report_attempts": attempts,
        "last_stop_reason": last_stop_reason,
        "last_error": last_error,
    }
    return Report("failure", " ".join(sentences), None, "synthetic", details)


def report_object(report: Report) -> dict[str, object]:
    """What a result says of it. The payload is not in it: it has a field of its own there."""
    return {"source": report.source, "status": report.status, "summary": report.summary, **report.details}


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
