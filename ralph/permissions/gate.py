"""Decides about each tool call once, immediately before the intent of the call is recorded. Also decides whether a
task may begin and end.

The order for a call: PreToolUse hooks, rules that deny, rules that ask, the permission mode, somebody who is asked.
Each of them judges the arguments that those before it have changed, and what somebody changes is judged by the rules
that deny once more. A hook that fails and a question that nobody answers refuse the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ralph.permissions import hook_answers as hk
from ralph.permissions.in_force import RulesInForce, RuleVerdict
from ralph.values.controls import ModeFixedError
from ralph.values.events import Notice, PermissionModeChanged
from ralph.values.permission_mode import PermissionMode
from ralph.values.ports import GuardRefused, HookStopped
from ralph.values.tool_calls import FILE_TOOLS, Permission, ToolOutput
from ralph.values.tool_choice import READ_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ralph.permissions.hook_answers import CallVerdict, HookAnswer
    from ralph.values.controls import RunControls
    from ralph.values.ports import Events
    from ralph.values.tool_calls import Block, ToolCall


class HookFailedError(Exception):
    """A hook did not answer, or its answer cannot be used."""


class Hooks(Protocol):
    """The hooks of one origin: commands of the user's settings, or those of a driver."""

    def answers(self, event: str, fields: Mapping[str, Any], tool: str) -> Sequence[HookAnswer]:
        """Calls the hooks for an event, and returns their answers. `fields` is their input. `tool` is the name of the
        tool if the event concerns one, otherwise "". Raises HookFailedError and `Interrupted`.
        """
        ...


class Decision(Struct, frozen=True):
    """A decision of somebody who was asked about one call, with the permissions that they changed."""

    denied: str | None = None
    """The reason why the call must not run, written for the model. None if the call may run."""
    ends_run: bool = False
    """True if the denial also ends the work on the current message."""
    arguments: dict[str, Any] | None = None
    """The arguments that replace those of the call, or None."""
    mode: str | None = None
    """The name of the permission mode to set, or None."""
    allowed: tuple[str, ...] = ()
    """The tools that need no question any more."""
    ignored: tuple[str, ...] = ()
    """The types of updates that ralph does not apply. Without them, ralph asks more often than needed."""
    refused: str | None = None
    """An update that would restrict later calls, but that ralph cannot apply. None if there is none."""


class Asker(Protocol):
    """Asks somebody about calls."""

    def decide(self, call: ToolCall, reason: str | None) -> Decision:
        """Asks whether a call may run. `reason` is the reason for which a hook or a rule requires the question, or
        None. A question that nobody answers is a denial. Raises `Interrupted`.
        """
        ...


class CallGate:
    """Implements the agent's port `Gate`."""

    def __init__(
        self,
        controls: RunControls,
        events: Events,
        rules: RulesInForce | None = None,
        *,
        hooks: Sequence[Hooks] = (),
        asker: Asker | None = None,
        facts: Mapping[str, str] | None = None,
        refuses_unasked: bool = False,
        allowed: Collection[str] = (),
        aside: Callable[[str, Callable[[], RuleVerdict]], RuleVerdict | ToolOutput] = lambda _, work: work(),
    ) -> None:
        """`hooks` are asked in this order. `facts` are the fields about the session that every hook gets. `asker` is
        asked about calls that the mode does not permit; if it is None, such calls are permitted, or refused if
        `refuses_unasked` is True. `allowed` are the tools that the user allowed by name.

        `aside` does a work of a name while signals are heard, because a rule may have to look at a disk that does not
        answer. It returns an error if the work fails.
        """
        self._controls = controls
        self._events = events
        self._rules = rules or RulesInForce()
        self._hooks = hooks
        self._asker = asker
        self._facts = facts or {}
        self._refuses_unasked = refuses_unasked
        self._allowed = set(allowed)
        """The tools that need no question. Answers may add to them."""
        self._aside = aside

    # --- The port

    @property
    def asks_others(self) -> bool:
        return bool(self._hooks)

    @property
    def judges_at_once(self) -> bool:
        return not self._hooks and self._rules.are_none

    def before_task(self, prompt: Sequence[Block]) -> Sequence[str]:
        words = "\n".join(str(block["text"]) for block in prompt if block.get("type") == "text")
        added: list[str] = []
        for hooks in self._hooks:
            answers = self._guarding(hooks, hk.PROMPT, {"prompt": words})
            blocked = hk.first_block(answers)
            if blocked is not None:
                raise HookStopped(f"a UserPromptSubmit hook refused the task: {blocked}")
            added += hk.contexts(answers)
        return added

    def judge(self, call: ToolCall) -> Permission:
        hooked = self._hooked(call)
        if hooked.denied is not None:
            return Permission(hooked.denied)
        judged = call if hooked.arguments is None else replace(call, arguments=hooked.arguments)
        by_rules = self._by_rules(judged)
        refused = by_rules.denied or self.why_refused(judged.name)
        if refused is not None:
            return Permission(refused)
        permission = Permission(arguments=hooked.arguments, context=hooked.context)
        asks = by_rules.asks or hooked.asks
        if self._asker is None and asks is not None:
            why = by_rules.asks or f"a hook wants somebody to be asked first: {asks}."
            return Permission(f"This call was not run: {why} Nobody is asked in this run.")
        if self._asker is None or (asks is None and (hooked.allows or not self._must_ask(judged.name))):
            return permission
        return self._answered(judged, self._asker.decide(judged, asks), permission)

    def why_refused(self, tool: str) -> str | None:
        """The reason why no call of the tool may run now, written for the model. None if calls of it may run."""
        refused = self._rules.why_not_offered(tool)
        mode = self._controls.permission_mode
        if refused is None and not is_permitted(mode, tool):
            refused = (
                f"This call was not run: the permission mode is {mode}, in which only {', '.join(READ_ONLY)} run. "
                "Look at things and say what should be done."
            )
        if refused is None and self._refuses_unasked and self._must_ask(tool):
            refused = (
                f"This call was not run: in permission mode {mode} it needs a permission, and nobody is asked here "
                "(--permission-prompts none)."
            )
        return refused

    def observe(self, call: ToolCall, output: ToolOutput, took_s: float) -> ToolOutput:
        event = hk.POST_FAILURE if output.is_error else hk.POST
        for hooks in reversed(self._hooks):
            about = {**hk.about_output(call, output), "duration_ms": round(took_s * 1000)}
            try:
                answers = self._answers(hooks, event, about, call.name)
            except HookFailedError as error:
                self._events.emit(Notice(f"the {event} hook of {call.name} failed: {error}", is_vital=True))
                continue
            output = hk.with_answers(output, answers, event)
            hk.stop_if_asked(answers)
        return output

    def before_end(self, text: str, *, was_held: bool) -> str | None:
        about = {
            "stop_hook_active": was_held,
            "last_assistant_message": text,
            "background_tasks": [],
            "session_crons": [],
        }
        blocks = (hk.first_block(self._guarding(hooks, hk.STOP, about)) for hooks in self._hooks)
        return next(filter(None, blocks), None)

    # --- Hooks

    def _answers(
        self, hooks: Hooks, event: str, about: Mapping[str, Any], tool: str = ""
    ) -> Sequence[HookAnswer]:
        mode = self._controls.permission_mode.value
        fields = {**self._facts, "permission_mode": mode, "hook_event_name": event, **about}
        return hooks.answers(event, fields, tool)

    def _guarding(self, hooks: Hooks, event: str, about: Mapping[str, Any]) -> Sequence[HookAnswer]:
        """The answers of hooks for the beginning or the end of a task. Raises GuardRefused if a hook fails, and
        HookStopped if a hook ends the work.
        """
        try:
            answers = self._answers(hooks, event, about)
        except HookFailedError as error:
            raise GuardRefused(f"the {event} hook failed: {error}") from error
        hk.stop_if_asked(answers)
        return answers

    def _hooked(self, call: ToolCall) -> CallVerdict:
        """The decision of all PreToolUse hooks. The hooks of a later origin judge what an earlier one has changed."""
        total = hk.CallVerdict()
        for hooks in self._hooks:
            try:
                answers = self._answers(hooks, hk.PRE, hk.about_call(call), call.name)
            except HookFailedError as error:
                return hk.CallVerdict(f"PreToolUse:{call.name} hook error: {error}. The call was not run")
            found = hk.call_verdict(answers)
            if found.denied is not None:
                return hk.CallVerdict(f"PreToolUse:{call.name} hook error: {found.denied}")
            hk.stop_if_asked(answers)
            if found.arguments is not None:
                call = replace(call, arguments=found.arguments)
            total = hk.CallVerdict(
                asks=total.asks or found.asks,
                # Only a driver's own hooks, which come last, spare the driver a question.
                allows=found.allows,
                arguments=total.arguments if found.arguments is None else found.arguments,
                context=(*total.context, *found.context),
            )
        return total

    # --- Rules, mode and questions

    def _by_rules(self, call: ToolCall) -> RuleVerdict:
        if self._rules.are_none:
            return RuleVerdict()
        found = self._aside("the permission rules", lambda: self._rules.judge(call))
        return RuleVerdict(str(found.content)) if isinstance(found, ToolOutput) else found

    def _must_ask(self, tool: str) -> bool:
        return must_ask(self._controls.permission_mode, tool, self._allowed)

    def _answered(self, call: ToolCall, decision: Decision, permission: Permission) -> Permission:
        """The permission after somebody has decided about `call`, for which `permission` was the permission so far."""
        if decision.denied is not None:
            if decision.ends_run:
                raise HookStopped(f"the driver denied a call and ended the run: {decision.denied}")
            return Permission(decision.denied)
        self._apply(decision)
        if decision.arguments is None:
            return permission
        denied = self._by_rules(replace(call, arguments=decision.arguments)).denied
        return Permission(denied) if denied else replace(permission, arguments=decision.arguments)

    def _apply(self, decision: Decision) -> None:
        """Applies the changes of permissions. Raises GuardRefused for a restriction that ralph cannot keep."""
        if decision.refused is not None:
            raise GuardRefused(
                f"the driver asked for the permission update {decision.refused}, which ralph cannot honour: nothing "
                "runs without a guard that was asked for"
            )
        self._allowed.update(decision.allowed)
        if decision.ignored:
            names = ", ".join(decision.ignored)
            self._events.emit(Notice(f"permission updates not applied, ralph goes on asking: {names}"))
        if decision.mode is None:
            return
        try:
            mode = self._controls.choose_mode(decision.mode)
        except ModeFixedError as error:
            self._events.emit(Notice(f"the permission mode stays: {error}"))
            return
        except ValueError as error:
            raise GuardRefused(f"the driver asked for a permission mode: it {error}") from error
        self._events.emit(PermissionModeChanged(mode))


def is_permitted(mode: PermissionMode, tool: str) -> bool:
    return mode is not PermissionMode.PLAN or tool in READ_ONLY


def must_ask(mode: PermissionMode, tool: str, allowed: Collection[str]) -> bool:
    """Whether the mode requires that somebody is asked before a call of this tool runs. `allowed` holds the tools
    that the user allowed by name, without a pattern.
    """
    # In dontAsk, rules have denied what nobody allowed before.
    if mode in (PermissionMode.BYPASS, PermissionMode.DONT_ASK) or tool in READ_ONLY or tool in allowed:
        return False
    return not (mode is PermissionMode.ACCEPT_EDITS and tool in FILE_TOOLS)
