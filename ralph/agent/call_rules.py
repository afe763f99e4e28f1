"""Decides which tool calls may run, and tells the guards their results. Runs no call. Checks the arguments against the
tool's schema, and converts values whose meaning is clear.

The supported parts of JSON Schema are `type`, `properties`, `required`, `enum`, `minimum` and `items`. Other keywords
and invalid parts of an MCP tool's schema are ignored: the MCP server checks the arguments itself.

The guards remember the last twelve calls that were allowed, until Write or Edit changes a file. A loop is a call, or a
cycle of up to four calls, that was made three times in a row with the same results. Its next call is refused, and so
are the later calls of the cycle. When a call is allowed, the count of refusals starts again at 0. `specs/turns.md` says
which calls and results are equal.

A call is malformed if it is cut off, is not JSON, names no known tool, or has wrong arguments. An answer whose calls
are all malformed is not counted as a turn. A call that a guard, a permission or the final turn refuses is not
malformed.
"""

from __future__ import annotations

import json
import re
from collections import deque
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.conversation.next_step import refused_in_final_turn
from ralph.values.answer import (
    BASH_OUTPUT,
    FILE_TOOLS,
    FINAL_REPORT,
    Block,
    FileChange,
    MalformedCall,
    Runnable,
    ToolCall,
    ToolOutput,
    type_names,
    unknown_arguments,
)
from ralph.values.events import DeadEnd, GuardTripped, MalformedCallRefused, Notice
from ralph.values.limits import MOST_REFUSALS
from ralph.values.strict_json import JSON_TYPES, is_number, strict_json
from ralph.values.tool_choice import MCP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ralph.agent.run_end import Finishing
    from ralph.agent.tool_turn import Gate
    from ralph.values.answer import Ruling, ToolDefinition
    from ralph.values.ports import EndRefused, Events
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


# --- Guards: whether a call continues a loop, in which the model repeats calls without progress

GUARDS = ("repetition", "cycle", "no_change")

# `specs/turns.md` sets these numbers.
MOST_EQUAL = 3
"""Equal rounds that may run. A round is one pass through a cycle of calls."""
LONGEST_CYCLE = 4
"""In calls."""
MOST_EQUAL_BLOCKS = 8
"""Refused ends in a row, with the same reason and no changed file in between, that end the task."""
MOST_BLOCKS = 20
"""Refused ends that end the task."""

_WAITS = frozenset({BASH_OUTPUT})
"""Tools that wait for something: a call of them that worked is no part of a loop."""
_SAYS_ONLY = {"Bash": frozenset({"description"})}
"""The arguments of each tool that have no effect, so equal calls may differ in them."""
_MOST_COUNTERS = 256
"""A result with more integers is data, of which all numbers are compared."""
_LONGEST_NAME = 80
"""The longest name or path in a message for the model, in characters."""


class Refusal(Struct, frozen=True):
    guard: str
    """One of `GUARDS`."""
    call: ToolCall
    refusals: int
    """In a row, this one included."""
    message: str
    """The error result of the call."""

    @property
    def is_last(self) -> bool:
        """Whether this refusal ends the run."""
        return self.refusals >= MOST_REFUSALS


class Guards:
    """Finds loops in the calls of one task. `before` must be called for each call, and `after` when it has a result.
    For parallel calls, `before` is called for all before one has a result. An unknown result counts as equal, so of
    eight equal parallel calls, three may run.
    """

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=LONGEST_CYCLE * MOST_EQUAL)
        self._refusals = 0
        # The ids of refused calls, for `after`. At most eight calls are decided at once, so older ids are not needed.
        self._refused_ids: deque[str] = deque(maxlen=4 * MOST_REFUSALS)

    def before(self, call: ToolCall) -> Refusal | None:
        """None if the call may run; the call is then remembered. Otherwise the refusal."""
        step = _Step.of(call)
        tripped = self._tripped_by(step)
        if tripped is None:
            self._refusals = 0
            self._steps.append(step)
            return None
        self._refusals += 1
        self._refused_ids.append(call.id)
        guard, seen_and_advice = tripped
        left = MOST_REFUSALS - self._refusals
        end = (
            f"after {left} more without anything new in between, the run ends" if left > 0 else "the run ends"
        )
        message = f"Refused: {seen_and_advice} This is refusal {self._refusals} of {MOST_REFUSALS}; {end}."
        return Refusal(guard, call, self._refusals, message)

    def after(self, call: ToolCall, output: ToolOutput, *, change: FileChange | None = None) -> None:
        """Notes a result, or forgets all calls if a file changed. A call without `before` is one of an earlier process;
        refused ones are ignored. Without `change`, a Write or Edit that succeeded counts as a changed file.
        """
        if (
            call.name in FILE_TOOLS
            and not output.is_error
            and (change is None or change.before != change.after)
        ):
            self._steps.clear()
            return
        step = next((step for step in self._steps if step.waits_for == call.id), None)
        if call.name in _WAITS and not output.is_error:
            if step is not None:
                self._steps.remove(step)
            return
        if step is None:
            if call.id in self._refused_ids:
                return
            step = _Step.of(call)
            self._refusals = 0
            self._steps.append(step)
        step.waits_for = None
        step.result = _Result.of(output)

    def _tripped_by(self, step: _Step) -> tuple[str, str] | None:
        """The guard that refuses `step` and its message, or None."""
        last = list(self._steps)[-MOST_EQUAL:]
        is_full = len(last) == MOST_EQUAL
        if is_full and step.path is not None and all(old.path == step.path for old in last):
            return "no_change", (
                f"the last {MOST_EQUAL} Write and Edit calls on {_short(step.path)} changed nothing. Read the file again before "
                "you change it: it may already say what you want, or not say what you think."
            )
        cycle = self._cycle_of(step)
        if not cycle:
            return None
        is_waiting = any(old.result is None for old in list(self._steps)[-MOST_EQUAL * len(cycle) :])
        return ("repetition" if len(cycle) == 1 else "cycle"), _repeated(cycle, is_waiting=is_waiting)

    def _cycle_of(self, step: _Step) -> list[_Step]:
        """The calls of the loop that `step` would continue. Empty if there is none."""
        steps = list(self._steps)
        for length in range(1, LONGEST_CYCLE + 1):
            window = steps[-length * MOST_EQUAL :]
            if len(window) < length * MOST_EQUAL:
                break
            # After a refusal, a model may continue the cycle at another place. That is still the same cycle.
            following = window[-length:] if self._refusals else window[-length : len(window) - length + 1]
            if any(step.key == old.key for old in following) and all(
                _is_equal(window[place::length]) for place in range(length)
            ):
                return window[-length:]
        return []


class StopBlocks(Struct, frozen=True):
    """How often hooks have refused the end of one task. A hook whose condition cannot be met would refuse for ever."""

    total: int = 0
    in_a_row: int = 0
    """How many of the last refusals have the same reason, with no changed file between them."""
    last: EndRefused | None = None

    def with_next(self, refused: EndRefused, *, has_changed: bool) -> StopBlocks:
        """`has_changed`: a call since the last refusal may have changed a file."""
        is_new = has_changed or self.last is None or refused.reason != self.last.reason
        return StopBlocks(self.total + 1, 1 if is_new else self.in_a_row + 1, refused)

    @property
    def why_stuck(self) -> str | None:
        """Why the task ends without progress, for people. None if the model may work on."""
        if self.last is None or not (self.in_a_row >= MOST_EQUAL_BLOCKS or self.total >= MOST_BLOCKS):
            return None
        if self.in_a_row >= MOST_EQUAL_BLOCKS:
            how = f"{self.in_a_row} times in a row for the same reason, and no file changed in between"
        else:
            how = f"{self.total} times"
        return f"the Stop hook {self.last.hook} refused the end of the task {how}: {self.last.reason}"


class _Step:
    """The parts of an allowed call that are compared."""

    def __init__(self, key: int, name: str, path: str | None, waits_for: str | None) -> None:
        self.key = key
        self.name = name
        self.path = path
        """The file of a Write or Edit call. None for other tools."""
        self.waits_for = waits_for
        """The id of the call until its result is known, then None."""
        self.result: _Result | None = None

    @classmethod
    def of(cls, call: ToolCall) -> _Step:
        path = call.arguments.get("file_path") if call.name in FILE_TOOLS else None
        # A model writes one path in several ways, such as "./a.py" and "a.py".
        spelled = str(PurePosixPath(path)) if isinstance(path, str) else None
        ignored = _SAYS_ONLY.get(call.name, frozenset())
        arguments = {name: _collapsed(value) for name, value in call.arguments.items() if name not in ignored}
        return cls(hash((call.name, json.dumps(arguments, sort_keys=True))), call.name, spelled, call.id)


class _Result(Struct, frozen=True):
    """The parts of a tool's output that are compared."""

    standing: int
    """A 64-bit hash of the text without times and counters, comparable in this process only."""
    counters: tuple[int, ...]
    """The numbers that may be counters, in order."""

    @classmethod
    def of(cls, output: ToolOutput) -> _Result:
        content = output.content
        parts = [content] if isinstance(content, str) else [_comparable(block) for block in content]
        standing: list[str | int] = []
        counters: list[int] = []
        for part in parts:
            template, numbers = _template(part) if isinstance(part, str) else (part, [])
            standing.append(template)
            counters += numbers
        return cls(hash((output.is_error, *standing)), tuple(counters))


def _collapsed(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {name: _collapsed(inner) for name, inner in value.items()}
    return [_collapsed(inner) for inner in value] if isinstance(value, list) else value


def _is_equal(steps: Sequence[_Step]) -> bool:
    """Whether all steps are equal calls whose results show no progress."""
    results = [step.result for step in steps if step.result is not None]
    if len({step.key for step in steps}) > 1 or len({result.standing for result in results}) > 1:
        return False
    if len({len(result.counters) for result in results}) > 1:
        return False
    return all(map(_stands_or_counts, zip(*(result.counters for result in results), strict=True)))


def _stands_or_counts(numbers: Sequence[int]) -> bool:
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    return len(steps) <= 1 and min(steps, default=0) >= 0


# Most of these patterns begin with a digit or a letter and look back from there, so that the engine can skip to it. All
# repetitions are bounded, and none is inside another one over the same characters: 30 KB of the worst text take 3 ms.
# The patterns are strings, which `re` compiles at the first result. That takes 2 ms, and many runs have no result.
_CLOCK = r"[0-9]?:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?|\.[0-9]{1,9})(?![\w:])"
_ZONE = r"(?: ?(?:(?:Z|UTC|GMT)\b|[+-][0-9]{2}:?[0-9]{2}\b))?"
_DATE = r"(?:[0-9]{3}-[0-9]{2}-[0-9]{2}|[0-9]{3}/[0-9]{2}/[0-9]{2}|[0-9]/[A-Z][a-z]{2}/[0-9]{4})(?![0-9])"
_OF_DAY = r"[T :][0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?"
_UNIT = r"(?: ?(?:[mµu]s|ns|s|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?)|[mh])(?![A-Za-z_])"
_REST = r"[0-9]{0,11}(?:\.[0-9]{1,12})?"
_DURATION = rf"{_REST}{_UNIT}(?:,? ?[0-9]{_REST}{_UNIT}){{0,3}}"
_MAY_BE_TIME = r"(?=[0-9.]{0,24} ?[mµunshd:/-])"
_TIME = rf"[0-9](?<![\w.:].){_MAY_BE_TIME}(?:{_DATE}(?:{_OF_DAY}{_ZONE})?|{_CLOCK}{_ZONE}|{_DURATION})"
# Node's test runner and many JSON logs put the unit before the number.
_TIME_AFTER_UNIT = r"_ms[\"=: ]{1,4}[0-9]{1,12}(?:\.[0-9]{1,12})?"
# A time in seconds or milliseconds since 1970, within this half of the century.
_EPOCH = r"[12](?<![\w.].)(?:(?<=1)[6-9]|(?<=2)[0-9])[0-9]{8}(?:[0-9]{3})?(?![\w]|\.[0-9]{7})"
_PROCESS = r"[pP](?<!\w.)(?i:id|rocess)(?i: id)?[ =:#\"]{1,3}[0-9]{1,10}\b"
# A shell prints `[1] 4711` when it starts a background job. Only the beginning of an output is looked at.
_JOB = r"\[[0-9]{1,3}\] [0-9]{1,10}\b"
_COUNTER = (
    r"[0-9](?<![\w./,-].)(?<!/ .)(?<!\bof .)[0-9]{0,14}"
    r"(?![\w%/]|[.,][0-9]| %| / ?[0-9]| (?:out )?of [0-9]| ?[kKMGT]i?B\b| [Bb]ytes?\b)"
)
_LETTER = r"[^\W\d_]"


def _template(text: str) -> tuple[str, list[int]]:
    """The text with marks for times, process numbers and possible counters, and these counters. Too many of them, or
    those in a text without letters, stay in the text.
    """
    text = re.sub(_TIME, "~", " ".join(text.split()))
    if "_ms" in text:
        text = re.sub(_TIME_AFTER_UNIT, "_ms~", text)
    text = re.sub(_PROCESS, "process ~", re.sub(_EPOCH, "~", text))
    if text.startswith("[") and (job := re.match(_JOB, text)):
        text = f"process ~{text[job.end() :]}"
    found = list(islice(re.finditer(_COUNTER, text), _MOST_COUNTERS + 1))
    if not found or len(found) > _MOST_COUNTERS or not re.search(_LETTER, text):
        return text, []
    return re.sub(_COUNTER, "#", text), [int(number.group()) for number in found]


def _comparable(block: Block) -> str | int:
    """A hash stands for the data of a block that is no text, such as an image."""
    if block["type"] == "text":
        return str(block["text"])
    data = block.get("source", {}).get("data")
    return hash(data if isinstance(data, str) else json.dumps(block, sort_keys=True))


def _repeated(cycle: Sequence[_Step], *, is_waiting: bool) -> str:
    results = "their results are not there yet" if is_waiting else "the results did not change"
    if len(cycle) == 1:
        seen = f"this {_short(cycle[0].name)} call was made {MOST_EQUAL} times in a row and {results}."
    else:
        names = ", ".join(_short(step.name) for step in cycle)
        seen = (
            f"you go round in a circle: {names}, {MOST_EQUAL} times with the same arguments, and {results}."
        )
    return (
        f"{seen} Doing it again shows nothing new. Work with what you have, or take another approach: change a file, "
        "use other arguments or another tool. To wait for something, wait for it inside one Bash command."
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
