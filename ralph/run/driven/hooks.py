"""The hooks that a driver registers in `initialize`. Decodes the hooks and their answers, and finds the hooks for an
event. No I/O happens here. The rules are those of Claude Code, except that a failed hook refuses the call
(`specs/control.md`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert, field
from msgspec.structs import replace

from ralph.permissions.matcher import matches, why_no_matcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.values.permission_mode import PermissionMode
    from ralph.values.tool_calls import ToolCall, ToolOutput

PRE, POST, POST_FAILURE = "PreToolUse", "PostToolUse", "PostToolUseFailure"
PROMPT, STOP = "UserPromptSubmit", "Stop"
EVENTS = (PRE, POST, POST_FAILURE, PROMPT, STOP)
"""The events for which ralph calls hooks."""
_OF_TOOLS = frozenset({PRE, POST, POST_FAILURE})
OBSERVING = frozenset(
    {
        *(
            "SessionStart",
            "SessionEnd",
            "Setup",
            "Notification",
            "SubagentStart",
            "SubagentStop",
            "PreCompact",
        ),
        *("PostCompact", "StopFailure", "InstructionsLoaded", "ConfigChange", "CwdChanged", "FileChanged"),
        *(
            "WorktreeCreate",
            "WorktreeRemove",
            "TaskCreated",
            "TaskCompleted",
            "TeammateIdle",
            "PermissionDenied",
        ),
        *("PostToolBatch", "Elicitation", "ElicitationResult", "MessageDisplay", "UserPromptExpansion"),
    }
)
"""Events of Claude Code that do not occur in ralph. Ralph accepts hooks for them and never calls these hooks."""

DEFAULT_S = 600.0
"""The time limit in seconds of a hook that sets none, as in Claude Code's reference."""

_Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class HookFacts(Struct, frozen=True):
    """Facts about the session. Every hook gets them as input."""

    session_id: str
    transcript_path: str
    """The path of the journal, or "" if there is no journal."""
    cwd: str

    def fields(self, mode: PermissionMode) -> dict[str, str]:
        """The fields that the input of every hook has. `mode` is the permission mode in force."""
        return {
            "session_id": self.session_id,
            "transcript_path": self.transcript_path,
            "cwd": self.cwd,
            "permission_mode": mode.value,
        }


class HookMatcher(Struct, frozen=True):
    """The hooks that are called for one event. They can be limited to calls of certain tools."""

    callback_ids: Annotated[tuple[str, ...], Meta(min_length=1)] = field(name="hookCallbackIds")
    matcher: str | None = None
    """The names of tools, or a regular expression. None and "" mean all tools."""
    timeout: _Seconds | None = None
    on_failure: Literal["continue", "block"] | None = field(default=None, name="onFailure")
    """Accepted without effect, because a failed hook always refuses the call."""


class Hook(Struct, frozen=True):
    """One hook of the driver. When ralph calls the hook, it sends the driver the hook's id."""

    callback_id: str
    within_s: float


class HookTable(Struct, frozen=True):
    """The hooks of a driver, by event."""

    by_event: Mapping[str, tuple[HookMatcher, ...]] = field(default_factory=dict)

    def matching(self, event: str, tool: str = "") -> tuple[Hook, ...]:
        """The hooks to call for an event, without duplicates. `tool` is the tool's name if the event concerns one."""
        found: dict[str, Hook] = {}
        for each in self.by_event.get(event, ()):
            if event not in _OF_TOOLS or matches(each.matcher, tool):
                for callback_id in each.callback_ids:
                    found.setdefault(callback_id, Hook(callback_id, each.timeout or DEFAULT_S))
        return tuple(found.values())

    @property
    def never_called(self) -> tuple[str, ...]:
        """The events whose hooks ralph never calls, because these events do not occur in ralph."""
        return tuple(name for name in self.by_event if name in OBSERVING)


def hook_table(value: object) -> HookTable:
    """Decodes the `hooks` of an `initialize` request. None means no hooks. Raises ValueError for an unknown event,
    and for a matcher that is not a valid regular expression.
    """
    if value is None:
        return HookTable()
    try:
        by_event = convert(value, dict[str, tuple[HookMatcher, ...] | None])
    except ValidationError as error:
        raise ValueError(f"initialize: hooks: {error}") from error
    wanted = {name: matchers for name, matchers in by_event.items() if matchers}
    unknown = [name for name in wanted if name not in EVENTS and name not in OBSERVING]
    if unknown:
        raise ValueError(f"initialize: ralph has no hook {', '.join(unknown)}; it calls {', '.join(EVENTS)}")
    for name, matchers in wanted.items():
        for each in matchers if name in _OF_TOOLS else ():
            why = why_no_matcher(each.matcher)
            if why is not None:
                raise ValueError(f"initialize: the matcher {each.matcher!r} of a hook cannot be kept: {why}")
    return HookTable(wanted)


class _Specific(Struct, frozen=True, rename="camel"):
    permission_decision: Literal["allow", "deny", "ask", "defer"] | None = None
    permission_decision_reason: str | None = None
    updated_input: dict[str, Any] | None = None
    additional_context: str | None = None
    updated_tool_output: Any = None


class HookAnswer(Struct, frozen=True, rename="camel"):
    """The answer of a hook. The JSON object `{}` means that the hook neither allows nor refuses anything."""

    goes_on: bool = field(default=True, name="continue")
    stop_reason: str | None = None
    decision: Literal["approve", "block"] | None = None
    reason: str | None = None
    system_message: str | None = None
    """Accepted without effect, because it is meant for a person at a screen."""
    is_async: bool = field(default=False, name="async")
    """True if the hook continues in the background, so that its answer has no effect."""
    specific: _Specific = field(default_factory=_Specific, name="hookSpecificOutput")

    @property
    def blocks(self) -> bool:
        """Whether the hook refuses the call, the prompt or the end that it was asked about."""
        decision = self.specific.permission_decision
        return self.decision == "block" or decision in ("deny", "defer")

    @property
    def why(self) -> str:
        return self.specific.permission_decision_reason or self.reason or "no reason was given"


def hook_answer(fields: Mapping[str, Any]) -> HookAnswer:
    """Decodes an answer. Raises ValueError if a field has the wrong type; the hook then counts as failed."""
    try:
        answer = convert(fields, HookAnswer)
    except ValidationError as error:
        raise ValueError(str(error)) from error
    return HookAnswer() if answer.is_async else answer


def context_answer(text: str) -> HookAnswer:
    """The answer of a hook whose only effect is to add `text` for the model."""
    return HookAnswer(specific=_Specific(additional_context=text))


class CallVerdict(Struct, frozen=True):
    """The combined decision of all PreToolUse hooks about one call. If their decisions differ, the strictest one
    applies.
    """

    denied: str | None = None
    """The reason why the call must not run, or None."""
    asks: str | None = None
    """The reason why somebody must be asked about the call, or None."""
    allows: bool = False
    """True if a hook allowed the call. Then nobody is asked about it, unless a rule requires that."""
    arguments: dict[str, Any] | None = None
    """The arguments after a hook has changed them, or None if no hook changed them."""
    context: tuple[str, ...] = ()
    """Texts from hooks that the model gets together with the result of the call."""


def call_verdict(answers: Iterable[HookAnswer]) -> CallVerdict:
    denied: str | None = None
    asks: str | None = None
    arguments: dict[str, Any] | None = None
    allows = False
    context: list[str] = []
    for answer in answers:
        specific = answer.specific
        if answer.blocks and denied is None:
            denied = answer.why
        if specific.permission_decision == "ask" and asks is None:
            asks = answer.why
        allows |= specific.permission_decision == "allow"
        arguments = specific.updated_input if specific.updated_input is not None else arguments
        context += _context_of(answer)
    return CallVerdict(denied, asks, allows and asks is None, arguments, tuple(context))


def contexts(answers: Iterable[HookAnswer]) -> tuple[str, ...]:
    """The texts that hooks add for the model, taken from the hooks' answers."""
    return tuple(text for answer in answers for text in _context_of(answer))


def first_stop(answers: Iterable[HookAnswer]) -> str | None:
    """The first hook that ends the run gives a reason. Returns this reason, or None if no hook ends the run."""
    for answer in answers:
        if not answer.goes_on:
            return answer.stop_reason or "a hook ended the run"
    return None


def first_block(answers: Iterable[HookAnswer]) -> str | None:
    """Returns the reason given by the first hook that blocks, or None if no hook blocks."""
    return next((answer.why for answer in answers if answer.blocks), None)


def _context_of(answer: HookAnswer) -> Iterator[str]:
    if answer.specific.additional_context:
        yield answer.specific.additional_context


def about_call(call: ToolCall) -> dict[str, Any]:
    """The fields that tell a hook about a tool call."""
    return {"tool_name": call.name, "tool_input": call.arguments, "tool_use_id": call.id}


def response_of(call: ToolCall, output: ToolOutput) -> object:
    """The output of a call in the form that hooks get. For Bash, all output is in `stdout`, because ralph does not
    separate standard output and standard error.
    """
    if call.name == "Bash":
        return {"stdout": words_of(output), "stderr": "", "interrupted": False, "isImage": False}
    return output.content if isinstance(output.content, str) else list(output.content)


def words_of(output: ToolOutput) -> str:
    if isinstance(output.content, str):
        return output.content
    return "\n".join(str(block["text"]) for block in output.content if block.get("type") == "text")


def with_answers(output: ToolOutput, answers: Sequence[HookAnswer], event: str) -> ToolOutput:
    """The output of a call after the hooks' answers were applied. A hook can add a text to the output or replace the
    output.
    """
    for answer in answers:
        new = answer.specific.updated_tool_output
        if new is not None:
            output = replace(
                output, content=new if isinstance(new, str) else json.dumps(new, ensure_ascii=False)
            )
    added = [*contexts(answers)]
    blocked = first_block(answers)
    if blocked is not None:
        added.append(f"{event} hook feedback:\n{blocked}")
    if not added:
        return output
    words = "\n".join(added)
    if isinstance(output.content, str):
        return replace(output, content=f"{output.content}\n\n{words}")
    return replace(output, content=(*output.content, {"type": "text", "text": words}))
