"""How a driver is asked about a call, and how its answer is decoded."""

from __future__ import annotations

import pytest

from ralph.driven.driver import decision_of, permission_request
from ralph.permissions.gate import Decision
from ralph.values.answer import ToolCall


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
