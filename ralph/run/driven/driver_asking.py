"""Asks a driver's hooks and the driver's permission callback. `ralph/permissions/gate.py` decides when they are asked and
what their answers lead to.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.permissions.gate import Decision, HookFailedError
from ralph.permissions.hook_answers import PROMPT, hook_answer
from ralph.run.driven.control_lines import Response
from ralph.run.driven.permission_requests import decision_of, permission_request
from ralph.run.driven.questions import Gone, Late, Question

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ralph.permissions.hook_answers import HookAnswer
    from ralph.run.driven.hooks import HookTable
    from ralph.run.driven.questions import Questions, Reply
    from ralph.values.tool_calls import ToolCall

_GONE = "the driver has closed standard input, so that nobody can answer"
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
        match reply:
            case Gone():
                return Decision(f"{_FAILED}: {_GONE}. The call was not run")
            case Late(after_s=after_s):
                return Decision(
                    f"{_FAILED}: nobody answered within {after_s:g} s (clocks.driver_s). The call was not run"
                )
            case Response(error=str(error)):
                return Decision(f"{_FAILED}: {error}")
        try:
            return decision_of(reply.fields)
        except ValueError as error:
            return Decision(f"{_FAILED}: the answer is not valid: {error}")


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
        return replace(hook_answer(reply.fields), hook="of the driver")
    except ValueError as error:
        raise HookFailedError(f"its answer is not valid: {error}") from error
