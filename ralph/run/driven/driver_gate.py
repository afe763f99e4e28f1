"""The gate of a driven run. It asks the driver's hooks and the driver's permission callback whether a tool call may
run. It also asks the hooks whether a task may begin or end.

A call is judged first by the PreToolUse hooks, then by the permission mode and the rules, then by the permission
callback. The rules judge the arguments that a hook has changed. If a hook fails or the driver is gone, the gate
refuses the call.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.agent.ports import Permission
from ralph.run.driven import hooks as hk
from ralph.run.driven.control_lines import Response
from ralph.run.driven.permission_requests import (
    Allow,
    Deny,
    permission_answer,
    permission_request,
    read_updates,
)
from ralph.run.driven.questions import Gone, Late, Question
from ralph.values.controls import ModeFixedError
from ralph.values.events import Notice, PermissionModeChanged
from ralph.values.permission_mode import must_ask
from ralph.values.ports import GuardRefused, HookStopped
from ralph.values.tool_calls import RuleVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.run.driven.hooks import HookAnswer, HookTable
    from ralph.run.driven.permission_requests import Updates
    from ralph.run.driven.questions import Questions, Reply
    from ralph.values.controls import RunControls
    from ralph.values.ports import CallJudge, Events
    from ralph.values.tool_calls import Block, ToolCall, ToolOutput

_GONE = "the driver has closed standard input, so that nobody can answer"


class PermissionAsking(Struct, frozen=True):
    """The settings that say when ralph asks the driver about a tool call."""

    is_on: bool = False
    """True if the driver answers `can_use_tool`. If it does not, a call is denied when a hook requires a question
    about it."""
    denies: bool = False
    """True if calls that need a permission are denied without a question."""
    within_s: float = 3_600.0
    allowed: tuple[str, ...] = ()
    """Tools that the user allowed by name, so that no question is needed."""


class DriverLink(Struct, frozen=True):
    """The gate's connection to the driver."""

    hooks: Callable[[], HookTable]
    """Returns the hooks that the driver has registered so far."""
    questions: Questions
    tell_state: Callable[[str], None]
    """Tells the driver the state of the run. `SessionStateChanged` lists the states."""


class HookFailedError(Exception):
    """A hook did not answer, or its answer cannot be used."""


class DriverGate:
    def __init__(
        self,
        link: DriverLink,
        asking: PermissionAsking,
        facts: hk.HookFacts,
        controls: RunControls,
        events: Events,
        *,
        judge: CallJudge | None = None,
    ) -> None:
        """`judge` applies the permission rules. None means that there are none."""
        self._judge = judge
        self._link = link
        self._asking = asking
        self._facts = facts
        self._controls = controls
        self._events = events
        self._prompt_id = str(uuid.uuid4())
        self._allowed = set(asking.allowed)
        """The tools that need no question. The driver may add to them."""

    # --- The port

    def before_task(self, prompt: Sequence[Block]) -> Sequence[str]:
        self._prompt_id = str(uuid.uuid4())
        words = "\n".join(str(block["text"]) for block in prompt if block.get("type") == "text")
        answers = self._guarding(hk.PROMPT, {"prompt": words}, str(uuid.uuid4()))
        blocked = hk.first_block(answers)
        if blocked is not None:
            raise HookStopped(f"a UserPromptSubmit hook refused the task: {blocked}")
        return hk.contexts(answers)

    def judge(self, call: ToolCall, asks: str | None = None) -> Permission:
        try:
            answers = self._call_hooks(hk.PRE, hk.about_call(call), call.id, call.name)
        except HookFailedError as error:
            return Permission(f"PreToolUse:{call.name} hook error: {error}. The call was not run")
        verdict = hk.call_verdict(answers)
        if verdict.denied is not None:
            return Permission(f"PreToolUse:{call.name} hook error: {verdict.denied}")
        self._stop_if_asked(answers)
        judged = call if verdict.arguments is None else replace(call, arguments=verdict.arguments)
        refused = self._controls.why_refused(judged.name)
        if refused is not None:
            return Permission(refused)
        by_rules = RuleVerdict() if self._judge is None else self._judge.judge(judged)
        if by_rules.denied is not None:
            return Permission(by_rules.denied)
        asks = by_rules.asks or verdict.asks or asks
        if asks is None and (verdict.allows or not self._must_ask(judged)):
            return Permission(arguments=verdict.arguments, context=verdict.context)
        permission = self._ask(judged, asks)
        arguments = permission.arguments if permission.arguments is not None else verdict.arguments
        if permission.denied is None and self._judge is not None:
            self._judge.grant(judged if arguments is None else replace(judged, arguments=arguments))
        return replace(permission, arguments=arguments, context=verdict.context)

    def observe(self, call: ToolCall, output: ToolOutput, took_s: float) -> ToolOutput:
        event = hk.POST_FAILURE if output.is_error else hk.POST
        about = {**hk.about_call(call), "duration_ms": round(took_s * 1000)}
        told = (
            {"error": hk.words_of(output), "is_interrupt": False}
            if output.is_error
            else {"tool_response": hk.response_of(call, output)}
        )
        try:
            answers = self._call_hooks(event, {**about, **told}, call.id, call.name)
        except HookFailedError as error:
            self._events.emit(Notice(f"the {event} hook of {call.name} failed: {error}", is_vital=True))
            return output
        changed = hk.with_answers(output, answers, event)
        self._stop_if_asked(answers)
        return changed

    def before_end(self, text: str, *, was_held: bool) -> str | None:
        about = {
            "stop_hook_active": was_held,
            "last_assistant_message": text,
            "background_tasks": [],
            "session_crons": [],
        }
        return hk.first_block(self._guarding(hk.STOP, about, None))

    # --- Hooks

    def _guarding(
        self, event: str, about: Mapping[str, Any], tool_use_id: str | None
    ) -> Sequence[HookAnswer]:
        """Calls the hooks for the beginning or the end of a task, and returns their answers. Raises GuardRefused if a
        hook fails, and HookStopped if a hook ends the work.
        """
        try:
            answers = self._call_hooks(event, about, tool_use_id)
        except HookFailedError as error:
            raise GuardRefused(f"the {event} hook failed: {error}") from error
        self._stop_if_asked(answers)
        return answers

    def _call_hooks(
        self, event: str, about: Mapping[str, Any], tool_use_id: str | None, tool: str = ""
    ) -> Sequence[HookAnswer]:
        """Calls all hooks of an event at the same time, and returns their answers. Raises HookFailedError."""
        found = self._link.hooks().matching(event, tool)
        if not found:
            return ()
        fields = {
            **self._facts.fields(self._controls.permission_mode),
            "prompt_id": self._prompt_id,
            "hook_event_name": event,
            **about,
        }
        known_id = {} if tool_use_id is None else {"tool_use_id": tool_use_id}
        waiting_for = f"the driver's {event} hook" + (f" for {tool}" if tool else "")
        questions = [
            Question(
                {"subtype": "hook_callback", "callback_id": hook.callback_id, **known_id, "input": fields},
                waiting_for,
                hook.within_s,
            )
            for hook in found
        ]
        return [_hook_answer(reply) for reply in self._link.questions.ask(questions)]

    def _stop_if_asked(self, answers: Sequence[HookAnswer]) -> None:
        reason = hk.first_stop(answers)
        if reason is not None:
            raise HookStopped(f"a hook ended the run: {reason}")

    # --- Permission

    def _must_ask(self, call: ToolCall) -> bool:
        is_wanted = self._asking.is_on or self._asking.denies
        return is_wanted and must_ask(self._controls.permission_mode, call.name, self._allowed)

    def _ask(self, call: ToolCall, reason: str | None) -> Permission:
        """Asks the driver whether a call may run. `reason` is the reason for which a hook or a rule requires the
        question, or None.
        """
        if not self._asking.is_on:
            why = "" if reason is None else f": {reason}"
            return Permission(f"This call was not run: it needs a permission, and nobody is asked here{why}")
        question = Question(
            permission_request(call, reason), f"permission to run {call.name}", self._asking.within_s
        )
        self._link.tell_state("requires_action")
        try:
            [reply] = self._link.questions.ask([question])
        finally:
            self._link.tell_state("running")
        match reply:
            case Gone():
                return Permission(f"Tool permission request failed: {_GONE}. The call was not run")
            case Late(after_s=after_s):
                return Permission(
                    f"Tool permission request failed: nobody answered within {after_s:g} s (clocks.driver_s). "
                    "The call was not run"
                )
            case Response(error=str(error)):
                return Permission(f"Tool permission request failed: {error}")
        try:
            answer = permission_answer(reply.fields)
        except ValueError as error:
            return Permission(f"Tool permission request failed: the answer is not valid: {error}")
        return self._permission_of(answer)

    def _permission_of(self, answer: Allow | Deny) -> Permission:
        if isinstance(answer, Deny):
            if answer.interrupt:
                raise HookStopped(f"the driver denied a call and ended the run: {answer.message}")
            return Permission(answer.message)
        updates = read_updates(answer.updated_permissions)
        if updates.refused is not None:
            raise GuardRefused(
                f"the driver asked for the permission update {updates.refused}, which ralph cannot honour: nothing "
                "runs without a guard that was asked for"
            )
        self._apply(updates)
        return Permission(arguments=answer.updated_input)

    def _apply(self, updates: Updates) -> None:
        self._allowed.update(updates.allowed)
        if updates.ignored:
            names = ", ".join(updates.ignored)
            self._events.emit(Notice(f"permission updates not applied, ralph goes on asking: {names}"))
        if updates.mode is None:
            return
        try:
            mode = self._controls.choose_mode(updates.mode)
        except ModeFixedError as error:
            self._events.emit(Notice(f"the permission mode stays: {error}"))
            return
        except ValueError as error:
            raise GuardRefused(f"the driver asked for a permission mode: it {error}") from error
        self._events.emit(PermissionModeChanged(mode))


def _hook_answer(reply: Reply) -> HookAnswer:
    """Reads a hook's answer from the driver's reply. Raises HookFailedError if the reply contains no usable answer."""
    match reply:
        case Gone():
            raise HookFailedError(_GONE)
        case Late(after_s=after_s):
            raise HookFailedError(f"it did not respond before its timeout of {after_s:g} s")
        case Response(error=str(error)):
            raise HookFailedError(error)
    try:
        return hk.hook_answer(reply.fields)
    except ValueError as error:
        raise HookFailedError(f"its answer is not valid: {error}") from error
