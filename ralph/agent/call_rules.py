"""Decides which tool calls may run, and tells the guards their results. Runs no call. Checks the arguments against the
tool's schema, and converts values whose meaning is clear.

The supported parts of JSON Schema are `type`, `properties`, `required`, `enum`, `minimum` and `items`. Other keywords
and invalid parts of an MCP tool's schema are ignored: the MCP server checks the arguments itself.

A call is malformed if it is cut off, is not JSON, names no known tool, or has wrong arguments. An answer whose calls
are all malformed is not counted as a turn. A call that a guard, a permission or the final turn refuses is not
malformed.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.agent.guards import Guards, Refusal
from ralph.conversation.notices import refused_in_final_turn
from ralph.values.answer import (
    FILE_TOOLS,
    FINAL_REPORT,
    FileChange,
    MalformedCall,
    Runnable,
    ToolCall,
    ToolOutput,
    type_names,
    unknown_arguments,
)
from ralph.values.events import DeadEnd, GuardTripped, MalformedCallRefused, Notice
from ralph.values.strict_json import JSON_TYPES, is_number, strict_json
from ralph.values.tool_choice import MCP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.agent.ports import Gate
    from ralph.agent.run_end import Finishing
    from ralph.values.answer import Ruling, ToolDefinition
    from ralph.values.ports import Events
    from ralph.values.report import ReportReceiver

_LONGEST_SHOWN_VALUE = 60
_MOST_FAULTS_NAMED = 5
_BOOLEANS = {"true": True, "false": False}


def fitted_arguments(schema: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of one of ralph's own tools, in the schema's types where a value has only one meaning: a
    number or a boolean as text, and a whole number with a fraction of 0. A null is left out if the argument may be.
    """
    properties, required = schema.get("properties", {}), schema.get("required", ())
    fitted = {}
    for name, value in arguments.items():
        wanted = _type_in(properties.get(name)) or "any"
        if value is not None or name in required or _is_of_type(value, wanted):
            fitted[name] = _fitted(value, wanted)
    return fitted


def _fitted(value: Any, wanted: str | list[str]) -> Any:
    """The value in the wanted type, or unchanged if it has that type or no clear meaning."""
    meant = value
    if isinstance(value, str) and wanted == "boolean":
        meant = _BOOLEANS.get(value.strip().lower())
    elif isinstance(value, str) and wanted in ("integer", "number"):
        with suppress(ValueError, RecursionError):
            meant = strict_json(value)
    if wanted == "integer" and isinstance(meant, float) and meant.is_integer():
        meant = int(meant)
    return meant if _is_of_type(meant, wanted) else value


def fault_in_arguments(tool_name: str, schema: Mapping[str, Any], arguments: Any) -> str | None:
    """The faults in the arguments, each with its path and the expected type. None if there are none."""
    if not isinstance(arguments, dict):
        return f"{tool_name}: the arguments must be an object, got {shown_value(arguments)}"
    faults = list(_faults(schema, arguments, path=""))
    if not faults:
        return None
    more = len(faults) - _MOST_FAULTS_NAMED
    named = "; ".join(faults[:_MOST_FAULTS_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return f"{tool_name}: {named}"


def _faults(schema: Any, value: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    where = f'"{path}"' if path else "the value"
    expected = _type_in(schema)
    if expected is not None and not _is_of_type(value, expected):
        yield f"{where} must be {type_names(expected)}, got {shown_value(value)}"
        return
    allowed, minimum = schema.get("enum"), schema.get("minimum")
    if isinstance(allowed, list) and not any(_is_same(value, one) for one in allowed):
        choices = ", ".join(json.dumps(one) for one in allowed)
        yield f"{where} must be one of {choices}, got {shown_value(value)}"
    if is_number(minimum) and is_number(value) and value < minimum:
        yield f"{where} must be at least {minimum}, got {shown_value(value)}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(schema.get("items"), item, f"{path}[{index}]")
    if isinstance(value, dict):
        yield from _faults_inside(schema, value, path)


def _faults_inside(schema: Mapping[str, Any], value: dict[str, Any], path: str) -> Iterator[str]:
    prefix = f"{path}." if path else ""
    properties, required = schema.get("properties"), schema.get("required")
    properties = properties if isinstance(properties, dict) else {}
    for key in required if isinstance(required, list) else ():
        if not isinstance(key, str) or key in value:
            continue
        # zod also writes those as required for which a tool has a default.
        one = properties.get(key)
        if not (isinstance(one, dict) and "default" in one):
            yield f'"{prefix}{key}" is required ({type_names(_type_in(one) or "any")})'
    for key, item in value.items():
        if key in properties:
            yield from _faults(properties[key], item, f"{prefix}{key}")


def _type_in(schema: Any) -> str | list[str] | None:
    """None if the schema names no type."""
    expected = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(expected, list) and expected and all(isinstance(one, str) for one in expected):
        return expected
    return expected if isinstance(expected, str) else None


def _is_of_type(value: Any, expected: str | list[str]) -> bool:
    if isinstance(expected, list):
        return any(_is_of_type(value, one) for one in expected)
    is_of_type = JSON_TYPES.get(expected)
    return is_of_type is None or is_of_type(value)


def _is_same(value: Any, allowed: Any) -> bool:
    """In Python 1 and True are equal, in JSON they are not."""
    return bool(type(value) is type(allowed) and value == allowed)


def shown_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    if len(text) > _LONGEST_SHOWN_VALUE:
        text = text[:_LONGEST_SHOWN_VALUE] + "..."
    kind = next((name for name, is_of_type in JSON_TYPES.items() if is_of_type(value)), "not JSON")
    return text if value is None else f"{text} ({kind})"


MOST_MALFORMED_ANSWERS = 3
"""The run ends after this many malformed answers in a row (`specs/turns.md`)."""


_NO_CHANGE = FileChange(path="", before="", after="")

IGNORED_ARGUMENTS = "(ignored arguments that the tool does not have: {names})"
_LEFT_OUT = object()
ENDING = "This call was not run: the run ends here, because the calls before it led nowhere."


class CallRules:
    def __init__(
        self,
        definitions: Sequence[ToolDefinition],
        finishing: Finishing,
        receiver: ReportReceiver | None,
        events: Events,
        gate: Gate,
    ) -> None:
        """`receiver` checks the final report. None if no report is required."""
        self._tools: Mapping[str, ToolDefinition] = {tool.name: tool for tool in definitions}
        self._finishing = finishing
        self._receiver = receiver
        self._events = events
        self.gate = gate
        self._guards = Guards()
        self.turn = 0
        self.ended_by: DeadEnd | None = None
        """Why the run must end after the current answer, or None."""
        self.has_use = False
        """Whether a call of the current answer was valid. A guard or the permission mode may still refuse it."""
        self.has_report = False
        """Whether the current answer called the report tool, with a report that may be invalid."""
        self._malformed: list[ToolCall] = []
        """The calls of the current answer that could not run as the model wrote them."""
        self._malformed_answers: list[bool] = []
        """For each malformed answer since the last valid call: whether all its calls named unknown tools."""
        self.may_have_changed = False
        """Whether a call may have changed a file. The caller sets it back to False."""
        self.denied: list[ToolCall] = []
        """The calls that the gate refused, or in which the sandbox denied an operation."""
        self._converted: set[tuple[str, str]] = set()
        """The tools and arguments for which a notice has told of a conversion."""

    def begin_answer(self, turn: int) -> None:
        """Must be called before the first call of each answer."""
        self.turn = turn
        self.has_use = self.has_report = False
        self._malformed = []

    @property
    def is_malformed(self) -> bool:
        """Whether every call of the current answer was malformed."""
        return bool(self._malformed) and not self.has_use and not self.has_report

    def end_answer(self) -> None:
        """Must be called when all calls of the answer have results."""
        if self.has_use:
            self._malformed_answers = []
        if not self.is_malformed:
            return
        self._malformed_answers.append(not any(call.name in self._tools for call in self._malformed))
        count = len(self._malformed_answers)
        if count >= MOST_MALFORMED_ANSWERS:
            are_unknown = all(self._malformed_answers)
            what = "named a tool that does not exist" if are_unknown else "was malformed"
            error = f"every tool call of {count} answers in a row {what}"
            name = "unknown_tool" if are_unknown else "malformed_call"
            self.ended_by = DeadEnd(name, self._malformed[-1], error)

    def resume_from(self, call: ToolCall | MalformedCall, output: ToolOutput | None) -> None:
        """Counts a call of an earlier process as `ruling` and `observe` do. `output` is None if it is unknown."""
        if self._receiver is not None and call.name == FINAL_REPORT:
            self.has_report = True
            self._receiver.receive(call)
            return
        checked = self._checked(call)
        if isinstance(checked, ToolOutput):
            self._malformed.append(as_written(call))
            return
        self.has_use = True
        if output is not None:
            self._guards.after(checked.call, output)

    def ruling(self, call: ToolCall | MalformedCall) -> Ruling:
        """Decides whether a call may run. A call of the report tool never runs: its report is checked here."""
        if self.ended_by is not None:
            return refused(ENDING)
        if self._receiver is not None and call.name == FINAL_REPORT:
            self.has_report = True
            output = self._receiver.receive(call)
            if self._receiver.last_problem is not None:
                self._events.emit(MalformedCallRefused(self.turn, call.name, str(output.content)))
            return output
        if self._finishing.is_final:
            return refused(refused_in_final_turn(needs_report=self._receiver is not None))
        checked = self._checked(call)
        if isinstance(checked, ToolOutput):
            self._malformed.append(as_written(call))
            self._events.emit(MalformedCallRefused(self.turn, call.name, str(checked.content)))
            return checked
        self.has_use = True
        refusal = self._guards.before(checked.call)
        if refusal is not None:
            return self._guarded(refusal)
        ruling = self.gate.judge(checked, self._checked)
        if isinstance(ruling, ToolOutput):
            self.denied.append(checked.call)
            self._guards.after(checked.call, ruling)
        return ruling

    def observe(self, call: ToolCall, output: ToolOutput, change: FileChange | None) -> None:
        """Notes a call that ran. `change` is the planned change of its file. None for Write or Edit means no change."""
        if output.is_denied:
            self.denied.append(call)
        for notice in output.notices:
            self._events.emit(Notice(notice))
        if change is None and call.name in FILE_TOOLS:
            change = _NO_CHANGE
        if change is None:  # a command that fails may have changed files before
            self.may_have_changed |= not self._tools[call.name].is_read_only
        else:
            self.may_have_changed |= not output.is_error and change.before != change.after
        self._guards.after(call, output, change=change)

    def _guarded(self, refusal: Refusal) -> ToolOutput:
        if refusal.is_last:
            guard = refusal.guard.replace("_", " ")
            error = f"the model went in circles ({guard}): {refusal.refusals} calls were refused"
            self.ended_by = DeadEnd(refusal.guard, refusal.call, error)
        self._events.emit(GuardTripped(self.turn, refusal.guard, refusal.call, refusal.refusals))
        return refused(refusal.message)

    def _checked(self, call: ToolCall | MalformedCall) -> Ruling:
        if call.name not in self._tools:
            offered = sorted(self._tools) + ([FINAL_REPORT] if self._receiver is not None else [])
            return refused(f"There is no tool {call.name!r}. The tools are: {', '.join(offered)}.")
        if isinstance(call, MalformedCall):
            return refused(f"This call was not run: {call.reason}. Send it again, whole and as valid JSON.")
        schema = self._tools[call.name].input_schema
        if not call.name.startswith(MCP_PREFIX):
            call = self._fitted(call, schema)
        fault = fault_in_arguments(call.name, schema, call.arguments)
        if fault is not None:
            return refused(f"This call was not run. {fault}.")
        names = ", ".join(unknown_arguments(schema, call.arguments))
        return Runnable(call, (IGNORED_ARGUMENTS.format(names=names),) if names else ())

    def _fitted(self, call: ToolCall, schema: Mapping[str, Any]) -> ToolCall:
        fitted = fitted_arguments(schema, call.arguments)
        for name, value in call.arguments.items():
            if fitted.get(name, _LEFT_OUT) is value or (call.name, name) in self._converted:
                continue
            self._converted.add((call.name, name))
            meant = shown_value(fitted[name]) if name in fitted else "not given"
            text = f'{call.name}: "{name}" came as {shown_value(value)} and is taken as {meant}'
            self._events.emit(Notice(text))
        return replace(call, arguments=fitted)


def as_written(call: ToolCall | MalformedCall) -> ToolCall:
    """The call as people and the journal see it. A faulty input is a text, put into an object as the API documents."""
    return call if isinstance(call, ToolCall) else ToolCall(call.id, call.name, {"INVALID_JSON": call.raw})


def refused(why: str) -> ToolOutput:
    return ToolOutput(why, is_error=True)
