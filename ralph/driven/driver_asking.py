"""Asks a driver's hooks and the driver's permission callback, and decodes the answers. `permissions/gate.py` decides when
they are asked and what their answers lead to.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from ralph.driven.questions import Question
from ralph.permissions.gate import Decision, HookFailedError
from ralph.permissions.hook_answers import PROMPT, check_keys, hook_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.driven.control_lines import Response
    from ralph.driven.questions import Questions
    from ralph.driven.setup import HookTable
    from ralph.permissions.hook_answers import HookAnswer
    from ralph.values.tool_calls import ToolCall

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
        """`hooks` returns the hooks that the driver has registered so far. `tell_state` tells the driver the state of
        the run; `SessionStateChanged` lists the states. `within_s` is the time limit of a question about a call.
        """
        self._hooks = hooks
        self._questions = questions
        self._tell_state = tell_state
        self._within_s = within_s
        self._prompt_id = str(uuid.uuid4())

    def answers(
        self, event: str, fields: Mapping[str, Any], covers: Callable[[str | None], bool]
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
    """Reads a hook's answer from the driver's reply. Raises HookFailedError if the reply contains no usable answer."""
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
    """Reads the permission updates of an answer. ralph may ignore an update that gives permissions."""
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
        decision,
        mode=mode,
        allowed=tuple(allowed),
        ignored=tuple(dict.fromkeys(ignored)),
        refused=refused,
    )
