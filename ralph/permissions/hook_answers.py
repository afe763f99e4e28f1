"""Reads the answers of hooks. The rules are those of Claude Code, except that a hook that fails refuses the call
(`specs/permissions.md`). No I/O happens here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import replace

from ralph.values.claude_file import misspelt
from ralph.values.ports import HookStopped
from ralph.values.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ralph.values.answer import ToolCall, ToolOutput

PRE, POST, POST_FAILURE = "PreToolUse", "PostToolUse", "PostToolUseFailure"
PROMPT, STOP = "UserPromptSubmit", "Stop"
EVENTS = (PRE, POST, POST_FAILURE, PROMPT, STOP)
"""The events for which ralph calls hooks."""
OF_TOOLS = frozenset({PRE, POST, POST_FAILURE})
"""The events about a tool call, for which a matcher has an effect."""
GUARDED = (PRE, PROMPT, STOP)
"""The events at which a hook can refuse something, so that its answer is looked for behind lines of text."""
AFTERWARDS = (POST, POST_FAILURE, STOP)
"""The events at which the work is done, so that a command that fails is told to people and refuses nothing."""

_DECIDING = (
    "continue",
    "decision",
    "hookSpecificOutput",
    "permissionDecision",
    "updatedInput",
    "updatedPermissions",
)
"""The keys of an answer without which something else happens than the hook wanted."""


class _Specific(Struct, frozen=True, rename="camel"):
    permission_decision: Literal["allow", "deny", "ask", "defer"] | None = None
    permission_decision_reason: str | None = None
    updated_input: dict[str, Any] | None = None
    additional_context: str | None = None
    updated_tool_output: Any = None


class HookAnswer(Struct, frozen=True, rename="camel"):
    """The answer of a hook. The JSON object `{}` means that the hook neither allows nor refuses anything."""

    continues: bool = field(default=True, name="continue")
    stop_reason: str | None = None
    decision: Literal["approve", "block"] | None = None
    reason: str | None = None
    system_message: str | None = None
    """Accepted without effect, because it is meant for a person at a screen."""
    is_async: bool = field(default=False, name="async")
    """True if the hook continues in the background, so that its answer has no effect."""
    specific: _Specific = field(default_factory=_Specific, name="hookSpecificOutput")
    hook: str = field(default="", name="ralphHook")
    """The name of the hook. ralph sets it, whatever the answer says."""

    @property
    def blocks(self) -> bool:
        """Whether the hook refuses the call, the prompt or the end that it was asked about."""
        decision = self.specific.permission_decision
        return self.decision == "block" or decision in ("deny", "defer")

    def without_secrets(self, redact: Callable[[str], str]) -> HookAnswer:
        """The answer whose texts are redacted. The arguments are not: a file may have to hold what is in them."""
        said = ("permission_decision_reason", "additional_context", "updated_tool_output")
        specific = {name: redacted(getattr(self.specific, name), redact) for name in said}
        return replace(
            self,
            reason=redacted(self.reason, redact),
            stop_reason=redacted(self.stop_reason, redact),
            specific=replace(self.specific, **specific),
        )

    @property
    def why(self) -> str:
        return self.specific.permission_decision_reason or self.reason or "no reason was given"


def hook_answer(fields: Mapping[str, Any]) -> HookAnswer:
    """Decodes an answer. Raises ValueError if a field has the wrong type, or a key that decides is misspelt or in the wrong
    object: the hook has failed. Other unknown keys have no effect.
    """
    try:
        answer = convert(fields, HookAnswer)
    except ValidationError as error:
        raise ValueError(str(error)) from error
    check_keys(fields, HookAnswer)
    check_keys(fields.get("hookSpecificOutput", {}), _Specific)
    return HookAnswer() if answer.is_async else answer


def check_keys(fields: Mapping[str, Any], known: type[Struct]) -> None:
    """Raises ValueError for a key that decides and is misspelt, or belongs to another object than `known`."""
    unknown = fields.keys() - known.__struct_encode_fields__
    misplaced = ((key, key) for key in _DECIDING if key in unknown)
    found = next(misplaced, None) or misspelt(sorted(unknown), _DECIDING)
    if found is not None:
        raise ValueError(f"the key {found[0]!r} is not known there, and is perhaps meant as {found[1]}")


def context_answer(text: str) -> HookAnswer:
    """The answer of a hook whose only effect is to add `text` for the model."""
    return HookAnswer(specific=_Specific(additional_context=text))


class CallVerdict(Struct, frozen=True):
    """The combined decision of all PreToolUse hooks about one call: the strictest one applies."""

    denied: str | None = None
    asks: str | None = None
    allows: bool = False
    """True if a hook allowed the call. Then nobody is asked about it, unless a rule requires that."""
    arguments: dict[str, Any] | None = None
    """The arguments after a hook has changed them, or None if no hook changed them."""
    context: tuple[str, ...] = ()
    """Texts from hooks that the model gets together with the result of the call."""


def call_verdict(answers: Sequence[HookAnswer]) -> CallVerdict:
    specifics = [answer.specific for answer in answers]
    asking = (one.why for one in answers if one.specific.permission_decision == "ask")
    changed = (one.updated_input for one in reversed(specifics) if one.updated_input is not None)
    asks = next(asking, None)
    allows = asks is None and any(one.permission_decision == "allow" for one in specifics)
    return CallVerdict(first_block(answers), asks, allows, next(changed, None), contexts(answers))


def contexts(answers: Iterable[HookAnswer]) -> tuple[str, ...]:
    """The texts that hooks add for the model, taken from the hooks' answers."""
    return tuple(text for one in answers if (text := one.specific.additional_context))


def stop_if_asked(answers: Iterable[HookAnswer]) -> None:
    """Raises HookStopped with the reason of the first hook that ends the work, if one does."""
    for answer in answers:
        if not answer.continues:
            raise HookStopped(f"a hook ended the run: {answer.stop_reason or 'no reason was given'}")


def first_block(answers: Iterable[HookAnswer]) -> str | None:
    """Returns the reason given by the first hook that blocks, or None if no hook blocks."""
    return next((answer.why for answer in answers if answer.blocks), None)


def about_call(call: ToolCall) -> dict[str, Any]:
    """The fields that tell a hook about a tool call."""
    return {"tool_name": call.name, "tool_input": call.arguments, "tool_use_id": call.id}


def about_output(call: ToolCall, output: ToolOutput) -> dict[str, Any]:
    """The fields that tell a hook about a call that ran. For Bash, `stdout` has all output: ralph does not separate the two."""
    if output.is_error:
        return {**about_call(call), "error": _words_of(output), "is_interrupt": False}
    if call.name == "Bash":
        told: object = {"stdout": _words_of(output), "stderr": "", "interrupted": False, "isImage": False}
    else:
        told = output.content if isinstance(output.content, str) else list(output.content)
    return {**about_call(call), "tool_response": told}


def _words_of(output: ToolOutput) -> str:
    if isinstance(output.content, str):
        return output.content
    return "\n".join(str(block["text"]) for block in output.content if block.get("type") == "text")


def with_answers(output: ToolOutput, answers: Sequence[HookAnswer], event: str) -> ToolOutput:
    """The output of a call with what the hooks' answers add, or in their place."""
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
    return output.followed_by("\n".join(added))
