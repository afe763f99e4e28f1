"""Decides which tool calls may run, and reports their results to the guards. It runs none. One instance per task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.agent.guards import Guards
from ralph.agent.malformed_answers import MalformedAnswers
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

Ruling = ToolOutput | tuple[str, ...]
"""Why a call must not run, for the model; or, if it may run, the arguments that its tool does not know."""

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
        """`desk` takes the final report; None: none is required. `why_refused`: why a tool may not be used now."""
        self._tools: Mapping[str, ToolDefinition] = {tool.name: tool for tool in definitions}
        self._finishing = finishing
        self._desk = desk
        self._events = events
        self._why_refused = why_refused
        self._guards = Guards()
        self.turn = 0
        """The current turn, for events."""
        self.ended_by: DeadEnd | None = None
        """The dead end that ends the run; None: there is none."""
        self.has_use = False
        """Some call of the current answer ran, or was refused by a guard."""
        self.has_report = False
        """Some call of the current answer was a report."""
        self._malformed: list[ToolCall] = []
        """The calls of the current answer that could not run as written."""
        self._malformed_answers = MalformedAnswers()
        self.denied: list[ToolCall] = []
        """All calls of the task that the permission mode refused."""

    def begin_answer(self, turn: int) -> None:
        self.turn = turn
        self.has_use = self.has_report = False
        self._malformed = []

    @property
    def is_malformed(self) -> bool:
        """Whether every call of the current answer was malformed."""
        return bool(self._malformed) and not self.has_use and not self.has_report

    def end_answer(self) -> None:
        """Counts the current answer, once all its calls have results."""
        if self.has_use:
            self._malformed_answers = MalformedAnswers()
        if not self.is_malformed:
            return
        are_unknown = not any(call.name in self._tools for call in self._malformed)
        answers = self._malformed_answers = self._malformed_answers.plus(are_unknown=are_unknown)
        if answers.are_too_many:
            self.ended_by = DeadEnd(answers.name, self._malformed[-1], answers.error)

    def resume_from(self, call: ToolCall | MalformedCall, output: ToolOutput | None) -> None:
        """Takes over a call that an earlier process ran or was about to run. `output`: its result; None: unknown."""
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
        """Takes the result of a call that ran.

        `change`: None for a file tool means that it could not change anything.
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
    """The call as the model wrote it; the input of a malformed call stays text, in the form that the API documents."""
    return call if isinstance(call, ToolCall) else ToolCall(call.id, call.name, {"INVALID_JSON": call.raw})


def _refused(why: str) -> ToolOutput:
    return ToolOutput(why, is_error=True)
