"""Makes the request that asks a driver about a tool call, and decodes its answer. No I/O happens here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from ralph.permissions.gate import Decision
from ralph.permissions.hook_answers import check_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.values.tool_calls import ToolCall


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
    """Reads the permission updates of an answer. ralph may ignore an update that gives permissions. The first
    unsupported update that takes permissions away becomes `refused`.
    """
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
