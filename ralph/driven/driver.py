"""A run that another program, the driver, steers over standard input. Each user message is a task with its own result.
`steering.py` handles control requests. `permissions/gate.py` decides when the driver's hooks and callback are asked.
"""

from __future__ import annotations

import math
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from ralph.driven.control_channel import ControlChannel, why_unusable
from ralph.driven.questions import DriverServers, Question, Questions, Replies
from ralph.driven.session_facts import SessionFacts
from ralph.driven.steering import Progress, Steering
from ralph.machine.starting import patiently
from ralph.permissions.gate import Decision, HookFailedError
from ralph.permissions.hook_answers import PROMPT, HookAnswer, check_keys, hook_answer
from ralph.run.parts import build_roster
from ralph.values.events import Event, MessageTaken, RunEnded, SessionStateChanged
from ralph.values.outcome import Outcome, UsageError
from ralph.values.ports import Clock, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.driven.control_lines import Response, UserMessage
    from ralph.driven.setup import HookTable
    from ralph.machine.waiter import Inbox
    from ralph.output.writer import Writer
    from ralph.permissions.hook_matcher import Matcher
    from ralph.run.command import Run
    from ralph.run.session_run import SessionRun
    from ralph.values.answer import ToolCall
    from ralph.values.controls import RunControls

_FAILED = "Tool permission request failed"


class DriverAsking:
    """Implements the ports `Hooks` and `Asker`."""

    def __init__(
        self,
        hooks: Callable[[], HookTable],
        questions: Questions,
        tell_state: Callable[[str], None],
        within_s: float,
    ) -> None:
        """`hooks` returns those that the driver has registered so far. `tell_state` tells it one of the states of
        `SessionStateChanged`. `within_s` limits a question about a call.
        """
        self._hooks = hooks
        self._questions = questions
        self._tell_state = tell_state
        self._within_s = within_s
        self._prompt_id = str(uuid.uuid4())

    def answers(
        self, event: str, fields: Mapping[str, Any], covers: Callable[[Matcher], bool]
    ) -> Sequence[HookAnswer]:
        """Calls all hooks of an event at the same time, and returns their answers. Raises HookFailedError."""
        if event == PROMPT:
            self._prompt_id = str(uuid.uuid4())
        tool_use_id = str(uuid.uuid4()) if event == PROMPT else fields.get("tool_use_id")
        known_id = {} if tool_use_id is None else {"tool_use_id": tool_use_id}
        told = {"prompt_id": self._prompt_id, **fields}
        waiting_for = f"the driver's {event} hook" + (
            f" for {fields['tool_name']}" if "tool_name" in fields else ""
        )
        questions = [
            Question(
                {"subtype": "hook_callback", "callback_id": hook, **known_id, "input": told},
                waiting_for,
                within_s,
            )
            for hook, within_s in self._hooks().matching(event, covers).items()
        ]
        return [_hook_answer(reply) for reply in self._questions.ask(questions)] if questions else ()

    def decide(self, call: ToolCall, reason: str | None) -> Decision:
        question = Question(
            permission_request(call, reason), f"permission to run {call.name}", self._within_s
        )
        self._tell_state("requires_action")
        try:
            [reply] = self._questions.ask([question])
        finally:
            self._tell_state("running")
        if reply.error is not None:
            return Decision(f"{_FAILED}: {reply.error}. The call was not run")
        try:
            return decision_of(reply.fields)
        except ValueError as error:
            return Decision(f"{_FAILED}: the answer is not valid: {error}")


def _hook_answer(reply: Response) -> HookAnswer:
    """Raises HookFailedError if the reply contains no usable answer."""
    if reply.error is not None:
        raise HookFailedError(reply.error)
    try:
        return replace(hook_answer(reply.fields), hook="of the driver")
    except ValueError as error:
        raise HookFailedError(f"its answer is not valid: {error}") from error


class Allow(Struct, frozen=True, rename="camel", tag_field="behavior", tag="allow"):
    updated_input: dict[str, Any] | None = None
    updated_permissions: tuple[dict[str, Any], ...] | None = None


class Deny(Struct, frozen=True, tag_field="behavior", tag="deny"):
    message: str = "no reason was given"
    interrupt: bool = False


def permission_request(call: ToolCall, reason: str | None) -> dict[str, Any]:
    """The request that asks a driver about a call. `reason` is the reason for asking, or None."""
    request: dict[str, Any] = {
        "subtype": "can_use_tool",
        "tool_name": call.name,
        "display_name": call.name,
        "input": call.arguments,
        "tool_use_id": call.id,
        "permission_suggestions": [],
    }
    if isinstance(description := call.arguments.get("description"), str):
        request["description"] = description
    if reason is not None:
        request["decision_reason"] = reason
    return request


class SetMode(Struct, frozen=True, tag_field="type", tag="setMode"):
    mode: str


class AddRules(Struct, frozen=True, rename="camel", tag_field="type", tag="addRules"):
    behavior: Literal["allow", "deny", "ask"]
    rules: tuple[NamedRule, ...] = ()


class NamedRule(Struct, frozen=True, rename="camel"):
    tool_name: str
    rule_content: str | None = None


def decision_of(fields: Mapping[str, Any]) -> Decision:
    """Decodes an answer to `can_use_tool`. Raises ValueError if it is invalid; the call is then denied."""
    try:
        answer = convert(fields, Allow | Deny)
    except ValidationError as error:
        raise ValueError(str(error)) from error
    if isinstance(answer, Deny):
        return Decision(answer.message, answer.interrupt)
    check_keys(fields, Allow)
    return _with_updates(Decision(arguments=answer.updated_input), answer.updated_permissions or ())


def _with_updates(decision: Decision, updates: tuple[dict[str, Any], ...]) -> Decision:
    """An update that gives permissions may be ignored."""
    mode: str | None = None
    allowed: list[str] = []
    ignored: list[str] = []
    refused: str | None = None
    for update in updates:
        kind = str(update.get("type"))
        try:
            decoded = convert(update, SetMode | AddRules)
        except ValidationError:
            ignored.append(kind)
            if update.get("behavior") != "allow" and kind != "removeRules" and "irectories" not in kind:
                refused = refused or f"{kind} ({update.get('behavior')})"
            continue
        match decoded:
            case SetMode(mode=name):
                mode = name
            case AddRules(behavior="allow", rules=rules):
                allowed += [rule.tool_name for rule in rules if rule.rule_content is None]
                ignored += [kind for rule in rules if rule.rule_content is not None]
            case AddRules(behavior=behavior):
                refused = refused or f"{kind} ({behavior})"
    return replace(
        decision, mode=mode, allowed=tuple(allowed), ignored=tuple(dict.fromkeys(ignored)), refused=refused
    )


# After one of these outcomes, the next task would end in the same way.
_BROKEN = frozenset({Outcome.IO_ERROR, Outcome.INTERNAL_ERROR})
# The part of a prompt in which a command may be called, if there is none.
_NO_PART = slice(0, 0)
# The Agent SDKs set it. Without the states, they close standard input after the first result.
_WANTS_STATES = "CLAUDE_CODE_SDK_READS_SESSION_STATE"


class MessageDriver:
    """Implements `Driver`."""

    def __init__(
        self, inbox: Inbox, controls: RunControls, clock: Clock, writer: Writer, emit: Callable[[Event], None]
    ) -> None:
        mailbox = inbox.mailbox()
        self._channel, self._replies, self._progress = ControlChannel(mailbox), Replies(), Progress(clock)
        self.emit = self._progress.emit
        self.steering = Steering(
            mailbox,
            controls,
            clock,
            self._progress,
            writer.respond,
            replies=self._replies,
            emit=emit,
            has_room=lambda: writer.has_room,
            acknowledge=self._channel.acknowledge,
        )

    def work(self, run: Run) -> int:
        """Works on the messages. Returns the exit code of the last result, or of a stop between two messages. Raises
        UsageError if the command line is wrong or no message came.
        """
        try:
            opened = self._open(run)
        except (Interrupted, Exception) as error:  # noqa: BLE001 - whatever it is, the run ends with a result
            ended = run.ended_by(error)
            if isinstance(ended, UsageError):
                return run.deliver_misuse(ended)
            return run.deliver(_tell(run, ended), is_told=True).exit_code
        return _Messages(run, self.steering, opened).work()

    def _open(self, run: Run) -> SessionRun:
        options = run.context.options
        if options.prompt is not None or options.prompt_file is not None:
            raise UsageError("--input-format stream-json takes the tasks from standard input: give no prompt")
        if (problem := why_unusable(0)) is not None:
            raise UsageError(f"--input-format stream-json: {problem}")
        run.begin()
        context, steering, settings = run.context, self.steering, run.context.settings
        patiently(self._channel.start, context.waiter, context.clock)
        questions = Questions(run.writer.respond, self._replies, context.waiter, context.clock)
        setup = steering.wait_for_setup(context.waiter)
        configured = [server.name for server in settings.mcp_servers if server.transport == "sdk"]
        names, servers = tuple(dict.fromkeys((*configured, *setup.servers))), None
        if names:
            start_s, call_s = settings.mcp.start_s, settings.mcp.call_s
            servers = DriverServers(names, questions, start_s=start_s, call_s=call_s)
            # A driver may answer its servers' messages only after ralph has answered `initialize`.
            steering.open(SessionFacts(build_roster(context, (), None)[0], settings, context.redactor))
        within_s = settings.clocks.driver_s or math.inf
        asking = DriverAsking(
            lambda: steering.setup.hooks, questions, lambda state: _tell_state(run, state), within_s
        )
        opened = run.open(
            replace(context, options=setup.applied_to(options)),
            has_prompt=True,
            hooks=(asking,),
            asker=asking if options.permissions == "driver" else None,
            of_driver=servers,
        )
        opened.announce(settings.warnings, has_prompt=True)
        steering.open(SessionFacts(opened.parts.roster, settings, context.redactor, opened))
        return opened


def _tell_state(run: Run, state: str) -> None:
    if run.context.environment.get(_WANTS_STATES) == "1":
        run.context.events.emit(SessionStateChanged(state))


def _tell(run: Run, ended: RunEnded) -> RunEnded:
    ended = run.tell(ended)
    run.writer.tell(ended)
    return ended


class _Messages:
    """Works on the messages that a driver sends to one open session, one after another."""

    def __init__(self, run: Run, steering: Steering, opened: SessionRun) -> None:
        self._run = run
        self._waiter = run.context.waiter
        self._steering = steering
        self._opened = opened
        self._has_worked = False

    def work(self) -> int:
        """Works on all messages and returns the exit code. Raises UsageError if there was no message."""
        last: RunEnded | None = None
        while last is None or not (last.outcome in _BROKEN or self._waiter.was_stopped):
            try:
                message = self._steering.next_message(self._waiter)
            except Interrupted as stop:
                return self._stopped_between(stop, last)
            if message is None:
                break
            last = self._work_on(message)
        if last is None:
            self._opened.session.forget()
            self._run.close_without_result()
            raise UsageError("standard input held no user message")
        self._refuse_the_rest(last)
        if not self._has_worked:
            self._opened.session.forget()
        return self._run.deliver(last, is_told=True).exit_code

    def _work_on(self, message: UserMessage) -> RunEnded:
        run = self._run
        missing = self._steering.missing_guard
        if missing is not None:
            told = _tell(run, run.ended_early(Outcome.CONFIG, missing))
            _tell_state(run, "idle")
            return told
        self._has_worked = True
        self._steering.begin_work()
        _tell_state(run, "running")
        if run.context.options.replays_messages:
            run.context.events.emit(MessageTaken(message.content, message.uuid))
        own = _NO_PART if message.is_verbatim else None
        try:
            ended = self._opened.work(message.content, own)
        except (Interrupted, Exception) as error:
            ended_by = run.ended_by(error)
            if isinstance(ended_by, UsageError):
                raise ended_by from error
            ended = ended_by
        finally:
            self._steering.end_work()
        told = _tell(run, ended)
        if not self._steering.has_message:
            _tell_state(run, "idle")
        return told

    def _stopped_between(self, stop: Interrupted, last: RunEnded | None) -> int:
        """The exit code of a run that was stopped between two messages. `last` is the result before, or None."""
        stopped = self._run.ended_early(stop.outcome, str(stop), stop.signal_number)
        has_refused = self._refuse_the_rest(stopped)
        if last is None:
            self._opened.session.forget()
            if not has_refused:
                _tell(self._run, stopped)
        return self._run.deliver(stopped, is_told=has_refused or last is None).exit_code

    def _refuse_the_rest(self, end: RunEnded) -> bool:
        with suppress(Interrupted):  # after a second signal, the lines read so far must suffice
            self._steering.take_last_lines(self._waiter)
        why = end.errors[-1] if end.errors else end.outcome.value
        early = self._run.ended_early(end.outcome, f"not started: {why}")
        refused = replace(early, exit_code=end.exit_code, duration_s=0.0)
        has_refused = self._steering.has_message
        while self._steering.has_message:
            self._steering.next_message(self._waiter)
            _tell(self._run, refused)
        return has_refused
