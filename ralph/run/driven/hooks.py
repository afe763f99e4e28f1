"""The hooks that a driver registers in `initialize`: their matchers, and the meaning of their answers. No I/O happens
here. The rules are those of Claude Code, except that a failed hook refuses the call (`specs/control.md`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
_PLAIN_NAME = re.compile(r"[\w\-]+(?:[|,]\s*[\w\-]+)*")

_Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class HookMatcher(Struct, frozen=True):
    """The hooks of one event for certain tools."""

    callback_ids: Annotated[tuple[str, ...], Meta(min_length=1)] = field(name="hookCallbackIds")
    matcher: str | None = None
    """The names of tools, or a regular expression. None and "" mean all tools."""
    timeout: _Seconds | None = None
    on_failure: Literal["continue", "block"] | None = field(default=None, name="onFailure")
    """Accepted without effect, because a failed hook always refuses the call."""


class Hook(Struct, frozen=True):
    """A hook to call. The driver identifies it by its id."""

    callback_id: str
    within_s: float


class HookTable(Struct, frozen=True):
    """The hooks of a driver, by event."""

    by_event: Mapping[str, tuple[HookMatcher, ...]] = field(default_factory=dict)

    def matching(self, event: str, tool: str = "") -> tuple[Hook, ...]:
        """The hooks to call for an event, without duplicates. `tool` is the name of the tool, if the event concerns
        one.
        """
        found: dict[str, Hook] = {}
        for each in self.by_event.get(event, ()):
            if event not in _OF_TOOLS or matches(each.matcher, tool):
                for callback_id in each.callback_ids:
                    found.setdefault(callback_id, Hook(callback_id, each.timeout or DEFAULT_S))
        return tuple(found.values())

    @property
    def never_called(self) -> tuple[str, ...]:
        """The events with hooks that ralph never calls, because it does not have these events."""
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
            _check_matcher(each.matcher)
    return HookTable(wanted)


def matches(matcher: str | None, tool: str) -> bool:
    """Whether a matcher covers a tool.

    A plain name, and each name of a list `A|B` or `A,B`, covers exactly the tool of that name. Anything else is a
    regular expression, which may match anywhere in the name.
    """
    if matcher is None or matcher in ("", "*"):
        return True
    if _PLAIN_NAME.fullmatch(matcher):
        return tool in re.split(r"[|,]\s*", matcher)
    return re.search(matcher, tool) is not None


def _check_matcher(matcher: str | None) -> None:
    if matcher in (None, "", "*"):
        return
    try:
        re.compile(matcher)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"initialize: the matcher of a hook is no regular expression: {error}") from error


class _Specific(Struct, frozen=True, rename="camel"):
    permission_decision: Literal["allow", "deny", "ask", "defer"] | None = None
    permission_decision_reason: str | None = None
    updated_input: dict[str, Any] | None = None
    additional_context: str | None = None
    updated_tool_output: Any = None


class HookAnswer(Struct, frozen=True, rename="camel"):
    """The answer of a hook. `{}` means that it has no opinion."""

    goes_on: bool = field(default=True, name="continue")
    stop_reason: str | None = None
    decision: Literal["approve", "block"] | None = None
    reason: str | None = None
    system_message: str | None = None
    """Accepted without effect, because it is meant for a person at a screen."""
    is_async: bool = field(default=False, name="async")
    """True if the hook continues in the background and has no opinion."""
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
    """The combined decision of all PreToolUse hooks about one call. The strictest decision counts."""

    denied: str | None = None
    """The reason why the call must not run, or None."""
    asks: str | None = None
    """The reason why somebody must be asked about the call, or None."""
    allows: bool = False
    """True if a hook allowed the call. Then nobody is asked about it, unless a rule requires that."""
    arguments: dict[str, Any] | None = None
    """The changed arguments, or None if they stay as they are."""
    context: tuple[str, ...] = ()
    """Texts that the model gets with the result."""


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
    """The texts that hooks add for the model."""
    return tuple(text for answer in answers for text in _context_of(answer))


def first_stop(answers: Iterable[HookAnswer]) -> str | None:
    """The reason of the first hook that ends the run, or None if no hook does."""
    for answer in answers:
        if not answer.goes_on:
            return answer.stop_reason or "a hook ended the run"
    return None


def first_block(answers: Iterable[HookAnswer]) -> str | None:
    """The reason of the first hook that blocks, or None if no hook does."""
    return next((answer.why for answer in answers if answer.blocks), None)


def _context_of(answer: HookAnswer) -> Iterator[str]:
    if answer.specific.additional_context:
        yield answer.specific.additional_context


def about_call(call: ToolCall) -> dict[str, Any]:
    """The fields that describe a call to a hook."""
    return {"tool_name": call.name, "tool_input": call.arguments, "tool_use_id": call.id}


def response_of(call: ToolCall, output: ToolOutput) -> object:
    """The output in the form that a hook gets. For Bash, all output is in `stdout`, because ralph does not separate
    the streams.
    """
    if call.name == "Bash":
        return {"stdout": words_of(output), "stderr": "", "interrupted": False, "isImage": False}
    return output.content if isinstance(output.content, str) else list(output.content)


def words_of(output: ToolOutput) -> str:
    if isinstance(output.content, str):
        return output.content
    return "\n".join(str(block["text"]) for block in output.content if block.get("type") == "text")
