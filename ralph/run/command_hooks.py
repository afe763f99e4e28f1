"""The gate of a run for which the user has configured hooks. A gate decides whether tasks begin, tool calls run, and
tasks end. This gate first runs the commands of the hooks, and then asks another gate, `inner`. If a hook fails, this
gate refuses the task, the call or the end that the hook was asked about.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.agent.ports import Permission
from ralph.permissions.matcher import matches
from ralph.run.driven import hooks as hk
from ralph.values.events import HookEnded, HookStarted, Notice
from ralph.values.ports import GuardRefused, HookStopped, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.agent.ports import Gate
    from ralph.permissions.claude_settings import HookCommand
    from ralph.tools.hook_command import HookEnding
    from ralph.values.controls import RunControls
    from ralph.values.ports import CallJudge, Events
    from ralph.values.tool_calls import Block, ToolCall, ToolOutput

_BLOCKED = 2
"""The exit code of a hook's command that refuses the call, the task or the end. Claude Code uses the same code."""


class CommandHookError(Exception):
    """The command of a hook failed, or its output is not a usable answer."""


class CommandHookGate:
    def __init__(
        self,
        inner: Gate,
        hooks: Sequence[HookCommand],
        run: Callable[[str, bytes, float, str], HookEnding],
        *,
        facts: hk.HookFacts,
        controls: RunControls,
        events: Events,
        judge: CallJudge | None,
        is_told: bool,
    ) -> None:
        """`run` executes the command of a hook. Its arguments are the command, the bytes for standard input, the time
        limit in seconds, and the text that heartbeats show. `judge` applies the permission rules. If `is_told` is
        True, an event is emitted for each command.
        """
        self._inner = inner
        self._hooks = hooks
        self._run = run
        self._facts = facts
        self._controls = controls
        self._events = events
        self._judge = judge
        self._is_told = is_told
        self._called = 0
        """The number of hook commands that were started. The id of a command in events contains this number."""

    # --- The port

    def before_task(self, prompt: Sequence[Block]) -> Sequence[str]:
        words = "\n".join(str(block["text"]) for block in prompt if block.get("type") == "text")
        try:
            answers = self._answers(hk.PROMPT, {"prompt": words})
        except CommandHookError as error:
            raise GuardRefused(f"the UserPromptSubmit hook failed: {error}") from error
        self._stop_if_asked(answers)
        blocked = hk.first_block(answers)
        if blocked is not None:
            raise HookStopped(f"a UserPromptSubmit hook refused the task: {blocked}")
        return (*hk.contexts(answers), *self._inner.before_task(prompt))

    def judge(self, call: ToolCall, asks: str | None = None) -> Permission:
        try:
            answers = self._answers(hk.PRE, hk.about_call(call), call.name)
        except CommandHookError as error:
            return Permission(f"PreToolUse:{call.name} hook error: {error}. The call was not run")
        verdict = hk.call_verdict(answers)
        if verdict.denied is not None:
            return Permission(f"PreToolUse:{call.name} hook error: {verdict.denied}")
        self._stop_if_asked(answers)
        judged = call if verdict.arguments is None else replace(call, arguments=verdict.arguments)
        against = None if self._judge is None else self._judge.judge(judged).denied
        if against is not None:
            return Permission(against)
        permission = self._inner.judge(judged, verdict.asks or asks)
        arguments = permission.arguments if permission.arguments is not None else verdict.arguments
        return replace(permission, arguments=arguments, context=(*verdict.context, *permission.context))

    def observe(self, call: ToolCall, output: ToolOutput, took_s: float) -> ToolOutput:
        output = self._inner.observe(call, output, took_s)
        event = hk.POST_FAILURE if output.is_error else hk.POST
        told = (
            {"error": hk.words_of(output)}
            if output.is_error
            else {"tool_response": hk.response_of(call, output)}
        )
        try:
            answers = self._answers(event, {**hk.about_call(call), **told}, call.name)
        except CommandHookError as error:
            self._events.emit(Notice(f"the {event} hook of {call.name} failed: {error}", is_vital=True))
            return output
        changed = hk.with_answers(output, answers, event)
        self._stop_if_asked(answers)
        return changed

    def before_end(self, text: str, *, was_held: bool) -> str | None:
        about = {"stop_hook_active": was_held, "last_assistant_message": text}
        try:
            answers = self._answers(hk.STOP, about)
        except CommandHookError as error:
            raise GuardRefused(f"the Stop hook failed: {error}") from error
        self._stop_if_asked(answers)
        return hk.first_block(answers) or self._inner.before_end(text, was_held=was_held)

    # --- Commands

    def _answers(self, event: str, about: Mapping[str, Any], tool: str = "") -> list[hk.HookAnswer]:
        """Runs the commands of all hooks for an event, one after another, and returns the answers. Raises
        CommandHookError and Interrupted.
        """
        fields = {
            **self._facts.fields(self._controls.permission_mode),
            "hook_event_name": event,
            **about,
        }
        given = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
        # Claude Code starts equal commands once per event. A shorter time limit would refuse what the longest allows.
        found: dict[str, HookCommand] = {}
        for hook in self._hooks:
            if hook.event == event and (not tool or matches(hook.matcher, tool)):
                known = found.get(hook.command, hook)
                found[hook.command] = max(known, hook, key=lambda one: one.timeout_s)
        waiting_for = f"the {event} hook" + (f" of {tool}" if tool else "")
        name = f"{event}:{tool}" if tool else event
        endings = [self._ending(hook, name, given, waiting_for) for hook in found.values()]
        return [answer_of(ending, is_text_context=event == hk.PROMPT) for ending in endings]

    def _ending(self, hook: HookCommand, name: str, given: bytes, waiting_for: str) -> HookEnding:
        self._called += 1
        hook_id = f"hook_{self._called}"
        if self._is_told:
            self._events.emit(HookStarted(hook_id, name, hook.event))
        try:
            ending = self._run(hook.command, given, hook.timeout_s, waiting_for)
        except Interrupted as stop:
            self._tell_undone(hook, stop.undone)
            raise
        self._tell_undone(hook, ending.undone)
        if self._is_told:
            errors = ending.errors or ending.problem
            self._events.emit(HookEnded(hook_id, name, hook.event, ending.output, errors, ending.status))
        return ending

    def _tell_undone(self, hook: HookCommand, undone: str) -> None:
        if undone:
            self._events.emit(Notice(f"the {hook.event} hook: {undone}", is_vital=True))

    def _stop_if_asked(self, answers: Sequence[hk.HookAnswer]) -> None:
        reason = hk.first_stop(answers)
        if reason is not None:
            raise HookStopped(f"a hook ended the run: {reason}")


def answer_of(ending: HookEnding, *, is_text_context: bool = False) -> hk.HookAnswer:
    """Converts the exit code and the output of a hook's command to the hook's answer. If `is_text_context` is True,
    output that is not a JSON object is passed to the model as text. Raises CommandHookError if the hook failed.
    """
    if ending.status is None:
        raise CommandHookError(ending.problem)
    if ending.status == _BLOCKED:
        return hk.HookAnswer(decision="block", reason=ending.errors or "no reason was given")
    if ending.status != 0:
        said = f": {ending.errors.splitlines()[-1]}" if ending.errors else ""
        raise CommandHookError(f"it ended with exit {ending.status}{said}")
    text = ending.output.strip()
    if not text.startswith("{"):
        return hk.context_answer(text) if is_text_context and text else hk.HookAnswer()
    try:
        fields = json.loads(text)
        return hk.hook_answer(fields)
    except (ValueError, RecursionError) as error:
        raise CommandHookError(f"its answer is not valid: {error}") from error
