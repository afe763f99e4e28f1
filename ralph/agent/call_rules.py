"""Checks a tool call before it runs, and tells the guards of its result.

It decides which calls may run, never how. One lives as long as the run of a task. It also counts answers in a row whose
tool calls were all malformed, so that none of them could run. A malformed call is cut, no JSON, of a tool that does not
exist, or has arguments that do not fit. Each gets an error result. An answer with nothing else is no turn, however the
answers vary. A call that a guard, a permission or the final turn refuses is not malformed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.agent.guards import Guards
from ralph.agent.tool_arguments import check_arguments
from ralph.conversation.notices import refused_in_final_turn
from ralph.values.answer import MalformedCall
from ralph.values.events import DeadEnd, GuardTripped, MalformedCallRefused
from ralph.values.tool_calls import FILE_TOOLS, FINAL_REPORT, FileChange, ToolCall, ToolOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.agent.finishing import Finishing
    from ralph.agent.guards import Refusal
    from ralph.values.ports import Events
    from ralph.values.report import ReportDesk
    from ralph.values.tool_calls import ToolDefinition

MOST_MALFORMED_ANSWERS = 3
"""The most malformed answers in a row; with the last one the run ends. The contract's number."""

NAMES = ("malformed_call", "unknown_tool")


class MalformedAnswers(Struct, frozen=True):
    """The number of malformed answers since a call could run."""

    count: int = 0
    are_all_unknown: bool = True
    """No call in them named a tool that exists."""

    def plus(self, *, are_unknown: bool) -> MalformedAnswers:
        """One more. `are_unknown`: none of its calls named a tool that exists."""
        return MalformedAnswers(self.count + 1, self.are_all_unknown and are_unknown)

    @property
    def are_too_many(self) -> bool:
        return self.count >= MOST_MALFORMED_ANSWERS

    @property
    def name(self) -> str:
        """One of `NAMES`."""
        return "unknown_tool" if self.are_all_unknown else "malformed_call"

    @property
    def error(self) -> str:
        what = "named a tool that does not exist" if self.are_all_unknown else "was malformed"
        return f"every tool call of {self.count} answers in a row {what}"


Ruling = ToolOutput | tuple[str, ...]
"""Why a call does not run, for the model; or, when it may run, the arguments that its tool does not know."""

_NO_CHANGE = FileChange(path="", before="", after="")

ENDING = "This call was not run: the run ends here, because the calls before it led nowhere."


class CallRules:
    def __init__(
        self,
        definitions: Sequence[ToolDefinition],
        finishing: Finishing,
        desk: ReportDesk | None,
        events: Events,
        why_refused: Callable[[str], str | None] = lambda _tool: None,
    ) -> None:
        """`desk` takes the final report; None: none is required. `why_refused` gives the reason why a tool
        may not be used just now.
        """
        self._tools: Mapping[str, ToolDefinition] = {tool.name: tool for tool in definitions}
        self._finishing = finishing
        self._desk = desk
        self._events = events
        self._why_refused = why_refused
        self._guards = Guards()
        self.turn = 0
        """The turn at work, for the events."""
        self.ended_by: DeadEnd | None = None
        """The dead end that ends the run, if there is one."""
        self.has_use = False
        """Whether some call of the answer ran, or was refused by a guard."""
        self.has_report = False
        """Whether some call of the answer was a report."""
        self._malformed: list[ToolCall] = []
        """The calls of the answer that could not run as written."""
        self._malformed_answers = MalformedAnswers()
        self.denied: list[ToolCall] = []
        """The calls that the permission mode did not let run, in the whole task."""

    def begin_answer(self, turn: int) -> None:
        self.turn = turn
        self.has_use = self.has_report = False
        self._malformed = []

    @property
    def is_malformed(self) -> bool:
        """Whether every call of the answer was malformed."""
        return bool(self._malformed) and not self.has_use and not self.has_report

    def end_answer(self) -> None:
        """Note that all calls of the answer have their results."""
        if self.has_use:
            self._malformed_answers = MalformedAnswers()
        if not self.is_malformed:
            return
        are_unknown = not any(call.name in self._tools for call in self._malformed)
        answers = self._malformed_answers = self._malformed_answers.plus(are_unknown=are_unknown)
        if answers.are_too_many:
            self.ended_by = DeadEnd(answers.name, self._malformed[-1], answers.error)

    def resume_from(self, call: ToolCall | MalformedCall, output: ToolOutput | None) -> None:
        """Take over a call that an earlier process ran, or was about to run. `output`: its result; None: unknown."""
        if self._desk is not None and call.name == FINAL_REPORT:
            self.has_report = True
            self._desk.receive(call)
            return
        if isinstance(self._checked(call), ToolOutput):
            self._malformed.append(as_written(call))
            return
        self.has_use = True
        if output is not None:
            self._guards.after(as_written(call), output)

    def ruling(self, call: ToolCall | MalformedCall) -> Ruling:
        if self.ended_by is not None:
            return _refused(ENDING)
        if self._desk is not None and call.name == FINAL_REPORT:
            self.has_report = True
            return self._received(call, self._desk)
        if self._finishing.is_final:
            return _refused(refused_in_final_turn(needs_report=self._desk is not None))
        checked = self._checked(call)
        shown = as_written(call)
        if isinstance(checked, ToolOutput):
            self._malformed.append(shown)
            self._events.emit(MalformedCallRefused(self.turn, call.name, str(checked.content)))
            return checked
        self.has_use = True
        refusal = self._guards.before(shown)
        if refusal is not None:
            return self._guarded(refusal)
        why = self._why_refused(call.name)
        if why is None:
            return checked
        self.denied.append(shown)
        output = _refused(why)
        self._guards.after(shown, output)
        return output

    def _received(self, call: ToolCall | MalformedCall, desk: ReportDesk) -> ToolOutput:
        output = desk.receive(call)
        if desk.last_problem is not None:
            self._events.emit(MalformedCallRefused(self.turn, call.name, str(output.content)))
        return output

    def observe(self, call: ToolCall, output: ToolOutput, change: FileChange | None) -> None:
        """Take the result of a call that ran. `change`: None for a file tool means that it could not change
        anything.
        """
        if change is None and call.name in FILE_TOOLS:
            change = _NO_CHANGE
        self._guards.after(call, output, change=change)

    def _guarded(self, refusal: Refusal) -> ToolOutput:
        if refusal.is_last:
            guard = refusal.guard.replace("_", " ")
            error = f"the model went round in circles ({guard}): {refusal.refusals} calls were refused"
            self.ended_by = DeadEnd(refusal.guard, refusal.call, error)
        self._events.emit(GuardTripped(self.turn, refusal.guard, refusal.call, refusal.refusals))
        return _refused(refusal.message)

    def _checked(self, call: ToolCall | MalformedCall) -> Ruling:
        if call.name not in self._tools:
            names = sorted(self._tools) + ([FINAL_REPORT] if self._desk is not None else [])
            return _refused(f"There is no tool {call.name!r}. The tools are: {', '.join(names)}.")
        if isinstance(call, MalformedCall):
            return _refused(f"This call was not run: {call.reason}. Send it again, whole and as valid JSON.")
        check = check_arguments(call.name, self._tools[call.name].input_schema, call.arguments)
        return check.ignored if check.error is None else _refused(f"This call was not run. {check.error}.")


def as_written(call: ToolCall | MalformedCall) -> ToolCall:
    """The call. A malformed one keeps the text of its input, in the form that the API documents."""
    return call if isinstance(call, ToolCall) else ToolCall(call.id, call.name, {"INVALID_JSON": call.raw})


def _refused(why: str) -> ToolOutput:
    return ToolOutput(why, is_error=True)
