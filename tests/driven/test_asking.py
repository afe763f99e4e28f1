"""The questions that ralph asks a driver: permission for a call, and the answers of its hooks."""

from __future__ import annotations

import pytest

from ralph.driven.control_lines import DEFAULT_S, hook_table
from ralph.driven.driver import decision_of, permission_request
from ralph.permissions.gate import Decision
from ralph.values.answer import ToolCall
from tests.rows import every_row


def test_a_request_says_what_the_call_would_do() -> None:
    call = ToolCall("t1", "Bash", {"command": "ls", "description": "lists"})
    asked = permission_request(call, "a hook asks")
    assert asked["input"] == {"command": "ls", "description": "lists"}
    assert (asked["tool_name"], asked["tool_use_id"]) == ("Bash", "t1")
    assert (asked["description"], asked["decision_reason"]) == ("lists", "a hook asks")
    assert "decision_reason" not in permission_request(call, None)


def test_answers_allow_or_deny_and_anything_else_is_an_error() -> None:
    assert decision_of({"behavior": "allow"}) == Decision()
    changed = decision_of({"behavior": "allow", "updatedInput": {"a": 1}, "toolUseID": "t"})
    assert changed == Decision(arguments={"a": 1})
    denied = decision_of({"behavior": "deny", "message": "no", "interrupt": True})
    assert denied == Decision("no", ends_run=True)
    for wrong in (
        {},
        {"behavior": "maybe"},
        {"behavior": "allow", "updatedInput": "ls"},
        {"behavior": "allow", "updated_input": {"a": 1}},
        {"behavior": "allow", "updatedPermision": []},
    ):
        with pytest.raises(ValueError, match=r"."):
            decision_of(wrong)


def add(behavior: str, *rules: dict[str, str]) -> dict[str, object]:
    return {"type": "addRules", "behavior": behavior, "rules": list(rules), "destination": "session"}


def updated(*updates: dict[str, object]) -> Decision:
    return decision_of({"behavior": "allow", "updatedPermissions": list(updates)})


def test_updates_that_widen_may_be_left_out_and_those_that_limit_may_not() -> None:
    bash, git = {"toolName": "Bash"}, {"toolName": "Bash", "ruleContent": "git *"}
    assert updated(add("allow", bash)).allowed == ("Bash",)
    patterned = updated(add("allow", git))
    assert (patterned.allowed, patterned.ignored, patterned.refused) == ((), ("addRules",), None)
    assert updated({"type": "setMode", "mode": "plan", "destination": "session"}).mode == "plan"
    assert updated({"type": "addDirectories", "directories": ["/x"]}).refused is None
    replacing: dict[str, object] = {"type": "replaceRules", "behavior": "deny", "rules": []}
    for limiting in (add("deny", bash), add("ask", git), replacing):
        assert updated(limiting).refused is not None
    assert updated() == Decision()


# --- Hooks


def test_each_hook_is_called_once_with_its_own_time() -> None:
    table = hook_table(
        {
            "PreToolUse": [
                {"matcher": "Bash", "hookCallbackIds": ["h1", "h2"], "timeout": 5},
                {"hookCallbackIds": ["h2", "h3"]},
            ],
            "Stop": [{"matcher": "never", "hookCallbackIds": ["s"]}],
        }
    )
    assert table.matching("PreToolUse", lambda _: True) == {"h1": 5, "h2": 5, "h3": DEFAULT_S}
    assert [*table.matching("PreToolUse", lambda _: True)] == ["h1", "h2", "h3"], (
        "in the order of their entries"
    )
    others = table.matching("PreToolUse", lambda matcher: "Bash" not in matcher.names)
    assert others == {"h2": DEFAULT_S, "h3": DEFAULT_S}
    assert table.matching("Stop", lambda _: True) == {"s": DEFAULT_S}, "only hooks of tools have a matcher"
    assert table.matching("PostToolUse", lambda _: True) == {}


@every_row(
    ("hooks", "error"),
    [
        (
            {"BeforeEverything": [{"hookCallbackIds": ["h"]}]},
            "ralph has no hook BeforeEverything; it calls PreToolUse",
        ),
        ({"PermissionRequest": [{"hookCallbackIds": ["h"]}]}, "ralph has no hook PermissionRequest"),
        ({"PreToolUse": [{"matcher": "bash", "hookCallbackIds": ["h"]}]}, "did you mean Bash?"),
        ({"PreToolUse": [{"matcher": "/Bash/", "hookCallbackIds": ["h"]}]}, "it matches the name of no tool"),
        ({"PreToolUse": [{"matcher": "(", "hookCallbackIds": ["h"]}]}, "is not a regular expression"),
        ({"PreToolUse": [{"hookCallbackIds": []}]}, "hooks: Expected `array` of length >= 1"),
        ({"PreToolUse": [{"hookCallbackIds": ["h"], "timeout": 0}]}, "hooks: Expected `float` > 0"),
        ({"PreToolUse": [{"hookCallbackIds": ["h"], "onFailure": "x"}]}, "hooks: Invalid enum value 'x'"),
        (["what"], "hooks: Expected `object`, got `array`"),
    ],
)
def test_hooks_that_cannot_be_honoured_are_refused(hooks, error) -> None:
    with pytest.raises(ValueError, match="initialize") as caught:
        hook_table(hooks)
    assert error in str(caught.value)
