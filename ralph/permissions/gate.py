"""Decides about each tool call once, immediately before its intent is recorded. Also decides whether a task may begin and
end.

The order for a call: PreToolUse hooks, rules that deny, rules that ask, the permission mode, somebody who is asked. Each
judges the arguments that those before it have changed, and the rules that deny and the mode judge once more what somebody has
answered. A hook that fails and a question that nobody answers refuse the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ralph.permissions import hook_answers as hk
from ralph.values.answer import FILE_TOOLS, ToolOutput
from ralph.values.controls import ModeFixedError, PermissionMode
from ralph.values.events import Notice, PermissionModeChanged
from ralph.values.ports import EndRefused, GuardRefused, HookStopped
from ralph.values.tool_choice import OF_BACKGROUND, READ_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import TypeAlias

    from ralph.permissions.hook_answers import CallVerdict, HookAnswer
    from ralph.permissions.judge import Permissions
    from ralph.permissions.rule import Matcher, PermissionRule
    from ralph.values.answer import Block, Ruling, Runnable, ToolCall
    from ralph.values.controls import RunControls
    from ralph.values.ports import Events

    Check: TypeAlias = Callable[[ToolCall], Ruling]
    """Checks and converts the arguments of a call against the schema of its tool."""


class RuleVerdict(Struct, frozen=True):
    """The decision of the permission rules about one tool call."""

    denied: str | None = None
    asks: str | None = None


def is_covered(_rule: PermissionRule, _call: ToolCall) -> RuleVerdict:
    """The verdict without a judge of rules: a hook that is called too often is better than one that is called too rarely."""
    return RuleVerdict("")


class CommandRules(Struct, frozen=True):
    """The permission rules of one command file, which can only forbid calls. None stands for no rules of that kind."""

    command: str
    tools: frozenset[str] | None = None
    """The only tools that the command allows."""
    rules: Permissions | None = None
    """The rules with patterns, such as `Bash(git add:*)`."""


class RulesInForce:
    """Judges calls and paths by all rules in force, on any thread. Implements `PathRules`."""

    def __init__(self, of_run: Permissions | None = None) -> None:
        self._of_run = of_run
        self._of_command = CommandRules("")

    def begin_task(self, of_command: CommandRules | None = None) -> None:
        """Replaces the rules of the previous task's command. None means that the new task has no command."""
        self._of_command = of_command or CommandRules("")

    @property
    def _all(self) -> tuple[Permissions, ...]:
        return tuple(one for one in (self._of_run, self._of_command.rules) if one is not None)

    @property
    def are_none(self) -> bool:
        """Whether there are no rules about single calls."""
        return not self._all

    def judge(self, call: ToolCall) -> RuleVerdict:
        """The strictest verdict: a denial, else a question."""
        guards_of_reading = [guard for rules in self._all for guard in rules.guards_of_reading]
        verdicts = (rules.judge(call, guards_of_reading) for rules in self._all)
        return min(verdicts, key=lambda one: (one.denied is None, one.asks is None), default=RuleVerdict())

    def why_not_offered(self, tool: str) -> str | None:
        """The reason why the command does not allow the tool. None if it does, or if there is no command."""
        command = self._of_command
        if command.tools is None or tool in command.tools:
            return None
        names = ", ".join(sorted(command.tools)) or "no tool"
        return f"This call was not run: the command {command.command} allows {names} alone."

    def why_not_read(self, path: str) -> str | None:
        return next(filter(None, (one.why_not_read(path) for one in self._all)), None)

    def why_not_written(self, path: str) -> str | None:
        return next(filter(None, (one.why_not_written(path) for one in self._all)), None)


class HookFailedError(Exception):
    """A hook did not answer, or its answer cannot be used."""


class Hooks(Protocol):
    """The hooks of one origin: commands of the user's settings, or those of a driver."""

    def answers(
        self, event: str, fields: Mapping[str, Any], covers: Callable[[Matcher], bool]
    ) -> Sequence[HookAnswer]:
        """The answers of the hooks for an event. `fields` is their input. `covers` says whether a matcher is for the event. Raises
        HookFailedError and `Interrupted`.
        """
        ...


class _RefusedError(Exception):
    """The call must not run. The message is the reason, written for the model."""


class Decision(Struct, frozen=True):
    """A decision of somebody who was asked about one call, with the permissions that they changed."""

    denied: str | None = None
    ends_run: bool = False
    """True if the denial also ends the work on the current message."""
    arguments: dict[str, Any] | None = None
    """The arguments that replace those of the call, or None."""
    mode: str | None = None
    allowed: tuple[str, ...] = ()
    """The tools that need no question any more."""
    ignored: tuple[str, ...] = ()
    """The types of updates that ralph does not apply. Without them, ralph asks more often than needed."""
    refused: str | None = None
    """An update that would restrict later calls, but that ralph cannot apply. None if there is none."""


class Asker(Protocol):
    """Asks somebody about calls."""

    def decide(self, call: ToolCall, reason: str | None) -> Decision:
        """Asks whether a call may run. `reason` is why a hook or a rule wants the question, or None. No answer is a denial. Raises
        `Interrupted`.
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
        judge_by: Callable[[PermissionRule, ToolCall], RuleVerdict] = is_covered,
        aside: Callable[[str, Callable[[], RuleVerdict]], RuleVerdict | ToolOutput] = lambda _, work: work(),
        about_place: Callable[[ToolCall], str] = lambda _: "",
        background: Callable[[], Mapping[str, str]] = dict,
        redact: Callable[[str], str] = str,
    ) -> None:
        """`hooks` are asked in this order, and get the fields `facts` about the session. `asker` is asked about calls that the
        mode does not permit; without one they are permitted, or refused with `refuses_unasked`. `allowed` are the tools that the
        user allowed by name. `judge_by` judges a call by the rule in a hook's matcher.

        `aside` does a named work while signals are heard, because a rule may look at a disk that does not answer, and returns an
        error if it fails. `about_place` returns the instructions for the place that a call has touched, for the call's output.
        `background` returns the commands in the background, by id. `redact` removes credentials from what hooks, rules and people
        say to the model.
        """
        self._controls = controls
        self._events = events
        self._rules = rules or RulesInForce()
        self._hooks = hooks
        self._asker = asker
        self._facts = facts or {}
        self._refuses_unasked = refuses_unasked
        self._allowed = set(allowed)
        """The tools that need no question: those that the user allowed by name, without a pattern. Answers may add to
        them."""
        self._judge_by = judge_by
        self._aside = aside
        self._about_place = about_place
        self._background = background
        self._redact = redact

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

    def judge(self, checked: Runnable, check: Check) -> Ruling:
        try:
            changed, by_hooks = self._after_hooks(checked, check)
            permitted = self._permitted(changed, by_hooks, check)
        except _RefusedError as refusal:
            return ToolOutput(self._redact(str(refusal)), is_error=True)
        return replace(permitted, notes=tuple(map(self._redact, (*permitted.notes, *by_hooks.context))))

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
                answers = self._answers(hooks, event, about, call)
            except HookFailedError as error:
                self._events.emit(Notice(f"the {event} hook of {call.name} failed: {error}", is_vital=True))
                continue
            output = hk.with_answers(output, answers, event)
            hk.stop_if_asked(answers)
        return output if output.is_error else output.followed_by(self._about_place(call))

    def before_end(self, text: str, *, was_held: bool) -> EndRefused | None:
        about = {
            "stop_hook_active": was_held,
            "last_assistant_message": text,
            "background_tasks": [
                {"id": one, "type": "shell", "status": "running", "description": line, "command": line}
                for one, line in self._background().items()
            ],
            "session_crons": [],
        }
        answers = (answer for hooks in self._hooks for answer in self._guarding(hooks, hk.STOP, about))
        return next((EndRefused(one.hook, one.why) for one in answers if one.blocks), None)

    # --- Hooks

    def _answers(
        self, hooks: Hooks, event: str, about: Mapping[str, Any], call: ToolCall | None = None
    ) -> Sequence[HookAnswer]:
        def is_about(rule: PermissionRule, call: ToolCall) -> bool:
            found = self._aside("the matcher of a hook", lambda: self._judge_by(rule, call))
            if isinstance(found, ToolOutput):
                raise HookFailedError(str(found.content))
            return found.denied is not None

        mode = self._controls.permission_mode.value
        fields = {**self._facts, "permission_mode": mode, "hook_event_name": event, **about}
        answers = hooks.answers(event, fields, lambda matcher: call is None or matcher.covers(call, is_about))
        return [answer.without_secrets(self._redact) for answer in answers]

    def _guarding(self, hooks: Hooks, event: str, about: Mapping[str, Any]) -> Sequence[HookAnswer]:
        """The answers at the beginning or end of a task. Raises GuardRefused if a hook fails, and HookStopped if one ends the work."""
        try:
            answers = self._answers(hooks, event, about)
        except HookFailedError as error:
            raise GuardRefused(f"the {event} hook failed: {error}") from error
        hk.stop_if_asked(answers)
        return answers

    def _after_hooks(self, checked: Runnable, check: Check) -> tuple[Runnable, CallVerdict]:
        """The call as all PreToolUse hooks leave it, and their decision. Later origins judge what earlier ones have changed."""
        total = hk.CallVerdict()
        for hooks in self._hooks:
            call = checked.call
            failed = f"PreToolUse:{call.name} hook error"
            try:
                answers = self._answers(hooks, hk.PRE, hk.about_call(call), call)
            except HookFailedError as error:
                raise _RefusedError(f"{failed}: {error}. The call was not run") from error
            found = hk.call_verdict(answers)
            if found.denied is not None:
                raise _RefusedError(f"{failed}: {found.denied}")
            hk.stop_if_asked(answers)
            checked = _changed(checked, found.arguments, check)
            # Only a driver's own hooks, which come last, spare the driver a question.
            total = replace(found, asks=total.asks or found.asks, context=(*total.context, *found.context))
        return checked, total

    # --- Rules, mode and questions

    def _permitted(self, checked: Runnable, by_hooks: CallVerdict, check: Check) -> Runnable:
        """The call as rules, the mode and somebody who is asked leave it. Raises _RefusedError."""
        by_rule = self._by_rules_and_mode(checked.call)
        asks = by_rule or by_hooks.asks
        if self._asker is None and asks is not None:
            why = by_rule or f"a hook requires somebody to be asked first: {asks}."
            raise _RefusedError(f"This call was not run: {why} Nobody is asked in this run.")
        needs_no_question = asks is None and (by_hooks.allows or not self._must_ask(checked.call.name))
        if self._asker is None or needs_no_question:
            return checked
        decision = self._asker.decide(checked.call, asks)
        self._apply(decision)
        checked = _changed(checked, decision.arguments, check)
        self._by_rules_and_mode(checked.call)
        return checked

    def _by_rules_and_mode(self, call: ToolCall) -> str | None:
        """Why a rule wants somebody to be asked about the call, or None. Raises _RefusedError if a rule or the mode denies it."""
        found: RuleVerdict | ToolOutput = RuleVerdict()
        if not self._rules.are_none:
            found = self._aside("the permission rules", lambda: self._rules.judge(call))
        if isinstance(found, ToolOutput):
            raise _RefusedError(str(found.content))
        denied = found.denied or self.why_refused(call.name)
        if denied is not None:
            raise _RefusedError(denied)
        return found.asks

    def _must_ask(self, tool: str) -> bool:
        mode = self._controls.permission_mode
        # In dontAsk, rules have denied what nobody allowed before.
        if mode in (PermissionMode.BYPASS, PermissionMode.DONT_ASK):
            return False
        # As in Claude Code, tools for background commands need no question: the command itself was judged.
        edits = FILE_TOOLS if mode is PermissionMode.ACCEPT_EDITS else ()
        return not any(tool in tools for tools in (READ_ONLY, OF_BACKGROUND, self._allowed, edits))

    def _apply(self, decision: Decision) -> None:
        """Applies changes of permissions. Raises _RefusedError if the call is denied, HookStopped if that ends the run, and
        GuardRefused for a restriction that ralph cannot keep.
        """
        if decision.denied is not None:
            if decision.ends_run:
                raise HookStopped(f"the driver denied a call and ended the run: {decision.denied}")
            raise _RefusedError(decision.denied)
        if decision.refused is not None:
            raise GuardRefused(
                f"the driver asked for the permission update {decision.refused}, which ralph cannot honour: nothing "
                "runs without a guard that was asked for"
            )
        self._allowed.update(decision.allowed)
        if decision.ignored:
            names = ", ".join(decision.ignored)
            self._events.emit(Notice(f"permission updates not applied, ralph keeps asking: {names}"))
        if decision.mode is None:
            return
        try:
            mode = self._controls.choose_mode(decision.mode)
        except ModeFixedError as error:
            self._events.emit(Notice(f"the permission mode is unchanged: {error}"))
            return
        except ValueError as error:
            raise GuardRefused(f"the driver asked for a permission mode: it {error}") from error
        self._events.emit(PermissionModeChanged(mode))


def _changed(checked: Runnable, arguments: dict[str, Any] | None, check: Check) -> Runnable:
    """The call with the arguments that replace its own (None: nothing), checked as those of the model are. Raises _RefusedError."""
    if arguments is None:
        return checked
    changed = check(replace(checked.call, arguments=arguments))
    if isinstance(changed, ToolOutput):
        raise _RefusedError(f"A hook changed the arguments of this call. {changed.content}")
    return changed


def is_permitted(mode: PermissionMode, tool: str) -> bool:
    return mode is not PermissionMode.PLAN or tool in READ_ONLY
